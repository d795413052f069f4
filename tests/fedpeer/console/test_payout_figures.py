"""A participant's page and statement say what is payable, on its way and paid out, as the ledger does."""

from pathlib import Path

from coordinator import payouts
from fedpeer.console import records
from mechanism.ledger import entries
from tests.backends import scratch_url
from tests.coordinator.test_payouts import IBANS, PRICE, SHAPE, anything
from tests.coordinator.test_transaction import Mirrored, Service


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
