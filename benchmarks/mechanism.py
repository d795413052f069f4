"""Equilibria of heterogeneous populations: time a sweep, and against direct iteration and SLSQP.

    python -m benchmarks.mechanism [--largest 1000000]

Each ratio is against a baseline in the same run:

    scaling   both equilibria with certificates at N = 10^3 ... 10^6; the cost of a sweep per participant
    plan      all of `fedpeer plan` for the largest population, a process of its own
    direct    the same answer by O(N^2) iteration: exact expected derivatives over all peers, Newton, NumPy
    slsqp     best responses by scipy.optimize.minimize(method="SLSQP"), started from both ends
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import solve
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.payment import Log

BOUND = GapBound(300, 200)
RATIO = BOUND.ratio
Q = 2000.0


def population(size: int, seed: int = 0) -> Game:
    rng = np.random.default_rng(seed)
    effort = ExponentialEffort(rng.uniform(0.3, 1.0, size), rng.uniform(0.5, 2.0, size))
    return Game(Log(), Q, BOUND, effort, LinearCost(rng.uniform(0.3, 1.2, size)))


def direct(game: Game, start: np.ndarray, tolerance: float = 1e-10) -> tuple[np.ndarray, int]:
    """Best responses by Newton on sums over every peer; the better of the root and the upper end."""
    c, size = np.asarray(game.cost.coefficient), game.size
    x, sweeps = start.copy(), 0
    while True:
        peers = np.square(x)

        def mean(z: np.ndarray, power: int, peers: np.ndarray = peers) -> np.ndarray:
            terms = (np.square(z)[:, None] + peers + RATIO) ** -power
            np.fill_diagonal(terms, 0.0)
            return terms.sum(axis=1) / (size - 1)

        def utility(z: np.ndarray, peers: np.ndarray = peers) -> np.ndarray:
            logs = np.log(np.square(z)[:, None] + peers + RATIO)
            np.fill_diagonal(logs, 0.0)
            return -logs.sum(axis=1) / (size - 1) - c * (game.start - z)

        root = game.floor.copy()
        for _ in range(8):
            one, two = mean(root, 1), mean(root, 2)
            bend = -2 * one + 4 * np.square(root) * two
            step = np.where(bend < 0, -(c - 2 * root * one) / np.minimum(bend, -1e-12), 1.0)
            moved = np.clip(root + step, game.floor, game.start)
            done = np.abs(moved - root).max() < 1e-13
            root = moved
            if done:
                break
        new = np.where(utility(game.start) > utility(root), game.start, root)
        sweeps += 1
        move = np.abs(new - x).max()
        x = new
        if move < tolerance:
            return x, sweeps


def slsqp(game: Game, start: np.ndarray, tolerance: float = 1e-10) -> tuple[np.ndarray, int]:
    """Best responses one by one, each from both ends of its range, until nothing moves.

    SLSQP stops where the loss no longer changes, and a loss of size 1, rounded to 1e-16, is flat within 1e-8 of its
    minimum. So the loss is counted from the last profile, where it is nearly 0 and keeps its digits, with the
    analytic gradient.
    """
    c, x, sweeps = np.asarray(game.cost.coefficient), start.copy(), 0
    while True:
        new = x.copy()
        for k in range(game.size):
            others = np.delete(np.square(x), k)

            def loss(
                d: np.ndarray, k: int = k, was: float = float(x[k]), others: np.ndarray = others
            ) -> float:
                moved = d[0] - was
                more = np.log1p(moved * (d[0] + was) / (was**2 + others + RATIO))
                return float(more.mean() - c[k] * moved)

            def slope(d: np.ndarray, k: int = k, others: np.ndarray = others) -> np.ndarray:
                return np.array([float((2 * d[0] / (d[0] ** 2 + others + RATIO)).mean() - c[k])])

            tries = [
                minimize(
                    loss,
                    [end],
                    jac=slope,
                    method="SLSQP",
                    bounds=[(game.floor[k], game.start[k])],
                    options={"ftol": 1e-24, "maxiter": 200},
                )
                for end in (game.floor[k], game.start[k])
            ]
            new[k] = min(tries, key=lambda found: found.fun).x[0]
        sweeps += 1
        move = np.abs(new - x).max()
        x = new
        if move < tolerance or sweeps >= 200:
            return x, sweeps


def planned(size: int) -> float:
    """CPU seconds of `fedpeer plan` for a population like `population`."""
    text = f"""
    Q = {Q}
    phi = {BOUND.phi}
    upsilon = {BOUND.upsilon}
    [participants]
    count = {size}
    delta0 = {{uniform = [0.3, 1.0]}}
    rate = {{uniform = [0.5, 2.0]}}
    cost = {{uniform = [0.3, 1.2]}}
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "population.toml")
        file.write_text(text)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "fedpeer", "plan", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def timed(work):
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def cpu_timed(work):
    begin = time.process_time()
    (result, seconds) = timed(work)
    return result, seconds, time.process_time() - begin


