"""Payouts and deposits: each a function of one transaction, over the rows and the ledger together.

A run takes all that is payable to everyone whose bank account is known, in whole units of the currency. One run is on
its way at a time. It is confirmed or withdrawn as a whole; a payment of a confirmed run may come back by itself. An act
that is repeated finds done what is done.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.errors import PayoutError
from coordinator.storage.audits import CONVICTED, REFUNDED
from coordinator.storage.payouts import BankAccountRow, FundingRow, PayoutLineRow, PayoutRow
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import Transaction
from mechanism.ledger import entries
from mechanism.ledger.accounts import Owed, escrow, learner, paid, payable
from mechanism.ledger.audit_entries import loss_id
from mechanism.ledger.errors import PostingError
from mechanism.price import Price, credits_text
from mechanism.terms import Terms, identifier


@dataclass(frozen=True)
class PayoutRun:
    """A payout run.

    Attributes:
        left_out: who is owed a unit of the currency or more and has no bank account here; filled when a run begins.
        new: whether this act began it.
    """

    row: PayoutRow
    lines: tuple[PayoutLineRow, ...]
    left_out: tuple[str, ...] = ()
    new: bool = False

    @property
    def units(self) -> int:
        """All that it pays, what came back included."""
        return sum(line.units for line in self.lines)

    @property
    def standing(self) -> str:
        return self.row.outcome or "pending"

    def record(self) -> dict[str, Any]:
        """For --json; without bank details."""
        row, price = self.row, self.row.price
        return {
            "number": row.number,
            "standing": self.standing,
            "began": row.began_at,
            "ended": row.ended_at,
            "reason": row.reason,
            "price": price.record(),
            "amount": price.number(self.units),
            "currency": row.currency,
            "lines": [
                {
                    "participant": line.participant_id,
                    "amount": price.number(line.units),
                    "micro": line.micro,
                    "returned": line.returned_at,
                    "returned_reason": line.returned,
                }
                for line in self.lines
            ],
            "left_out": list(self.left_out),
        }


def owed(t: Transaction, participant_id: str) -> Owed:
    return Owed.of(t.ledger.balance(payable(participant_id)), t.ledger.balance(paid(participant_id)))


def paid_out_to(t: Transaction, participant_id: str) -> list[dict[str, Any]]:
    """A participant's lines of all runs, the oldest first; without bank details."""
    found = []
    for line in t.market.paid_out_to(participant_id):
        row = t.market.payout(line.number)
        assert row is not None  # a line's foreign key
        standing = "paid" if row.outcome == entries.CONFIRMED else row.outcome or "pending"
        back = line.returned_at is not None
        found.append(
            {
                "payout": row.number,
                "at": line.returned_at or row.ended_at or row.began_at,
                "standing": "came back" if back else standing,
                "amount": row.price.number(line.units),
                "currency": row.currency,
                "micro": line.micro,
                "reason": line.returned if back else row.reason,
            }
        )
    return found


def log_price(t: Transaction) -> Price | None:
    """The price of a credit, where a task has said it."""
    return next((row.terms.price for row in t.market.tasks() if row.terms.price is not None), None)


def check_price(t: Transaction, terms: Terms) -> None:
    """Raises PayoutError where a credit of this log has another price than in `terms`."""
    price = log_price(t)
    if price is not None and terms.price != price:
        raise PayoutError(
            f"a credit of this market is paid out as {price}, and the task says {terms.price or 'no price'}: a credit "
            f'is the same whichever task pays it. Give the same [price], credit = "{price.amount:f}" and currency = '
            f'"{price.currency}", and change what is paid by payment.scale'
        )


def check_funded(t: Transaction, terms: Terms) -> None:
    """Raises PayoutError where the learner who funds a task has not deposited its budget."""
    if not terms.funder:
        return
    there = t.ledger.balance(learner(terms.funder)).free
    if there < terms.budget_micro:
        short = terms.budget_micro - there
        raise PayoutError(
            f"{terms.funder} has {credits_text(there)} credits on deposit that no task has reserved, and the task "
            f"reserves {credits_text(terms.budget_micro)}; record a deposit of at least {credits_text(short)}: "
            f"fedpeer coordinator deposit {terms.funder} {credits_text(short)} --reference REFERENCE"
        )


def set_account(t: Transaction, participant_id: str, holder: str, iban: str, bic: str) -> BankAccountRow:
    """Where a participant is paid from the next run on.

    Args:
        holder, iban, bic: as `coordinator.banking.checked_account` gives them.

    Raises:
        PayoutError: nobody of that name ever enrolled.
    """
    if t.market.participant(participant_id) is None and not t.market.pseudonyms_of(participant_id):
        raise PayoutError(
            f"there is no participant {participant_id!r:.80}; `fedpeer coordinator participants` lists them"
        )
    row = BankAccountRow(participant_id, holder, iban, bic, t.now)
    t.market.put_bank_account(row)
    return row


