"""What participants will do with a task's terms, done before the task is offered.

A task that opens and that nobody can join has reserved its budget for nothing, and some terms cannot be recorded to
their end. So each check of a participant's side runs here on the terms as they travel, and of each kind of message and
entry whose size hangs on the terms the largest is built: a degree, a line of peers.
"""

from math import lcm

from fedpeer.protocol.limits import MAX_MESSAGE_BYTES, MAX_NUMBER_CHARACTERS
from mechanism.canonical import MAX_INTEGER, canonical_bytes
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.errors import EntryError
from mechanism.terms import Terms

#: The longest id (`mechanism.terms.IDENTIFIER`).
_LONGEST_ID = "z" * 64

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
    for entry in entries.published(terms):
        try:
            entry.data  # noqa: B018 - it is built here
        except EntryError as error:
            tensors = len(terms.contract.tensors)
            raise FieldError("contract.tensors", tensors, f"fewer tensors: {error}") from None
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
    """That every degree that a claim can have can be written."""
    # A degree is a sum of n_i / N - p_i, halved: its denominator divides 2 N times that of the reference.
    total = 2 * MAX_INTEGER * len(terms.reference)
    reference = lcm(*(p.denominator for p in terms.reference))
    digits = len(str(total * reference))
    if 2 * digits + 1 > MAX_NUMBER_CHARACTERS:
        most = (MAX_NUMBER_CHARACTERS - 1) // 2 - len(str(total))
        raise FieldError(
            "reference",
            f"a common denominator of {len(str(reference))} digits",
            f"one of at most {most} digits, so that a degree can be written in {MAX_NUMBER_CHARACTERS} characters; "
            "write the probabilities over one denominator",
        )


def _check_peers(terms: Terms) -> None:
    """That a participant's peers of a round fit an entry, which lists them in one line."""
    drawn = min(terms.rule.peers, terms.schedule.capacity - 1)
    alone, with_one = (len(canonical_bytes([_LONGEST_ID, [_LONGEST_ID] * count])) for count in (0, 1))
    most = (entries.PART_BYTES - alone) // (with_one - alone + len(","))
    if drawn > most:
        raise FieldError(
            "rule.peers", terms.rule.peers, f"at most {most}, which an entry of the ledger holds"
        )
