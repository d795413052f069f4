"""A log's key is followed where it was announced under the one before it, and nowhere else."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError, SignatureError
from mechanism.ledger.log_keys import LogKeys, key_change, log_keys
from mechanism.ledger.merkle import inclusion_proof, leaf_hash, perfect_root, tree_root
from mechanism.ledger.note import Checkpoint, Note, SigningKey, sign_checkpoint
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.ledger.verify import Report, verify_ledger
from tests import ledger_samples as samples
from tests.memory_source import MemorySource

NAME = "example.com/log"
FIRST, SECOND, THIRD, STRANGER = (SigningKey(NAME, 1, bytes([n] * 32)) for n in (1, 2, 3, 4))
PEOPLE = samples.names(3)
BEGUN = samples.opening(samples.terms(rounds=1), PEOPLE)


def announced(number: int, old: SigningKey, new: SigningKey) -> Entry:
    return entries.log_key(number, old.verification_key, new.verification_key)


#: Two changes within a task, and the sizes of the heads that hand over.
LEDGER = [
    *BEGUN,
    announced(1, FIRST, SECOND),
    entries.transition("task", 1, "TRAINING", samples.at(2)),
    samples.model(samples.terms(rounds=1), 1, "p000"),
    announced(2, SECOND, THIRD),
    samples.model(samples.terms(rounds=1), 1, "p001"),
]
ONE, TWO, END = len(BEGUN) + 1, len(BEGUN) + 4, len(LEDGER)
HEADS: dict[int, tuple[SigningKey, ...]] = {
    5: (FIRST,), ONE: (FIRST, SECOND), ONE + 1: (SECOND,), TWO: (SECOND, THIRD), END: (THIRD,),
}  # fmt: skip


class Heads(MemorySource):
    """A ledger with the heads that it is given: who signed the head of each size."""

    def __init__(
        self,
        ledger: Sequence[Entry | bytes],
        heads: Mapping[int, Sequence[SigningKey]],
        key: SigningKey = FIRST,
    ) -> None:
        super().__init__(ledger, key)
        self.signed = {size: self.head(size, signers) for size, signers in sorted(heads.items())}
        self.note = self.signed[max(self.signed)]

    def head(self, size: int, signers: Sequence[SigningKey]) -> str:
        checkpoint = Checkpoint(NAME, size, tree_root([leaf_hash(data) for data in self.data[:size]]))
        note = sign_checkpoint(checkpoint, signers[0])
        for signer in signers[1:]:
            note = note.with_signature(sign_checkpoint(checkpoint, signer).signatures[0])
        return str(note)

    def heads(self) -> Iterator[str]:
        return iter(self.signed.values())

    def receipt(self, index: int, size: int) -> TlogProof:
        def nodes(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
            leaves = [leaf_hash(data) for data in self.data]
            return [perfect_root(leaves[i << h : (i + 1) << h]) for h, i in wanted]

        path = inclusion_proof(nodes, index, size)
        return TlogProof(index, tuple(path), Note.parse(self.signed[size]), self.data[index])


def verify(
    heads: Mapping[int, Sequence[SigningKey]] = HEADS,
    trusted: SigningKey | None = FIRST,
    ledger: Sequence[Entry | bytes] = LEDGER,
    known: str | None = None,
) -> Report:
    key = None if trusted is None else trusted.verification_key
    return verify_ledger(Heads(ledger, heads), key, known)


@pytest.mark.parametrize("trusted", [FIRST, SECOND, THIRD, None])
def test_a_ledger_is_verified_with_any_of_its_keys(trusted: SigningKey | None) -> None:
    report = verify(trusted=trusted)
    assert report.verified, report.problems
    assert report.keys == [str(key.verification_key) for key in (FIRST, SECOND, THIRD)]
    assert report.key == str(THIRD.verification_key)


def test_a_key_that_the_log_never_had_is_named() -> None:
    report = verify(trusted=STRANGER)
    assert [problem.place for problem in report.problems] == ["key"]
    assert str(STRANGER.verification_key) in report.problems[0].message


def test_a_head_seen_under_an_earlier_key_is_extended() -> None:
    source = Heads(LEDGER, HEADS)
    for size in HEADS:
        assert verify(known=source.signed[size]).verified
    for size, signer in ((5, STRANGER), (5, SECOND), (ONE + 1, FIRST), (END, SECOND)):
        report = verify(known=source.head(size, [signer]))
        assert report.problems[0].place == "known checkpoint", (size, signer)


def swapped(size: int, *signers: SigningKey) -> dict[int, tuple[SigningKey, ...]]:
    return {**HEADS, size: signers}


def without(size: int) -> dict[int, tuple[SigningKey, ...]]:
    return {at: signers for at, signers in HEADS.items() if at != size}


FORGED: dict[str, dict[int, tuple[SigningKey, ...]]] = {
    "a key that nobody announced": swapped(END, STRANGER),
    "the new key before it is announced": swapped(5, SECOND),
    "the old key after it was handed over": swapped(ONE + 1, FIRST),
    "an announcement that the old key has not signed": swapped(ONE, SECOND),
    "an announcement that the new key has not signed": swapped(ONE, FIRST),
    "an announcement that a stranger has signed": swapped(ONE, STRANGER, SECOND),
    "an announcement under no head of its own": without(ONE),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_heads_by_other_keys_are_refused(forgery: str) -> None:
    assert not verify(FORGED[forgery]).verified
    assert not verify(FORGED[forgery], trusted=None).verified


ALTERED: dict[str, Callable[[], Entry]] = {
    "another key before it": lambda: announced(1, STRANGER, SECOND),
    "another number": lambda: announced(2, FIRST, SECOND),
}


@pytest.mark.parametrize("change", ALTERED)
def test_announcements_follow_on_each_other(change: str) -> None:
    ledger = [*LEDGER[: ONE - 1], ALTERED[change](), *LEDGER[ONE:]]
    assert not verify(ledger=ledger).verified


def test_a_log_does_not_come_back_to_a_key() -> None:
    ledger = [*LEDGER[: TWO - 1], announced(2, SECOND, FIRST), *LEDGER[TWO:]]
    assert not verify({**HEADS, TWO: (SECOND, FIRST), END: (FIRST,)}, ledger=ledger).verified
    with pytest.raises(FieldError):
        announced(1, FIRST, FIRST)
    with pytest.raises(FieldError):
        entries.log_key(1, FIRST.verification_key, SigningKey("other", 1, bytes(32)).verification_key)


def test_receipts_lead_from_any_key_to_the_present_one() -> None:
    source = Heads(LEDGER, HEADS)
    proofs = [source.receipt(ONE - 1, ONE), source.receipt(TWO - 1, TWO)]
    for trusted in (FIRST, SECOND, THIRD):
        keys = log_keys(trusted.verification_key, THIRD.verification_key, proofs)
        assert keys.current == THIRD.verification_key
        assert keys.verify(source.receipt(3, END)).size == END
        assert keys.open(source.signed[END]).size == END
    keys = LogKeys(FIRST.verification_key).followed(proofs)
    for size in HEADS:
        assert keys.verify(source.receipt(3, size)).size == size
    assert keys.followed(proofs) == keys  # shown again
    with pytest.raises(SignatureError):
        LogKeys(FIRST.verification_key).verify(source.receipt(3, END))
    with pytest.raises(SignatureError):
        keys.open(source.head(END, [FIRST]))


def test_receipts_that_do_not_lead_there_are_refused() -> None:
    source = Heads(LEDGER, HEADS)
    proofs = [source.receipt(ONE - 1, ONE), source.receipt(TWO - 1, TWO)]
    later = source.receipt(ONE - 1, ONE + 1)
    for trusted, shown in (
        (STRANGER, proofs),
        (FIRST, proofs[1:]),
        (FIRST, proofs[:1]),
        (FIRST, [later, proofs[1]]),
    ):
        with pytest.raises(LedgerError):
            log_keys(trusted.verification_key, THIRD.verification_key, shown)
    with pytest.raises(LedgerError, match="announces no key"):
        LogKeys(FIRST.verification_key).followed([source.receipt(3, 5)])
    assert key_change(3, source.data[3]) is None
