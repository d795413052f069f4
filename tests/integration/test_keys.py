"""Every key that the log holds for a name: an operator that enrols a second one is found out by the participant."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.operator import Operator
from coordinator.services.ledger_servicer import LedgerServicer
from fedpeer.audit.cli import app as ledger_app
from fedpeer.audit.sources import open_source
from fedpeer.protocol.certificates import new_key
from fedpeer.v1 import ledger_pb2, market_pb2
from mechanism.ledger import entries
from mechanism.ledger.verify import verify_ledger
from mechanism.statements import ModelOpening, ModelStatement, sign_statement
from mechanism.terms import Terms
from participant import AsyncParticipant, ForeignKeyError, ForeignKeyWarning, Participant
from participant.cli import app as participant_app
from participant.identity import IdentityFolder
from participant.service import Service
from tests.integration.serving import Served, served, stepped
from tests.integration.test_service import config

RUNNER = CliRunner()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


def second_key(running: Served, name: str) -> Any:
    """The operator enrols a key of its own under somebody's name, in the log alone."""
    key = new_key()

    def enrol(operator: Operator) -> None:
        operator._act(lambda t: t.ledger.append([entries.enrolment(name, key.public_key())]))

    running.operator(enrol)
    return key


def config_of(running: Served, state: Path, name: str) -> Path:
    path = state.parent / f"{name}.toml"
    path.write_text(
        f'id = "{name}"\nstate = "{state}"\n[coordinator]\nmarket = "{running.market}"\n'
        '[[task]]\nfactory = "tests.integration.serving:Shift"\n'
    )
    return path


