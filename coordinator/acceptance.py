"""What participants will do with a task's terms, done before the task is offered.

A task that opens and that nobody can join has reserved its budget for nothing, and some terms cannot be recorded to
their end. So each check of a participant's side runs here on the terms as they travel, and of each kind of message and
entry whose size hangs on the terms the largest is built: a claim, opened counts, a line of peers.
"""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import lcm

from fedpeer.protocol.codec import decode_signed, encode_signed
from fedpeer.protocol.limits import MAX_MESSAGE_BYTES, MAX_NUMBER_CHARACTERS
from mechanism.canonical import MAX_INTEGER, canonical_bytes
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryError
from mechanism.statements import EFFORT_PLACES, NONCE_BYTES, ClaimStatement
from mechanism.terms import Terms

#: The longest id (`mechanism.terms.IDENTIFIER`) and signature (DER, P-256).
_LONGEST_ID = "z" * 64
_LONGEST_SIGNATURE = bytes(72)

#: Bytes of a Task message besides its terms and the ids of what the caller has submitted.
_STANDING_BYTES = 1 << 10

#: What there may be fewer of in terms that are too long.
_PARTS = {"contract": "tensors", "columns": "inputs", "reference": "strata"}

#: Submissions of one participant in one round that have a receipt: a failure and a model, which may be late.
_RECEIPTS_PER_ROUND = 2


def check_acceptable(terms: Terms) -> None:
    """That participants can take part in a task of these terms, to its end.

    Raises:
        FieldError: which field keeps them out, and what it may be at most.
    """
    Terms.parse(terms.canonical)
    _check_message(terms)
    _check_entries(entries.published(terms), "contract.tensors", len(terms.contract.tensors), "fewer tensors")
    _check_claims(terms)
    _check_peers(terms)


def _check_message(terms: Terms) -> None:
    """That a task fits one message together with everything that a participant may have submitted."""
    rounds = terms.schedule.rounds
    submitted = (1 + _RECEIPTS_PER_ROUND * rounds) * (len(_LONGEST_ID) + 2)
    room, size = MAX_MESSAGE_BYTES - _STANDING_BYTES - submitted, len(terms.canonical)
    if size > room:
        parts = {key: len(canonical_bytes(part)) for key, part in terms.record().items()}
        most = max(parts, key=lambda key: parts[key])
        tensors = f"{len(terms.contract.tensors)} tensors, in " if most == "contract" else ""
        raise FieldError(
            "contract.tensors" if most == "contract" else most,
            f"{tensors}terms of {size} bytes",
            f"terms of at most {room} bytes in a task of {rounds} rounds: fewer {_PARTS.get(most, 'names')}, shorter "
            "names, fewer rounds",
        )


def _check_claims(terms: Terms) -> None:
    """That the largest claim, open or private, and the largest opening of counts can be sent and recorded."""
    labels = len(terms.reference)
    counts = (MAX_INTEGER,) * labels
    # A degree is a sum of n_i / N - p_i, halved: its denominator divides 2 N times that of the reference.
    reference = lcm(*(p.denominator for p in terms.reference))
    digits = len(str(2 * sum(counts) * reference))
    if 2 * digits + 1 > MAX_NUMBER_CHARACTERS:
        most = (MAX_NUMBER_CHARACTERS - 1) // 2 - len(str(2 * sum(counts)))
        raise FieldError(
            "reference",
            f"a common denominator of {len(str(reference))} digits",
            f"one of at most {most} digits, so that a degree can be written in {MAX_NUMBER_CHARACTERS} characters; "
            "write the probabilities over one denominator",
        )
    largest = 10**digits - 1
    claim = ClaimStatement(
        submission_id=_LONGEST_ID,
        task_id=terms.task_id,
        terms_digest=terms.digest,
        participant_id=_LONGEST_ID,
        effort=Decimal(1).scaleb(-EFFORT_PLACES),
        degree=Fraction(largest - 1, largest),
        counts=counts,
        counts_commitment=b"",
        draw_head=bytes(32),
        nonce=bytes(NONCE_BYTES),
    )
    for statement in (claim, replace(claim, counts=None, counts_commitment=bytes(32))):
        try:  # sent, and read as it was written
            decode_signed(ClaimStatement, encode_signed(statement, _LONGEST_SIGNATURE))
        except FieldError as error:
            raise FieldError("reference", labels, f"fewer labels: {error}") from None
        _check_entries(
            [entries.claim(statement, _LONGEST_SIGNATURE, organisation=bytes(32))],
            "reference",
            labels,
            "fewer labels",
        )
    _check_entries(
        [entries.dispute(terms.task_id, _LONGEST_ID, counts, bytes(32), entries.timestamp(0))],
        "reference",
        labels,
        "fewer labels",
    )


def _check_peers(terms: Terms) -> None:
    """That a participant's peers of a round fit an entry, which lists them in one line."""
    drawn = min(terms.rule.peers, terms.schedule.capacity - 1)

    def line(count: int) -> int:
        return len(canonical_bytes([_LONGEST_ID, [_LONGEST_ID] * count]))

    if line(drawn) > entries.PART_BYTES:
        most = (entries.PART_BYTES - line(0)) // (line(1) - line(0) + 1)
        raise FieldError(
            "rule.peers", terms.rule.peers, f"at most {most}, which an entry of the ledger holds"
        )


def _check_entries(made: list[Entry], field: str, value: int, remedy: str) -> None:
    for entry in made:
        try:
            entry.data  # noqa: B018 - it is built here
        except EntryError as error:
            raise FieldError(field, value, f"{remedy}: {error}") from None
