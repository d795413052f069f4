"""Models and verdicts, which are read by their bytes' layout: nothing passes that is not the one canonical form."""

import pytest

from mechanism.ledger.entry import Entry
from mechanism.ledger.replay import Replay, ReplayError
from mechanism.ledger.replay.layouts import entry_of, laid_out
from tests import ledger_samples as samples

PEOPLE = samples.names(4)
LEDGER = [e for step in samples.transactions(samples.terms(rounds=2), PEOPLE, {2: "p001"}) for e in step]

CANONICAL, FORM = "canonical JSON", "its bytes are not laid out as"


def test_models_and_verdicts_have_a_layout_and_nothing_else_has() -> None:
    for entry in LEDGER:
        said = laid_out(entry.data)
        assert (said is not None) == (entry.kind in ("model", "verdict"))
        if said is not None:
            assert entry_of(said) == Entry.parse(entry.data) == entry


def refused(kind: str, old: bytes, new: bytes) -> str:
    """Why the first entry of a kind is refused with other bytes in it."""
    index = next(i for i, entry in enumerate(LEDGER) if entry.kind == kind)
    data = LEDGER[index].data
    assert old in data
    replay = Replay(check_statements=False)
    for entry in LEDGER[:index]:
        replay.feed(entry.data)
    with pytest.raises(ReplayError) as caught:
        replay.feed(data.replace(old, new, 1))
    return caught.value.reason


@pytest.mark.parametrize("kind", ["model", "verdict"])
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"round":1,', b'"round":1.0,', "an integer"),
        (b'"round":1,', b'"round":1e0,', "an integer"),
        (b'"round":1,', b'"round":01,', CANONICAL),
        (b'"round":1,', b'"round":-0,', CANONICAL),
        (b'"round":1,', b'"round":+1,', CANONICAL),
        (b'"round":1,', b'"round":NaN,', CANONICAL),
        (b'"round":1,', b'"round": 1,', CANONICAL),
        (b'"round":1,', b'"round":1,"round":1,', CANONICAL),
        (b'"round":1,', b'"round":2,"round":1,', CANONICAL),
        (b'"round":1,', b'"round":1,"a":1,', CANONICAL),
        (b'"round":1,', b'"round":9007199254740992,', "53 bits"),
        (b'"round":1,', b'"round":9999999999999999,', "53 bits"),
        (b'"round":1,', b'"round":' + b"9" * 400 + b",", ""),
        (b'"round":1,', b'"round":true,', "round"),
        (b'"round":1,', b'"round":"1",', "round"),
        (b'"round":1,', b'"round":' + b"[" * 40 + b"]" * 40 + b",", "nesting"),
        (b'"participant_id":"p000"', b'"participant_id":"p00\\u0030"', CANONICAL),
        (b'"participant_id":"p000"', b'"participant_id":"p00\\ud800"', CANONICAL),
        (b'"participant_id":"p000"', b'"participant_id":"p00\xed\xa0\x80"', CANONICAL),
        (b'"participant_id":"p000"', b'"participant_id":"p00\xff"', CANONICAL),
        (b'"participant_id":"p000"', b'"participant_id":null', "participant_id"),
        (b'"v":1}', b'"v":1}\n', CANONICAL),
        (b'"v":1}', b'"v":1} ', CANONICAL),
        (b'"v":1}', b'"v":1}{}', CANONICAL),
        (b'"v":1}', b'"v":1.0}', "an integer"),
        (b'"v":1}', b'"v":2}', "version"),
        (b'{"body"', b' {"body"', CANONICAL),
        (b'{"body"', b'\xef\xbb\xbf{"body"', CANONICAL),
        (b'{"body"', b'{"another":1,"body"', "the keys"),
    ],
)  # fmt: skip
def test_another_form_of_a_layout_is_refused(kind: str, old: bytes, new: bytes, words: str) -> None:
    assert words in refused(kind, old, new)


@pytest.mark.parametrize(
    ("kind", "old", "new", "words"),
    [
        ("model", b'"late":false', b'"late":0', "late"),
        ("model", b'"late":false', b'"late":null', "late"),
        ("model", b'"sequence":1', b'"sequence":-1', "sequence"),
        ("model", b'"signature":"', b'"signature":"a', "signature"),
        ("model", b'"signature":"', b'"signature":"AA', "signature"),
        ("model", b'"kind":"model","model_bytes"', b'"kind":"claim","model_bytes"', "kind is 'claim'"),
        ("verdict", b'"refuted":false', b'"refuted":0', "refuted"),
        ("verdict", b'"penalty_micro":', b'"penalty_micro":-9', ""),
        ("verdict", b'"cluster":null', b'"cluster":"\\u0041"', CANONICAL),
        ("verdict", b'"cluster":null', b'"cluster":"\xc3\xa9"', FORM),
        ("verdict", b'"cluster":null', b'"cluster":7', "cluster"),
        ("verdict", b'"scores":{}', b'"scores":{"a":1.5}', "an integer"),
        ("verdict", b'"scores":{}', b'"scores":{"b":"1","a":"1"}', CANONICAL),
        ("verdict", b'"scores":{}', b'"scores":{"a":"1","a":"1"}', CANONICAL),
        ("verdict", b'"scores":{}', b'"scores":{"a":{}}', FORM),
        ("verdict", b'"scores":{}', b'"scores":[]', "scores"),
        ("verdict", b'["contract",true]', b'["contract",1]', "verdicts"),
        ("verdict", b'["contract",true]', b'["contract", true]', CANONICAL),
        ("verdict", b'["contract",true]', b'["contract",true,true]', "verdicts"),
        ("verdict", b'["contract",true]', b'["contract",true]],"verdicts":[["contract",true]', CANONICAL),
        ("verdict", b'["contract",true]', b'["contract",1.0]', "an integer"),
    ],
)  # fmt: skip
def test_a_value_of_another_form_is_refused(kind: str, old: bytes, new: bytes, words: str) -> None:
    assert words in refused(kind, old, new)
