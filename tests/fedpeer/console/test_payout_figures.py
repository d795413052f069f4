"""A participant's page and statement say what is payable, on its way and paid out, as the ledger does."""

import csv
import io
import json
from pathlib import Path

from coordinator import payouts
from fedpeer.console import records
from fedpeer.console.sessions import Role
from fedpeer.testing import LocalMarket
from mechanism.ledger import entries
from tests.backends import scratch_url
from tests.coordinator.test_payouts import IBANS, PRICE, SHAPE, anything
from tests.coordinator.test_transaction import Mirrored, Service
from tests.fedpeer.console.conftest import TERMS
from tests.fedpeer.console.visiting import visited


def test_the_figures_are_the_accounts_and_the_statement_has_every_payout(tmp_path: Path) -> None:
    with scratch_url("sqlite", tmp_path) as url:
        service = Service(url)
        Mirrored(service, SHAPE).play()
        for name, iban in zip(("p000", "p001"), IBANS, strict=False):
            service.do(lambda t, n=name, i=iban: payouts.set_account(t, n, "Clinic", i, ""))  # type: ignore[misc]

        def figures() -> tuple[int, int, int]:
            found = service.do(lambda t: records.participant(t, "p000"))
            held = service.do(lambda t: t.ledger.balance("payable:p000"))
            gone = service.do(lambda t: t.ledger.balance("paid:p000"))
            shown = found["payable_micro"], found["pending_micro"], found["paid_out_micro"]
            assert shown == (held.free, held.debits_pending, gone.holds)
            return shown

        earned, *nothing = figures()
        assert nothing == [0, 0]
        run = service.do(lambda t: payouts.begin(t, anything))
        micro = run.lines[0].micro
        assert figures() == (earned - micro, micro, 0)
        service.do(lambda t: payouts.end(t, 1, entries.CONFIRMED))
        assert figures() == (earned - micro, 0, micro)
        service.do(lambda t: payouts.return_payment(t, 1, "p000", "the account is closed"))
        assert figures() == (earned, 0, 0)
        service.do(lambda t: payouts.begin(t, anything))
        record = service.do(lambda t: records.participant(t, "p000"))
        heading, *rows = records.statement(record)
        assert {len(row) for row in rows} == {len(heading)}
        told = [dict(zip(heading, row, strict=True)) for row in rows[-2:]]
        amount = PRICE.number(run.lines[0].units)
        assert [
            (line["payout"], line["standing"], line["amount"], line["payout_micro"]) for line in told
        ] == [
            (1, "came back", amount, micro),
            (2, "pending", amount, micro),
        ]
        assert "DE89" not in str(record), "bank details are nobody's on a page"
        service.close()


def test_the_operator_begins_confirms_and_records_what_came_back(tmp_path: Path) -> None:
    with LocalMarket(participants=3, rounds=1, terms=TERMS) as market:
        market.run()
        coordinator = market.coordinator
        with visited(coordinator.folder, coordinator.clock) as console:
            visit = console.signed_in(Role.OPERATOR)
            page = visit.get("/operator/payouts/").main
            assert "Nothing can be paid out" in page
            assert "p1, p2, p3" in page
            for name, iban in zip(("p1", "p2", "p3"), IBANS, strict=False):
                coordinator.operator(lambda o, n=name, i=iban: o.set_bank_account(n, "Clinic <b>", i))  # type: ignore[misc]
            due = json.loads(visit.get("/operator/payouts.json").text)
            assert due["payees"] == 3
            assert f"<li>{due['due']} for 3 participants" in visit.get("/operator/payouts/").main
            where = "/operator/payouts/1/"
            begun = visit.post("/operator/payouts/", of="/operator/payouts/")
            assert begun.headers["location"].partition("?")[0] == where
            run = json.loads(visit.get("/operator/payouts/1.json").text)
            assert (run["standing"], f"{run['amount']} {run['currency']}") == ("pending", due["due"])
            assert "on its way" in visit.get("/operator/payouts/").main
            table = list(csv.DictReader(io.StringIO(visit.get(f"{where}payout.csv").text)))
            assert [row["amount"] for row in table] == [line["amount"] for line in run["lines"]]
            assert visit.get(f"{where}payout.xml").status == 404, "no account of the operator's own"
            assert visit.post(where, of=where, act="steal").status == 400
            assert visit.post(where, of=where, act="withdraw", reason=" ").status == 409
            assert "payout.csv" in visit.get(where).main
            assert "payout.xml" not in visit.get(where).main
            assert visit.post(where, of=where, act="withdraw", reason="a\0b").status == 400
            assert visit.post(where, of=where, act="withdraw", reason="a wrong account").status == 303
            assert "payout.csv" not in visit.get(where).main
            assert visit.get(f"{where}payout.csv").status == 409, "another pays the same"
            where = "/operator/payouts/2/"
            visit.post("/operator/payouts/", of="/operator/payouts/")
            assert visit.post(where, of=where, act="confirm").status == 303
            assert visit.post(where, of=where, act="return", participant="p2", reason="closed").status == 303
            run = json.loads(visit.get("/operator/payouts/2.json").text)
            assert run["standing"] == "confirmed"
            assert [line["returned"] is not None for line in run["lines"]] == [False, True, False]
            own = json.loads(console.participant(market.folder / "p2").get("/participants/p2.json").text)
            assert (own["pending_micro"], own["paid_out_micro"]) == (0, 0)
            assert own["payouts"][0]["standing"] == "came back"
        assert market.verify().verified
