"""Participants take part under names that are made for a task: who reads what is public cannot say whose they are."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

import coordinator.cli as operator_cli
from coordinator.errors import MarketTaskError, PayoutError
from coordinator.forgetting import Forgotten
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, ledger_pb2, ledger_pb2_grpc
from participant import IdentityBarredError, NotEnrolledError, Participant, TaskReport
from tests.coordinator.test_payouts import IBANS
from tests.integration.market import verified
from tests.integration.serving import Served, Shift, served

OWNERS = ("saint-mary", "north-clinic", "lakeside-practice")
TASK = {"pseudonyms": True, "price": {"credit": "0.75", "currency": "EUR"}, "schedule": {"rounds": 2}}


def all_run(people: Mapping[str, Participant], task_id: str = "task") -> dict[str, TaskReport]:
    """Everybody runs a task in a thread of its own."""
    found: dict[str, Any] = {}

    def run(number: int, name: str) -> None:
        try:
            task = Shift([25 + 10 * number, 25, 25, 25], step=1.0 + number)
            found[name] = people[name].run(task, task_id, effort=0.5)
        except BaseException as error:
            found[name] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for report in found.values():
        if isinstance(report, BaseException):
            raise report
    return found


def public_bytes(market: Served) -> bytes:
    """All that anybody can have from the public port, and the metrics."""
    service = market._service
    assert service is not None
    authority = grpc.ssl_channel_credentials(market.authority)
    with grpc.secure_channel(market.public, authority) as channel:
        ledger, enrolment = ledger_pb2_grpc.LedgerStub(channel), enrolment_pb2_grpc.EnrolmentStub(channel)
        head = ledger.GetCheckpoint(ledger_pb2.GetCheckpointRequest())
        said = [head, enrolment.GetAuthority(enrolment_pb2.GetAuthorityRequest())]
        said += ledger.GetEntries(ledger_pb2.GetEntriesRequest())
        said.append(ledger.GetKeys(ledger_pb2.GetKeysRequest()))
    found = b"".join(message.SerializeToString() for message in said)
    assert found.count(b'"kind":"payment"') == 6
    return found + generate_latest(service.metrics.registry)


def test_nothing_that_is_public_says_whose_a_pseudonym_is(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as market:
        market.open("plain")
        market.open(**TASK)
        people = {name: market.participant(name, tmp_path, task_id="task") for name in OWNERS}
        names = {owner: one.participant_id for owner, one in people.items()}
        assert len(set(names.values())) == 3
        assert all(name.startswith("p-") and not set(OWNERS) & {name} for name in names.values())
        again = market.operator(lambda o: o.invite("saint-mary", task_id="task"))
        assert again.participant_id == names["saint-mary"]
        outsider = market.participant("outsider", tmp_path)
        with pytest.raises(IdentityBarredError, match="identities that were made for it alone"):
            all_run({"outsider": outsider})
        reports = all_run(people)
        late = market.operator(lambda o: o.enrolled())
        for one in (*people.values(), outsider):
            one.close()
        seen = public_bytes(market)
        for owner in OWNERS:
            assert names[owner].encode() in seen
            assert owner.encode() not in seen
            assert owner.partition("-")[0].encode() not in seen
        # The operator knows, and tells the auditor; each participant is told of itself.
        assert {row.id: row.owner for row in late if row.task} == {name: o for o, name in names.items()}
        opened = market.operator(lambda o: o.openings("task")).by_id
        told = {id_: each["owner"] for id_, each in opened.items() if "/pseudonym/" in id_}
        assert told == {f"task/pseudonym/{name}": owner for owner, name in names.items()}
        assert verified(market.folder).counts.opened["pseudonym"] == 3

        # Paid by the owner's account.
        with pytest.raises(PayoutError, match="there is no participant 'nobody'"):
            market.operator(lambda o: o.set_bank_account("nobody", "Nobody", IBANS[0]))
        for owner, iban in zip(OWNERS, IBANS, strict=False):
            market.operator(
                lambda o, owner=owner, iban=iban: o.set_bank_account(owner, f"Trust {owner}", iban)
            )  # type: ignore[misc]
        run, files = market.operator(lambda o: o.pay_out())
        assert {line.participant_id: line.iban for line in run.lines} == {
            names[owner]: iban for owner, iban in zip(OWNERS, IBANS, strict=False)
        }
        assert b"Trust saint-mary" in files.csv
        market.operator(lambda o: o.confirm_payout(1))
        assert not [owner for owner in OWNERS if owner.encode() in public_bytes(market)]
        assert sum(report.paid_micro for report in reports.values()) > 0

        # Forgotten by the owner's name: nobody can link it any more.
        with pytest.raises(MarketTaskError, match=f"'{names['saint-mary']}' is in good standing"):
            market.operator(lambda o: o.forget("saint-mary"))
        with pytest.raises(
            MarketTaskError, match=f"has not enrolled under its own name.*{names['saint-mary']}"
        ):
            market.operator(lambda o: o.reputation("saint-mary"))
        with pytest.raises(MarketTaskError, match="there is no participant 'saint-mary'"):
            market.operator(lambda o: o.revoke("saint-mary", "as it asked", only=True))
        found = market.operator(lambda o: o.revoke("saint-mary", "as it asked"))
        assert (found.enrolled, found.pseudonyms) == (False, (names["saint-mary"],))
        gone, _ = market.operator(lambda o: o.forget("saint-mary"))
        assert (gone.openings, gone.models, gone.assessments, gone.bank_details) == (6, 2, 2, 2)
        database = market.folder.path / "coordinator.db"
        assert b"saint-mary" not in database.read_bytes()
        assert (gone.names, gone.invitations) == ([names["saint-mary"]], 2)
        assert forgotten(market, "saint-mary").unknown
        # What is owed hangs on the name that the ledger has, and is paid there.
        market.operator(lambda o: o.set_bank_account(names["saint-mary"], "Trust", IBANS[0]))


def test_a_pseudonym_is_made_for_a_task_that_asks_for_it_and_for_no_other(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as market:
        market.open("plain")
        market.open("task", pseudonyms=True)
        with pytest.raises(MarketTaskError, match="ask for no pseudonyms"):
            market.operator(lambda o: o.invite("saint-mary", task_id="plain"))
        with pytest.raises(MarketTaskError, match="there is no task 'other'"):
            market.operator(lambda o: o.invite("saint-mary", task_id="other"))
        one = market.participant("saint-mary", tmp_path, task_id="task")
        with pytest.raises(MarketTaskError, match="is a pseudonym itself"):
            market.operator(lambda o: o.invite(one.participant_id, task_id="task"))
        with pytest.raises(IdentityBarredError, match="takes no pseudonyms"):
            all_run({one.participant_id: one}, "plain")
        one.close()
        # Invited again by that name, since its key is lost, it is the pseudonym that it was.
        market.operator(lambda o: o.revoke(one.participant_id, "its key was lost"))
        again = market.participant(one.participant_id, tmp_path)
        with pytest.raises(IdentityBarredError, match="takes no pseudonyms"):
            all_run({one.participant_id: again}, "plain")
        again.close()
        [row] = [row for row in market.operator(lambda o: o.enrolled()) if row.id == one.participant_id]
        assert (row.task, row.owner) == ("task", "saint-mary")
        waiting = market.operator(lambda o: o.invite("north-clinic", task_id="task"))
        market.operator(lambda o: o.cancel("task", "the learner withdrew"))
        with pytest.raises(MarketTaskError, match="takes nobody any more"):
            market.operator(lambda o: o.invite("lakeside", task_id="task"))
        with pytest.raises(NotEnrolledError, match="takes nobody any more"):
            Participant.enroll(
                tmp_path / "late",
                participant_id=waiting.participant_id,
                public=market.public,
                token=waiting.token,
                authority=market.authority,
            )
        verified(market.folder)


def forgotten(market: Served, name: str) -> Forgotten:
    """What was erased, when the database's log is rid of it, too: repeated as the command asks for."""
    found, emptied = market.operator(lambda o: o.forget(name))
    while not emptied:
        again, emptied = market.operator(lambda o: o.forget(name))
        assert not again.openings
    return found


