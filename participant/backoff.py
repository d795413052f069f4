"""How long to wait before calling again: exponential back-off with full jitter.

    wait_n = uniform(0, min(ceiling, first * factor^n))

Full jitter, so that participants that lost the same coordinator do not return at the same moment.
Source: Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Backoff:
    """Waits between attempts, and how long to keep trying.

    Attributes:
        first: seconds, the upper limit of the first wait.
        factor: by which the limit grows.
        ceiling: seconds, the largest limit.
        patience: seconds without any progress after which a call gives up; None: never.
        first_contact: the same before the coordinator has ever answered, when the address may be wrong; one that is
            there and has no time has `patience`.
        generator: source of the jitter.
    """

    first: float = 0.25
    factor: float = 2.0
    ceiling: float = 20.0
    patience: float | None = 600.0
    first_contact: float | None = 10.0
    generator: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def waits(self) -> Iterator[float]:
        """The waits of one run of failures, seconds."""
        limit = self.first
        while True:
            yield self.generator.uniform(0, limit)
            limit = min(self.ceiling, limit * self.factor)
