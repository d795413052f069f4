"""A population and terms from a document: what `fedpeer plan` reads.

    {"payment": "log", "Q": 2000, "phi": 300, "upsilon": 200, "peer_rule": "random",
     "participants": [{"delta0": 1.0, "rate": 1.0, "cost": 0.8}, ...],
     "learner": {"omega": 1, "gamma": 5, "reward": 800, "rounds": 10},
     "risk": {"cara": 1.0, "peers": [1, 3, "all"]}}

`participants` is a list of entries, or one entry. An entry with `count` stands for that many, and then each number
may be a distribution, drawn with the entry's `seed`:

    {"count": 1000, "delta0": {"uniform": [0.3, 1.0]}, "cost": {"lognormal": [-0.5, 0.3]}, "seed": 0}

An entry may have `cost_exponent` (cost * x^a instead of cost * x) or, instead of `delta0` and `rate`, a table
`efforts` and `degrees`. `payment` is a name or {"name": "power", "scale": 2, "exponent": 0.5}. `reward` is R for
R / Bound, or {"power": [R, a]} for R / Bound^a, {"log1p": R} for R ln(1 + 1/Bound). docs/plan.md has every key.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule
from mechanism.cost import CostFunction, LinearCost, PowerCost
from mechanism.effort import EffortCurve, ExponentialEffort, StackedEffort, TabulatedEffort
from mechanism.errors import MISSING, FieldError
from mechanism.gap_bound import GapBound
from mechanism.learner import Learner, Reward
from mechanism.payment import ExactPaymentFunction, payment_function
from mechanism.ranges import whole
from mechanism.risk import Attitude, attitude_of
from mechanism.terms import PEERS_DRAWN

Array = npt.NDArray[np.float64]

_TOP = {"payment", "Q", "phi", "upsilon", "participants", "learner", "peer_rule", "risk"}
#: Least and greatest of what is above 0: sums and products of three stay far inside a float's range, 1e-308 to 1e308.
POSITIVE = (1e-12, 1e12)
#: The same of what may be 0.
UP_TO = (0.0, 1e12)
#: Exponents: of a cost, of the payment x^a with a <= 1, of a reward.
COST_EXPONENT, PAYMENT_EXPONENT, REWARD_EXPONENT = (1 / 8, 64.0), (1 / 64, 1.0), (1 / 64, 16.0)
MAX_ROUNDS, MAX_SEED = 10**9, 2**63 - 1
_REQUIRED = {
    "phi": "a number in [1e-12, 1e+12]",
    "upsilon": "a number in [1e-12, 1e+12]",
    "participants": "a list of participants, or one entry with a count",
}
_ENTRY = {"delta0", "rate", "cost", "cost_exponent", "efforts", "degrees", "count", "seed"}
_RISK = {"cara", "crra", "wealth", "peers"}
_LEARNER = {"omega", "gamma", "reward", "rounds", "weights", "variance"}
#: How many parameters each distribution takes (None: any number above 0), and what they are.
_DISTRIBUTIONS: dict[str, tuple[int | None, str]] = {
    "uniform": (2, "[low, high], low <= high"),
    "normal": (2, "[mean, standard deviation]"),
    "lognormal": (2, "[mean of ln, standard deviation of ln]"),
    "choice": (None, "a list of numbers"),
}
#: A hundred times as many as can take part.
MAX_PARTICIPANTS = 1_000_000


@dataclass(frozen=True)
class Population:
    """Curves and costs with one entry a participant."""

    effort: EffortCurve
    cost: CostFunction
    size: int


@dataclass(frozen=True)
class Risk:
    """How all participants weigh risk, and the numbers of peers that are drawn to compare; None: all peers."""

    attitude: Attitude
    peers: tuple[int | None, ...]


@dataclass(frozen=True)
class PlanInput:
    """A document, checked. `Q` is None where the best is asked for."""

    payment: ExactPaymentFunction
    Q: float | None
    bound: GapBound
    population: Population
    rule: PeerRule
    learner: Learner | None
    risk: Risk | None = None


def plan_input(document: Mapping[str, Any]) -> PlanInput:
    """Check a document.

    Raises:
        FieldError: names the key, the value and what was expected.
    """
    _known("", document, _TOP)
    for key, expected in _REQUIRED.items():
        if key not in document:
            raise FieldError(key, MISSING, expected)
    Q = document.get("Q")
    return PlanInput(
        payment=_payment(document.get("payment", "log")),
        Q=None if Q is None else _number("Q", Q, *POSITIVE),
        bound=GapBound(
            _number("phi", document["phi"], *POSITIVE),
            _number("upsilon", document["upsilon"], *POSITIVE),
        ),
        population=population(document["participants"]),
        rule=_rule(document.get("peer_rule", "random")),
        learner=_learner(document["learner"]) if document.get("learner") is not None else None,
        risk=_risk(document["risk"]) if document.get("risk") is not None else None,
    )


def population(participants: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> Population:
    """The population that a list of entries, or one entry, describes.

    Raises:
        FieldError: as `plan_input`; also fewer than 2 participants.
    """
    if isinstance(participants, Mapping):
        participants = [participants]
    if not isinstance(participants, Sequence) or isinstance(participants, str):
        raise FieldError("participants", participants, "a list of participants, or one entry with a count")
    parts = [_entry(f"participants[{i}]", entry) for i, entry in enumerate(participants)]
    size = sum(part.size for part in parts)
    if size < 2:
        raise FieldError("participants", size, "at least 2 participants: a payment needs a peer")
    if size > MAX_PARTICIPANTS:
        raise FieldError("participants", size, f"at most {MAX_PARTICIPANTS}")
    coefficient = np.concatenate([part.cost for part in parts])
    exponent = np.repeat([part.exponent for part in parts], [part.size for part in parts])
    cost = LinearCost(coefficient) if (exponent == 1).all() else PowerCost(coefficient, exponent)
    return Population(_effort_of_all(parts), cost, size)


@dataclass(frozen=True)
class _Entry:
    """`size` participants of one curve each, or of one for all of them, who pay cost * x^exponent."""

    effort: ExponentialEffort | TabulatedEffort
    cost: Array
    exponent: float
    size: int


def _entry(path: str, entry: Any) -> _Entry:
    if not isinstance(entry, Mapping):
        raise FieldError(path, entry, "a table with delta0, rate and cost")
    _known(f"{path}.", entry, _ENTRY)
    count = whole(f"{path}.count", entry.get("count", 1), 1, MAX_PARTICIPANTS)
    seed = whole(f"{path}.seed", entry.get("seed", 0), 0, MAX_SEED)
    if "cost" not in entry:
        raise FieldError(f"{path}.cost", MISSING, _range(*POSITIVE))
    # A generator a key: adding one distribution does not change the others' draws.
    ranges = {"delta0": (0.0, 1.0), "rate": POSITIVE, "cost": POSITIVE}
    drawn = {
        key: _values(f"{path}.{key}", entry.get(key, 1.0), count, np.random.default_rng([seed, i]), *limits)
        for i, (key, limits) in enumerate(ranges.items())
    }
    exponent = _number(f"{path}.cost_exponent", entry.get("cost_exponent", 1.0), *COST_EXPONENT)
    if "efforts" not in entry and "degrees" not in entry:
        return _Entry(ExponentialEffort(drawn["delta0"], drawn["rate"]), drawn["cost"], exponent, count)
    for key in ("delta0", "rate"):
        if key in entry:
            raise FieldError(f"{path}.{key}", entry[key], "no such key with a table of efforts and degrees")
    efforts, degrees = (_numbers(f"{path}.{key}", entry.get(key, MISSING)) for key in ("efforts", "degrees"))
    try:
        table = TabulatedEffort(efforts, degrees)
    except FieldError as error:  # say whose
        raise FieldError(f"{path}.{error.field}", error.value, error.expected) from None
    return _Entry(table, drawn["cost"], exponent, count)


def _effort_of_all(parts: Sequence[_Entry]) -> EffortCurve:
    drawn = [part.effort for part in parts if isinstance(part.effort, ExponentialEffort)]
    if len(drawn) == len(parts):
        rates = [np.asarray(curve.rate) for curve in drawn]
        return ExponentialEffort(np.concatenate([curve.start for curve in drawn]), np.concatenate(rates))
    curves: list[EffortCurve] = []
    who: list[int] = []
    for part in parts:
        curve, first = part.effort, len(curves)
        if isinstance(curve, ExponentialEffort):
            curves += [
                ExponentialEffort(*one) for one in zip(curve.start, np.asarray(curve.rate), strict=True)
            ]
            who += range(first, len(curves))
        else:
            curves.append(curve)
            who += [first] * part.size
    return StackedEffort(curves, np.array(who))


def _values(
    path: str,
    value: Any,
    count: int,
    rng: np.random.Generator,
    low: float,
    high: float,
) -> Array:
    """`count` numbers: a constant, or draws of a distribution."""
    if not isinstance(value, Mapping):
        return np.full(count, _number(path, value, low, high))
    if len(value) != 1 or next(iter(value)) not in _DISTRIBUTIONS:
        raise FieldError(path, dict(value), "a number, or one of " + ", ".join(_DISTRIBUTIONS))
    (name, given), (length, words) = next(iter(value.items())), _DISTRIBUTIONS[next(iter(value))]
    numbers = _numbers(f"{path}.{name}", given)
    if len(numbers) != length if length is not None else not numbers:
        raise FieldError(f"{path}.{name}", given, words)
    if (name == "uniform" and numbers[0] > numbers[1]) or (
        name in ("normal", "lognormal") and numbers[1] < 0
    ):
        raise FieldError(f"{path}.{name}", given, words)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        if name == "uniform":
            drawn = numbers[0] + (numbers[1] - numbers[0]) * rng.random(count)
        elif name == "choice":
            drawn = rng.choice(np.array(numbers), count)
        else:
            drawn = rng.normal(numbers[0], numbers[1], count)
            drawn = np.exp(drawn) if name == "lognormal" else drawn
    outside = ~((drawn >= low) & (drawn <= high))
    if outside.any():
        raise FieldError(path, float(drawn[outside][0]), f"draws {_range(low, high)}; narrow the {name}")
    return np.asarray(drawn, dtype=np.float64)


def _payment(value: Any) -> ExactPaymentFunction:
    if isinstance(value, str):
        return payment_function(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise FieldError("payment", value, 'a name such as "log", or a table with a name')
    parameters = {key: _decimal(f"payment.{key}", given) for key, given in value.items() if key != "name"}
    function = payment_function(value["name"], parameters)
    for key, limits in (("scale", POSITIVE), ("exponent", PAYMENT_EXPONENT)):
        if key in parameters:
            _number(f"payment.{key}", float(parameters[key]), *limits)
    return function


def _decimal(path: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise FieldError(path, value, "a number")
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise FieldError(path, value, "a number") from None


def _learner(value: Any) -> Learner:
    if not isinstance(value, Mapping):
        raise FieldError("learner", value, "a table with omega, gamma, reward and rounds")
    _known("learner.", value, _LEARNER)
    ranges = {"omega": POSITIVE, "gamma": UP_TO, "reward": UP_TO}
    for key, limits in ranges.items():
        if key not in value:
            raise FieldError(f"learner.{key}", MISSING, _range(*limits))
    weights = value.get("weights")
    return Learner(
        omega=_number("learner.omega", value["omega"], *POSITIVE),
        gamma=_number("learner.gamma", value["gamma"], *UP_TO),
        reward=_reward(value["reward"]),
        rounds=whole("learner.rounds", value.get("rounds", 1), 1, MAX_ROUNDS),
        weights=None if weights is None else _numbers("learner.weights", weights),
        variance=_number("learner.variance", value.get("variance", 0.0), *UP_TO),
    )


def _reward(value: Any) -> Reward | float:
    if not isinstance(value, Mapping):
        return _number("learner.reward", value, *UP_TO)
    if len(value) == 1 and "log1p" in value:
        scale = _number("learner.reward.log1p", value["log1p"], *UP_TO)
        return lambda y: scale * math.log1p(y)
    if len(value) == 1 and "power" in value:
        numbers = _numbers("learner.reward.power", value["power"])
        if len(numbers) != 2:
            raise FieldError("learner.reward.power", value["power"], "[R, a]")
        for i, limits in enumerate((UP_TO, REWARD_EXPONENT)):
            _number(f"learner.reward.power[{i}]", numbers[i], *limits)
        return lambda y: numbers[0] * float(y ** numbers[1])
    raise FieldError("learner.reward", dict(value), 'a number, {"power": [R, a]} or {"log1p": R}')


def _risk(value: Any) -> Risk:
    if not isinstance(value, Mapping):
        raise FieldError("risk", value, "a table with cara, or with crra and wealth")
    _known("risk.", value, _RISK)
    attitude = attitude_of(value.get("cara"), value.get("crra"), value.get("wealth"), "risk.")
    if attitude is None:
        raise FieldError("risk.cara", MISSING, "cara, or crra and wealth")
    peers = value.get("peers", [1, PEERS_DRAWN["verified"], "all"])
    if not isinstance(peers, Sequence) or isinstance(peers, str) or not peers:
        raise FieldError("risk.peers", peers, 'a list of one or more numbers of peers, or "all" in it')
    numbers = [None if one == "all" else whole(f"risk.peers[{i}]", one, 1) for i, one in enumerate(peers)]
    return Risk(attitude, tuple(numbers))


def _rule(value: Any) -> PeerRule:
    try:
        return PeerRule(value)
    except ValueError:
        raise FieldError("peer_rule", value, "one of " + ", ".join(rule.value for rule in PeerRule)) from None


def _known(path: str, given: Mapping[str, Any], known: set[str]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1) or sorted(
                k for k in known if key in k.split("_")
            )
            meant = f"; did you mean {near[0]}?" if near else ""
            raise FieldError(
                f"{path}{key}", given[key], f"no such key, but one of {', '.join(sorted(known))}{meant}"
            )


def _number(path: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    good = not isinstance(value, bool) and isinstance(value, int | float) and _is_finite(value)
    if not good or not low <= value <= high:
        raise FieldError(path, value, _range(low, high))
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _numbers(path: str, value: Any) -> list[float]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise FieldError(path, value, "a list of numbers")
    return [_number(f"{path}[{i}]", one) for i, one in enumerate(value)]


def _range(low: float, high: float) -> str:
    return f"a number in [{low:g}, {high:g}]" if high < math.inf else "a finite number"
