"""Double entry in integer micro-credits, with reservations.

    post      debit A, credit B                                        both posted
    reserve   debit A, credit B                                        both pending, under a reservation's name
    resolve   m of a reservation of h >= m: pending -h, posted +m      once; the rest is voided

The sum of debits equals the sum of credits, posted and pending, after every transfer. What an account holds is
credits minus debits. No account but the treasury, which pays in, is ever overdrawn:

    debits posted + debits pending <= credits posted

Accounts: treasury, rounding, learner:<learner>, escrow:<task>, payable:<participant>, stake:<task>:<participant>,
held:<task>:<participant>, paid:<participant>.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mechanism.canonical import MAX_INTEGER, Json
from mechanism.ledger.errors import EntryError, PostingError

TREASURY = "treasury"
ROUNDING = "rounding"

_NAME = r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?"
_ACCOUNT = re.compile(
    f"treasury|rounding|learner:{_NAME}|escrow:{_NAME}|payable:{_NAME}|(?:stake|held):{_NAME}:{_NAME}|paid:{_NAME}"
)
_RESERVATION = re.compile(f"(?:payout:)?{_NAME}/[1-9][0-9]{{0,8}}")

#: The four sums of an account that was never used.
_UNUSED = (0, 0, 0, 0)

#: A balance stays within a signed 64-bit integer, which is what both databases hold.
MAX_BALANCE = 2**63 - 1


def escrow(task_id: str) -> str:
    """What a task may still pay out."""
    return f"escrow:{task_id}"


def payable(participant_id: str) -> str:
    """What is owed to a participant."""
    return f"payable:{participant_id}"


def stake(task_id: str, participant_id: str) -> str:
    """What a participant has at stake in a task."""
    return f"stake:{task_id}:{participant_id}"


def held(task_id: str, participant_id: str) -> str:
    """What of a participant's pay is held until audits have passed, or to the end of a task."""
    return f"held:{task_id}:{participant_id}"


def learner(learner_id: str) -> str:
    """What a learner has deposited and its tasks have not reserved or spent."""
    return f"learner:{learner_id}"


def paid(participant_id: str) -> str:
    """What has left for a participant's bank account; pending: what is on its way."""
    return f"paid:{participant_id}"


def payout_reservation(participant_id: str, number: int) -> str:
    """The reservation of a participant's line of a payout run."""
    return f"payout:{participant_id}/{number}"


def reservation_id(task_id: str, round_: int) -> str:
    """The reservation from which a round is paid."""
    return f"{task_id}/{round_}"


@dataclass(frozen=True, slots=True)
class Post:
    """A posted transfer of `micro` >= 1."""

    debit: str
    credit: str
    micro: int

    def record(self) -> dict[str, Json]:
        return {"debit": self.debit, "credit": self.credit, "micro": self.micro}


@dataclass(frozen=True, slots=True)
class Reserve:
    """A pending transfer of `micro` >= 1 under a name of its own."""

    reservation: str
    debit: str
    credit: str
    micro: int

    def record(self) -> dict[str, Json]:
        return {"reserve": self.reservation, "debit": self.debit, "credit": self.credit, "micro": self.micro}


@dataclass(frozen=True, slots=True)
class Resolve:
    """Posts `micro` >= 0 of a reservation and voids the rest of it."""

    reservation: str
    micro: int

    def record(self) -> dict[str, Json]:
        return {"resolve": self.reservation, "micro": self.micro}


def moved(debit: str, credit: str, micro: int) -> tuple[Post, ...]:
    """What posts `micro` >= 0: nothing where it is 0."""
    return (Post(debit, credit, micro),) if micro else ()


def account_name(name: str) -> str:
    """An account's name as it is. Raises EntryError where it has the form of none."""
    return _matching(_ACCOUNT, name, "account")


Transfer: TypeAlias = Post | Reserve | Resolve


def parse_transfer(record: Any) -> Transfer:
    """The transfer that `record` writes down.

    Raises:
        EntryError: unknown keys, an unknown form of account, or an amount out of range.
    """
    if type(record) is not dict or type(record.get("micro")) is not int:
        raise EntryError(
            f"{record!r:.120} is not a transfer; expected accounts and an amount in micro-credits"
        )
    keys = record.keys()
    micro = record["micro"]
    if not 0 <= micro <= MAX_INTEGER:
        raise EntryError(f"a transfer of {micro} micro-credits; expected 0 to {MAX_INTEGER}")
    if keys == {"resolve", "micro"}:
        return Resolve(_matching(_RESERVATION, record["resolve"], "reservation"), micro)
    if micro == 0:
        raise EntryError("a transfer of nothing; expected at least one micro-credit")
    if keys == {"debit", "credit", "micro"} or keys == {"reserve", "debit", "credit", "micro"}:
        debit = _matching(_ACCOUNT, record["debit"], "account")
        credit = _matching(_ACCOUNT, record["credit"], "account")
        if debit == credit:
            raise EntryError(f"a transfer from {debit} to itself")
        if "reserve" in record:
            return Reserve(_matching(_RESERVATION, record["reserve"], "reservation"), debit, credit, micro)
        return Post(debit, credit, micro)
    raise EntryError(f"a transfer with the keys {', '.join(sorted(keys))}; expected post, reserve or resolve")


