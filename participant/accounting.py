"""What a participant's models have revealed of its data so far: differential privacy, kept up over all its tasks.

Each model that is sent is composed with all before it, whatever task it was for, as if all were of the same samples:
an upper bound where they were not. Models that were sent without noise leave no bound at all. Epsilon is computed by
the Renyi accountant of Opacus (the extra `privacy`).

A round is reserved before its training, so that trainings at the same time do not pass the limit together; it counts
once its model is about to be sent, and is given back where none is. What is sent a second time with other noise, since
the first model's file was lost, counts a second time.

Counts, the number of samples and the degree that is claimed are exact and stand outside of this.

Sources: Mironov 2017, Renyi differential privacy; Mironov, Talwar and Zhang 2019 for sampled Gaussian noise.
"""

import json
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec

from mechanism.errors import FieldError
from mechanism.privacy import Gaussians
from mechanism.records import check_decimal
from participant.errors import ConfigurationError, PrivacyLimitError
from participant.journal import PRIVACY, Journal, PrivacyRecord

#: What a model without noise counts as.
UNPROTECTED = Gaussians(0.0, 1.0, 1)

#: Orders alpha of the Renyi divergence: epsilon is the least that one of them gives. Opacus's sum for a fractional
#: order has terms that fall as (q / (1 - q))^i: at q = 1/2 hardly at all, so that it takes minutes.
_WHOLE_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
_FRACTIONAL_ORDERS = tuple(1 + tenth / 10 for tenth in range(1, 100) if tenth % 10)
_SLOW_RATE = 0.5

#: delta that epsilon is stated at where no model and no limit names one.
_DELTA = Decimal("0.00001")


@dataclass(frozen=True)
class PrivacyLimit:
    """How much a participant's models may tell of its data, all together.

    Attributes:
        epsilon: > 0.
        delta: in (0, 1): well below one over the number of samples.
    """

    epsilon: Decimal
    delta: Decimal = _DELTA

    def __post_init__(self) -> None:
        for name, most in (("epsilon", None), ("delta", 1)):
            value = getattr(self, name)
            try:
                value = value if isinstance(value, Decimal) else Decimal(str(value))
                check_decimal(f"privacy limit: {name}", value)
            except (ArithmeticError, FieldError):
                raise ConfigurationError(
                    f"the privacy limit's {name} is {value!r}; expected a number"
                ) from None
            if value <= 0 or (most is not None and value >= most):
                raise ConfigurationError(
                    f"the privacy limit's {name} is {value}; expected a number above 0"
                    + ("" if most is None else f" and below {most}")
                )
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class PrivacySpent:
    """What the models so far tell.

    Attributes:
        epsilon: infinite where a model was sent without noise.
        delta: at which it is stated.
        limit: that of epsilon; None: there is none.
        models: how many there were, reserved ones included.
    """

    epsilon: float
    delta: Decimal
    limit: Decimal | None
    models: int

    def __str__(self) -> str:
        sent = "1 model" if self.models == 1 else f"{self.models} models"
        said = "without a bound: some were sent without noise" if math.isinf(self.epsilon) else (
            f"epsilon {self.epsilon:.3f} at delta {self.delta:f}"
        )  # fmt: skip
        return f"{sent}, {said}" + ("" if self.limit is None else f"; the limit is {self.limit:f}")

    def record(self) -> dict[str, object]:
        """As JSON; an epsilon without a bound is null."""
        return {
            "epsilon": None if math.isinf(self.epsilon) else self.epsilon,
            "delta": str(self.delta),
            "limit": None if self.limit is None else str(self.limit),
            "models": self.models,
        }


def epsilon_of(spent: Sequence[Gaussians], delta: float) -> float:
    """An epsilon for which all of `spent` together are (epsilon, delta)-private; infinite without noise.

    Raises:
        ConfigurationError: Opacus is not installed.
    """
    if not spent:
        return 0.0
    if any(not each.noise_multiplier for each in spent):
        return math.inf
    check_accountant()
    from opacus.accountants import RDPAccountant  # it imports torch

    steps: Counter[tuple[float, float]] = Counter()
    for each in spent:
        steps[each.noise_multiplier, each.sample_rate] += each.steps
    accountant = RDPAccountant()
    accountant.history = [(*kind, count) for kind, count in steps.items()]
    halved = any(rate == _SLOW_RATE for _, rate in steps)
    orders = [*_WHOLE_ORDERS, *([] if halved else _FRACTIONAL_ORDERS)]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that an order at the end of its range is best: the bound holds all the same
        return float(accountant.get_epsilon(delta, alphas=sorted(orders)))


