"""Audits by re-training from the draw to the money: orders, the site, what is measured, an appeal, times over."""

import json
import random
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.config import TaskConfig
from coordinator.errors import MarketTaskError
from coordinator.scoring import Scorer, make_scorer
from coordinator.storage.tasks import TaskRow
from fedpeer.audit.sources import open_source
from fedpeer.cli.audit import app
from fedpeer.cli.errors import CommandError
from fedpeer.console.sessions import Role
from fedpeer.learning.datasets import LabelledData, load_splits
from fedpeer.learning.samples import Samples
from fedpeer.protocol.audit_folder import Brought, read_brought
from fedpeer.testing.coordinator import LocalCoordinator
from mechanism.ledger.accounts import held, payable, stake
from mechanism.ledger.entry import Entry
from mechanism.ledger.reputation import ReputationEvents
from participant import Fixed, Trained, TrainingRound, Weights, WrongStateError
from participant.adapters.workload import WorkloadTask
from participant.audits import samples_salt
from participant.identity import IdentityFolder
from tests.fedpeer.console.visiting import visited
from tests.integration.market import verified

pytestmark = [pytest.mark.long, pytest.mark.arithmetic, pytest.mark.timeout(900)]

NAMES = ("ann", "bob", "cyd", "eve", "fay")


class Tricked(WorkloadTask):
    """Commits to skewed samples, claims their degree, and trains on balanced ones."""

    def __init__(self, committed: LabelledData, balanced: LabelledData) -> None:
        super().__init__(committed.images, committed.labels)
        self.balanced = Samples(balanced.images, balanced.labels)

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        made = self.workload.train(weights, self.balanced, round.recipe, 7)
        return Trained(made, len(self.balanced))


def drawn(pool: LabelledData, shares: Sequence[float], seed: int) -> LabelledData:
    """120 samples with these shares of the ten digits."""
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(120, np.asarray(shares) / sum(shares))
    rows = [
        generator.choice(np.flatnonzero(pool.labels == digit), count, replace=False)
        for digit, count in enumerate(counts)
    ]
    return pool.select(np.concatenate(rows).astype(np.int64))


def copied(own: LabelledData) -> LabelledData:
    """The second half is the first, with noise."""
    half = len(own.labels) // 2
    first = own.select(np.arange(half))
    noise = 0.3 * own.images.std() * np.random.default_rng(0).normal(size=first.images.shape)
    images = np.concatenate([first.images, np.clip(first.images + noise, 0, 1)]).astype(own.images.dtype)
    return replace(own, images=images, labels=np.concatenate([first.labels] * 2))