@dataclass(frozen=True, slots=True)
class Balance:
    """The four running sums of an account, micro-credits, never falling but for the pending ones."""

    debits_posted: int = 0
    credits_posted: int = 0
    debits_pending: int = 0
    credits_pending: int = 0

    @property
    def holds(self) -> int:
        """Credits minus debits, posted."""
        return self.credits_posted - self.debits_posted

    @property
    def free(self) -> int:
        """What it holds and has not reserved."""
        return self.holds - self.debits_pending


@dataclass(frozen=True, slots=True)
class Owed:
    """What a participant may be paid next, what is on its way to its bank account, and what was paid; micro-credits."""

    payable_micro: int
    pending_micro: int
    paid_out_micro: int

    @classmethod
    def of(cls, payable: Balance, paid: Balance) -> "Owed":
        """By its two accounts."""
        return cls(payable.free, payable.debits_pending, paid.holds)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation as it was made, and whether it is resolved."""

    debit: str
    credit: str
    micro: int
    resolved: bool = False


class Book:
    """Balances and reservations under transfers: the rule that the store, the ledger and the verifier share."""

    def __init__(
        self,
        balances: Mapping[str, Balance] | None = None,
        reservations: Mapping[str, Reservation] | None = None,
    ) -> None:
        self._sums = {
            name: [b.debits_posted, b.credits_posted, b.debits_pending, b.credits_pending]
            for name, b in (balances or {}).items()
        }
        self._reservations = dict(reservations or {})

    def apply(self, transfer: Transfer) -> None:
        """Applies one transfer, or changes nothing.

        Raises:
            PostingError: an overdraft, a reservation made or resolved twice, unknown, or exceeded.
        """
        if type(transfer) is Post:
            self._move(transfer.debit, transfer.credit, transfer.micro)
        elif type(transfer) is Reserve:
            self._reserve(transfer)
        elif type(transfer) is Resolve:
            self._resolve(transfer)

    def balance(self, account: str) -> Balance:
        """Zero for an account that was never used."""
        return Balance(*self._sums.get(account, _UNUSED))

    def holds(self, account: str) -> int:
        """Credits minus debits of an account, posted."""
        debits, credits_, *_ = self._sums.get(account, _UNUSED)
        return credits_ - debits

    def accounts(self) -> Iterable[str]:
        """Every account used so far, in name order."""
        return sorted(self._sums)

    def reservation(self, name: str) -> Reservation | None:
        return self._reservations.get(name)

    def totals(self) -> Balance:
        """Sums over all accounts: debits equal credits, posted and pending."""
        return Balance(*(sum(sums[i] for sums in self._sums.values()) for i in range(4)))

    def _move(self, debit: str, credit: str, micro: int, column: int = 0) -> None:
        """Adds to the sums of `column`: 0 for what is posted, 2 for what is pending."""
        source, target = (self._sums.get(name, _UNUSED) for name in (debit, credit))
        held = source[1] - source[0] - source[2]
        if held < micro and debit != TREASURY:
            raise PostingError(
                f"{debit} would be overdrawn: it holds {held} micro-credits, {micro} are to leave it"
            )
        if source[column] + micro > MAX_BALANCE or target[column + 1] + micro > MAX_BALANCE:
            what = "reservation" if column else "posting"
            raise PostingError(f"a {what} of {micro} micro-credits would pass 2^63 on {debit} or {credit}")
        self._sums.setdefault(debit, [*_UNUSED])[column] += micro
        self._sums.setdefault(credit, [*_UNUSED])[column + 1] += micro

    def _reserve(self, transfer: Reserve) -> None:
        name, debit, credit, micro = transfer.reservation, transfer.debit, transfer.credit, transfer.micro
        if name in self._reservations:
            raise PostingError(f"the reservation {name} was made before; each is made once")
        self._move(debit, credit, micro, column=2)
        self._reservations[name] = Reservation(debit, credit, micro)

    def _resolve(self, transfer: Resolve) -> None:
        held = self._reservations.get(transfer.reservation)
        if held is None:
            raise PostingError(f"there is no reservation {transfer.reservation} to resolve")
        if held.resolved:
            raise PostingError(
                f"the reservation {transfer.reservation} is resolved already; each is resolved once"
            )
        if transfer.micro > held.micro:
            raise PostingError(
                f"the reservation {transfer.reservation} holds {held.micro} micro-credits; "
                f"{transfer.micro} cannot be paid from it"
            )
        source, target = self._sums[held.debit], self._sums[held.credit]
        source[2] -= held.micro
        target[3] -= held.micro
        source[0] += transfer.micro
        target[1] += transfer.micro
        self._reservations[transfer.reservation] = Reservation(held.debit, held.credit, held.micro, True)


def accounts_of(transfers: Iterable[Transfer]) -> set[str]:
    """Every account that the transfers name; a reservation's own are not among them."""
    return {name for t in transfers if not isinstance(t, Resolve) for name in (t.debit, t.credit)}


def reservations_of(transfers: Iterable[Transfer]) -> set[str]:
    """Every reservation that the transfers name."""
    return {t.reservation for t in transfers if not isinstance(t, Post)}


def _matching(pattern: re.Pattern[str], value: Any, what: str) -> str:
    if type(value) is not str or not pattern.fullmatch(value):
        raise EntryError(f"{value!r:.120} is no {what} of this ledger")
    return value