def check_accountant() -> None:
    """Raises ConfigurationError where epsilon could not be computed, before anything is claimed."""
    if find_spec("opacus") is None:
        raise ConfigurationError(
            "epsilon cannot be computed: privacy needs opacus, which is not installed; install it with: pip install "
            "'fedpeer[privacy]'"
        )


def kept_spending(journal: Journal) -> PrivacySpent | None:
    """As the journal last noted it; None where no model was reserved. Computes nothing and needs no Opacus."""
    text = journal.meta(PRIVACY)
    if text is None:
        return None
    kept = json.loads(text)
    limit = kept["limit"]
    return PrivacySpent(
        math.inf if kept["epsilon"] is None else float(kept["epsilon"]),
        Decimal(kept["delta"]),
        None if limit is None else Decimal(limit),
        int(kept["models"]),
    )


class Accountant:
    """Keeps a journal's account.

    Args:
        limit: None: rounds are accounted for, and none is refused.
    """

    def __init__(self, journal: Journal, limit: PrivacyLimit | None = None) -> None:
        self._journal = journal
        self.limit = limit

    def spent(self) -> PrivacySpent:
        return self._composed(self._journal.privacy())

    def reserve(self, task_id: str, round_: int, gaussians: Gaussians, delta: Decimal | None) -> None:
        """Takes a round into the account, unless it is there and nothing was sent for it yet.

        Args:
            delta: of the noise; None: there is none.

        Raises:
            PrivacyLimitError: it would pass the limit; nothing has changed.
        """
        with self._journal.holding():
            rows = [
                row
                for row in self._journal.privacy()
                if row.sent or (row.task_id, row.round) != (task_id, round_)
            ]
            made = PrivacyRecord(None, task_id, round_, *gaussians, None if delta is None else str(delta), 0)
            found = self._composed([*rows, made])
            if self.limit is not None and found.epsilon > self.limit.epsilon:
                before = self._composed(rows)
                raise PrivacyLimitError(
                    f"round {round_} of task {task_id} is not trained: with it the models so far would have "
                    f"{_epsilon_text(found.epsilon)}, above the limit of {self.limit.epsilon:f} at delta "
                    f"{self.limit.delta:f} (without it {_epsilon_text(before.epsilon)}). Raise the limit, ask for more "
                    "noise, or stay out",
                    public="the participant's privacy limit is reached",
                )
            self._journal.release_privacy(task_id, round_)
            self._journal.add_privacy(made)
            self._note(found)

    def release(self, task_id: str, round_: int) -> None:
        """Takes a round out of the account where nothing was sent for it."""
        with self._journal.holding():
            if self._journal.release_privacy(task_id, round_):
                self._note(self.spent())

    def sending(self, task_id: str, round_: int) -> None:
        """A reserved round's model is about to be sent."""
        self._journal.spend_privacy(task_id, round_)

    def _composed(self, rows: Sequence[PrivacyRecord]) -> PrivacySpent:
        stated = [Decimal(row.delta) for row in rows if row.delta is not None]
        delta = min(stated, default=_DELTA) if self.limit is None else self.limit.delta
        epsilon = epsilon_of([row.gaussians for row in rows], float(delta))
        limit = None if self.limit is None else self.limit.epsilon
        return PrivacySpent(epsilon, delta, limit, len(rows))

    def _note(self, found: PrivacySpent) -> None:
        if (text := json.dumps(found.record())) != self._journal.meta(PRIVACY):
            self._journal.set_meta(PRIVACY, text)


def _epsilon_text(epsilon: float) -> str:
    return "no bound on epsilon" if math.isinf(epsilon) else f"epsilon {epsilon:.3f}"