def begin(t: Transaction, check: Callable[[PayoutRun], Any]) -> PayoutRun:
    """The run that is on its way; where there is none, a new one.

    Args:
        check: called with it; what it raises leaves everything as it was.

    Raises:
        PayoutError: there is nothing to pay, or no price.
    """
    run = _pending(t) or _begin(t)
    check(run)
    return run


def _pending(t: Transaction) -> PayoutRun | None:
    return next((run_of(t, row.number) for row in t.market.payouts() if row.outcome is None), None)


@dataclass(frozen=True)
class Due:
    """What a run that began now would pay.

    Attributes:
        price: of a credit; None where no task has said it.
        free: micro-credits by participant, of those with a bank account; each is worth a unit at least.
        left_out: those who have none, likewise.
    """

    price: Price | None
    free: dict[str, int]
    left_out: tuple[str, ...]

    @property
    def units(self) -> int:
        return 0 if self.price is None else sum(self.price.units(micro) for micro in self.free.values())


def due(t: Transaction) -> Due:
    price, prefix = log_price(t), payable("")
    if price is None:
        return Due(None, {}, ())
    found = {
        name.removeprefix(prefix): held.free
        for name, held in t.ledger_store.all_balances().items()
        if name.startswith(prefix) and price.units(held.free)
    }
    known = _accounts(t).keys()
    free = {name: micro for name, micro in found.items() if name in known}
    return Due(price, free, tuple(sorted(found.keys() - known)))


def _begin(t: Transaction) -> PayoutRun:
    now = due(t)
    price, chosen, left_out = now.price, now.free, now.left_out
    if price is None:
        raise PayoutError(
            "no task of this market has a price, so a credit is worth no money; give the next task file a [price] "
            "with credit and currency"
        )
    if not chosen:
        raise PayoutError(
            f"there is nothing to pay out: nobody with a bank account here is owed {price.text(1)} or more"
            + (
                f"; without a bank account: {', '.join(left_out[:10])}. Give theirs: "
                "fedpeer coordinator payout account NAME --holder HOLDER --iban IBAN"
                if left_out
                else ""
            )
        )
    accounts = _accounts(t)
    number = len(t.market.payouts()) + 1
    t.ledger.append(entries.payout_entries(number, entries.timestamp(t.now), price, chosen))
    row = PayoutRow(number, t.now, str(price.record()["amount"]), price.currency, price.minor_unit)
    lines = [_line(number, price, name, accounts[name], chosen[name]) for name in sorted(chosen)]
    t.market.add_payout(row, lines)
    return PayoutRun(row, tuple(lines), left_out, new=True)


def _accounts(t: Transaction) -> dict[str, BankAccountRow]:
    """Where each is paid, by its name; a pseudonym without an account of its own where its owner is."""
    known = {row.participant_id: row for row in t.market.bank_accounts()}
    owned = {row.id: known[row.owner] for row in t.market.participants() if row.owner in known}
    return owned | known


def _line(
    number: int, price: Price, participant_id: str, account: BankAccountRow, micro: int
) -> PayoutLineRow:
    units = price.units(micro)
    return PayoutLineRow(
        number=number,
        participant_id=participant_id,
        units=units,
        micro=price.micro(units),
        holder=account.holder,
        iban=account.iban,
        bic=account.bic,
    )


def end(t: Transaction, number: int, outcome: str, reason: str = "") -> tuple[PayoutRun, bool]:
    """Ends a run as a whole; a second time it is found ended.

    Args:
        outcome: `entries.CONFIRMED` or `entries.WITHDRAWN`; the latter for a reason.

    Returns:
        the run, and whether this act ended it.

    Raises:
        PayoutError: there is no such run, or it has ended otherwise.
    """
    run = run_of(t, number)
    if run.row.outcome == outcome:
        return run, False
    if run.row.outcome is not None:
        raise PayoutError(
            f"payout {number} was {run.row.outcome} and cannot be {outcome} any more"
            + (
                ": a payment that came back is recorded by itself, with `payout return`"
                if run.row.outcome == entries.CONFIRMED
                else ": what it was to pay is payable again, in the next run"
            )
        )
    at = max(t.now, run.row.began_at)
    lines = {line.participant_id: line.micro for line in run.lines}
    why = _given(reason, "a payout is withdrawn") if outcome == entries.WITHDRAWN else reason.strip()
    t.ledger.append(entries.payout_end_entries(number, entries.timestamp(at), outcome, why, lines))
    t.market.end_payout(number, outcome, why, at)
    return run_of(t, number), True


def _given(reason: str, what: str) -> str:
    if not reason.strip():
        raise PayoutError(f"{what} for a reason, which stands in the ledger; give one")
    return reason.strip()


