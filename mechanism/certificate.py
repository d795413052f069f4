"""What is proved about an answer.

    max_regret >= max_k max_delta [ u_k(delta, others) - u_k ]      credits

An upper bound on what any participant could still gain by deviating. It comes from a bound on the utility
between the points that were evaluated, never from the points alone, and includes a slack for rounding.
"""

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How far the bound can be trusted.

    PROVED       by bounds that hold for the functions at hand.
    CONDITIONAL  by bounds that hold if a user's function keeps between the checked points what it shows at
                 them (that it does not decrease, its curvature, its convexity).
    NONE         no bound could be proved; `max_regret` is infinite.
    """

    PROVED = "proved"
    CONDITIONAL = "conditional"
    NONE = "none"


@dataclass(frozen=True)
class Certificate:
    """An upper bound on the regret.

    Attributes:
        max_regret: credits, >= 0.
        status: how it is known.
        basis: what it rests on, in words.
        rounding: the part of `max_regret` that allows for floating-point rounding.
    """

    max_regret: float
    status: Status
    basis: str
    rounding: float = 0.0

    @property
    def certified(self) -> bool:
        return self.status is Status.PROVED
