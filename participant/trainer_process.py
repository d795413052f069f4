"""Training in a process of its own, so that a crash or an out-of-memory kill costs one round and not the service.

The parent starts `python -m participant.trainer_process FD` and speaks JSON lines over the socket FD; models are
handed over as files. The child ends when its parent is gone, whatever it is doing.

    -> {"do": "prepare", ...}      <- {"done": value} | {"progress": share, "figures": {}} | {"failed": text}
"""

import contextlib
import importlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

from fedpeer.extras import missing
from fedpeer.streams import secure_standard_streams, unfailing
from mechanism.errors import kind_of
from mechanism.terms import Terms
from participant.errors import ConfigurationError, ParticipantError, TaskError, TrainingError
from participant.task import Task, TrainingCancelled, TrainingRound
from participant.work import LocalTrainer, TrainedFile

#: Seconds that a trainer may take to end before it is killed.
END_SECONDS = 5.0


#: Children that may die one after another before anything is trained, until the task is given up.
ATTEMPTS = 3

_log = logging.getLogger("participant")


@dataclass(frozen=True)
class TaskSpec:
    """How a `Task` is made.

    Attributes:
        factory: "module:name" of a callable that returns a `Task`.
        options: its keyword arguments; JSON values.
    """

    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Task:
        """Makes the task.

        Raises:
            ConfigurationError: no such module or name, arguments that it refuses, or something that is not a task.
        """
        module, colon, name = self.factory.partition(":")
        if not colon:
            raise ConfigurationError(f"the task factory is {self.factory!r}; expected module:name")
        try:
            factory = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            lacking = missing(error) if isinstance(error, ImportError) else None
            raise ConfigurationError(
                f"the task factory {self.factory} cannot be imported: {lacking}"
                if lacking
                else f"the task factory {self.factory} cannot be imported ({error}); is its folder on PYTHONPATH?"
            ) from error
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"the task factory {self.factory} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        try:
            task = factory(**self.options)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"{self.factory} with the options {dict(self.options)} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(task, Task):
            raise ConfigurationError(f"{self.factory} returned {kind_of(task)}; expected a Task")
        return task


def check_options(options: Any, path: str = "options") -> None:
    """Raises ConfigurationError where an option is not JSON value, which is what reaches a process of its own."""
    match options:
        case Mapping():
            for key, value in options.items():
                if not isinstance(key, str):
                    raise ConfigurationError(f"{path} has the key {key!r:.60}; expected keys that are texts")
                check_options(value, f"{path}.{key}")
        case list() | tuple():
            for position, value in enumerate(options):
                check_options(value, f"{path}.{position}")
        case None | bool() | int() | float() | str():
            pass
        case _:
            raise ConfigurationError(
                f"{path} is {kind_of(options)} ({options!s:.60}); expected a text, a number, true or false, a "
                "list or a table: write a date as a text in quotes"
            )


class ProcessTrainer:
    """A `Trainer` that runs its task in a process of its own, started when it is first needed.

    A child that died is started again at the next call, prepared, and brought to the same effort.
    """

    def __init__(self, spec: TaskSpec) -> None:
        check_options(spec.options)
        self._spec = spec
        self._child: _Child | None = None
        self._terms: Terms | None = None
        self._effort: float | None = None
        self._cancelled = threading.Event()

    def start(self) -> None:
        """Starts the child and has it make the task, so that a mistake in that shows before any terms are agreed to.

        Raises:
            ConfigurationError: as `TaskSpec.build`.
        """
        self._persistently(lambda child: None)

    def prepare(self, terms: Terms) -> None:
        self._terms = terms
        self._persistently(lambda child: None)

    def counts(self) -> Sequence[int]:
        counts = self._persistently(lambda child: child.call({"do": "counts"}))
        return [int(count) for count in counts]

    def collect(self, effort: float) -> None:
        self._persistently(lambda child: child.call({"do": "collect", "effort": effort}))
        self._effort = effort

    def samples_root(self, salt: bytes) -> bytes:
        root = self._persistently(lambda child: child.call({"do": "samples_root", "salt": salt.hex()}))
        return bytes.fromhex(root)

    def train(self, start: Path, trained: Path, round: TrainingRound) -> TrainedFile:  # noqa: A002 - as Task.train
        request = {
            "do": "train",
            "start": str(start.absolute()),
            "trained": str(trained.absolute()),
            "participant_id": round.participant_id,
            "round": round.number,
            "deadline": round.deadline.isoformat() if round.deadline else None,
        }
        made = self._persistently(lambda child: child).call(request, round)
        return TrainedFile(int(made["samples"]), made["metrics"])

    @property
    def pid(self) -> int | None:
        """Of the child, where one runs."""
        return self._child.pid if self._child is not None and self._child.running else None

    def cancel(self) -> None:
        """Ends the child; a training in progress raises TrainingCancelled. Safe from another thread."""
        self._cancelled.set()
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _persistently(self, use: Callable[["_Child"], Any]) -> Any:
        """What `use` gives of a child that is ready, with another child where one dies. Not for training itself:
        a round whose training killed its process is reported, not tried again until the machine is worn out."""
        for _ in range(ATTEMPTS - 1):
            try:
                return use(self._ready())
            except _ChildDiedError as error:
                _log.warning("%s; it is started again", error)
        return use(self._ready())

    def _ready(self) -> "_Child":
        if self._cancelled.is_set():
            raise TrainingCancelled
        if self._child is not None and not self._child.running:
            self.close()
        if self._child is None:
            self._child = _Child(self._spec, self._cancelled)
            if self._terms is not None:
                self._child.call({"do": "prepare", "terms": self._terms.record()})
            if self._effort is not None:
                self._child.call({"do": "collect", "effort": self._effort})
        elif self._terms is not None and not self._child.prepared:
            self._child.call({"do": "prepare", "terms": self._terms.record()})
        self._child.prepared = self._terms is not None
        return self._child


