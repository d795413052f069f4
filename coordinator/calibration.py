"""What a task file's Phi and Upsilon rest on: a calibration, of this workload, recipe and D_c or of others.

`fedpeer calibrate` measures (`fedpeer.evidence.gaps`), proposes (`mechanism.proposal`) and writes the numbers
into the task file, with a section [calibration] that says of what they are. Opening a task refuses a calibration of
something else, and says where there is none.
"""

import hashlib
import json
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.items import Item, Table

from coordinator.config import CalibrationSection, TaskConfig
from coordinator.errors import FolderError, MarketTaskError
from coordinator.learner_data import commit_validation
from coordinator.opening import PreparedTask
from coordinator.scoring import evidence_task
from coordinator.shadow_workers import LocalWorkers
from coordinator.staging import staged, sync, writing
from coordinator.workload import end, folder_of, workload_of
from fedpeer.learning.datasets import home_folder
from fedpeer.protocol.model_file import open_model
from fedpeer.text_files import TextFileError, read_text
from mechanism.canonical import canonical_bytes

if TYPE_CHECKING:  # evidence imports torch, which most commands do without
    from fedpeer.evidence.gaps import MeasuredGaps
    from fedpeer.evidence.measuring import Report

#: Seed of the shadows. They are no round's, so nobody learns of evidence from it; who has D_c measures the same again.
SEED = 0

#: Stand for what a calibration gives, in a file that has none yet.
_PLACEHOLDERS = {"Q": 10, "phi": 1, "upsilon": 1}


@dataclass(frozen=True)
class Basis:
    """SHA-256 of what gaps hang on, hexadecimal.

    Attributes:
        workload: of its name, its factory's files, and the first model where it is a file.
        recipe: of the rest of its record; data: of D_c, its strata and the reference.
    """

    workload: str
    recipe: str
    data: str


def basis(task: PreparedTask, config: TaskConfig) -> Basis:
    """Of a task with D_c."""
    assert task.data is not None, "only a task with D_c is calibrated"
    terms = task.row.terms
    record = terms.record()
    recipe = {**record["recipe"]}
    given = terms.initial_model.hex() if config.initial_model is not None else ""
    workload = {"initial_model": given, "model": recipe.pop("model"), "source": recipe.pop("source", None)}
    held = {"validation": commit_validation(task.data.validation, b"").hex(), "strata": record.get("strata")}
    parts = (workload, recipe, {**held, "reference": record["reference"]})
    return Basis(*(hashlib.sha256(canonical_bytes(part)).hexdigest() for part in parts))


def calibratable(task: PreparedTask) -> bool:
    """Whether there is something to measure: D_c, and a model that can be trained here."""
    return task.data is not None and task.row.terms.recipe.model != "custom"


def check_calibration(task: PreparedTask, config: TaskConfig) -> tuple[str, ...]:
    """What is to be said of the calibration that a task file holds, or lacks, as sentences.

    Raises:
        MarketTaskError: it is of something else, or its numbers were changed.
    """
    made = config.calibration
    if not calibratable(task):
        if made is not None:
            raise MarketTaskError(
                "the task file holds a calibration, and there is nothing it could be of: no [data], or a model of "
                "your own; remove the section [calibration]"
            )
        return ()
    if made is None:
        return (
            "phi and upsilon were not measured on this task, so that nobody knows what they make participants do; "
            "`fedpeer calibrate` measures them and proposes the other numbers.",
        )
    again = "run `fedpeer calibrate` again, or remove the section [calibration]"
    now = basis(task, config)
    words = {"workload": "another model", "recipe": "another recipe", "data": "another D_c"}
    others = [said for name, said in words.items() if getattr(now, name) != getattr(made, name)]
    if others:
        raise MarketTaskError(
            f"the calibration in the task file is of {' and '.join(others)} than the task's; {again}"
        )
    for name in ("phi", "upsilon"):
        if getattr(made, name) != getattr(config, name):
            raise MarketTaskError(
                f"{name} is {getattr(config, name)} in the task file, and its calibration gave {getattr(made, name)}; "
                f"{again}"
            )
    return ()


def with_placeholders(document: dict[str, Any]) -> dict[str, Any]:
    """A task file's document with the numbers that a calibration replaces, for a look at the rest.

    Raises:
        MarketTaskError: it asks for other numbers than a calibration gives.
    """
    payment = document.get("payment", {})
    if not isinstance(payment, dict):
        raise MarketTaskError(
            f'payment is {payment!r:.60}; expected a table, such as payment = {{ name = "log" }}'
        )
    if (name := payment.get("name", "log")) != "log":
        raise MarketTaskError(
            f'payment.name is {name!r}; expected "log", the one for which the scale of a wanted degree is known. '
            "Change it, or plan with `fedpeer plan`"
        )
    if document.get("Q") == "best" or "plan" in document:
        raise MarketTaskError(
            'the task file has Q = "best" or a [plan], and a calibration proposes Q itself; remove both'
        )
    rest = {key: value for key, value in document.items() if key not in ("budget_micro", "calibration")}
    if isinstance(rule := rest.get("rule"), dict):
        rest["rule"] = {
            key: value for key, value in rule.items() if key not in ("claim_penalty", "stake_micro")
        }
    paid = {key: value for key, value in payment.items() if key != "scale"}
    return {**rest, **_PLACEHOLDERS, "payment": {**paid, "name": "log"}}


