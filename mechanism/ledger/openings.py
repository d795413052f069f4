"""Openings: what entries commit to and a log does not hold, for those whom it concerns.

    commitment = SHA-256(canonical JSON of the opening),    an object with the key `salt`, 32 random bytes

| entry | commitment | opening |
|---|---|---|
| `pseudonym` | its own | the owner's id |
| `claim` | `commitment` of its statement | `ClaimOpening`: degree, effort |
| `model` | `commitment` of its statement | `ModelOpening`: samples |
| `evidence` | its own | the round's `EvidenceModel` |
| `verdict` | its own | the `Assessment`, and the `Measurement` where there is one |
| `dispute` | `counts_commitment` of the claim | the counts |
| `audit` | its own | the auditor's statement, and what was measured of the re-trained weights |

Without the salt nothing is learnt of an opening, and nothing can be held against a guess: who destroys it erases the
record. A verifier checks what it has the openings of; the rest it counts as unchecked.

A *file of openings* is JSON lines: a head `{"format": "fedpeer-openings/1", "participant": ID or null}`, null where it
is meant to hold all, then one `{"id": ENTRY, "opening": {...}}` an entry.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mechanism.canonical import Json, canonical_bytes, parse_canonical
from mechanism.errors import FieldError
from mechanism.ledger.errors import LedgerError

#: First key of a file of openings.
FORMAT = "fedpeer-openings/1"

#: Kinds of entries that commit to an opening.
KINDS = ("pseudonym", "claim", "model", "evidence", "verdict", "dispute", "audit")


def subject_of(entry_id: str) -> tuple[str, int, str]:
    """Task, round and participant that an entry with an opening is about, by its id: 0 outside rounds, the empty name
    where it is about nobody alone."""
    task_id, *words = entry_id.split("/")
    round_ = int(words[1]) if words[:1] == ["round"] and "".join(words[1:2]).isdecimal() else 0
    rest = words[2:] if round_ else words
    return task_id, round_, rest[1] if len(rest) > 1 else ""


@dataclass(frozen=True)
class Openings:
    """The openings that a verifier was given.

    Attributes:
        participant: whose they are; None: they are meant to be all, as an auditor has them.
        by_id: the opening of an entry by the entry's id.
    """

    participant: str | None = None
    by_id: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def level(self) -> str:
        """As whom a ledger is verified with them."""
        return "auditor" if self.participant is None else f"participant {self.participant}"

    def lines(self) -> Iterator[bytes]:
        """The lines of a file of them, without line ends."""
        return written(self.participant, self.by_id.items())


def written(participant: str | None, openings: Iterable[tuple[str, Json]]) -> Iterator[bytes]:
    """The lines of a file of openings, without line ends."""
    yield canonical_bytes({"format": FORMAT, "participant": participant})
    for entry_id, opening in openings:
        yield canonical_bytes({"id": entry_id, "opening": opening})


def read_openings(lines: Iterable[bytes]) -> Openings:
    """The openings of a file.

    Raises:
        LedgerError: it is none, or holds two of one entry.
    """
    participant: str | None = None
    found: dict[str, Mapping[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = parse_canonical(line)
        except FieldError as error:
            raise LedgerError(f"line {number} of the openings: {error}") from None
        keys = {"format", "participant"} if number == 1 else {"id", "opening"}
        if type(record) is not dict or record.keys() != keys:
            raise LedgerError(f"line {number} of the openings has other keys than {', '.join(sorted(keys))}")
        if number == 1:
            participant = record["participant"]
            if record["format"] != FORMAT or not (participant is None or type(participant) is str):
                raise LedgerError(f"no openings of the format {FORMAT}, of a participant or of all")
        elif type(record["id"]) is not str or type(record["opening"]) is not dict:
            raise LedgerError(f"line {number} of the openings is no id with its opening")
        elif record["id"] in found:
            raise LedgerError(f"line {number} of the openings is a second one of {record['id']}")
        else:
            found[record["id"]] = record["opening"]
    return Openings(participant, found)


def joined_openings(parts: Iterable[Openings]) -> Openings:
    """Several files as one.

    Raises:
        LedgerError: none, of several participants, or two of one entry that differ.
    """
    given = list(parts)
    whose = {part.participant for part in given}
    if len(whose) != 1:
        names = ", ".join(sorted(str(name or "all") for name in whose)) or "nobody"
        raise LedgerError(f"the openings are of {names}; expected those of one participant, or all of them")
    found: dict[str, Mapping[str, Any]] = {}
    for part in given:
        for entry_id, opening in part.by_id.items():
            if found.setdefault(entry_id, opening) != opening:
                raise LedgerError(f"there are two openings of {entry_id}, which differ")
    return Openings(whose.pop(), found)
