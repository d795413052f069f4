"""Beyond the ledger's entries, the public port and the metrics have nothing that differs by participant.

So whoever predicts a participant's data from all three can do no better than from the ledger alone, of which
`tests/fedpeer/audit/test_leaks.py` says how well that goes.
"""

from pathlib import Path

import grpc
from prometheus_client import generate_latest

from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SqlLedgerStore
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, ledger_pb2, ledger_pb2_grpc
from tests.integration.market import verified
from tests.integration.serving import served
from tests.integration.test_pseudonyms import all_run

NAMES = ("saint-mary", "north-clinic", "lakeside-practice")


def test_what_the_public_port_and_the_metrics_add_to_the_ledger_is_of_nobody(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as market:
        market.open("task", schedule={"rounds": 2})
        people = {name: market.participant(name, tmp_path) for name in NAMES}
        all_run(people)
        for one in people.values():
            one.close()
        paid: dict[str, int] = {}
        service = market._service
        assert service is not None
        with grpc.secure_channel(market.public, grpc.ssl_channel_credentials(market.authority)) as channel:
            ledger, enrolment = ledger_pb2_grpc.LedgerStub(channel), enrolment_pb2_grpc.EnrolmentStub(channel)
            parts = ledger.GetEntries(ledger_pb2.GetEntriesRequest())
            entries = [data for part in parts for data in part.entries]
            assert set(ledger.GetKeys(ledger_pb2.GetKeysRequest()).entries) < set(entries)
            for name in NAMES:
                said = ledger.GetBalance(ledger_pb2.GetBalanceRequest(account=f"payable:{name}"))
                paid[name] = said.credits_posted_micro - said.debits_posted_micro
            others = [
                ledger.GetCheckpoint(ledger_pb2.GetCheckpointRequest()),
                enrolment.GetAuthority(enrolment_pb2.GetAuthorityRequest()),
            ]
        metrics = generate_latest(service.metrics.registry)
        database = Database(market.folder.database_url(market.folder.config()))
        with database.begin() as connection:
            assert list(SqlLedgerStore(connection).entries(0, len(entries))) == entries
        database.close()
        balances = verified(market.folder).balances  # as the entries give them
        assert paid == {name: balances[f"payable:{name}"].holds for name in NAMES}
        rest = metrics + b"".join(message.SerializeToString() for message in others)
        assert b"fedpeer_participants" in metrics
        for name in NAMES:
            assert any(name.encode() in data for data in entries)
            assert name.encode() not in rest
