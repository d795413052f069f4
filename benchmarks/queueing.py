"""A round of up to a million participants, by simulation of its queues with measured costs.

python -m benchmarks.queueing [--participants 1000 10000 ...] [--megabytes 1.7] [--minutes 60] [--gbit 10]

Everybody fetches when the round opens, trains for a lognormal time of this mean, and uploads. On their way stand, one
after the other, each first come, first served, and each with a fixed time for one participant:

    the line out   B bytes each                  fetches of one model, read once
    fronts         F processes on F cores        half of C(F) for a fetch, half for an upload
    the line in    B bytes each
    the database   one writer                    W for a model's rows
    the runner     one process, at the end       S for verdict, draw and payment; L for each pair of models

C(F) = C (1 + (F - 1) e) is the law of `benchmarks.fronts --pinned`. F is the least number of fronts that are busy for
at most 70 % of the mean training. Times are upper limits of a slow core; see docs/benchmarks.md.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]

#: CPU seconds of a fetch and an upload of 1.7 MB at one front, and what each further front adds to them, as a part of
#: it: `benchmarks.fronts --pinned`.
FRONT, FURTHER = 0.0128, 0.09

#: CPU seconds of a model's rows, of a verdict with its draw and payment, and of a pair of digits models:
#: `benchmarks.participants --likeness`.
ROWS, SETTLED, PAIR = 1.1e-4, 1.0e-3, 2.03e-7

#: Part of the time for which fronts may be busy; beyond it queues grow steeply.
BUSY = 0.7

#: Spread of the training's logarithm: the slowest of a hundred takes twice the median.
SPREAD = 0.3


@dataclass(frozen=True)
class Course:
    """How a round goes.

    Attributes:
        fronts: how many; fetched, received: seconds that 99 of 100 wait at most for the model and for their receipt,
            beyond what the lines alone take.
        database: part of the time from the first upload to the last receipt for which its writer is busy.
        closed: seconds from the last receipt to the payments, without likeness; likeness: seconds of it on one core.
    """

    fronts: int
    fetched: float
    received: float
    database: float
    closed: float
    likeness: float


def served(arrivals: Times, seconds: float, servers: int = 1) -> Times:
    """When those that arrive in this order leave a queue of so many servers, each of which takes `seconds` for one.

    With equal times the one that comes after c others gets the server that the c-th before it leaves:
    d_i = max(a_i, d_(i-c)) + s, so each server's queue is Lindley's, d_k = s (k + 1) + max over j <= k of (a_j - s j).
    Source: Lindley, "The theory of queues with a single server", Proc. Cambridge Phil. Soc. 48, 1952.
    """
    left = np.empty_like(arrivals)
    for server in range(min(servers, len(arrivals))):
        own = arrivals[server::servers]
        before = seconds * np.arange(len(own))
        left[server::servers] = np.maximum.accumulate(own - before) + before + seconds
    return left


def fronts_needed(participants: int, window: float) -> int | None:
    """The least number that is busy for at most `BUSY` of `window` seconds; None where more of them do not help."""
    # N C (1 + (F - 1) e) <= BUSY F window, linear in F.
    work, room = participants * FRONT, BUSY * window
    if work <= room:
        return 1
    if work * FURTHER >= room:
        return None
    return math.ceil(work * (1 - FURTHER) / (room - work * FURTHER))


def course(participants: int, fronts: int, size: float, window: float, line: float, seed: int = 1) -> Course:
    """Simulates one round.

    Args:
        size: bytes of a model; window: seconds of a training; line: bytes a second, each way.
    """
    half = FRONT * (1 + (fronts - 1) * FURTHER) / 2
    here = np.zeros(participants)
    fetched = served(served(here, half, fronts), size / line)
    median = window / math.exp(SPREAD**2 / 2)
    trained = fetched + median * np.random.default_rng(seed).lognormal(0, SPREAD, participants)
    trained.sort()
    arrived = served(trained, size / line)
    received = served(served(arrived, half, fronts), ROWS)
    return Course(
        fronts,
        float(np.quantile(fetched - served(here, size / line), 0.99)),
        float(np.quantile(received - arrived, 0.99)),
        participants * ROWS / float(received[-1] - arrived[0]),
        participants * SETTLED,
        PAIR * participants * (participants - 1) / 2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--participants", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--megabytes", type=float, default=1.7)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--gbit", type=float, default=10)
    given = parser.parse_args()
    size, window, line = given.megabytes * 1e6, given.minutes * 60, given.gbit * 1e9 / 8
    for participants in given.participants:
        fronts = fronts_needed(participants, window)
        if fronts is None:
            most = BUSY * window / (FRONT * FURTHER)
            print(f"{participants:>9,}: no number of fronts is enough; at most {most:,.0f} in {window:.0f} s")
            continue
        found = course(participants, fronts, size, window, line)
        print(
            f"{participants:>9,}: {fronts} fronts; the line {participants * size / line:.0f} s each way; 99 of 100 "
            f"have the model {found.fetched:.1f} s and the receipt {found.received:.2f} s after the line; database "
            f"busy {found.database:.1%}; paid {found.closed:.0f} s after the last; likeness {found.likeness:,.0f} "
            "core s"
        )


if __name__ == "__main__":
    main()