class Kept:
    """Where what was measured is kept, so that other wishes than those that came of it take seconds.

    A file of its own for what gaps hang on: the basis, the number of shadows, the first model where the task file says
    which it is, and the versions of what trains and measures. It lies in $XDG_CACHE_HOME/fedpeer/calibrations, else
    below ~/.cache.
    """

    def __init__(self, task: PreparedTask, config: TaskConfig, shadows: int) -> None:
        first = "" if config.seed is None else task.row.terms.initial_model.hex()
        held = {**vars(basis(task, config)), "first": first, "seed": SEED, "shadows": shadows}
        trainers = {name: version(name) for name in ("fedpeer", "numpy", "scikit-learn", "torch")}
        self._of = hashlib.sha256(canonical_bytes({**held, "versions": trainers})).hexdigest()
        self.path = _cache_folder() / "calibrations" / f"{self._of[:16]}.json"

    def find(self) -> "tuple[MeasuredGaps, datetime, str] | None":
        """What was measured, when, and on which machine, since several may have one folder; None where nothing is kept,
        something else, or what no call has written.
        """
        from fedpeer.evidence.gaps import MeasuredGaps

        try:
            stored = json.loads(read_text(self.path))
            gaps, at = MeasuredGaps(**stored["gaps"]), datetime.fromtimestamp(stored["at"], UTC)
            figures = vars(gaps).values()
            positive = (gaps.phi, gaps.upsilon, gaps.kappa, gaps.shadows, gaps.held, gaps.training_seconds)
            sound = all(math.isfinite(figure) for figure in figures) and min(positive) > 0
            machine = stored["machine"]
            known = (
                stored["of"] == self._of and isinstance(machine, str) and machine and machine.isprintable()
            )
            return (gaps, at, machine) if sound and known else None
        except (OSError, TextFileError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None

    def put(self, gaps: "MeasuredGaps") -> bool:
        """Keeps it; False where the disk does not."""
        held = {"of": self._of, "at": time.time(), "machine": gethostname(), "gaps": vars(gaps)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with staged(self.path) as folder:
                (fresh := folder / self.path.name).write_text(json.dumps(held))
                fresh.replace(self.path)
        except (OSError, FolderError):
            return False
        return True


def _cache_folder() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if Path(named).is_absolute() else home_folder() / ".cache") / "fedpeer"


def measure(task: PreparedTask, shadows: int, report: "Report") -> "MeasuredGaps":
    """Phi and Upsilon of a task that is `calibratable`, from its first model. Raises EvidenceError, MarketTaskError."""
    from fedpeer.evidence.gaps import measure_gaps

    row, data = task.row, task.data
    assert data is not None, "the caller has asked"
    with TemporaryDirectory(prefix="fedpeer-calibrate-") as folder:
        (path := Path(folder, "start")).write_bytes(task.initial_model)
        start = open_model(path).weights()
    workload = workload_of(row.terms.recipe, folder_of(row.settings))
    assert workload is not None, "there is one of every model but custom"
    try:
        return measure_gaps(
            evidence_task(data, row, workload),
            start,
            SEED,
            shadows=shadows,
            executor=LocalWorkers().for_shadows(row.terms.recipe, data.validation, shadows),
            report=report,
        )
    finally:
        end(workload)


def written(text: str, numbers: dict[str, Any], calibration: CalibrationSection) -> str:
    """The task file `text` with other numbers, and every comment and all else as it was.

    Args:
        numbers: by their path, such as "payment.scale".
    """
    document = tomlkit.parse(text)
    for path, value in numbers.items():
        *sections, key = path.split(".")
        table: Any = document
        for section in sections:
            if section not in table:
                table.add(section, tomlkit.table())
            table = table[section]
        table[key] = _item(value)  # a new one stands before the first table
    made = document.get("calibration")
    values = calibration.model_dump(exclude_none=True)
    if not isinstance(made, Table):  # else it stays where it is, with the comments around it
        document.pop("calibration", None)
        made = tomlkit.table()
        made.comment("by `fedpeer calibrate`; open refuses it for another model, recipe or D_c")
        document.add("calibration", made)
        made = document["calibration"]
    for key in made.keys() - values.keys():
        made.remove(key)
    for key, value in values.items():
        made[key] = _item(value)
    new = tomlkit.dumps(document)
    if (lines := text.count("\n")) and text.count("\r\n") == lines:
        new = new.replace("\r\n", "\n").replace("\n", "\r\n")
    return new


def check_replaceable(file: Path) -> None:
    """Raises MarketTaskError or FolderError where `replace_file` would fail, before models are trained."""
    target = file.resolve()  # of a link, what it leads to
    for path in (target, target.parent):
        if not os.access(path, os.W_OK):
            raise MarketTaskError(
                f"{path} cannot be written; give --dry-run, or a file that can be, in such a folder"
            )
    with staged(target):  # as then
        pass


def replace_file(file: Path, before: str, after: str) -> None:
    """Puts another text in the place of a task file, at once, with its permissions and, where allowed, its owner.

    Raises:
        MarketTaskError: it does not hold the text `before` any more.
        FolderError: the disk refuses it. The file is as it was in either case.
    """
    target = file.resolve()
    with staged(target) as folder, writing(file, "; it is as it was"):
        (fresh := folder / target.name).write_bytes(after.encode())
        try:
            now: str | None = read_text(target)
        except TextFileError:
            now = None
        if now != before:
            raise MarketTaskError(f"{file} was changed meanwhile, and stays as it is now; calibrate it again")
        stat = target.stat()
        with suppress(PermissionError):
            os.chown(fresh, stat.st_uid, stat.st_gid)
        fresh.chmod(stat.st_mode & 0o777)
        sync(fresh)
        fresh.replace(target)
        sync(target.parent)


def _item(value: Any) -> Item:
    if isinstance(value, list | tuple):
        made = tomlkit.array()
        for each in value:
            made.append(_item(each))
        return made
    item: Item = tomlkit.value(format(value, "f")) if isinstance(value, Decimal) else tomlkit.item(value)
    return item
