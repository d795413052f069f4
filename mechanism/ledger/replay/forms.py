"""The form of an entry's body: its keys, and what each may be. Computed entries are compared whole instead.

A key that does not belong is found by the comparison with the entry that the body makes.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mechanism.errors import MISSING, FieldError
from mechanism.ledger import entries as events
from mechanism.ledger.entry import Entry


class _Form(NamedTuple):
    holds: Callable[[Any], bool]
    expected: str


def _json(kind: type, expected: str) -> _Form:
    return _Form(lambda value: type(value) is kind, expected)


def _list_of(form: _Form, expected: str) -> _Form:
    return _Form(lambda value: type(value) is list and all(map(form.holds, value)), expected)


def _or_null(form: _Form) -> _Form:
    return _Form(lambda value: value is None or form.holds(value), f"{form.expected} or null")


def _hexadecimal(pattern: str, expected: str) -> _Form:
    matches = re.compile(pattern).fullmatch
    return _Form(lambda value: type(value) is str and matches(value) is not None, expected)


def _is_hexadecimal(value: Any) -> bool:
    try:
        return bool(bytes.fromhex(value).hex() == value)
    except (TypeError, ValueError):
        return False


_TEXT, _NUMBER, _LOGICAL = _json(str, "a string"), _json(int, "an integer"), _json(bool, "true or false")
_LIST, _OBJECT = _json(list, "a list"), _json(dict, "an object")
_NUMBERS = _list_of(_NUMBER, "a list of integers")
_ROWS = _list_of(_NUMBERS, "lists of integers")
_NUMBER_OR_NULL, _OBJECT_OR_NULL, _TEXT_OR_NULL = map(_or_null, (_NUMBER, _OBJECT, _TEXT))
_VERDICT = _Form(
    lambda one: type(one) is list and len(one) == 2 and type(one[0]) is str and type(one[1]) is bool, ""
)
_VERDICTS = _list_of(_VERDICT, "a list of pairs of a screen's name and whether it was passed")
_BYTES = _Form(_is_hexadecimal, "pairs of hexadecimal digits, in lower case")
_DIGEST = _hexadecimal("[0-9a-f]{64}", "32 bytes in hexadecimal, in lower case")
_DIGEST_OR_NULL = _Form(_or_null(_DIGEST).holds, "32 bytes in hexadecimal, in lower case, or null")
_DIGEST_OR_NONE = _hexadecimal(
    "([0-9a-f]{64})?", "32 bytes in hexadecimal, in lower case, or an empty string"
)

_TASK = {"task_id": _TEXT}
_ROUND = {**_TASK, "round": _NUMBER}
_OF_ROUND = {**_ROUND, "participant_id": _TEXT}
_PART = {"part": _NUMBER, "parts": _NUMBER}
_PIECE = {**_PART, "sha256": _DIGEST, "data": _TEXT}
_SIGNED = {"statement": _OBJECT, "signature": _BYTES, "keys": _DIGEST}
_FUNDING = {"learner_id": _TEXT, "reference": _TEXT, "micro": _NUMBER, "at": _TEXT}
_RUN = {"number": _NUMBER, "at": _TEXT}

#: Of the kinds that begin something, or stand alone.
_FORMS: Mapping[str, Mapping[str, _Form]] = {
    "terms": {**_TASK, **_PIECE},
    "transition": {**_ROUND, "state": _TEXT, "at": _TEXT, "reason": _TEXT},
    "deletion": {**_TASK, "at": _TEXT},
    "selection": {**_TASK, **_PART, "participants": _LIST, "participants_sha256": _DIGEST},
    "closing": {**_ROUND, **_PART, "at": _TEXT, "absent": _LIST},
    "enrolment": {"participant_id": _TEXT, "public_key": _TEXT},
    "pseudonym": {**_TASK, "participant_id": _TEXT, "commitment": _DIGEST},
    "revocation": {"participant_id": _TEXT, "fingerprint": _TEXT, "reason": _TEXT},
    events.LOG_KEY: {"number": _NUMBER, "previous": _TEXT, "verification_key": _TEXT},
    "claim": {**_SIGNED, "organisation": _DIGEST_OR_NONE},
    "model": {**_SIGNED, "sequence": _NUMBER, "late": _LOGICAL},
    "failure": {**_ROUND, "participant_id": _TEXT, "submission_id": _TEXT, "reason": _TEXT},
    "evidence": {
        **_ROUND, "commitment": _DIGEST, "shadows_sha256": _DIGEST, "shadows": _NUMBER, "carried": _NUMBER,
    },
    "verdict": {**_ROUND, "outcome": _OBJECT, "commitment": _DIGEST},
    "aggregation": {**_ROUND, "model_sha256": _DIGEST, "figures": _OBJECT, "state_sha256": _DIGEST_OR_NULL},
    "seed": {**_ROUND, "seed": _DIGEST},
    "dispute": {**_TASK, "participant_id": _TEXT, "at": _TEXT},
    "awards": {**_ROUND, "total_micro": _NUMBER},
    "award": {**_ROUND, "participant_id": _TEXT, "award_micro": _NUMBER},
    "refund": _ROUND,
    "stake_release": _TASK,
    "audit": {
        **_OF_ROUND, "number": _NUMBER, "at": _TEXT, "outcome": _TEXT, "submitted_micro": _NUMBER,
        "retrained_micro": _NUMBER_OR_NULL, "limit_micro": _NUMBER_OR_NULL, "commitment": _DIGEST,
    },
    "appeal": {**_OF_ROUND, "reason": _TEXT, "at": _TEXT},
    "audit_end": {**_OF_ROUND, "why": _TEXT, "at": _TEXT},
    "remeasurement": {**_TASK, "at": _TEXT, "outcome": _TEXT, "statement": _OBJECT, "signature": _BYTES},
    "held_release": _TASK,
    "audit_loss": _TASK,
    "deposit": _FUNDING,
    "withdrawal": _FUNDING,
    "payout": {**_RUN, **_PART, "price": _OBJECT, "participants": _LIST},
    "payout_end": {**_RUN, "outcome": _TEXT, "reason": _TEXT},
    "payout_return": {**_RUN, "participant_id": _TEXT, "reason": _TEXT, "micro": _NUMBER},
}  # fmt: skip


def check_body(entry: Entry) -> None:
    """Raises FieldError for a key of the entry's body that is missing or has a value of another form."""
    if entry.kind == "terms" and "terms" in entry.body:
        return  # a record, which names its own fields
    check_form(entry.body, _FORMS[entry.kind])


