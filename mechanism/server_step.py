"""How the next start follows from a round's models: the weighted mean, or a server's optimiser that moves toward it.

With D = mean - start as the round's step, and m, v as the server's state, element by element:

    fedavg     start + D, the mean itself
    fedavgm    start + rate m                        with m = momentum m + D
    fedadam    start + rate m / (sqrt(v) + tau)      with m = beta1 m + (1 - beta1) D,  v = beta2 v + (1 - beta2) D^2
    fedyogi    the same,                             with v = v - (1 - beta2) D^2 sign(v - D^2)

Before the first round m = 0 and v = tau^2. All is float64, one IEEE operation after another in the order in which the
code has them, so everyone who has the models computes the same bits. Integer tensors, and those whose names match
`averaged`, are plain means.

Sources: McMahan et al. 2017; Hsu et al. 2019 (FedAvgM); Reddi et al. 2021, algorithm 2 (FedAdam, FedYogi).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.records import check_positive, check_share

Array = npt.NDArray[np.float64]

#: Tensors of torch's batch normalisation that no gradient moves: a variance that is stepped may fall below 0.
RUNNING_STATISTICS = ("*running_mean", "*running_var")

#: Patterns of names, and characters of one.
_MAX_PATTERNS, _MAX_PATTERN = 100, 256

_PATTERNS: Any = {"most": _MAX_PATTERNS}


@dataclass(frozen=True)
class FedAvg:
    """The mean of the models, weighted by their samples."""

    name: ClassVar[str] = "fedavg"
    #: Arrays of state that it keeps for each tensor.
    moments: ClassVar[int] = 0


@dataclass(frozen=True)
class _Stepping:
    """Attributes:
    rate: > 0.
    averaged: patterns, as of a shell, of the tensors that are plain means.
    """

    rate: Decimal
    averaged: tuple[str, ...] = field(default=RUNNING_STATISTICS, metadata=_PATTERNS, kw_only=True)

    def __post_init__(self) -> None:
        check_positive("aggregation.rate", self.rate)
        for pattern in self.averaged:
            if not isinstance(pattern, str) or not 1 <= len(pattern) <= _MAX_PATTERN:
                raise FieldError(
                    "aggregation.averaged", pattern, f"patterns of 1 to {_MAX_PATTERN} characters"
                )
        if list(self.averaged) != sorted(set(self.averaged)):
            raise FieldError("aggregation.averaged", list(self.averaged), "patterns in order, each once")

    def steps(self, tensor: str) -> bool:
        """Whether a floating-point tensor of this name is stepped, not averaged."""
        return not any(fnmatchcase(tensor, pattern) for pattern in self.averaged)


@dataclass(frozen=True)
class FedAvgM(_Stepping):
    """Momentum. At rate 1 and momentum 0 it is the mean.

    Attributes:
        momentum: in [0, 1).
    """

    name: ClassVar[str] = "fedavgm"
    moments: ClassVar[int] = 1
    rate: Decimal = Decimal(1)
    momentum: Decimal = Decimal("0.9")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("aggregation.momentum", self.momentum)

    def first_state(self, count: int) -> list[Array]:
        return [np.zeros(count)]

    def step(self, start: Array, mean: Array, state: list[Array]) -> tuple[Array, list[Array]]:
        m = float(self.momentum) * state[0] + (mean - start)
        return start + float(self.rate) * m, [m]


@dataclass(frozen=True)
class FedAdam(_Stepping):
    """Steps of about `rate`, whatever the size of D.

    Attributes:
        beta1, beta2: in [0, 1).
        tau: > 0; elements whose D stays far below it hardly move.
    """

    name: ClassVar[str] = "fedadam"
    moments: ClassVar[int] = 2
    rate: Decimal = Decimal("0.01")
    beta1: Decimal = Decimal("0.9")
    beta2: Decimal = Decimal("0.99")
    tau: Decimal = Decimal("0.001")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("aggregation.beta1", self.beta1)
        check_share("aggregation.beta2", self.beta2)
        check_positive("aggregation.tau", self.tau)

    def first_state(self, count: int) -> list[Array]:
        return [np.zeros(count), np.full(count, float(self.tau) * float(self.tau))]

    def step(self, start: Array, mean: Array, state: list[Array]) -> tuple[Array, list[Array]]:
        delta = mean - start
        m = float(self.beta1) * state[0] + (1 - float(self.beta1)) * delta
        v = self._second(state[1], delta * delta)
        return start + float(self.rate) * m / (np.sqrt(v) + float(self.tau)), [m, v]

    def _second(self, v: Array, square: Array) -> Array:
        return float(self.beta2) * v + (1 - float(self.beta2)) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam whose v moves by no more than (1 - beta2) D^2 a round."""

    name: ClassVar[str] = "fedyogi"

    def _second(self, v: Array, square: Array) -> Array:
        return v - (1 - float(self.beta2)) * square * np.sign(v - square)


#: Those that terms may name.
AGGREGATIONS: tuple[Any, ...] = (FedAvg, FedAvgM, FedAdam, FedYogi)

Aggregation = FedAvg | FedAvgM | FedAdam | FedYogi


def aggregation_rule(name: str, parameters: Mapping[str, Any]) -> Aggregation:
    """The aggregation that a task names.

    Raises:
        FieldError: an unknown name, a parameter that it does not have, or one out of range.
    """
    kinds: dict[str, Callable[..., Aggregation]] = {kind.name: kind for kind in AGGREGATIONS}
    if name not in kinds:
        raise FieldError("aggregation.name", name, "one of " + ", ".join(kinds))
    known = [f.name for f in fields(kinds[name])]  # type: ignore[arg-type]
    for key in parameters:
        if key not in known:
            has = ", ".join(known) or "no parameters"
            raise FieldError(f"aggregation.{key}", parameters[key], f"no such key: {name} has {has}")
    return kinds[name](**parameters)
