"""The bytes of a model's and a verdict's entry, of which nearly all of a log consists besides what is computed.

A value has one canonical form, so an entry of one form is a fixed text around its values, and one regular expression
reads it: what matches is canonical, has these keys once each and no others, and values of these types under the id that
they make. What does not match is refused, in the words of `forms`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from mechanism.canonical import MAX_INTEGER, parse_canonical
from mechanism.errors import FieldError
from mechanism.ledger.entry import MAX_ENTRY_BYTES, Entry
from mechanism.settlement import Outcome
from mechanism.statements import ModelStatement
from mechanism.terms import IDENTIFIER

_NAME, _DIGEST, _LOGICAL = IDENTIFIER.pattern, "[0-9a-f]{64}", "true|false"
_COUNT, _NUMBER = "[1-9][0-9]{0,15}", "0|-?[1-9][0-9]{0,15}"

#: A string of ASCII without escapes.
_PLAIN = r'"[^"\\\x00-\x1f]*"'

_MODEL = re.compile(
    rf'{{"body":{{"keys":"(?P<keys>{_DIGEST})","late":(?P<late>{_LOGICAL}),"sequence":(?P<sequence>{_NUMBER}),'
    r'"signature":"(?P<signature>[0-9a-f]*)","statement":(?P<statement>{'
    rf'"commitment":"(?P<commitment>{_DIGEST})","draw_share":"(?P<draw_share>{_DIGEST})","kind":"model",'
    rf'"model_bytes":(?P<model_bytes>{_COUNT}),"model_sha256":"(?P<model_sha256>{_DIGEST})",'
    rf'"nonce":"(?P<nonce>[0-9a-f]{{32}})","participant_id":"(?P<name>{_NAME})","round":(?P<round>{_COUNT}),'
    rf'"submission_id":"(?P<submission>{_NAME})","task_id":"(?P<task>{_NAME})","terms":"(?P<terms>{_DIGEST})"}})}},'
    r'"id":"(?P<id>(?P=task)/round/(?P=round)/model/(?P=name)/(?P=submission))",'
    r'"kind":"model","v":1}'
)

_VERDICT = re.compile(
    rf'{{"body":{{"commitment":"(?P<commitment>{_DIGEST})","outcome":{{"cluster":(?P<cluster>null|{_PLAIN}),'
    rf'"model_sha256":"(?P<model_sha256>[0-9a-f]*)","multiplier_ppm":(?P<multiplier_ppm>{_NUMBER}),'
    rf'"participant_id":"(?P<name>{_NAME})","penalty_micro":(?P<penalty_micro>{_NUMBER}),'
    rf'"refuted":(?P<refuted>{_LOGICAL}),"scores":(?P<scores>{{[^{{}}]*}}),"verdicts":(?P<verdicts>\[[^{{}}]*\]),'
    rf'"verified_micro":(?P<verified_micro>null|{_NUMBER}),"weight_micro":(?P<weight_micro>{_NUMBER})}},'
    rf'"round":(?P<round>{_COUNT}),"task_id":"(?P<task>{_NAME})"}},'
    r'"id":"(?P<id>(?P=task)/round/(?P=round)/verdict/(?P=name))",'
    r'"kind":"verdict","v":1}'
)

#: How the bytes of an entry end, and the layout that it then has.
_LAYOUTS = ((b'"kind":"model","v":1}', _MODEL), (b'"kind":"verdict","v":1}', _VERDICT))

Said: TypeAlias = re.Match[str]


def laid_out(data: bytes) -> Said | None:
    """The values of an entry that has a layout; None for every other, and for one of another form."""
    for end, layout in _LAYOUTS:
        if data.endswith(end):
            fits = len(data) <= MAX_ENTRY_BYTES and data.isascii()
            return layout.fullmatch(data.decode()) if fits else None
    return None


def entry_of(said: Said) -> Entry:
    """The entry, without its body, which is read when it is asked for."""
    kind = "model" if said.re is _MODEL else "verdict"
    return Entry.of_bytes(said.string.encode(), said["id"], kind)


def model_of(said: Said) -> tuple[ModelStatement, str, str, int, bool] | None:
    """Statement, signature and digest of the keys (hexadecimal), sequence, and whether it came late; None where an
    integer is out of range."""
    (
        keys, late, sequence, signature, statement, commitment, share, size, digest, nonce, name, round_, submission,
        task, terms, _,
    ) = said.groups()  # fmt: skip
    place, number, length = int(sequence), int(round_), int(size)
    if max(abs(place), number, length) > MAX_INTEGER or len(signature) % 2:
        return None
    of = bytes.fromhex
    made = ModelStatement.known(
        statement.encode(),
        submission_id=submission,
        task_id=task,
        terms_digest=of(terms),
        participant_id=name,
        round=number,
        model_sha256=of(digest),
        model_bytes=length,
        commitment=of(commitment),
        draw_share=of(share),
        nonce=of(nonce),
    )
    return made, signature, keys, place, late == "true"


def verdict_of(said: Said) -> tuple[int, Outcome, bytes] | None:
    """Round, outcome and commitment; None where a value has another form.

    Raises:
        FieldError: a value out of its range.
    """
    (
        commitment, cluster, digest, multiplier, name, penalty, refuted, scores, verdicts, verified, weight, round_, *_,
    ) = said.groups()  # fmt: skip
    number, figures = int(round_), (int(weight), int(multiplier), int(penalty))
    scored, passed = _object(scores), _pairs(verdicts)
    degree = None if verified == "null" else int(verified)
    least, most = min(figures), max(*figures, number, abs(degree or 0))
    if scored is None or passed is None or max(most, -least) > MAX_INTEGER or len(digest) % 2:
        return None
    label = None if cluster == "null" else cluster[1:-1]
    made = Outcome(name, bytes.fromhex(digest), degree, *figures, refuted == "true", label, scored, passed)
    return number, made, bytes.fromhex(commitment)


@lru_cache(1024)
def _object(text: str) -> Mapping[str, Any] | None:
    """The object of canonical form that is `text`; None where it is none."""
    found = _value(text)
    return found if type(found) is dict else None


@lru_cache(1024)
def _pairs(text: str) -> tuple[tuple[str, bool], ...] | None:
    """Screens and whether they were passed; there are few such lists."""
    found = _value(text)
    if type(found) is not list:
        return None
    good = all(type(p) is list and len(p) == 2 and type(p[0]) is str and type(p[1]) is bool for p in found)
    return tuple([(screen, passed) for screen, passed in found]) if good else None


def _value(text: str) -> Any:
    try:
        return parse_canonical(text.encode())
    except FieldError:
        return None