#: Of an outcome. What is not scored has no degree.
_OUTCOME = {
    "participant_id": _TEXT, "model_sha256": _BYTES, "verified_micro": _NUMBER_OR_NULL, "weight_micro": _NUMBER,
    "multiplier_ppm": _NUMBER, "penalty_micro": _NUMBER, "refuted": _LOGICAL, "cluster": _TEXT_OR_NULL,
    "scores": _OBJECT, "verdicts": _VERDICTS,
}  # fmt: skip


def check_outcome(record: Mapping[str, Any]) -> None:
    """The same of the outcome in a verdict; a key that does not belong is refused where the outcome is made of it."""
    check_form(record, _OUTCOME, "outcome.")


def check_opening(record: Mapping[str, Any], needed: str, perhaps: str = "") -> None:
    """The same of an opening: exactly an object, perhaps another one or null, and a salt."""
    forms = {needed: _OBJECT, "salt": _DIGEST}
    if perhaps:
        forms[perhaps] = _OBJECT_OR_NULL
    _check_exactly(record, forms)


def check_owner(record: Mapping[str, Any]) -> None:
    """The same of the opening of a pseudonym."""
    _check_exactly(record, {"owner": _TEXT, "salt": _DIGEST})


def check_counts(record: Mapping[str, Any]) -> None:
    """The same of the opening of counts."""
    _check_exactly(record, {"counts": _NUMBERS, "salt": _DIGEST})


def check_findings(record: Mapping[str, Any]) -> None:
    """The same of the opening of an audit."""
    _check_exactly(record, {
        "statement": _OBJECT, "signature": _BYTES, "features": _ROWS, "differences": _NUMBERS, "salt": _DIGEST,
    })  # fmt: skip


def _check_exactly(record: Mapping[str, Any], forms: Mapping[str, _Form]) -> None:
    """That an opening has these keys, of these forms, and no others."""
    check_form(record, forms, "opening.")
    if record.keys() != forms.keys():
        raise FieldError("opening", sorted(record), f"the keys {', '.join(forms)} alone")


def check_form(record: Mapping[str, Any], forms: Mapping[str, _Form], prefix: str = "") -> None:
    for key, form in forms.items():
        value = record.get(key, MISSING)
        if not form.holds(value):
            raise FieldError(prefix + key, value, form.expected)
