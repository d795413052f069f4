"""Money from and to banks: who is paid where, payout runs and their lines, what learners have paid in.

What moves credits is in the ledger; these rows say what the ledger leaves out, bank details, and find it again.
"""

from dataclasses import dataclass

from sqlalchemy import ForeignKeyConstraint

from coordinator.storage.rows import Id, Rows, table
from mechanism.price import Price


@dataclass(frozen=True)
class BankAccountRow:
    """Where a participant is paid: the holder's name, IBAN, and BIC or nothing."""

    participant_id: Id
    holder: str
    iban: str
    bic: str
    changed_at: float


@dataclass(frozen=True)
class PayoutRow:
    """A payout run.

    Attributes:
        amount, currency, minor_unit: of the price of a credit.
        outcome: "confirmed" or "withdrawn"; None while it is on its way.
    """

    number: int
    began_at: float
    amount: str
    currency: str
    minor_unit: int
    outcome: str | None = None
    reason: str = ""
    ended_at: float | None = None

    @property
    def price(self) -> Price:
        return Price.from_record(
            {"amount": self.amount, "currency": self.currency, "minor_unit": self.minor_unit}
        )


@dataclass(frozen=True)
class PayoutLineRow:
    """One participant's line of a run, with the bank details as they were then; when and why it came back."""

    number: int
    participant_id: Id
    units: int
    micro: int
    holder: str
    iban: str
    bic: str
    returned_at: float | None = None
    returned: str = ""


@dataclass(frozen=True)
class FundingRow:
    """A movement of a learner's money: "deposit" (micro > 0) or "withdrawal" (micro < 0)."""

    learner_id: Id
    reference: Id
    movement: str
    micro: int
    at: float
    ledger_index: int


bank_accounts = table("bank_accounts", BankAccountRow, key=("participant_id",))
payouts = table("payouts", PayoutRow, key=("number",))
payout_lines = table(
    "payout_lines",
    PayoutLineRow,
    ForeignKeyConstraint(["number"], ["payouts.number"]),
    key=("number", "participant_id"),
)
funding = table("funding", FundingRow, key=("learner_id", "movement", "reference"))


class Payouts(Rows):
    """Bank accounts, payout runs, deposits."""

    def bank_accounts(self) -> list[BankAccountRow]:
        return self._all(BankAccountRow, bank_accounts, "participant_id")

    def bank_account(self, participant_id: str) -> BankAccountRow | None:
        return self._one(BankAccountRow, bank_accounts, participant_id=participant_id)

    def put_bank_account(self, row: BankAccountRow) -> None:
        if not self._set(bank_accounts, {"participant_id": row.participant_id}, **vars(row)):
            self._add(bank_accounts, row)

    def erase_bank_details(self, participant_id: str) -> int:
        """Erases a participant's account, and what payout lines say of it; returns how many accounts and lines said
        anything."""
        erased = self._delete(bank_accounts, participant_id=participant_id)
        for line in self.paid_out_to(participant_id):
            if line.holder or line.iban or line.bic:
                key = {"number": line.number, "participant_id": participant_id}
                erased += self._set(payout_lines, key, holder="", iban="", bic="")
        return erased

    def payouts(self) -> list[PayoutRow]:
        return self._all(PayoutRow, payouts, "number")

    def payout(self, number: int) -> PayoutRow | None:
        return self._one(PayoutRow, payouts, number=number)

    def add_payout(self, row: PayoutRow, lines: list[PayoutLineRow]) -> None:
        self._add(payouts, row)
        for line in lines:
            self._add(payout_lines, line)

    def end_payout(self, number: int, outcome: str, reason: str, at: float) -> None:
        self._set(payouts, {"number": number}, outcome=outcome, reason=reason, ended_at=at)

    def payout_lines(self, number: int) -> list[PayoutLineRow]:
        """The lines of a run, by participant."""
        return self._all(PayoutLineRow, payout_lines, "participant_id", number=number)

    def payout_line(self, number: int, participant_id: str) -> PayoutLineRow | None:
        return self._one(PayoutLineRow, payout_lines, number=number, participant_id=participant_id)

    def paid_out_to(self, participant_id: str) -> list[PayoutLineRow]:
        """All lines of a participant, the oldest first."""
        return self._all(PayoutLineRow, payout_lines, "number", participant_id=participant_id)

    def return_payout(self, number: int, participant_id: str, reason: str, at: float) -> None:
        key = {"number": number, "participant_id": participant_id}
        self._set(payout_lines, key, returned_at=at, returned=reason)

    def funding(self, learner_id: str) -> list[FundingRow]:
        """What a learner paid in and took out, the oldest first."""
        return self._all(FundingRow, funding, "ledger_index", learner_id=learner_id)

    def funding_by(self, learner_id: str, movement: str, reference: str) -> FundingRow | None:
        return self._one(FundingRow, funding, learner_id=learner_id, movement=movement, reference=reference)

    def add_funding(self, row: FundingRow) -> None:
        self._add(funding, row)

    def learners(self) -> list[str]:
        """Everyone who ever paid in."""
        return sorted({row.learner_id for row in self._all(FundingRow, funding)})
