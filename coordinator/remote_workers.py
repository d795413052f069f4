"""Heavy work on other machines: an executor over Dask's, whose results are those of this machine.

A call travels as `coordinator.packing` packs it, to a worker of the same arithmetic as this process's
(`fedpeer.learning.arithmetic`): workers offer theirs as a resource of Dask's, and each result says by which it came.
So a call comes to the same bits wherever it is done, once or twice, and what the machines do is a question of
time alone:

    a worker dies            Dask gives its calls to another
    the scheduler dies       calls are handed in again when it is back
    nothing comes back       for `wait_seconds`, whatever the cause: this machine does the calls, too, and the first
                             result counts. Until then the round waits, and `trouble` says what for
    a call fails             here it is done again: it succeeds, or fails with its own error
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from coordinator.blobs import BlobStore, open_blobs
from coordinator.config import WORKER_FILE, WorkerConfig, WorkersSection, read_config
from coordinator.errors import ConfigError
from coordinator.packing import Packer, Unpacker
from coordinator.shadow_workers import LocalWorkers, heavy
from fedpeer.extras import missing
from fedpeer.learning.samples import Samples
from fedpeer.terminal import counted, printable
from mechanism.terms import Recipe

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

Result = TypeVar("Result")

log = structlog.get_logger()

#: Bytes of a round's models from which workers do their mean: fewer this process reads in a few seconds.
_WORTH_WORKERS = 4 << 30

#: Seconds between looks at what is outstanding where nothing happens.
_LOOK = 1.0

#: Seconds that a scheduler gets to answer, and between attempts to reach one that did not.
_ANSWER, _AGAIN = 5.0, 2.0

#: Failures of one call elsewhere after which it is done here.
_FAILURES = 3

#: Seconds without work after which the connection is closed.
_IDLE = 300.0

#: What a worker offers, followed by the digest of its arithmetic.
RESOURCE = "arithmetic-"

#: Where a worker's process finds its folder.
WORKER_FOLDER = "FEDPEER_WORKER"


@dataclass(eq=False)
class _WorkerCall:
    """A call that somebody waits for.

    Attributes:
        outer: what they wait for; elsewhere, here: who does it.
    """

    outer: Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    elsewhere: Future[Any] | None = None
    here: Future[Any] | None = None
    failures: int = 0


class RemoteExecutor(Executor):
    """Calls on Dask's workers, and here where those do not answer.

    Args:
        address: of the scheduler, host:port.
        security: certificates; None: none are asked for.
        blobs: the store that this process and all workers see.
        local: does calls on this machine.
        wait_seconds: how long nothing may come back before this machine joins in.
        device: of torch, on which they and this process train models together; empty: one after another.
    """

    def __init__(
        self,
        address: str,
        security: "Callable[[], Security] | None",
        blobs: BlobStore,
        local: Executor,
        wait_seconds: float,
        device: str = "",
    ) -> None:
        self._address, self._security = address, security
        self._packer, self._local, self._wait, self._device = Packer(blobs), local, wait_seconds, device
        self._calls: list[_WorkerCall] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._stopping = False
        self._progress = self._tried = time.monotonic()
        #: Digests that calls in progress need.
        self.needed: set[bytes] = set()
        #: What is waited for; "" where all goes as it should.
        self.trouble = ""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        outer: Future[Result] = Future()
        outer.set_running_or_notify_cancel()
        with self._changed:
            if not self._calls:
                self._progress = time.monotonic()
            self._calls.append(_WorkerCall(outer, partial(fn, **kwargs) if kwargs else fn, args))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="remote workers", daemon=True)
                self._thread.start()
            self._changed.notify()
        return outer

    @property
    def outstanding(self) -> int:
        """Calls that somebody waits for."""
        with self._changed:
            return sum(not call.outer.done() for call in self._calls)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Gives up all calls."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if wait and self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._calls = [call for call in self._calls if not call.outer.done()]
                if self._stopping:
                    break
                idle = False
                if not self._calls:
                    self.needed.clear()
                    self.trouble = ""
                    idle = not self._changed.wait(_IDLE if self._client is not None else None)
                calls = list(self._calls)
            if not calls:
                if idle:
                    self._leave()
                continue
            try:
                self._look(calls)
            except Exception as error:  # of Dask's, whatever it is: the calls are done here in the end
                log.warning("work cannot be handed to workers just now", why=_said(error))
                self._leave()
            with self._changed:
                if not self._stopping and any(not call.outer.done() for call in calls):
                    self._changed.wait(_LOOK)
        self._leave()
        with self._changed:
            for call in self._calls:
                if self._stopping and not call.outer.done():
                    call.outer.set_exception(RuntimeError("the service is stopping"))

    def _look(self, calls: list[_WorkerCall]) -> None:
        """Hands out what nobody does, and does it here where nothing has come back for too long."""
        waiting = [call for call in calls if call.here is None]
        if waiting and time.monotonic() - self._progress >= self._wait:
            log.warning(
                "nothing came back from the workers; this machine goes on by itself",
                scheduler=self._address,
                seconds=self._wait,
                calls=len(waiting),
                why=self.trouble or "workers are slow",
            )
            for call in waiting:
                self._do_here(call)
            return
        unassigned = [call for call in waiting if call.elsewhere is None and call.failures < _FAILURES]
        for call in waiting:
            if call.failures >= _FAILURES:
                self._do_here(call)
        client = self._connected()
        if client is None:
            return
        from fedpeer.learning.arithmetic import arithmetic, arithmetic_digest

        found = arithmetic(self._device)
        digest = arithmetic_digest(found)
        own = RESOURCE + digest
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        fitting = sum(own in worker["resources"] for worker in workers)
        if not fitting:
            self._say(
                f"the scheduler at {self._address} has {counted(len(workers), 'worker')} and none of this machine's "
                f"arithmetic, {digest}: {', '.join(f'{name} {value}' for name, value in found.items())}; "
                "`fedpeer worker run` says each worker's: give them this machine's packages, and processors of its kind"
            )
        else:
            self._say("")
        if unassigned:
            executor = client.get_executor(pure=False, resources={own: 1})
            for call in unassigned:
                content, digests = self._packer.pack(call.function, call.arguments)
                self.needed |= digests
                call.elsewhere = executor.submit(perform, content)
                call.elsewhere.add_done_callback(partial(self._come, call))

    def _come(self, call: _WorkerCall, done: Future[Any]) -> None:
        """A call elsewhere has ended, one way or the other."""
        from fedpeer.learning.arithmetic import arithmetic

        with self._changed:
            if call.elsewhere is not done or call.outer.done():
                return
            call.elsewhere = None
            if done.cancelled() or done.exception() is not None:
                # A lost scheduler's calls are cancelled, and handed in again; what failed may fail again.
                if not done.cancelled():
                    call.failures += 1
                    log.warning("a call failed on a worker", why=_said(done.exception()))
                self._changed.notify()
                return
            found, result = done.result()
            if dict(found) != dict(arithmetic(self._device)):
                call.failures = _FAILURES
                log.warning("a worker computes otherwise than it said", arithmetic=found)
                self._changed.notify()
                return
            self._progress = time.monotonic()
            call.outer.set_result(result)
            self._changed.notify()

    def _do_here(self, call: _WorkerCall) -> None:
        def ended(done: Future[Any]) -> None:
            with self._changed:
                if not call.outer.done():
                    error = done.exception()
                    if error is not None:
                        call.outer.set_exception(error)
                    else:
                        call.outer.set_result(done.result())
                self._changed.notify()

        call.here = self._local.submit(call.function, *call.arguments)
        call.here.add_done_callback(ended)

    def _connected(self) -> "Client | None":
        """The connection to the scheduler; None while there is none."""
        if self._client is not None and self._client.status == "running":
            return self._client
        if time.monotonic() - self._tried < _AGAIN and self.trouble:
            return None
        self._leave()
        self._tried = time.monotonic()
        from distributed import Client

        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it logs what this module says itself
        try:
            self._client = Client(
                f"{'tcp' if self._security is None else 'tls'}://{self._address}",
                security=None if self._security is None else self._security(),
                timeout=_ANSWER,
                set_as_default=False,
                name="fedpeer",
            )
        except (OSError, TimeoutError, ValueError) as error:
            self._say(f"the scheduler at {self._address} does not answer ({_said(error)})")
        return self._client

    def _leave(self) -> None:
        """Closes the connection, with which the calls that were handed in are lost."""
        client, self._client = self._client, None
        with self._changed:
            for call in self._calls:
                call.elsewhere = None
        if client is not None:
            with suppress(Exception):  # it may be closing already
                client.close(timeout=_ANSWER)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.warning(
                "the round waits for workers", why=trouble, goes_on_here_after_seconds=round(self._wait)
            )
        elif self.trouble and not trouble:
            log.info("workers answer again", scheduler=self._address)
        self.trouble = trouble


class RemoteWorkers(LocalWorkers):
    """Workers by address, for all that is heavy."""

    def __init__(self, section: WorkersSection, security: "Callable[[], Security]", blobs: BlobStore) -> None:
        super().__init__(section.device)
        try:
            import distributed  # noqa: F401
        except ImportError as error:
            raise ConfigError(f"workers.executor cannot be used: {missing(error) or error}") from None
        self._executor = RemoteExecutor(
            section.executor.removeprefix("dask://"),
            security,
            blobs,
            self.pool(),
            section.wait_seconds,
            section.device,
        )

    def for_shadows(self, recipe: Recipe, validation: Samples, shadows: int) -> Executor | None:
        return self._executor if heavy(recipe, validation, shadows) else None

    def for_means(self, size: int) -> Executor | None:
        return self._executor if size >= _WORTH_WORKERS else None

    @property
    def trouble(self) -> str:
        return self._executor.trouble

    @property
    def outstanding(self) -> int:
        return self._executor.outstanding

    @property
    def needed(self) -> set[bytes]:
        return set(self._executor.needed)

    def close(self) -> None:
        self._executor.shutdown(wait=False)


def perform(content: bytes) -> tuple[dict[str, str], Any]:
    """On a worker: what a packed call comes to, and by which arithmetic."""
    import torch

    from fedpeer.learning.arithmetic import arithmetic

    torch.set_num_threads(1)
    unpacker, device = _here()
    function, arguments = unpacker.unpack(content)
    return dict(arithmetic(device)), function(*arguments)


_opened: dict[str, tuple[Unpacker, str]] = {}


def _here() -> tuple[Unpacker, str]:
    """Over the store that this process's folder names; and the device that it names."""
    folder = Path(os.environ[WORKER_FOLDER])
    if str(folder) not in _opened:
        config = read_config(folder / WORKER_FILE, WorkerConfig)
        models = folder / "models" if config.s3.bucket else Path(config.models)
        blobs = open_blobs(models, config.s3, folder)
        if config.s3.bucket:  # its folder has copies, which are counted
            blobs.prepare()
        _opened[str(folder)] = Unpacker(blobs), config.device
    return _opened[str(folder)]


def _said(error: BaseException | None) -> str:
    """An error in one line, without what a library adds below."""
    words = str(error).strip().splitlines() or [""]
    return printable(f"{type(error).__name__}: {words[0]}"[:300])
