"""Payouts and deposits: what is paid once, what stays payable, and what the ledger and the bank are told."""

import csv
import io
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sepaxml
import xmlschema

from coordinator import payouts
from coordinator.banking import (
    checked_account,
    checked_payer,
    message_id,
    payment_files,
    priced,
    ready_folder,
    write_files,
)
from coordinator.config import PayoutsSection, PriceSection
from coordinator.errors import ConfigError, PayoutError
from coordinator.opening import PreparedTask
from coordinator.storage.payouts import PayoutLineRow, PayoutRow
from coordinator.transaction import Transaction
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.accounts import Owed
from mechanism.ledger.entry import Entry
from mechanism.ledger.verify import verify_ledger
from mechanism.price import Price
from tests import ledger_samples as samples
from tests.backends import DURABLE, scratch_url
from tests.coordinator.test_transaction import Mirrored, Service, task_row
from tests.ledger_histories import Shape
from tests.memory_source import KEY, MemorySource

PRICE = Price(Decimal("0.75"), "EUR", 2)
SHAPE = Shape(funder="trust", price=PRICE, refuted={2: "p001"})

#: Real account numbers of no person: those that banks' own examples have.
IBANS = (
    "DE89370400440532013000",
    "FR1420041010050500013M02606",
    "GB29NWBK60161331926819",
    "CH9300762011623852957",
)
PAYER = PayoutsSection(holder="Market Inc.", iban="NL91ABNA0417164300", bic="ABNANL2A")


@pytest.fixture(params=DURABLE)
def market(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mirrored]:
    """A task that has ended, with four participants who are owed what it paid."""
    with scratch_url(request.param, tmp_path) as url:
        service = Service(url)
        task = Mirrored(service, SHAPE)
        task.play()
        yield task
        service.close()


def anything(run: payouts.PayoutRun) -> None:
    """What is made of a run where a test looks at none of it."""


def with_accounts(task: Mirrored, count: int = 4) -> None:
    for name, iban in list(zip(task.people, IBANS, strict=True))[:count]:
        task.service.do(lambda t, n=name, i=iban: payouts.set_account(t, n, f"Clinic {n}", i, ""))  # type: ignore[misc]


def begun(task: Mirrored) -> payouts.PayoutRun:
    return task.service.do(lambda t: payouts.begin(t, anything))


def ended(
    task: Mirrored, number: int, outcome: str = entries.CONFIRMED, reason: str = ""
) -> payouts.PayoutRun:
    return task.service.do(lambda t: payouts.end(t, number, outcome, reason))[0]


def owed(task: Mirrored, name: str) -> Owed:
    return task.service.do(lambda t: payouts.owed(t, name))


def everything(task: Mirrored) -> dict[str, Owed]:
    return {name: owed(task, name) for name in task.people}


def verified(task: Mirrored) -> None:
    """By the verifier, which knows nothing of rows."""
    ledger = [Entry.parse(data) for data in task.service.entries()]
    report = verify_ledger(MemorySource(ledger), KEY.verification_key)
    assert report.verified, report.problems


