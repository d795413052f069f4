"""The queueing model against a simulation event by event."""

import heapq

import numpy as np
import pytest

from benchmarks.queueing import BUSY, FRONT, FURTHER, Times, course, fronts_needed, served


def one_by_one(arrivals: Times, seconds: float, servers: int) -> list[float]:
    """When each leaves: it takes the server that is free first."""
    free, left = [0.0] * servers, []
    for at in arrivals:
        begun = max(at, heapq.heappop(free))
        left.append(begun + seconds)
        heapq.heappush(free, begun + seconds)
    return left


@pytest.mark.parametrize("servers", [1, 3, 7, 5000])
@pytest.mark.parametrize("load", [0.3, 0.95, 1.5])
def test_who_leaves_when(servers: int, load: float) -> None:
    gaps = np.random.default_rng(servers).exponential(1.0, 2000)
    arrivals, seconds = np.cumsum(gaps), load * servers
    np.testing.assert_allclose(
        served(arrivals, seconds, servers), one_by_one(arrivals, seconds, servers), rtol=1e-12
    )


def test_fronts_are_the_least_that_are_enough() -> None:
    window = 600.0
    for participants in (1, 1_000, 32_000, 60_000, 200_000):
        found = fronts_needed(participants, window)
        assert found is not None

        def busy(fronts: int, participants: int = participants) -> float:
            return participants * FRONT * (1 + (fronts - 1) * FURTHER) / fronts / window

        assert busy(found) <= BUSY
        assert found == 1 or busy(found - 1) > BUSY
    most = BUSY * window / (FRONT * FURTHER)
    assert fronts_needed(int(most) + 1, window) is None


def test_more_fronts_shorten_the_waits() -> None:
    one, four = (course(20_000, fronts, 1e6, 600, 1.25e9) for fronts in (1, 4))
    assert four.received < one.received
    assert four.fetched < one.fetched
