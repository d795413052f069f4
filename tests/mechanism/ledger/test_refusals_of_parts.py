"""What the parts of the verifier refuse by themselves, from every caller: each guard has its case."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mechanism.canonical import canonical_bytes
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryError, NoteError, ProofError, SignatureError
from mechanism.ledger.key_history import key_event
from mechanism.ledger.log_keys import KeyChange, LogKeys, key_change
from mechanism.ledger.merkle import (
    MAX_SIZE,
    consistency_proof,
    leaf_hash,
    verify_consistency,
    verify_inclusion,
)
from mechanism.ledger.note import (
    MAX_KEY_CHARACTERS,
    MAX_NOTE_BYTES,
    MAX_SIGNATURES,
    Checkpoint,
    Note,
    SigningKey,
    VerificationKey,
    decode_hash,
    sign_checkpoint,
)
from mechanism.ledger.witness import AddCheckpoint, StaleRequest, check_request
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
        entries.transition("task", 0, state, samples.at(0))


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
        entries.transition("task", 0, "OPEN", samples.at(0)),
        Entry("x", "enrolment", {"participant_id": 7, "public_key": ""}),
        Entry("x", "claim", {"participant_id": "ann", "public_key": str(made.body["public_key"])}),
    ):
        with pytest.raises(EntryError, match="neither an enrolment nor a revocation"):
            key_event(3, other.data)


def test_an_announcement_of_a_key_has_one_form() -> None:
    made = entries.log_key(1, KEYS[0], KEYS[1])
    assert key_change(5, made.data) == KeyChange(5, KEYS[0], KEYS[1])
    for change in ({"number": "1"}, {"number": True}, {"number": 2}, {"more": 1}):
        other = Entry(made.id, made.kind, {**made.body, **change})
        with pytest.raises(EntryError, match="not a well-formed announcement"):
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


def test_a_verification_key_has_a_known_type_and_32_bytes() -> None:
    for kind in (0, 2, 255):
        with pytest.raises(NoteError, match="unknown type"):
            VerificationKey("example.com/log", kind, bytes(32))
    for count in (0, 31, 33):
        with pytest.raises(NoteError, match="expected 32 of Ed25519"):
            VerificationKey("example.com/log", 1, bytes(count))


def test_a_verification_key_has_three_parts_and_so_many_characters() -> None:
    text = str(VerificationKey("n" * (MAX_KEY_CHARACTERS - 54), 1, bytes(32)))
    assert len(text) == MAX_KEY_CHARACTERS
    assert VerificationKey.parse(text)
    for wrong in (
        str(VerificationKey("n" * (MAX_KEY_CHARACTERS - 53), 1, bytes(32))),
        "name+00000000",
        "name",
    ):
        with pytest.raises(NoteError, match="this is not a verification key"):
            VerificationKey.parse(wrong)
    with pytest.raises(NoteError, match="is empty"):
        VerificationKey.parse("name+00000000+")


def test_a_signing_key_has_its_form_and_its_id() -> None:
    text = SigningKey("example.com/log", 1, bytes(32)).secret_text()
    *before, _, encoded = text.split("+")
    for wrong in (text.replace("PRIVATE", "PUBLIC", 1), "+".join(before), encoded):
        with pytest.raises(NoteError, match="this is not a signing key"):
            SigningKey.parse(wrong)
    with pytest.raises(NoteError, match="does not belong to it"):
        SigningKey.parse("+".join([*before, "00000000", encoded]))


def test_a_note_is_printable_and_of_bounded_length() -> None:
    signature = "\u2014 example.com/log " + base64.b64encode(bytes(68)).decode() + "\n"
    fits = "x" * (MAX_NOTE_BYTES - len(signature) - 2) + "\n\n" + signature
    assert len(fits) == MAX_NOTE_BYTES
    assert Note.parse(fits)
    with pytest.raises(NoteError, match="expected at most"):
        Note.parse("x" + fits)
    for sign in ("\x00", "\x1b", "\u202e", "\x7f"):
        with pytest.raises(NoteError, match="control characters"):
            Note.parse(f"te{sign}xt\n\n{signature}")
    assert Note.parse("text\n\n" + signature * MAX_SIGNATURES)
    with pytest.raises(NoteError, match=f"expected at most {MAX_SIGNATURES}"):
        Note.parse("text\n\n" + signature * (MAX_SIGNATURES + 1))
    short = "\u2014 example.com/log " + base64.b64encode(bytes(4)).decode() + "\n"
    with pytest.raises(NoteError, match="is too short"):
        Note.parse("text\n\n" + short)


def test_roots_and_hashes_have_32_bytes() -> None:
    for count in (31, 33):
        encoded = base64.b64encode(bytes(count)).decode()
        with pytest.raises(NoteError, match="expected 32"):
            Checkpoint.parse_text(f"example.com/log\n5\n{encoded}\n")
        with pytest.raises(NoteError, match="expected 32"):
            decode_hash(encoded)


def test_a_witness_answers_a_request_of_its_form_from_its_own_size() -> None:
    log = SigningKey("example.com/log", 1, bytes([1]) * 32)
    note = sign_checkpoint(Checkpoint(log.name, 3, bytes(32)), log)
    hashes = base64.b64encode(bytes(32)).decode() + "\n"
    assert len(AddCheckpoint.parse(f"old 1\n{hashes * 63}\n{note}").proof) == 63
    for wrong in (f"old 1\n{hashes * 64}\n{note}", f"old 01\n{hashes}\n{note}", f"old 1\n{hashes}"):
        with pytest.raises(NoteError, match="not a request to a witness"):
            AddCheckpoint.parse(wrong)
    known = Checkpoint(log.name, 2, bytes(32))
    with pytest.raises(NoteError, match="above the new size"):
        check_request(known, AddCheckpoint(4, (), note), log.verification_key)
    with pytest.raises(StaleRequest):
        check_request(known, AddCheckpoint(1, (), note), log.verification_key)
    with pytest.raises(NoteError, match="must be empty"):
        check_request(None, AddCheckpoint(0, (bytes(32),), note), log.verification_key)
    with pytest.raises(ProofError):
        check_request(known, AddCheckpoint(2, (bytes(32),), note), log.verification_key)


def test_a_consistency_proof_has_hashes_and_roots_of_32_bytes() -> None:
    whole, short = bytes(32), bytes(31)
    for first, second, proof in ((short, whole, [whole]), (whole, short, [whole]), (whole, whole, [short])):
        with pytest.raises(ProofError, match="expected 32"):
            verify_consistency(1, 2, first, second, proof)