def test_a_run_pays_whole_cents_and_leaves_the_rest(market: Mirrored) -> None:
    before = everything(market)
    with_accounts(market)
    run = begun(market)
    assert (run.new, run.row.number, run.standing, run.left_out) == (True, 1, "pending", ())
    for line in run.lines:
        was, now = before[line.participant_id], owed(market, line.participant_id)
        assert line.units == was.payable_micro * 75 // 10**6
        assert line.micro == -(-line.units * 10**6 // 75) <= was.payable_micro
        assert now == Owed(was.payable_micro - line.micro, line.micro, 0)
        assert PRICE.units(now.payable_micro) == 0
    ended(market, 1)
    assert not any(iban.encode() in data for iban in IBANS for data in market.service.entries())
    for line in run.lines:
        now = owed(market, line.participant_id)
        assert (now.pending_micro, now.paid_out_micro) == (0, line.micro)
    verified(market)


def test_what_is_repeated_is_found_done(market: Mirrored) -> None:
    with_accounts(market)
    first = begun(market)
    again = begun(market)
    assert not again.new
    assert again.lines == first.lines
    confirmed = market.service.do(lambda t: payouts.end(t, 1, entries.CONFIRMED))
    repeated = market.service.do(lambda t: payouts.end(t, 1, entries.CONFIRMED))
    assert (confirmed[1], repeated[1]) == (True, False)
    assert confirmed[0] == repeated[0]
    size = len(market.service.entries())
    with pytest.raises(PayoutError, match=r"owed 0\.01 EUR or more"):
        begun(market)
    with pytest.raises(PayoutError, match="was confirmed and cannot be withdrawn"):
        ended(market, 1, entries.WITHDRAWN, "a mistake")
    assert len(market.service.entries()) == size
    for _ in range(2):
        run, new = market.service.do(lambda t: payouts.return_payment(t, 1, "p002", "account closed"))
    assert not new
    assert [line.participant_id for line in run.lines if line.returned_at] == ["p002"]
    second = begun(market)
    assert [(line.participant_id, line.units) for line in second.lines] == [("p002", first.lines[2].units)]
    verified(market)


def test_a_withdrawn_run_pays_nobody_and_the_next_pays_all(market: Mirrored) -> None:
    before = everything(market)
    with_accounts(market)
    first = begun(market)
    with pytest.raises(PayoutError, match="for a reason"):
        ended(market, 1, entries.WITHDRAWN, " ")
    ended(market, 1, entries.WITHDRAWN, "the bank has refused the file")
    assert everything(market) == before
    with pytest.raises(PayoutError, match="was withdrawn and cannot be confirmed"):
        ended(market, 1)
    second = begun(market)
    assert [line.units for line in second.lines] == [line.units for line in first.lines]
    with pytest.raises(PayoutError, match="payout 2 is pending"):
        market.service.do(lambda t: payouts.return_payment(t, 2, "p000", "closed"))
    ended(market, 2)
    with pytest.raises(PayoutError, match="does not pay 'p009'"):
        market.service.do(lambda t: payouts.return_payment(t, 2, "p009", "closed"))
    verified(market)


def test_who_has_no_bank_account_here_stays_payable_and_is_named(market: Mirrored) -> None:
    with pytest.raises(PayoutError, match=r"without a bank account: p000, p001, p002, p003\. Give theirs"):
        begun(market)
    before = owed(market, "p003")
    with_accounts(market, 3)
    run = begun(market)
    assert run.left_out == ("p003",)
    assert [line.participant_id for line in run.lines] == ["p000", "p001", "p002"]
    assert owed(market, "p003") == before
    with pytest.raises(PayoutError, match="no participant 'p009'"):
        market.service.do(lambda t: payouts.set_account(t, "p009", "Clinic", IBANS[0], ""))


def test_a_run_whose_files_cannot_be_made_was_never_begun(market: Mirrored) -> None:
    before, size = everything(market), len(market.service.entries())
    with_accounts(market)

    def refused(run: payouts.PayoutRun) -> None:
        raise ConfigError("no file")

    with pytest.raises(ConfigError):
        market.service.do(lambda t: payouts.begin(t, refused))
    assert (everything(market), len(market.service.entries())) == (before, size)
    assert begun(market).row.number == 1


def test_a_run_keeps_the_bank_details_that_it_began_with(market: Mirrored) -> None:
    with_accounts(market)
    first = begun(market)
    market.service.do(lambda t: payouts.set_account(t, "p000", "Other", IBANS[1], ""))
    assert begun(market).lines == first.lines
    assert files_of(begun(market)) == files_of(first)


def files_of(run: payouts.PayoutRun, payer: PayoutsSection | None = PAYER) -> Any:
    return payment_files("market.example.org", run.row, run.lines, payer)


def test_the_files_say_who_is_paid_what(market: Mirrored, tmp_path: Path) -> None:
    with_accounts(market)
    run = begun(market)
    made = files_of(run)
    ready_folder(tmp_path / "out")
    written = write_files(tmp_path / "out", 1, made)
    assert [path.name for path in written] == ["payout-1.csv", "payout-1.xml"]
    assert [path.stat().st_mode & 0o777 for path in written] == [0o600, 0o600]
    rows = list(csv.DictReader(io.StringIO(made.csv.decode())))
    assert [(row["participant"], row["iban"], row["amount"]) for row in rows] == [
        (line.participant_id, line.iban, f"{line.units // 100}.{line.units % 100:02d}") for line in run.lines
    ]
    schema = Path(sepaxml.__file__).parent / "schemas" / "pain.001.001.09.xsd"
    xmlschema.XMLSchema(str(schema)).validate(made.message.decode())
    space = {"p": "urn:iso:std:iso:20022:tech:xsd:pain.001.001.09"}
    root = ET.fromstring(made.message)
    header = root.find("p:CstmrCdtTrfInitn/p:GrpHdr", space)
    assert header is not None
    assert header.findtext("p:MsgId", "", space) == message_id("market.example.org", 1)
    assert header.findtext("p:CtrlSum", "", space) == PRICE.number(run.units)
    paid = [
        (
            one.findtext("p:PmtId/p:EndToEndId", "", space),
            one.findtext("p:CdtrAcct/p:Id/p:IBAN", "", space),
            one.findtext("p:Amt/p:InstdAmt", "", space),
        )
        for one in root.iterfind(".//p:CdtTrfTxInf", space)
    ]
    assert paid == [(row["reference"], row["iban"], row["amount"]) for row in rows]


def line(units: int, **changes: Any) -> PayoutLineRow:
    plain = PayoutLineRow(1, "p000", units, 10, "Clinic", IBANS[0], "", None, "")
    return replace(plain, **changes)


def test_a_currency_without_cents_and_an_unknown_payer_have_a_csv_alone() -> None:
    yen = PayoutRow(1, 1_800_000_000.0, "1", "JPY", 0, None, "", None)
    made = payment_files("market", yen, [line(1234)], PAYER)
    assert made.message is None
    assert "JPY has 0 decimal places" in made.why
    assert b",1234,JPY," in made.csv
    dinar = replace(yen, currency="KWD", minor_unit=3)
    assert b",1.234,KWD," in payment_files("market", dinar, [line(1234)], PAYER).csv
    euro = replace(yen, currency="EUR", minor_unit=2)
    assert "names no account of yours" in payment_files("market", euro, [line(1234)], None).why
    assert b'<InstdAmt Ccy="CHF">12.34<' in (
        payment_files("market", replace(euro, currency="CHF"), [line(1234)], PAYER).message or b""
    )


def test_a_holder_is_text_in_every_file() -> None:
    euro = PayoutRow(1, 1_800_000_000.0, "1", "EUR", 2, None, "", None)
    hostile = "=HYPERLINK(1) <&Klinik Grün>"
    made = payment_files("market", euro, [line(1, holder=hostile)], PAYER)
    [row] = csv.DictReader(io.StringIO(made.csv.decode()))
    assert row["holder"].startswith("'=")
    name = ET.fromstring(made.message or b"").find(".//{*}Cdtr/{*}Nm")
    assert name is not None
    assert name.text is not None
    assert "Klinik" in name.text


@pytest.mark.parametrize(
    ("holder", "iban", "bic", "words"),
    [
        ("Clinic", "DE89370400440532013001", "", "is no IBAN"),
        ("Clinic", "DE8937040044053201300", "", "is no IBAN"),
        ("Clinic", "XX89370400440532013000", "", "is no IBAN"),
        ("Clinic", "", "", "is no IBAN"),
        ("Clinic", IBANS[0], "COBA", "is no BIC"),
        (" ", IBANS[0], "", "the holder"),
        ("x" * 71, IBANS[0], "", "the holder"),
        ("a\x07b", IBANS[0], "", "the holder"),
    ],
)
def test_an_account_that_cannot_be_is_refused(holder: str, iban: str, bic: str, words: str) -> None:
    with pytest.raises(PayoutError, match=words):
        checked_account(holder, iban, bic)


def test_an_account_is_kept_in_its_plain_form() -> None:
    found = checked_account("  Clinic   North ", "de89 3704 0044 0532 0130 00", "cobadeff")
    assert found == ("Clinic North", IBANS[0], "COBADEFF")
    assert checked_payer(PayoutsSection()) is None
    with pytest.raises(ConfigError, match=r"coordinator\.toml, \[payouts\]: .* is no IBAN"):
        checked_payer(PayoutsSection(holder="Market", iban="DE00"))


@pytest.mark.parametrize(("currency", "places"), [("EUR", 2), ("JPY", 0), ("KWD", 3), ("CLF", 4), ("CHF", 2)])
def test_iso_4217_says_the_minor_unit(currency: str, places: int) -> None:
    assert priced(PriceSection(credit=Decimal("0.75"), currency=currency)).minor_unit == places


@pytest.mark.parametrize("currency", ["eur", "EURO", "", "ABC", "XAU"])
def test_what_no_money_is_paid_in_is_refused(currency: str) -> None:
    with pytest.raises(FieldError, match=r"price\.currency"):
        priced(PriceSection(credit=Decimal(1), currency=currency))


def test_a_learners_money_is_where_it_says(market: Mirrored) -> None:
    told = market.service.do(lambda t: payouts.learner_statement(t, "trust"))
    [task], [paid_in] = told["tasks"], told["funding"]
    assert task["reserved_micro"] == told["reserved_micro"] == 0
    assert paid_in["micro"] == market.terms.budget_micro
    assert task["stakes_lost_micro"] == market.shape.stake_micro
    rest = paid_in["micro"] - task["spent_micro"] + task["stakes_lost_micro"]
    assert told["free_micro"] == rest > 0
    earned = sum(owed(market, name).payable_micro for name in market.people)
    assert task["spent_micro"] - task["stakes_lost_micro"] - earned in (0, 1, 2)  # roundings
    for _ in range(2):  # the same reference again is the same withdrawal
        row, _ = market.service.do(lambda t: payouts.fund(t, "trust", "back-1", -rest))
    assert row.micro == -rest
    assert market.service.do(lambda t: payouts.learner_statement(t, "trust"))["free_micro"] == 0
    with pytest.raises(PayoutError, match="cannot be withdrawn"):
        market.service.do(lambda t: payouts.fund(t, "trust", "back-2", -1))
    with pytest.raises(PayoutError, match="recorded already, of"):
        market.service.do(lambda t: payouts.fund(t, "trust", "for-task", 5))
    with pytest.raises(PayoutError, match="known: trust"):
        market.service.do(lambda t: payouts.learner_statement(t, "other"))
    with pytest.raises(FieldError, match="reference"):
        market.service.do(lambda t: payouts.fund(t, "trust", "Bank 1", 5))
    verified(market)


def test_a_task_opens_on_what_its_learner_has_and_at_the_logs_price(market: Mirrored) -> None:
    def opened(**changes: Any) -> None:
        terms = replace(samples.terms("second"), **{"price": PRICE, "funder": "trust", **changes})
        prepared = PreparedTask(replace(task_row(market), id="second", terms=terms), b"", None)

        def act(t: Transaction) -> None:
            payouts.check_price(t, terms)
            payouts.check_funded(t, terms)
            t.open_task(prepared)

        market.service.do(act)

    size = len(market.service.entries())
    for changes, words in (
        ({}, "deposit of at least"),
        ({"funder": "nobody"}, r"nobody has 0\.000000 credits"),
        ({"price": None}, "a credit of this market is paid out as 0.75 EUR"),
        ({"price": replace(PRICE, amount=Decimal(1))}, "change what is paid by payment.scale"),
    ):
        with pytest.raises(PayoutError, match=words):
            opened(**changes)
    assert len(market.service.entries()) == size
    budget = samples.terms("second").budget_micro
    market.service.do(lambda t: payouts.fund(t, "trust", "more", budget))
    opened()
    told = market.service.do(lambda t: payouts.learner_statement(t, "trust"))
    assert told["reserved_micro"] == budget


def test_a_market_without_a_price_pays_nothing_out(tmp_path: Path) -> None:
    with scratch_url("sqlite", tmp_path) as url:
        service = Service(url)
        task = Mirrored(service, Shape(rounds=1))
        task.play()
        with_accounts(task)
        with pytest.raises(PayoutError, match="no task of this market has a price"):
            begun(task)
        service.close()


def test_records_say_everything_but_bank_details(market: Mirrored) -> None:
    with_accounts(market, 2)
    run = begun(market)
    began = market.service.watch.seconds
    market.pass_time()
    ended(market, 1)
    market.pass_time()
    with pytest.raises(PayoutError, match="comes back for a reason"):
        market.service.do(lambda t: payouts.return_payment(t, 1, "p001", " "))
    back, _ = market.service.do(lambda t: payouts.return_payment(t, 1, "p001", " account closed "))
    first, second = run.lines
    assert back.record() == {
        "number": 1,
        "standing": "confirmed",
        "began": began,
        "ended": began + 60,
        "reason": "",
        "price": {"amount": "0.75", "currency": "EUR", "minor_unit": 2},
        "amount": PRICE.number(first.units + second.units),
        "currency": "EUR",
        "lines": [
            {
                "participant": line.participant_id,
                "amount": PRICE.number(line.units),
                "micro": line.micro,
                "returned": at,
                "returned_reason": reason,
            }
            for line, at, reason in ((first, None, ""), (second, began + 120, "account closed"))
        ],
        "left_out": [],
    }
    assert run.record()["left_out"] == ["p002", "p003"]
    market.pass_time()
    begun(market)
    paid = {"payout": 1, "currency": "EUR"}
    amounts = {line.participant_id: (PRICE.number(line.units), line.micro) for line in run.lines}
    assert [told(market, name)[0] for name in ("p000", "p001")] == [
        {**paid, "at": began + 60, "standing": "paid", "reason": "", **amount(*amounts["p000"])},
        {
            **paid,
            "at": began + 120,
            "standing": "came back",
            "reason": "account closed",
            **amount(*amounts["p001"]),
        },
    ]
    [_, again] = told(market, "p001")
    assert (again["payout"], again["standing"], again["at"]) == (2, "pending", began + 180)
    ended(market, 2, entries.WITHDRAWN, "refused")
    [_, again] = told(market, "p001")
    assert (again["standing"], again["reason"], again["at"]) == ("withdrawn", "refused", began + 180)


def amount(number: str, micro: int) -> dict[str, Any]:
    return {"amount": number, "micro": micro}


def told(task: Mirrored, name: str) -> list[dict[str, Any]]:
    return task.service.do(lambda t: payouts.paid_out_to(t, name))


def test_where_nobody_has_paid_in_there_is_no_statement(tmp_path: Path) -> None:
    with scratch_url("sqlite", tmp_path) as url:
        service = Service(url)
        with pytest.raises(PayoutError, match="known: none yet"):
            service.do(lambda t: payouts.learner_statement(t, "trust"))
        service.close()


def test_a_learners_statement_says_everything(market: Mirrored) -> None:
    at, budget = market.service.watch.seconds, market.terms.budget_micro
    first = market.service.do(lambda t: t.market.funding("trust"))[0]
    market.service.do(lambda t: payouts.fund(t, "trust", "more", 7))
    market.service.do(lambda t: payouts.fund(t, "trust", "back", -2))
    size = len(market.service.entries())
    found = market.service.do(lambda t: payouts.learner_statement(t, "trust"))
    [task] = found.pop("tasks")
    spent = task.pop("spent_micro")
    assert task == {
        "task": "task",
        "state": "CLOSED",
        "budget_micro": budget,
        "reserved_micro": 0,
        "stakes_lost_micro": market.shape.stake_micro,
        "audits_took_micro": 0,
    }
    assert found == {
        "learner": "trust",
        "free_micro": budget - spent + market.shape.stake_micro + 5,
        "reserved_micro": 0,
        "funding": [
            {
                "kind": "deposit",
                "reference": "for-task",
                "micro": budget,
                "at": first.at,
                "entry": first.ledger_index,
            },
            {"kind": "deposit", "reference": "more", "micro": 7, "at": at, "entry": size - 2},
            {"kind": "withdrawal", "reference": "back", "micro": -2, "at": at, "entry": size - 1},
        ],
    }