class _ChildDiedError(TrainingError):
    """The child is gone without an answer."""


class _Child:
    def __init__(self, spec: TaskSpec, cancelled: threading.Event) -> None:
        self.prepared = False
        self._cancelled = cancelled
        self._process = subprocess.Popen(
            # -P: no folder of the user's comes before ours on Python's path.
            [sys.executable, "-P", "-m", "participant.trainer_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self.call({"do": "build", "factory": spec.factory, "options": dict(spec.options)})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def call(self, request: Mapping[str, Any], round_: TrainingRound | None = None) -> Any:
        """The child's answer; its progress goes to `round_`."""
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
            for line in self._answers:
                answer = json.loads(line)
                if "progress" in answer:
                    if round_ is not None:
                        round_.progress(answer["progress"], **answer["figures"])
                elif "failed" in answer:
                    raise _failure(answer)
                else:
                    return answer["done"]
        except OSError:
            pass  # the child is gone: the same as the end of its lines
        except TrainingCancelled:
            self.kill()
            self._process.wait()
            raise
        end = self._end()
        if self._cancelled.is_set():
            raise TrainingCancelled
        raise _ChildDiedError(f"the training process {end}")

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._requests.close()  # the child ends when its requests do
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def _end(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}; its last words are in the log"
        name = signal.Signals(-code).name
        hint = "; the system may have run out of memory: train with smaller batches or less data"
        return f"was killed by {name}" + (hint if name == "SIGKILL" else "")


_KINDS: dict[str, type[ParticipantError]] = {
    kind.__name__: kind for kind in (ConfigurationError, TaskError, TrainingError, ParticipantError)
}


def _failure(answer: Mapping[str, Any]) -> ParticipantError:
    """The error that the child reports."""
    kind = _KINDS[answer["kind"]]
    if issubclass(kind, TaskError):
        return kind(answer["failed"], public=answer["public"])
    return kind(answer["failed"])


class _TrainerServer:
    """The child's side."""

    def __init__(self, lines: IO[bytes], answers: IO[bytes]) -> None:
        self._lines = lines
        self._answers = answers
        self._requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self._trainer: LocalTrainer | None = None
        self._terms: Terms | None = None

    def serve(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            request = self._requests.get()
            try:
                self._send({"done": self._carry_out(request)})
            except ParticipantError as error:
                kind = next(k.__name__ for k in type(error).__mro__ if k.__name__ in _KINDS)
                public = error.public if isinstance(error, TaskError) else str(error)
                self._send({"failed": str(error), "kind": kind, "public": public})
            except Exception as error:  # whatever it is: the service does not guess at a dead child
                traceback.print_exc()
                what = f"{request['do']} failed with {type(error).__name__}"
                self._send({"failed": f"{what}: {error}", "kind": TaskError.__name__, "public": what})

    def _carry_out(self, request: dict[str, Any]) -> Any:
        if request["do"] == "build":
            self._trainer = LocalTrainer(TaskSpec(request["factory"], request["options"]).build())
            return None
        trainer = cast("LocalTrainer", self._trainer)
        match request["do"]:
            case "prepare":
                self._terms = Terms.from_record(request["terms"])
                trainer.prepare(self._terms)
            case "counts":
                return list(trainer.counts())
            case "collect":
                trainer.collect(request["effort"])
            case "samples_root":
                return trainer.samples_root(bytes.fromhex(request["salt"])).hex()
            case "train":
                return self._train(trainer, request)
        return None

    def _train(self, trainer: LocalTrainer, request: dict[str, Any]) -> Any:
        context = TrainingRound(
            terms=cast("Terms", self._terms),
            participant_id=request["participant_id"],
            number=request["round"],
            deadline=datetime.fromisoformat(request["deadline"]) if request["deadline"] else None,
            on_progress=lambda done, figures: self._send(
                {"progress": done, "figures": {name: float(value) for name, value in figures.items()}}
            ),
        )
        made = trainer.train(Path(request["start"]), Path(request["trained"]), context)
        return {"samples": made.samples, "metrics": dict(made.metrics)}

    def _send(self, answer: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(answer).encode() + b"\n")
        self._answers.flush()

    def _read(self) -> None:
        """Takes requests in, and ends the process with its parent, even in the middle of a training."""
        try:
            for line in self._lines:
                self._requests.put(json.loads(line))
        finally:  # whatever it was, nobody would ask for anything any more
            os._exit(0)


def main() -> None:
    """The child."""
    secure_standard_streams()
    sys.stdout = unfailing(sys.stdout)  # what a task prints goes to the service's log
    # A terminal sends Ctrl-C to the whole group; the parent decides what becomes of the training.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.insert(0, str(Path.cwd()))  # where the task's own modules are looked for first
    # Standard input and output are the service's line to the child; what the training prints goes to standard error.
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # the service has no standard error
        os.dup2(nothing, 1)
    _TrainerServer(lines, answers).serve()


if __name__ == "__main__":
    main()