def return_payment(t: Transaction, number: int, participant_id: str, reason: str) -> tuple[PayoutRun, bool]:
    """One payment of a confirmed run came back: it is payable again. A second time it is found done.

    Raises:
        PayoutError: the run did not pay that participant, or is not confirmed.
    """
    run = run_of(t, number)
    line = t.market.payout_line(number, participant_id)
    if line is None:
        raise PayoutError(
            f"payout {number} does not pay {participant_id!r:.80}; `payout list` shows whom it pays"
        )
    if run.row.outcome != entries.CONFIRMED or run.row.ended_at is None:
        raise PayoutError(
            f"payout {number} is {run.standing}: only a payment of a confirmed payout can come back"
        )
    if line.returned_at is not None:
        return run, False
    why, at = _given(reason, "a payment comes back"), max(t.now, run.row.ended_at)
    t.ledger.append([entries.payout_return(number, participant_id, entries.timestamp(at), why, line.micro)])
    t.market.return_payout(number, participant_id, why, at)
    return run_of(t, number), True


def run_of(t: Transaction, number: int) -> PayoutRun:
    """Raises PayoutError where there is no such run."""
    row = t.market.payout(number)
    if row is None:
        raise PayoutError(f"there is no payout {number}; `fedpeer coordinator payout list` shows all")
    return PayoutRun(row, tuple(t.market.payout_lines(number)))


def runs(t: Transaction) -> list[PayoutRun]:
    """All runs, the oldest first."""
    return [run_of(t, row.number) for row in t.market.payouts()]


def fund(t: Transaction, learner_id: str, reference: str, micro: int) -> tuple[FundingRow, bool]:
    """Records what a learner has paid in (micro > 0) or got back (micro < 0), once for a reference.

    Returns:
        the deposit or withdrawal, and whether this act recorded it.

    Raises:
        FieldError: a name or a reference that is no id.
        PayoutError: another amount under that reference, or more than is there.
    """
    identifier("learner", learner_id)
    identifier("reference", reference)
    kind = "deposit" if micro > 0 else "withdrawal"
    before = t.market.funding_by(learner_id, kind, reference)
    if before is not None:
        if before.micro != micro:
            raise PayoutError(
                f"the {kind} {reference} of {learner_id} is recorded already, of {credits_text(abs(before.micro))} "
                f"credits; {credits_text(abs(micro))} need a reference of their own"
            )
        return before, False
    make = entries.deposit if micro > 0 else entries.withdrawal
    try:
        [place] = t.ledger.append([make(learner_id, reference, abs(micro), entries.timestamp(t.now))])
    except PostingError:
        there = t.ledger.balance(learner(learner_id)).free
        raise PayoutError(
            f"{learner_id} has {credits_text(there)} credits that no task has reserved; {credits_text(-micro)} cannot "
            "be withdrawn"
        ) from None
    row = FundingRow(learner_id, reference, kind, micro, t.now, place.index)
    t.market.add_funding(row)
    return row, True


def _taken_by_audits(t: Transaction, row: TaskRow) -> int:
    """What has gone back to who pays a task: pay that nobody audited in time, and what those lost who failed."""
    rows = t.market.audits(row.id)
    convicted = sorted({a.participant_id for a in rows if a.stage == CONVICTED})
    places = t.ledger_store.find([loss_id(row.id, name) for name in convicted]).values()
    losses = [t.entry(place) for place in places]
    return sum(a.question_micro for a in rows if a.stage == REFUNDED) + sum(
        transfer.micro for entry in losses for transfer in entry.transfers
    )


def learner_statement(t: Transaction, learner_id: str) -> dict[str, Any]:
    """What a learner paid in, what its tasks have reserved and spent, and what is left; all in micro-credits.

        free = deposits - withdrawals - spent + lost stakes + what audits took - reserved

    Raises:
        PayoutError: it has never paid in.
    """
    funding = t.market.funding(learner_id)
    if not funding:
        known = ", ".join(t.market.learners()) or "none yet"
        raise PayoutError(f"there is no learner {learner_id!r:.80} with a deposit; known: {known}")
    tasks = []
    for row in t.market.tasks():
        if row.terms.funder != learner_id:
            continue
        account = t.ledger.balance(escrow(row.id))
        lost = sum(line.record["stake_lost_micro"] for line in t.market.settlements(row.id))
        tasks.append(
            {
                "task": row.id,
                "state": row.state.value,
                "budget_micro": row.terms.budget_micro,
                "reserved_micro": account.credits_pending,
                "spent_micro": account.credits_posted,
                "stakes_lost_micro": lost,
                "audits_took_micro": _taken_by_audits(t, row),
            }
        )
    held = t.ledger.balance(learner(learner_id))
    return {
        "learner": learner_id,
        "free_micro": held.free,
        "reserved_micro": held.debits_pending,
        "funding": [
            {
                "kind": f.movement,
                "reference": f.reference,
                "micro": f.micro,
                "at": f.at,
                "entry": f.ledger_index,
            }
            for f in funding
        ],
        "tasks": tasks,
    }
