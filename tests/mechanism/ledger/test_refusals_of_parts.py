"""What the parts of the verifier refuse by themselves, whoever calls them: each guard has its case."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mechanism.canonical import canonical_bytes
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryError, ProofError, SignatureError
from mechanism.ledger.key_history import key_event
from mechanism.ledger.log_keys import KeyChange, LogKeys, key_change
from mechanism.ledger.merkle import MAX_SIZE, consistency_proof, leaf_hash, verify_inclusion
from mechanism.ledger.note import SigningKey
from mechanism.terms import TensorSpec
from tests import ledger_samples as samples

KEYS = [SigningKey("example.com/log", 1, bytes([number]) * 32).verification_key for number in (1, 2, 3)]
OTHER = SigningKey("example.com/other", 1, bytes([4]) * 32).verification_key


def test_terms_take_so_many_parts_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = samples.terms()
    many = tuple(TensorSpec(f"{number:05}" + "t" * 200, "F32", (1,)) for number in range(1_000))
    large = replace(plain, contract=replace(plain.contract, tensors=many, max_bytes=1 << 20))
    parts = len(entries.published(large))
    assert parts > 1
    monkeypatch.setattr(entries, "MAX_TERMS_PARTS", parts)
    assert len(entries.published(large)) == parts
    monkeypatch.setattr(entries, "MAX_TERMS_PARTS", parts - 1)
    with pytest.raises(FieldError, match="fewer tensors"):
        entries.published(large)


def test_a_log_key_follows_another_one_of_the_same_log() -> None:
    assert entries.log_key(1, KEYS[0], KEYS[1])
    for following in (KEYS[0], OTHER):
        with pytest.raises(FieldError, match="another Ed25519 key of the log"):
            entries.log_key(1, KEYS[0], following)


@pytest.mark.parametrize("state", ["NOWHERE", "open", ""])
def test_a_task_enters_a_state_that_there_is(state: str) -> None:
    with pytest.raises(FieldError, match="state"):
        entries.transition("task", 0, state)


def test_parts_are_put_together_under_their_digest() -> None:
    text = canonical_bytes({"a": 1})
    piece, digest = base64.b64encode(text).decode(), hashlib.sha256(text).hexdigest()
    assert entries.joined([piece[:4], piece[4:]], digest) == text
    with pytest.raises(FieldError, match="digest"):
        entries.joined([piece], "00" * 32)
    with pytest.raises(FieldError, match="base64"):
        entries.joined(["?"], digest)


def test_the_key_history_is_of_enrolments_and_revocations() -> None:
    made = entries.enrolment("ann", samples.private_key("ann").public_key())
    assert key_event(3, made.data).participant_id == "ann"
    for other in (
        entries.transition("task", 0, "OPEN"),
        Entry("x", "enrolment", {"participant_id": 7, "public_key": ""}),
        Entry("x", "claim", {"participant_id": "ann", "public_key": str(made.body["public_key"])}),
    ):
        with pytest.raises(EntryError, match="no enrolment and no revocation"):
            key_event(3, other.data)


def test_an_announcement_of_a_key_has_one_form() -> None:
    made = entries.log_key(1, KEYS[0], KEYS[1])
    assert key_change(5, made.data) == KeyChange(5, KEYS[0], KEYS[1])
    for change in ({"number": "1"}, {"number": True}, {"number": 2}, {"more": 1}):
        other = Entry(made.id, made.kind, {**made.body, **change})
        with pytest.raises(EntryError, match="no well-formed announcement"):
            key_change(5, other.data)


def test_a_log_never_comes_back_to_an_earlier_key() -> None:
    keys = LogKeys(KEYS[0]).changed(KeyChange(1, KEYS[0], KEYS[1]))
    assert keys.changed(KeyChange(2, KEYS[1], KEYS[2])).current == KEYS[2]
    with pytest.raises(SignatureError, match="comes back to the earlier key"):
        keys.changed(KeyChange(2, KEYS[1], KEYS[0]))
    with pytest.raises(SignatureError, match="announces a key after"):
        keys.changed(KeyChange(2, KEYS[2], KEYS[0]))


def nothing(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
    return [bytes(32) for _ in wanted]


@pytest.mark.parametrize(("first", "second"), [(-1, 3), (4, 3), (0, MAX_SIZE + 1), (5, 0)])
def test_a_consistency_proof_leads_from_an_older_size_to_a_newer_one(first: int, second: int) -> None:
    with pytest.raises(ProofError, match="no consistency proof leads"):
        consistency_proof(nothing, first, second)


def test_an_inclusion_proof_has_hashes_of_32_bytes_and_no_more_than_the_tree_is_high() -> None:
    leaf = leaf_hash(b"x")
    verify_inclusion(0, 1, leaf, [], leaf)
    with pytest.raises(ProofError, match="longer than the tree is high"):
        verify_inclusion(0, 1, leaf, [leaf], leaf)
    for short in ([leaf[:31]], [b""]):
        with pytest.raises(ProofError, match="expected 32"):
            verify_inclusion(0, 2, leaf, short, leaf)
    with pytest.raises(ProofError, match="expected 32"):
        verify_inclusion(0, 1, leaf[:31], [], leaf[:31])
