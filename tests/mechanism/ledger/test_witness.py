from dataclasses import replace

import pytest

from mechanism.ledger.errors import LedgerError, NoteError, ProofError, SignatureError
from mechanism.ledger.merkle import consistency_proof, leaf_hash, perfect_root, tree_root
from mechanism.ledger.note import (
    COSIGNATURE_V1,
    Checkpoint,
    Note,
    SigningKey,
    VerificationKey,
    sign_checkpoint,
)
from mechanism.ledger.witness import AddCheckpoint, StaleRequest, check_request, cosignature
from tests import vectors

LOG = SigningKey("example.com/log", 1, bytes(range(32)))
LEAVES = [leaf_hash(bytes([i])) for i in range(20)]


def head(size: int, leaves: list[bytes] = LEAVES) -> Checkpoint:
    return Checkpoint(LOG.name, size, tree_root(leaves[:size]))


def request(old: int, new: int, leaves: list[bytes] = LEAVES) -> AddCheckpoint:
    def nodes(wanted: object) -> list[bytes]:
        return [perfect_root(leaves[i << h : (i + 1) << h]) for h, i in wanted]  # type: ignore[attr-defined]

    return AddCheckpoint(
        old, tuple(consistency_proof(nodes, old, new)), sign_checkpoint(head(new, leaves), LOG)
    )


def test_a_head_that_extends_the_last_is_accepted_and_cosigned() -> None:
    witness = SigningKey("w", COSIGNATURE_V1, bytes(32))
    known: Checkpoint | None = None
    for old, new in ((0, 0), (0, 3), (3, 3), (3, 20)):
        asked = AddCheckpoint.parse(str(request(old, new)))
        known = check_request(known, asked, LOG.verification_key)
        assert known == head(new)
        signed = asked.checkpoint.with_signature(cosignature(asked, witness, 5))
        assert signed.cosigned_by(witness.verification_key) == 5


def test_a_fork_is_refused() -> None:
    fork = [*LEAVES[:4], leaf_hash(b"other"), *LEAVES[5:]]
    for new in (5, 6, 20):
        with pytest.raises(ProofError):
            check_request(head(5), request(5, new, fork), LOG.verification_key)


@pytest.mark.parametrize("text", ["", "old\n\n", "old 01\n\n", "old 1", "old -1\n\nx", "old 1\nxx\n\nx"])
def test_a_malformed_request_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        AddCheckpoint.parse(text)


def test_the_public_request_parses_and_comes_back() -> None:
    text = vectors.load("c2sp_notes.json")["witness_add_checkpoint_request_example"]["text"]
    parsed = AddCheckpoint.parse(text)
    assert (parsed.old, len(parsed.proof), str(parsed)) == (20852014, 4, text)


def test_the_public_update_cases_are_judged_as_they_should() -> None:
    data = vectors.load("c2sp_notes.json")["witness_update"]
    log = VerificationKey.parse(data["log_vkey"])
    five, eight = Note.parse(data["checkpoint_size5"]), Note.parse(data["checkpoint_size8"])
    proof = tuple(bytes.fromhex(value) for value in data["consistency_5_to_8_hex"])
    known = Checkpoint.open(five, log)
    good = AddCheckpoint(5, proof, eight)

    def refused(asked: AddCheckpoint, key: VerificationKey = log) -> LedgerError:
        with pytest.raises(LedgerError) as caught:
            check_request(known, asked, key)
        return caught.value

    assert check_request(known, good, log).size == 8
    stale = refused(replace(good, old=2))
    assert isinstance(stale, StaleRequest)
    assert stale.size == 5
    with pytest.raises(NoteError):
        check_request(None, replace(good, old=0), log)
    assert check_request(known, AddCheckpoint(5, (), five), log) == known
    key = SigningKey.parse(data["log_skey_public_fixture"])
    other_root = sign_checkpoint(Checkpoint(key.name, 5, bytes(32)), key)
    assert isinstance(refused(AddCheckpoint(5, (), other_root)), ProofError)
    four = sign_checkpoint(Checkpoint(key.name, 4, bytes(32)), key)
    with pytest.raises(ProofError):
        check_request(Checkpoint.open(four, log), AddCheckpoint(4, (), five), log)
    assert isinstance(refused(AddCheckpoint(8, (), five)), NoteError)
    assert isinstance(refused(replace(good, proof=(b"\x01\x02",) * 4)), ProofError)
    assert isinstance(
        refused(replace(good, checkpoint=replace(eight, signatures=five.signatures))), SignatureError
    )
    stranger = VerificationKey("other", 1, log.public)
    assert isinstance(refused(good, stranger), SignatureError)