def test_a_second_key_is_reported_at_the_start_and_nothing_is_claimed(
    coordinator: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.open("task")
    with coordinator.participant("ada", tmp_path) as ada:
        assert ada.keys().problems == ()
        second_key(coordinator, "ada")
        with (
            pytest.warns(ForeignKeyWarning, match="not its own"),
            caplog.at_level(logging.ERROR, "participant"),
        ):
            joined = ada.join("task")
        assert "not its own" in caplog.text
        with pytest.raises(ForeignKeyError, match="nothing was claimed"):
            joined.claim(0.5, [3, 3, 3, 3])
        assert any("not its own" in problem for problem in joined.report().key_problems)
        assert "not its own" in str(joined.report())
        state = ada._folder.path
    config = config_of(coordinator, state, "ada")
    shown = RUNNER.invoke(participant_app, ["keys", "--config", str(config)])
    assert shown.exit_code == 1
    assert "NO" in shown.stdout
    status = RUNNER.invoke(participant_app, ["status", "--config", str(config), "--json"])
    assert "not its own" in status.stdout
    # A participant that knows it for its own says so.
    [foreign] = [
        word
        for word in shown.stdout.split()
        if len(word) == 16 and word != IdentityFolder(state).current_key()[:16]
    ]
    done = RUNNER.invoke(participant_app, ["keys", "--config", str(config), "--own", foreign])
    assert done.exit_code == 0, done.output
    with Participant(state, coordinator.market) as ada:
        assert ada.join("task").claim(0.5, [3, 3, 3, 3]).ledger_index > 0


def test_a_second_key_is_reported_at_the_next_receipt_and_a_forged_model_stands_in_the_log(
    coordinator: Served, tmp_path: Path
) -> None:
    coordinator.open("task", schedule={"rounds": 2})
    with ExitStack() as stack:
        people = [stack.enter_context(coordinator.participant(n, tmp_path)) for n in ("ada", "bob", "cyd")]
        ada = people[0]
        joined = [person.join("task") for person in people]
        for one in joined:
            one.claim(0.5, [3, 3, 3, 3])
        rounds = [one.rounds() for one in joined]
        first = [next(one) for one in rounds]
        first[0].submit(stepped(first[0].weights()), 10)
        key = second_key(coordinator, "ada")
        for name, count in (("ada", 2), ("bob", 1)):
            database = str(coordinator.folder.path / "coordinator.db")
            shown = RUNNER.invoke(ledger_app, ["keys", name, database, "--json"])
            assert shown.exit_code == 0, shown.output
            assert shown.stdout.count("fingerprint") == count
        task = ada.client.task("task")

        def forge(operator: Operator) -> None:
            opening = ModelOpening(10, bytes(32))
            statement = ModelStatement(
                "forged",
                "task",
                Terms.parse(task.terms).digest,
                "ada",
                1,
                bytes(32),
                64,
                opening.digest,
                bytes(32),
                task.nonce,
            )
            signature = sign_statement(statement, key)
            operator._act(
                lambda t: t.ledger.append(
                    [entries.model(statement, signature, 1000, True, keys=t.ledger.keys())]
                )
            )

        coordinator.operator(forge)
        for one in first[1:]:
            one.submit(stepped(one.weights()), 10)
        with pytest.warns(ForeignKeyWarning, match="not its own"):
            second = next(rounds[0])  # the round's payment comes with a receipt
        second.submit(stepped(second.weights()), 10)  # a claimed task is brought to its end
        for one in rounds[1:]:
            round_ = next(one)
            round_.submit(stepped(round_.weights()), 10)
        for one in rounds:
            assert list(one) == []
        assert joined[0].report().key_problems
        assert joined[1].report().key_problems == ()
        assert [line.settlement is not None for line in joined[0].report().rounds] == [True, True]
    with ExitStack() as resources:
        source = open_source(str(coordinator.folder.path / "coordinator.db"), resources)
        # The second key verifies, hence all of this; the model is one too many.
        [problem] = verify_ledger(source).problems
        assert problem.message == "ada has a model in round 1 already"


def test_an_operator_that_hides_the_key_is_caught_by_the_digest(
    coordinator: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.open("task")
    with coordinator.participant("ada", tmp_path) as ada:
        second_key(coordinator, "ada")
        [hidden] = [key for key in ada.keys().keys if key.fingerprint not in ada.keys().own]
        honest = LedgerServicer.GetKeys

        async def without(self: LedgerServicer, request: Any, context: Any) -> ledger_pb2.Keys:
            asked = ledger_pb2.GetKeysRequest(first=0)
            if request.HasField("index"):
                asked.index = request.index
            answer = await honest(self, asked, context)
            rows = zip(answer.indices, answer.entries, strict=True)
            kept = [row for row in rows if row[0] != hidden.enrolled_at][request.first :]
            return ledger_pb2.Keys(
                indices=[row[0] for row in kept],
                entries=[row[1] for row in kept],
                count=answer.count - 1,
                proof=answer.proof,
            )

        monkeypatch.setattr(LedgerServicer, "GetKeys", without)
        ada._journal.forget_keys()
    coordinator.stop()
    coordinator.start()
    with Participant(tmp_path / "ada", coordinator.market) as ada:
        joined = ada.join("task")
        with pytest.warns(ForeignKeyWarning, match="hides keys"):
            joined.claim(0.5, [3, 3, 3, 3])  # nothing proved it before
        assert any("hides keys" in problem for problem in joined.report().key_problems)
    with (
        Participant(tmp_path / "ada", coordinator.market, foreign_keys="stop") as ada,
        pytest.warns(ForeignKeyWarning),
        pytest.raises(ForeignKeyError, match="hides keys"),
    ):
        ada.join("task")


@pytest.mark.parametrize("policy", ["refuse", "stop"])
def test_a_service_looks_at_its_start_and_claims_nothing(
    coordinator: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    state = coordinator.enrol("ada", tmp_path / "ada")
    second_key(coordinator, "ada")
    if policy == "refuse":
        coordinator.open("task")
    section = {
        "factory": "tests.integration.serving:Shift", "options": {"counts": [3, 3, 3, 3]},
    }  # fmt: skip
    settings = config(coordinator, state, section)
    service = settings.service.model_copy(update={"foreign_keys": policy})
    running = Service(settings.model_copy(update={"service": service}), lambda activity: None)
    with pytest.warns(ForeignKeyWarning), pytest.raises(ForeignKeyError, match="not its own"):
        running.run()
    assert "not its own" in caplog.text
    assert all(not report.claimed for report in coordinator.operator(lambda operator: operator.tasks()))


def test_a_key_history_that_grew_shorter_is_reported(coordinator: Served, tmp_path: Path) -> None:
    with coordinator.participant("ada", tmp_path) as ada:
        assert ada.keys().problems == ()
        ada._journal._execute("UPDATE key_history SET number = number + 5")
        with pytest.warns(ForeignKeyWarning, match="shorter than it was"):
            assert ada.keys().problems
        ada._journal.forget_keys()
        receipt = market_pb2.Receipt(ledger_index=1_000).SerializeToString()
        ada._journal.add_task("lost", b"{}")
        ada._journal.prepare("claim-lost", "lost", "claim", 0, b"")
        ada._journal.record_receipt("claim-lost", receipt)
        with pytest.warns(ForeignKeyWarning, match="shorter than it was"):
            assert ada.keys().problems


async def test_the_asyncio_client_looks_too(coordinator: Served, tmp_path: Path) -> None:
    state = await asyncio.to_thread(coordinator.enrol, "ada", tmp_path / "ada")
    await asyncio.to_thread(coordinator.open, "task")
    await asyncio.to_thread(second_key, coordinator, "ada")
    async with AsyncParticipant(state, coordinator.market) as ada:
        with pytest.warns(ForeignKeyWarning):
            joined = await ada.join("task")
        with pytest.raises(ForeignKeyError):
            await joined.claim(0.5, [3, 3, 3, 3])
        assert len((await ada.keys()).keys) == 2


def test_a_renewal_and_a_name_that_was_enrolled_again_raise_no_alarm(
    coordinator: Served, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    coordinator.open("task")
    with coordinator.participant("ada", tmp_path) as ada:
        assert ada.renew(ada.credentials.renewal_due)
        assert len(ada.keys().keys) == 1
    coordinator.operator(lambda operator: operator.revoke("ada", "laptop stolen"))
    again = coordinator.enrol("ada", tmp_path / "again")
    with Participant(again, coordinator.market) as ada:
        report = ada.keys()
        assert report.problems == ()
        assert [key.revoked_at is None for key in report.keys] == [False, True]
        assert "before this folder's own" in report.notices[0]
        ada.join("task").claim(0.5, [3, 3, 3, 3])
        assert ada.keys().proven == 3
    # A state folder that was restored without its list of own keys knows the one that it uses.
    (again / "own_keys.txt").unlink()
    with Participant(again, coordinator.market) as ada:
        assert ada.keys().problems == ()
    assert [w for w in recwarn if issubclass(w.category, ForeignKeyWarning)] == []


def test_a_revocation_that_nobody_asked_for_is_reported(coordinator: Served, tmp_path: Path) -> None:
    with coordinator.participant("ada", tmp_path) as ada:
        key = ada.credentials.key.public_key()

        def revoke(operator: Operator) -> None:  # in the log alone: ada is not to notice
            operator._act(lambda t: t.ledger.append([entries.revocation("ada", key, "quietly")]))

        coordinator.operator(revoke)
        with pytest.warns(ForeignKeyWarning, match="revoked the key of ada"):
            assert "quietly" in ada.keys().problems[0]