def best_of(work, runs: int):
    times = [cpu_timed(work) for _ in range(runs)]
    return times[0][0], min(t for _, t, _ in times), min(cpu for _, _, cpu in times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--without-slsqp", action="store_true")
    arguments = parser.parse_args()

    print("N          both, s   CPU s    sweeps   ns/participant/sweep   max regret   certified   peak MB")
    for size in (1_000, 10_000, 100_000, 1_000_000):
        if size > arguments.largest:
            break
        game = population(size)
        solution, seconds, cpu = best_of(lambda game=game: solve(game), 3 if size >= 100_000 else 25)
        sweeps = solution.least.iterations + solution.greatest.iterations
        regret = max(end.certificate.max_regret for end in solution)
        certified = all(end.certified for end in solution)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        print(
            f"{size:<10} {seconds:<9.3f} {cpu:<8.3f} {sweeps:<8} {cpu / size / sweeps * 1e9:<22.1f} "
            f"{regret:<12.2g} {certified!s:<11} {peak:.0f}"
        )

    print(f"\nfedpeer plan, N = {arguments.largest:,}: {planned(arguments.largest):.1f} CPU s")

    game = population(2_000)
    solution, ours, ours_cpu = best_of(lambda: solve(game), 25)
    (low, sweeps_low), one, one_cpu = cpu_timed(lambda: direct(game, game.floor))
    (high, sweeps_high), two, two_cpu = cpu_timed(lambda: direct(game, game.start))
    apart = max(np.abs(low - solution.least.degree).max(), np.abs(high - solution.greatest.degree).max())
    print(
        f"\nN = 2,000: ours {ours * 1e3:.1f} ms; direct O(N^2) {(one + two) * 1e3:.0f} ms in "
        f"{sweeps_low + sweeps_high} sweeps; ratio {(one + two) / ours:.0f}, by CPU time "
        f"{(one_cpu + two_cpu) / ours_cpu:.0f}; answers differ by {apart:.1e}"
    )

    if arguments.without_slsqp:
        return
    game = population(200)
    solution, ours, ours_cpu = best_of(lambda: solve(game), 25)
    (low, sweeps_low), one, one_cpu = cpu_timed(lambda: slsqp(game, game.floor))
    (high, sweeps_high), two, two_cpu = cpu_timed(lambda: slsqp(game, game.start))
    apart = max(np.abs(low - solution.least.degree).max(), np.abs(high - solution.greatest.degree).max())
    print(
        f"N = 200: ours {ours * 1e3:.1f} ms; SLSQP {(one + two):.1f} s in {sweeps_low + sweeps_high} sweeps; "
        f"ratio {(one + two) / ours:.0f}, by CPU time {(one_cpu + two_cpu) / ours_cpu:.0f}; "
        f"answers differ by {apart:.1e}"
    )


if __name__ == "__main__":
    main()