def kept(market: Served) -> bytes:
    """Every byte of the market's database."""
    file = market.folder.path / "coordinator.db"
    return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))


def test_no_second_name_in_a_task_by_being_forgotten(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as market:
        market.open("task", pseudonyms=True)
        one = market.participant("saint-mary", tmp_path, task_id="task")
        one.close()
        market.operator(lambda o: o.revoke("saint-mary", "as it asked"))
        for name in ("saint-mary", one.participant_id):
            with pytest.raises(MarketTaskError, match="could have a second name in it"):
                market.operator(lambda o, name=name: o.forget(name))  # type: ignore[misc]
        again = market.operator(lambda o: o.invite("saint-mary", task_id="task"))
        assert again.participant_id == one.participant_id
        market.operator(lambda o: o.cancel("task", "the learner withdrew"))
        gone = forgotten(market, "saint-mary")
        assert (gone.names, gone.invitations) == ([one.participant_id], 2)
        assert b"saint-mary" not in kept(market)


def test_whoever_was_only_invited_is_forgotten_with_its_token(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as market:
        market.open("task", pseudonyms=True)
        waiting = [
            market.operator(lambda o: o.invite("saint-mary", "Trust", "task")),
            market.operator(lambda o: o.invite("saint-mary", "Trust")),
        ]
        assert b"saint-mary" in kept(market)
        gone = forgotten(market, "saint-mary")
        assert (gone.names, gone.invitations, gone.unknown) == ([], 2, False)
        assert b"saint-mary" not in kept(market)
        assert b"trust" not in kept(market)
        for number, invitation in enumerate(waiting):
            with pytest.raises(NotEnrolledError, match="not an invitation for"):
                Participant.enroll(
                    tmp_path / f"late-{number}",
                    participant_id=invitation.participant_id,
                    public=market.public,
                    token=invitation.token,
                    authority=market.authority,
                )


def test_an_owner_is_revoked_under_all_its_names_or_one(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as market:
        market.open("plain")
        names = []
        market.participant("saint-mary", tmp_path).close()
        for task in ("first", "second", "third"):
            market.open(task, pseudonyms=True)
            one = market.participant("saint-mary", tmp_path / task, task_id=task)
            names.append(one.participant_id)
            one.close()
        market.operator(lambda o: o.set_bank_account("saint-mary", "Trust", IBANS[0]))
        waiting = market.operator(lambda o: o.invite(names[2]))
        assert waiting.participant_id == names[2]
        market.operator(lambda o: o.revoke(names[0], "as it asked"))
        state = ["--state", str(market.folder.path)]
        told = CliRunner().invoke(operator_cli.app, ["revoke", "saint-mary", "--only", *state])
        assert told.stdout.startswith(
            f"saint-mary is revoked. Still enrolled: {', '.join(sorted(names[1:]))}; "
        )
        told = CliRunner().invoke(operator_cli.app, ["revoke", "saint-mary", *state])
        assert told.stdout == (
            "saint-mary was revoked before. Its open invitation is withdrawn. Its pseudonyms are revoked: "
            f"{', '.join(sorted(names[1:]))}.\n"
        )
        assert {row.standing for row in market.operator(lambda o: o.enrolled())} == {"revoked"}

        # Each forgotten by its own name, the owner's account is left; it goes by the owner's.
        for task in ("first", "second", "third"):
            market.operator(lambda o, task=task: o.cancel(task, "the learner withdrew"))  # type: ignore[misc]
        for name in names:
            market.operator(lambda o, name=name: o.forget(name))  # type: ignore[misc]
        assert [row.participant_id for row in market.operator(lambda o: o.bank_accounts())] == ["saint-mary"]
        forgotten = CliRunner().invoke(operator_cli.app, ["forget", "saint-mary", *state])
        assert forgotten.exit_code == 0
        assert "and 1 record of bank details erased" in forgotten.stdout
        unknown = CliRunner().invoke(operator_cli.app, ["forget", "nobody", *state])
        assert unknown.exit_code == 0
        assert unknown.stdout.startswith("Nothing is kept of nobody: ")
        assert not market.operator(lambda o: o.bank_accounts())
