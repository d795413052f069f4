"""The folders of audits: what goes to the auditor, and what comes back.

By re-training, of one submission:

    order.json              terms, claim, its opening, round, number
    start.safetensors       the model that the round began from; submitted.safetensors: the one that was sent in
    statement.json          the signed statement
    retrained.safetensors   the re-trained weights, where there are any

Of an ended task, which is measured again:

    task.json, ledger.jsonl     terms, secret root, how many shadows, which data; the ledger
    openings.jsonl, models/     all that the task's entries commit to; start models and submissions
    statement.json              the signed statement
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedpeer.protocol.model_file import file_digest
from mechanism.canonical import Json, canonical_bytes, parse_canonical
from mechanism.errors import FieldError
from mechanism.records import Recorded
from mechanism.statements import (
    AuditStatement,
    ClaimOpening,
    ClaimStatement,
    RemeasurementStatement,
    check_opened,
)
from mechanism.terms import Terms

ORDER, START, SUBMITTED, STATEMENT, RETRAINED = (
    "order.json",
    "start.safetensors",
    "submitted.safetensors",
    "statement.json",
    "retrained.safetensors",
)

TASK, LEDGER, OPENINGS, MODELS = "task.json", "ledger.jsonl", "openings.jsonl", "models"

#: Bytes of an order, whose terms may name thousands of tensors, and of a statement.
_MAX_ORDER_BYTES, _MAX_STATEMENT_BYTES = 1 << 25, 1 << 16


class AuditFolderError(Exception):
    """A folder of an audit that cannot be read or written; the message says what to do."""


@dataclass(frozen=True)
class AuditOrder(Recorded):
    """What an auditor needs to know of one submission; in its folder lie the two models as `START` and `SUBMITTED`.

    Attributes:
        opening: what the claim commits to: its effort and degree.
        number: 1, or 2 after an appeal.
        start_sha256: of the model that the round began from; submitted_sha256: of the one that was sent in.
    """

    what: ClassVar[str] = "order"

    terms: Terms
    claim: ClaimStatement
    opening: ClaimOpening
    round: int
    number: int
    start_sha256: bytes
    submitted_sha256: bytes

    def write(self, folder: Path, start: Path, submitted: Path) -> None:
        """Into a new folder. Raises AuditFolderError where it is there already, or cannot be written."""
        with _new(folder):
            (folder / ORDER).write_bytes(self.canonical)
            shutil.copyfile(start, folder / START)
            shutil.copyfile(submitted, folder / SUBMITTED)

    @classmethod
    def read(cls, folder: Path) -> "AuditOrder":
        """Raises AuditFolderError for a folder that is none, or a model with another digest."""
        record = _read(folder / ORDER, _MAX_ORDER_BYTES, "the folder that the operator has made")
        with _described(folder / ORDER, "is no order of an audit"):
            order = cls.from_record(record)
        with _described(folder / ORDER, "was altered"):
            check_opened(order.claim, order.opening)
        if order.claim.terms_digest != order.terms.digest:
            raise AuditFolderError(
                f"{folder / ORDER} has a claim under other terms; ask the operator for a new one"
            )
        _check_digest(folder / START, order.start_sha256, "the order")
        _check_digest(folder / SUBMITTED, order.submitted_sha256, "the order")
        return order


@dataclass(frozen=True)
class Brought:
    """What an auditor brings back.

    Attributes:
        signature: DER, over the canonical bytes of the statement.
        weights: the file of the re-trained weights; None where nothing was trained.
    """

    statement: AuditStatement
    signature: bytes
    weights: Path | None


@dataclass(frozen=True)
class TaskOrder:
    """What an auditor is given of an ended task, beside D_c.

    Attributes:
        root: the task's secret, from which its seeds, its salt of D_c and the seed of its shadows are derived.
        shadows, later: sound shadow models of the first round, and of each later one; tricked: tricked ones for each.
        data: the section [data] of the operator's task file, with the operator's paths; None: there is none.
        folder: where all of it lies.
    """

    terms: Terms
    root: bytes
    shadows: int
    later: int
    tricked: float
    data: Mapping[str, Any] | None
    folder: Path

    @property
    def ledger(self) -> Path:
        return self.folder / LEDGER

    @property
    def openings(self) -> Path:
        return self.folder / OPENINGS

    def model(self, digest: bytes) -> Path:
        """The file of a model. Raises AuditFolderError where it is not there, or is another."""
        path = self.folder / MODELS / f"{digest.hex()}.safetensors"
        _check_digest(path, digest, "the ledger")
        return path

    def write(
        self,
        models: Iterable[tuple[bytes, Path]],
        openings: Iterable[bytes],
        write_ledger: Callable[[Path], None],
    ) -> None:
        """Into the new folder, for its owner alone.

        Args:
            models: files by digest; openings: the lines of a file of them.
            write_ledger: writes the ledger, in JSON lines, to a path.

        Raises:
            AuditFolderError: the folder is there already, or cannot be written.
        """
        record: Json = {
            "terms": self.terms.record(),
            "root": self.root.hex(),
            "shadows": self.shadows,
            "later": self.later,
            "tricked": json.dumps(self.tricked),  # numbers with fractions are no canonical JSON
            "data": json.dumps(self.data),
        }
        with _new(self.folder, mode=0o700):
            (self.folder / TASK).write_bytes(canonical_bytes(record))
            self.openings.write_bytes(b"".join(line + b"\n" for line in openings))
            (self.folder / MODELS).mkdir()
            for digest, path in models:
                shutil.copyfile(path, self.folder / MODELS / f"{digest.hex()}.safetensors")
        write_ledger(self.ledger)

    @classmethod
    def read(cls, folder: Path) -> "TaskOrder":
        """Raises AuditFolderError for a folder that is none."""
        record = _read(folder / TASK, _MAX_ORDER_BYTES, "the folder that the operator has made")
        with _described(folder / TASK, "describes no task"):
            data = json.loads(record["data"])
            if not (data is None or type(data) is dict):
                raise TypeError("data is no table")
            counts = int(record["shadows"]), int(record["later"])
            terms, root = Terms.from_record(record["terms"]), bytes.fromhex(record["root"])
            return cls(terms, root, *counts, float(record["tricked"]), data, folder)


@dataclass(frozen=True)
class BroughtRemeasurement:
    """What an auditor brings back that has measured a task again.

    Attributes:
        signature: DER, over the canonical bytes of the statement.
    """

    statement: RemeasurementStatement
    signature: bytes


def read_brought(folder: Path) -> Brought | BroughtRemeasurement:
    """What an auditor brings back of either. Raises AuditFolderError for a folder that is none, or weights with another
    digest."""
    path, weights = folder / STATEMENT, folder / RETRAINED
    record = _read(path, _MAX_STATEMENT_BYTES, "the folder that the auditor has written")
    with _described(path, "is no auditor's statement"):
        signature, said = bytes.fromhex(record["signature"]), record["statement"]
        if said["kind"] == RemeasurementStatement.kind:
            return BroughtRemeasurement(RemeasurementStatement.from_record(said), signature)
        statement = AuditStatement.from_record(said)
    if not statement.model_sha256:
        return Brought(statement, signature, None)
    _check_digest(weights, statement.model_sha256, "the statement")
    return Brought(statement, signature, weights)


def write_brought(
    folder: Path,
    statement: AuditStatement | RemeasurementStatement,
    signature: bytes,
    weights: bytes | None = None,
) -> None:
    """A new folder with a statement, and the re-trained weights where there are any, as `read_brought` reads it.

    Raises:
        AuditFolderError: it is there already, or cannot be written.
    """
    record: Json = {"statement": statement.record(), "signature": signature.hex()}
    with _new(folder):
        if weights is not None:
            (folder / RETRAINED).write_bytes(weights)
        (folder / STATEMENT).write_bytes(canonical_bytes(record))


@contextmanager
def _new(folder: Path, mode: int = 0o777) -> Iterator[None]:
    """A folder that is made here, and written inside."""
    try:
        folder.mkdir(parents=True, mode=mode)
        yield
    except OSError as error:
        raise AuditFolderError(f"{error.filename or folder}: {error.strerror}; name a new folder") from None


@contextmanager
def _described(path: Path, what: str) -> Iterator[None]:
    """A file's content is taken apart inside; `what`: what is wrong with it where that fails."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise AuditFolderError(f"{path} {what} ({error})") from None


def _read(path: Path, limit: int, expected: str) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise AuditFolderError(f"{path} has more than {limit} bytes; expected {expected}")
        return parse_canonical(data)
    except OSError as error:
        raise AuditFolderError(f"{path} cannot be read ({error.strerror}); name {expected}") from None
    except FieldError as error:
        raise AuditFolderError(f"{path} was altered ({error}); name {expected}") from None


def _check_digest(path: Path, digest: bytes, whose: str) -> None:
    try:
        found = file_digest(path)
    except OSError as error:
        raise AuditFolderError(f"{path} cannot be read ({error.strerror}); {whose} needs it") from None
    if found != digest:
        raise AuditFolderError(f"{path} has the digest {found.hex()}; {whose} names {digest.hex()}")
