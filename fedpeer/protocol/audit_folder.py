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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpeer.protocol.model_file import file_digest
from mechanism.canonical import Json, canonical_bytes, parse_canonical
from mechanism.errors import FieldError
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
class AuditOrder:
    """What an auditor needs to know of one submission.

    Attributes:
        opening: of the claim.
        number: 1, or 2 after an appeal.
        start: the file of the model that the round began from, start_sha256 its digest; submitted: that of the
            submission.
    """

    terms: Terms
    claim: ClaimStatement
    opening: ClaimOpening
    round: int
    number: int
    start: Path
    start_sha256: bytes
    submitted: Path
    submitted_sha256: bytes

    def write(self, folder: Path) -> None:
        """Into a new folder. Raises AuditFolderError where it is there already, or cannot be written."""
        record: Json = {
            "terms": self.terms.record(),
            "claim": self.claim.record(),
            "opening": self.opening.record(),
            "round": self.round,
            "number": self.number,
            "start_sha256": self.start_sha256.hex(),
            "submitted_sha256": self.submitted_sha256.hex(),
        }
        try:
            folder.mkdir(parents=True)
            (folder / ORDER).write_bytes(canonical_bytes(record))
            shutil.copyfile(self.start, folder / START)
            shutil.copyfile(self.submitted, folder / SUBMITTED)
        except OSError as error:
            raise AuditFolderError(
                f"{error.filename or folder}: {error.strerror}; name a new folder"
            ) from None

    @classmethod
    def read(cls, folder: Path) -> "AuditOrder":
        """Raises AuditFolderError for a folder that is none, or a model with another digest."""
        record = _read(folder / ORDER, _MAX_ORDER_BYTES, "the folder that the operator has made")
        try:
            order = cls(
                Terms.from_record(record["terms"]),
                ClaimStatement.from_record(record["claim"]),
                ClaimOpening.from_record(record["opening"]),
                int(record["round"]),
                int(record["number"]),
                folder / START,
                bytes.fromhex(record["start_sha256"]),
                folder / SUBMITTED,
                bytes.fromhex(record["submitted_sha256"]),
            )
        except (KeyError, TypeError, ValueError, FieldError) as error:
            raise AuditFolderError(f"{folder / ORDER} is no order of an audit ({error})") from None
        try:
            check_opened(order.claim, order.opening)
        except FieldError as error:
            raise AuditFolderError(f"{folder / ORDER} was altered ({error})") from None
        if order.claim.terms_digest != order.terms.digest:
            raise AuditFolderError(
                f"{folder / ORDER} has a claim under other terms; ask the operator for a new one"
            )
        _check_digest(order.start, order.start_sha256, "the order")
        _check_digest(order.submitted, order.submitted_sha256, "the order")
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

    @classmethod
    def read(cls, folder: Path) -> "Brought":
        """Raises AuditFolderError for a folder that is none, or weights with another digest."""
        path, weights = folder / STATEMENT, folder / RETRAINED
        record = _read(path, _MAX_STATEMENT_BYTES, "the folder that the auditor has written")
        try:
            statement = AuditStatement.from_record(record["statement"])
            signature = bytes.fromhex(record["signature"])
        except (KeyError, TypeError, ValueError, FieldError) as error:
            raise AuditFolderError(f"{path} is no auditor's statement ({error})") from None
        if not statement.model_sha256:
            return cls(statement, signature, None)
        _check_digest(weights, statement.model_sha256, "the statement")
        return cls(statement, signature, weights)


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
        try:
            self.folder.mkdir(parents=True, mode=0o700)
            (self.folder / TASK).write_bytes(canonical_bytes(record))
            self.openings.write_bytes(b"".join(line + b"\n" for line in openings))
            (self.folder / MODELS).mkdir()
            for digest, path in models:
                shutil.copyfile(path, self.folder / MODELS / f"{digest.hex()}.safetensors")
        except OSError as error:
            raise AuditFolderError(
                f"{error.filename or self.folder}: {error.strerror}; name a new folder"
            ) from None
        write_ledger(self.ledger)

    @classmethod
    def read(cls, folder: Path) -> "TaskOrder":
        """Raises AuditFolderError for a folder that is none."""
        record = _read(folder / TASK, _MAX_ORDER_BYTES, "the folder that the operator has made")
        try:
            data = json.loads(record["data"])
            if not (data is None or type(data) is dict):
                raise TypeError("data is no table")
            return cls(
                Terms.from_record(record["terms"]),
                bytes.fromhex(record["root"]),
                int(record["shadows"]),
                int(record["later"]),
                float(record["tricked"]),
                data,
                folder,
            )
        except (KeyError, TypeError, ValueError, FieldError) as error:
            raise AuditFolderError(f"{folder / TASK} describes no task ({error})") from None


@dataclass(frozen=True)
class BroughtRemeasurement:
    """What an auditor brings back that has measured a task again.

    Attributes:
        signature: DER, over the canonical bytes of the statement.
    """

    statement: RemeasurementStatement
    signature: bytes


def read_brought(folder: Path) -> Brought | BroughtRemeasurement:
    """What an auditor brings back of either. Raises AuditFolderError as `Brought.read`."""
    path = folder / STATEMENT
    record = _read(path, _MAX_STATEMENT_BYTES, "the folder that the auditor has written")
    try:
        if record["statement"]["kind"] != RemeasurementStatement.kind:
            return Brought.read(folder)
        statement = RemeasurementStatement.from_record(record["statement"])
        return BroughtRemeasurement(statement, bytes.fromhex(record["signature"]))
    except (KeyError, TypeError, ValueError, FieldError) as error:
        raise AuditFolderError(f"{path} is no auditor's statement ({error})") from None


def write_statement(
    folder: Path, statement: AuditStatement | RemeasurementStatement, signature: bytes
) -> None:
    """Beside the weights, as `read_brought` reads it."""
    record: Json = {"statement": statement.record(), "signature": signature.hex()}
    try:
        (folder / STATEMENT).write_bytes(canonical_bytes(record))
    except OSError as error:
        raise AuditFolderError(f"{folder / STATEMENT}: {error.strerror}") from None


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
