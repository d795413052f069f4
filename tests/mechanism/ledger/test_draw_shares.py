"""The draw of peers in the log, against a coordinator that knows the seeds, signs what it likes and has puppets.

Every history here is signed throughout and consistent: what follows from a forged entry is computed anew.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mechanism.canonical import canonical_bytes
from mechanism.evidence import EvidenceModel, Measurement, assess
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay import Replay, ReplayError
from mechanism.ledger.verify import Report
from mechanism.peers import Draw, Meetings, draw_share, round_seed
from mechanism.settlement import Assessment
from mechanism.unmeasured import missing
from tests import ledger_samples as samples
from tests.memory_source import MemorySource, audited

PEOPLE = samples.names(6)
#: Those that the coordinator speaks for, key and all.
PUPPETS = PEOPLE[-2:]
ROUNDS = 3
TERMS = samples.terms(rounds=ROUNDS, capacity=6, stake_micro=0)


def verify(ledger: Sequence[Entry]) -> Report:
    return audited(MemorySource([*ledger]))


def refused(ledger: Sequence[Entry], index: int, *words: str) -> None:
    report = verify(ledger)
    assert not report.verified
    assert report.problems[0].index == index, report.problems[0]
    for word in words:
        assert word in report.problems[0].message, report.problems[0]


def own_share(name: str, round_: int) -> bytes:
    return draw_share(samples.share_secret(TERMS, name), ROUNDS, round_)


def round_of(
    round_: int,
    who: Sequence[str],
    *,
    shares: Mapping[str, bytes] | None = None,
    digests: Mapping[str, bytes] | None = None,
    unscored: Sequence[str] = (),
    drawn: Draw | None = None,
    before: Sequence[Entry] = (),
) -> list[Entry]:
    """A round in which `who` sent a model in time, and nothing else is wrong.

    Args:
        shares, digests: others than a participant's own.
        unscored: whose model fails a screen.
        drawn: what the coordinator draws from, where that is not what was sent.
        before: the rounds before.
    """
    shares, digests = shares or {}, digests or {}
    agreed, task_id = TERMS, TERMS.task_id
    models = [
        samples.model(agreed, round_, name, share=shares.get(name), digest=digests.get(name, b""))
        for name in who
    ]
    record: Any = samples.evidence(agreed, round_, who)
    for measured in record["measurements"]:
        name = measured["participant_id"]
        if name in digests:
            measured["model_sha256"] = digests[name].hex()
        if name in unscored:
            measured["fault"] = "a tensor is missing"
    judged = assessed(record) + [
        missing(name, samples.degree(name), None) for name in PEOPLE if name not in who
    ]
    sent = {name: shares.get(name, own_share(name, round_)) for name in who}
    draw = drawn or Draw(round_seed(samples.SECRET, ROUNDS, round_), sent)
    meetings = Meetings(samples.draws_of(before))
    settled = samples.judging(
        agreed, round_, judged, [record], {}, draw=Draw(draw.seed, sent), meetings=meetings
    )
    if draw.shares != sent:
        true = [
            i for i, entry in enumerate(settled) if entry.kind in ("seed", "peers", "settlement", "payment")
        ]
        settled[true[0] : true[-1] + 1] = settlement(draw, judged, round_)
    return [entries.transition(task_id, round_, "TRAINING", samples.at(2 * round_)), *models, *settled]


def assessed(record: Any) -> list[Assessment]:
    measured = [Measurement.from_record(item) for item in record["measurements"]]
    return list(assess(EvidenceModel.from_record(record["model"]), measured))


def settlement(draw: Draw, judged: Sequence[Assessment], round_: int = 1) -> list[Entry]:
    """The entries that settle a round; where the shares are not those that were sent, as a liar would write them."""
    received = {a.participant_id for a in judged if a.model_sha256}
    if draw.shares.keys() == received:
        return entries.settlement_entries(TERMS, round_, draw, judged)[1]
    kept = [a for a in judged if a.participant_id in draw.shares or not a.model_sha256]
    return entries.settlement_entries(TERMS, round_, draw, kept)[1]


def begun() -> list[Entry]:
    return samples.opening(TERMS, PEOPLE)


def draws(ledger: Sequence[Entry]) -> bytes:
    return canonical_bytes([entry.body["draws"] for entry in ledger if entry.kind == "peers"])


def keys(ledger: Sequence[Entry]) -> bytes:
    return canonical_bytes([entry.body["key"] for entry in ledger if entry.kind == "peers"])


def index_of(ledger: Sequence[Entry], kind: str, name: str = "") -> int:
    return next(i for i, e in enumerate(ledger) if e.kind == kind and f"/{name}" in e.id)


def test_a_round_with_its_shares_verifies_and_says_what_its_peers_were_drawn_from() -> None:
    ledger = [*begun(), *round_of(1, PEOPLE)]
    report = verify(ledger)
    assert report.verified, report.problems
    peers = ledger[index_of(ledger, "peers")].body
    draw = samples.draw_of(TERMS, 1, PEOPLE)
    assert (peers["shares"], peers["key"]) == (draw.digest.hex(), draw.key.hex())


# What a puppet can choose


def test_a_puppet_that_tries_many_models_cannot_change_the_draw() -> None:
    usual = draws(round_of(1, PEOPLE))
    for attempt in range(200):
        tried = round_of(1, PEOPLE, digests={PUPPETS[0]: hashlib.sha256(b"%d" % attempt).digest()})
        assert draws(tried) == usual
    report = verify([*begun(), *tried])
    assert report.verified, report.problems


def test_a_puppet_that_tries_other_shares_is_refused_in_its_first_entry() -> None:
    for tried in (bytes(32), own_share(PUPPETS[0], 2), own_share(PUPPETS[1], 1), own_share("p000", 1)):
        ledger = [*begun(), *round_of(1, PEOPLE, shares={PUPPETS[0]: tried})]
        refused(ledger, index_of(ledger, "model", PUPPETS[0]), "draw share", tried.hex(), PUPPETS[0])


def test_puppets_have_one_key_for_each_set_of_them_that_sends() -> None:
    honest, seen = PEOPLE[:4], set()
    for size in range(len(PUPPETS) + 1):
        for sending in itertools.combinations(PUPPETS, size):
            made = round_of(1, [*honest, *sending])
            report = verify([*begun(), *made])
            assert report.verified, report.problems
            seen.add(keys(made))
    assert len(seen) == 2 ** len(PUPPETS)


def test_a_spoilt_model_keeps_its_share_in_the_key_and_its_place_in_the_order() -> None:
    usual, spoilt = round_of(1, PEOPLE), round_of(1, PEOPLE, unscored=PUPPETS[:1])
    assert keys(spoilt) == keys(usual)
    report = verify([*begun(), *spoilt])
    assert report.verified, report.problems
    before, after = (dict(made[index_of(made, "peers")].body["draws"]) for made in (usual, spoilt))
    moved = [name for name in PEOPLE if before[name] != after[name]]
    assert set(moved) == {PUPPETS[0], *(name for name in PEOPLE if before[name] == [PUPPETS[0]])}


# What a coordinator could write


def test_a_model_in_time_whose_share_is_left_out_of_the_draw_is_seen() -> None:
    without = samples.draw_of(TERMS, 1, PEOPLE[:5])
    ledger = [*begun(), *round_of(1, PEOPLE, drawn=without)]
    refused(ledger, index_of(ledger, "peers"), "body")


def test_a_share_that_nobody_sent_in_the_draw_is_seen() -> None:
    shares = {name: own_share(name, 1) for name in PEOPLE}
    other = Draw(round_seed(samples.SECRET, ROUNDS, 1), {**shares, PUPPETS[0]: bytes(32)})
    ledger = [*begun(), *round_of(1, PEOPLE, drawn=other)]
    refused(ledger, index_of(ledger, "peers"), "body")


@pytest.mark.parametrize("field", ["shares", "key"])
def test_the_digest_of_the_shares_and_the_key_are_recomputed(field: str) -> None:
    ledger = [*begun(), *round_of(1, PEOPLE)]
    index = index_of(ledger, "peers")
    entry = ledger[index]
    ledger[index] = Entry(entry.id, entry.kind, {**entry.body, field: "ab" * 32})
    refused(ledger, index, f"body.{field}")


def test_a_share_of_a_late_model_is_of_the_chain_and_not_in_the_key() -> None:
    rounds = round_of(1, PEOPLE[:5])
    trained = index_of(rounds, "evidence")
    late = samples.model(TERMS, 1, "p005", late=True)
    ledger = [*begun(), *rounds[:trained], late, *rounds[trained:]]
    report = verify(ledger)
    assert report.verified, report.problems
    assert keys(ledger) == keys(round_of(1, PEOPLE[:5])) != keys(round_of(1, PEOPLE))
    wrong = samples.model(TERMS, 1, "p005", late=True, share=bytes(32))
    ledger[len(begun()) + trained] = wrong
    refused(ledger, len(begun()) + trained, "draw share")


def test_rounds_may_be_skipped_and_late_models_may_come_after_later_ones() -> None:
    first = round_of(1, PEOPLE)
    second = round_of(2, PEOPLE[1:], before=first)
    third = round_of(3, PEOPLE, before=[*first, *second])
    late = samples.model(TERMS, 2, "p000", late=True)  # its upload began before the third round
    trained = index_of(third, "evidence")
    report = verify([*begun(), *first, *second, *third[:trained], late, *third[trained:]])
    assert report.verified, report.problems
    # The share of round 2 of a chain whose third is known already, but of another chain.
    forged = samples.model(TERMS, 2, "p000", late=True, share=own_share("p001", 2))
    ledger = [*begun(), *first, *second, *third[:trained], forged, *third[trained:]]
    refused(ledger, ledger.index(forged), "draw share")


@pytest.mark.parametrize("round_", [ROUNDS + 1, 10**9])
def test_a_late_model_of_a_round_that_the_task_does_not_have_is_refused(round_: int) -> None:
    """So no chain of a billion hashes is followed."""
    made = samples.model(TERMS, 1, "p000", late=True)
    statement: Any = {**made.body["statement"], "round": round_}  # type: ignore[dict-item]
    forged = Entry(made.id.replace("/1/", f"/{round_}/"), "model", {**made.body, "statement": statement})
    replay = Replay(check_statements=False)
    training = entries.transition("task", 1, "TRAINING", samples.at(2))
    *before, last = samples.stamped([*begun(), training, forged])
    for entry in before:
        replay.feed(entry.data)
    with pytest.raises(ReplayError, match=f"a model of round {round_} in round 1"):
        replay.feed(last.data)


def test_a_head_may_be_copied_and_gives_its_copier_no_more_than_to_send_or_not() -> None:
    """It learns each share when the owner's model is public, which is then the only one that it can send."""
    head = samples.claim(TERMS, "p000").body["statement"]["draw_head"]  # type: ignore[index,call-overload]
    forged = [
        samples.claim(TERMS, "p005", head=bytes.fromhex(head)) if e.id == "task/claim/p005/claim-p005" else e
        for e in begun()
    ]
    copied = round_of(1, PEOPLE, shares={"p005": own_share("p000", 1)})
    report = verify([*forged, *copied])
    assert report.verified, report.problems
    own = [*forged, *round_of(1, PEOPLE)]
    refused(own, index_of(own, "model", "p005"), "draw share")
