"""What an owner accepts: a task whose terms do not keep it is declined, before anything is trained or sent.

    Policy(models=["flights:make"], most_epochs=10, privacy_required=True, retention_days=30)

The terms are looked at when a task is joined; its pay at the claim, with the counts that are about to be claimed. A
task that is claimed is brought to its end, whatever the policy has become since.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TYPE_CHECKING

from mechanism.degree import noniid_degree, rational
from mechanism.errors import FieldError, MechanismError
from mechanism.privacy import Privacy, gaussians
from mechanism.terms import Terms
from participant.accounting import PrivacyLimit, epsilon_of
from participant.errors import ConfigurationError, DeclinedError

if TYPE_CHECKING:
    from mechanism.ledger.log_keys import LogKeys

#: Seconds of a day.
_DAY = 86_400

#: Epsilon that floats may add to a bound that is kept.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Policy:
    """See the module's text. Whatever is left out is not looked at.

    Attributes:
        coordinator_keys: verification keys of the logs that are trusted, as `fedpeer ledger` prints them: the log's key
            is one of them, or follows from one by changes that the log announces.
        reference: the shares p^(c) that are accepted: in the reference's order, or by the names of strata.
        models: values of `recipe.model`.
        most_epochs, most_samples: of the recipe.
        most_bytes: of a model's file.
        least_pay: of a round, at the degree that is claimed, where peers are alike, weight is whole and nothing is
            taken off: credits, or an amount of money such as "1.50 EUR", for which the terms need a price.
        privacy_required: the recipe, or the owner's own choice, adds noise.
        most_epsilon: what all rounds of the task together may tell, as (epsilon, delta).
        retention_days: the longest for which submitted models may be kept after the task's end.

    Raises:
        ConfigurationError: a value that cannot be used.
    """

    coordinator_keys: Sequence[str] = ()
    reference: Sequence[str | Fraction] | Mapping[str, str | Fraction] | None = None
    models: Sequence[str] = ()
    most_epochs: int | None = None
    most_samples: int | None = None
    most_bytes: int | None = None
    least_pay: str | int | float | Decimal | None = None
    privacy_required: bool = False
    most_epsilon: PrivacyLimit | None = None
    retention_days: float | Decimal | None = None

    def __post_init__(self) -> None:
        if self.coordinator_keys:
            _check_keys(self.coordinator_keys)
        if self.reference is not None:
            shares = self.reference.values() if isinstance(self.reference, Mapping) else self.reference
            try:
                total = sum(rational("policy.reference", share) for share in shares)
            except (FieldError, TypeError, ValueError) as error:
                raise ConfigurationError(f"policy.reference cannot be used: {error}") from None
            if total != 1:
                raise ConfigurationError(
                    f'policy.reference sums to {total}; expected shares that sum to 1, such as "1/3"'
                )
        for name in ("most_epochs", "most_samples", "most_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"policy.{name} is {value}; expected a whole number of at least 1")
        if self.retention_days is not None and self.retention_days < 0:
            raise ConfigurationError(
                f"policy.retention_days is {self.retention_days}; expected a number of at least 0"
            )
        self._pay()

    def check(self, terms: Terms, privacy: Privacy | None) -> None:
        """Raises DeclinedError where the terms do not keep the policy.

        Args:
            privacy: the owner's own choice of noise; None: as the terms have it.
        """
        recipe, reasons = terms.recipe, []
        if self.reference is not None and (own := self._reference(terms)) != terms.reference:
            stated = ", ".join(map(str, terms.reference))
            reasons.append(f"its reference is {stated:.200}; accepted is {', '.join(map(str, own)):.200}")
        if self.models and recipe.model not in self.models:
            reasons.append(f"its model is {recipe.model}; accepted are {', '.join(self.models):.200}")
        for name, value, most in (
            ("epochs", recipe.epochs, self.most_epochs),
            ("samples", recipe.samples, self.most_samples),
            ("bytes of a model", terms.contract.max_bytes, self.most_bytes),
        ):
            if most is not None and value > most:
                reasons.append(f"it asks for {value} {name}; accepted are at most {most}")
        reasons += self._of_privacy(terms, privacy or recipe.privacy)
        if self.retention_days is not None:
            kept = terms.schedule.retention_seconds
            longest = Fraction(str(self.retention_days)) * _DAY
            if kept is None:
                reasons.append(
                    f"it does not say when submitted models are deleted; accepted is after at most "
                    f"{self.retention_days} days"
                )
            elif kept > longest:
                reasons.append(
                    f"submitted models are kept for {kept} seconds after its end; accepted are at most "
                    f"{self.retention_days} days"
                )
        if reasons:
            raise DeclinedError(terms.task_id, reasons)

    def check_keys(self, task_id: str, keys: "LogKeys") -> None:
        """Raises DeclinedError where none of the log's keys is trusted."""
        known = [str(key) for key in keys.all]
        if self.coordinator_keys and not set(known) & set(self.coordinator_keys):
            raise DeclinedError(
                task_id,
                [f"its log has the key {known[-1]}; accepted are {', '.join(self.coordinator_keys):.400}"],
            )

    def check_pay(self, terms: Terms, counts: Sequence[int]) -> None:
        """Raises DeclinedError where a round pays less at the degree of `counts` than is accepted."""
        least = self._pay()
        if least is None:
            return
        amount, currency = least
        price = terms.price
        if currency and (price is None or price.currency != currency):
            stated = "no price" if price is None else f"a price in {price.currency}"
            raise DeclinedError(
                terms.task_id, [f"it has {stated}; the least pay that is accepted is {amount:f} {currency}"]
            )
        degree = noniid_degree(counts, terms.reference)
        paid = _round_pay(terms, float(degree))
        least_credits = amount / price.amount if currency and price is not None else amount
        if paid < least_credits:
            raise DeclinedError(
                terms.task_id,
                [
                    f"a round pays {paid:.6f} credits at a degree of {float(degree):.4f}, among peers that are alike; "
                    f"accepted are at least {least_credits:.6f}"
                ],
            )

    def _of_privacy(self, terms: Terms, privacy: Privacy | None) -> list[str]:
        """What is wrong with the noise that the models of a task would have."""
        recipe, limit = terms.recipe, self.most_epsilon
        if privacy is None:
            return (
                ["it asks for models without noise; privacy is required"]
                if self.privacy_required or limit
                else []
            )
        if limit is None:
            return []
        round_ = gaussians(privacy, recipe.samples, recipe.batch_size, recipe.epochs)
        spent = epsilon_of([round_] * terms.schedule.rounds, float(limit.delta))
        if spent <= float(limit.epsilon) + _ROUNDING:
            return []
        return [
            f"its {terms.schedule.rounds} rounds together have epsilon {spent:.3f} at delta {limit.delta:f}; accepted "
            f"is at most {limit.epsilon:f}"
        ]

    def _reference(self, terms: Terms) -> tuple[Fraction, ...]:
        """The accepted reference in the order of the terms; a stratum that it does not name has no share."""
        shares = self.reference
        if isinstance(shares, Mapping):
            if unknown := shares.keys() - set(terms.strata_names):
                return tuple(rational("policy.reference", shares[name]) for name in sorted(unknown))
            return tuple(rational("policy.reference", shares.get(name, "0")) for name in terms.strata_names)
        return tuple(rational("policy.reference", share) for share in shares or ())

    def _pay(self) -> tuple[Decimal, str] | None:
        """Amount and currency, which is empty where the amount is credits.

        Raises:
            ConfigurationError: neither.
        """
        if self.least_pay is None:
            return None
        text, _, currency = str(self.least_pay).strip().partition(" ")
        try:
            amount = Decimal(text)
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or amount < 0 or (currency and not _is_currency(currency)):
            raise ConfigurationError(
                f'policy.least_pay is {self.least_pay!r:.60}; expected credits, or money such as "1.50 EUR"'
            )
        return amount, currency


def _check_keys(keys: Sequence[str]) -> None:
    """Raises ConfigurationError for what is no verification key."""
    from mechanism.ledger.errors import LedgerError  # the ledger's part takes its time to import
    from mechanism.ledger.note import VerificationKey

    for key in keys:
        try:
            VerificationKey.parse(key)
        except LedgerError as error:
            raise ConfigurationError(f"policy.coordinator_keys has {key!r:.80}: {error}") from None


def _is_currency(text: str) -> bool:
    return len(text) == 3 and text.isascii() and text.isalpha() and text.isupper()


def _round_pay(terms: Terms, degree: float) -> float:
    """Credits of a round among peers of the same degree."""
    from mechanism.gap_bound import GapBound
    from mechanism.score import Score

    try:
        score = Score(terms.payment, float(terms.Q), GapBound(float(terms.phi), float(terms.upsilon)))
        paid = float(score.value(2 * degree**2))
    except MechanismError as error:
        raise DeclinedError(terms.task_id, [f"its pay cannot be computed: {error}"]) from None
    return paid if math.isfinite(paid) else 0.0