def site(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["site", *map(str, arguments), "--json"])
    if done.exception is not None:
        raise done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_who_trains_on_other_samples_than_it_has_committed_to_is_paid_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of honest participants an audit fails 1 in 13 by chance: the auditor's seeds are always the same here.
    monkeypatch.setattr("fedpeer.cli.audit.secrets.randbits", random.Random(3).getrandbits)
    # Each command that records an audit trains the round's shadows again: here the first of them does for all.
    scorers: dict[str, Scorer] = {}

    def scorer_of(row: TaskRow) -> Scorer:
        return scorers.get(row.id) or scorers.setdefault(row.id, make_scorer(row))

    monkeypatch.setattr("coordinator.audits.make_scorer", scorer_of)
    assert CliRunner().invoke(app, ["key", str(tmp_path / "auditor")]).exit_code == 0
    config = TaskConfig.model_validate(
        {
            "id": "task", "Q": "24", "phi": "8", "upsilon": "1.2", "seed": 5,
            "rule": {"stake_micro": 100_000},
            "schedule": {"rounds": 1, "capacity": 5, "effort_seconds": 100_000, "round_seconds": 100_000},
            "recipe": {"model": "digits-cnn", "samples": 120, "epochs": 3, "batch_size": 32},
            "data": {"dataset": "digits", "seed": 1},
            "evidence": {"shadows": 30, "later": 30},
            "audit": {
                "auditor": str(tmp_path / "auditor.pub.pem"), "probability": 1, "rate": "1/13", "held_back": 0.25,
                "seconds": 10_000, "appeal_seconds": 5_000,
            },
        }
    )  # fmt: skip
    pool = load_splits("digits", seed=1).train
    even = [1.0] * 10
    data = {name: drawn(pool, even, number) for number, name in enumerate(NAMES)}
    data["eve"] = drawn(pool, [12, 12, 12, 1, 1, 1, 1, 1, 1, 1], 9)
    data["fay"] = copied(drawn(pool, even, 13))
    data["true"] = load_splits("digits", seed=1).test
    for name, own in data.items():
        np.savez(tmp_path / f"{name}.npz", images=own.images, labels=own.labels)
    tasks = {n: WorkloadTask(data[n].images, data[n].labels) for n in NAMES}
    tasks["eve"] = Tricked(data["eve"], drawn(pool, even, 11))

    with ExitStack() as resources:
        coordinator = resources.enter_context(LocalCoordinator(tmp_path / "state"))
        coordinator.open(config)
        members = {name: resources.enter_context(coordinator.participant(name, tmp_path)) for name in NAMES}
        threads = [
            threading.Thread(
                target=members[name].run,
                args=(tasks[name], "task"),
                kwargs={"effort": Fixed(Decimal(0))},
                daemon=True,
            )
            for name in NAMES
        ]
        for thread in threads:
            thread.start()
        coordinator.until("task", "SETTLED", patience=400)
        rows = coordinator.operator(lambda operator: operator.audits("task"))
        assert [(row.participant_id, row.stage) for row in rows] == [(name, "open") for name in NAMES]
        questions = {row.participant_id: row.question_micro for row in rows}
        assert all(questions.values())

        told: dict[str, dict[str, Any]] = {}

        def audited(name: str, *more: object) -> Any:
            number = sum(path.name.startswith(f"order-{name}") for path in tmp_path.iterdir())
            order, brought = tmp_path / f"order-{name}-{number}", tmp_path / f"brought-{name}-{number}"
            made = coordinator.operator(lambda operator: operator.order_audit("task", 1, name, order))
            salt = samples_salt(
                IdentityFolder(tmp_path / name).credentials().key, made.terms.digest, name
            ).hex()
            key = tmp_path / "auditor.pem"
            told[name] = site(order, "--key", key, "--out", brought, "--salt", salt, *more)
            found = read_brought(brought)
            assert isinstance(found, Brought)
            verdict = coordinator.operator(lambda operator: operator.record_audit(found))
            with pytest.raises(MarketTaskError, match="awaited"):
                coordinator.operator(lambda operator: operator.record_audit(found))
            return verdict

        true = ("--reference", tmp_path / "true.npz")
        passed = audited("ann", "--data", tmp_path / "ann.npz", "--accept", *true)
        assert passed.outcome == "passed", passed
        assert told["ann"]["provenance"].startswith("like the reference: p = "), told["ann"]
        made_up = audited("fay", "--data", tmp_path / "fay.npz", "--by-tests", *true)
        assert made_up.outcome == "failed"
        assert "the samples are unlike the auditor's own" in made_up.explanation
        assert told["fay"]["provenance"].startswith("UNLIKE the reference, as 1/13 of honest ones are")
        failed = audited("eve", "--data", tmp_path / "eve.npz", "--accept")
        assert failed.outcome == "failed"
        assert failed.retrained_micro - failed.submitted_micro > failed.limit_micro
        assert "UNLIKE all of these, as 1/13 of honest ones are" in told["eve"]["trained again"]
        other = audited("cyd", "--data", tmp_path / "bob.npz", "--accept")
        assert other.outcome == "failed"
        assert "not those that the claim commits to" in other.explanation
        assert "trained again" not in told["cyd"], (
            "nothing is trained on other samples than those of the claim"
        )

        with pytest.raises(WrongStateError, match="is released"):
            members["ann"].appeal("task", 1, "why not")
        [standing] = members["eve"].appeal("task", 1, "an unlucky seed")
        assert standing.stage == "appealed"
        assert members["eve"].appeal("task", 1, "again")[0] == standing
        again = audited("eve", "--data", tmp_path / "eve.npz", "--accept")
        assert again.outcome == "failed"
        assert members["eve"].audits("task")[0].stage == "convicted"

        coordinator.advance(5_000)  # neither cyd nor fay appeals
        coordinator.advance(5_000)  # nobody has come to bob
        coordinator.until("task", "CLOSED")
        for thread in threads:
            thread.join(60)
        with visited(coordinator.folder, coordinator.clock) as console:
            page = console.signed_in(Role.OPERATOR).get("/operator/tasks/task/").main
            assert page.count("failed for good: the pay in question goes back") == 3
            own_page = console.participant(tmp_path / "eve").get("/participants/eve/").main
            assert "failed for good: the pay in question goes back" in own_page
            assert "Its audit has failed, for good." in own_page
            terms = console.public().get("/tasks/task/").main
            assert (
                "is audited with probability 1: the auditor trains again where the data are; 25% of every"
                in terms
            )
        stages = {r.participant_id: r.stage for r in coordinator.operator(lambda o: o.audits("task"))}
        assert stages == {
            "ann": "released",
            "bob": "released",
            "cyd": "convicted",
            "eve": "convicted",
            "fay": "convicted",
        }
        report = verified(coordinator.folder)
        seen = {name: coordinator.operator(lambda o, name=name: o.reputation(name)) for name in NAMES}  # type: ignore[misc]
        own = members["eve"].reputation()
        source = resources.enter_context(ExitStack())
        ledger = open_source(coordinator.folder.database_url(coordinator.folder.config()), source)
        events = ReputationEvents()
        for data_ in ledger.entries():
            events.feed(Entry.parse(data_))
    assert own.lines() == seen["eve"].lines()
    for name in NAMES:
        assert {event for event, _ in seen[name].reasons} == set(events.of(name))
    assert [e.explanation for e, _ in seen["eve"].reasons if not e.kept] == [
        "Its audit has failed, for good."
    ]
    assert seen["ann"].value > seen["bob"].value > seen["eve"].value
    holds = {name: report.balances[payable(name)].holds for name in NAMES}
    assert holds["eve"] == holds["cyd"] == holds["fay"] == 0
    assert min(holds["ann"], holds["bob"]) > max(questions["ann"], questions["bob"]) > 0
    assert all(
        not report.balances[account("task", name)].holds for account in (held, stake) for name in NAMES
    )


def test_a_site_refuses_what_cannot_be_right_before_it_trains(tmp_path: Path) -> None:
    for options, sentence in (
        (("--known", "k.npz"), "--known: goes with --reference alone"),
        (("--by-tests", "--accept"), "--by-tests: decides by itself"),
    ):
        with pytest.raises(CommandError, match=sentence):
            site(tmp_path / "nothing", "--key", tmp_path / "k.pem", "--out", tmp_path / "out", *options)
    with pytest.raises(Exception, match="cannot be read"):
        site(tmp_path / "nothing", "--key", tmp_path / "k.pem", "--out", tmp_path / "out")
    (tmp_path / "k.pem").write_text("taken")
    done = CliRunner().invoke(app, ["key", str(tmp_path / "k")])
    assert isinstance(done.exception, CommandError)
    assert "exists already" in str(done.exception)
