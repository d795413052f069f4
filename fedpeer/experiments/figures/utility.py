"""Figures 2 and 4: utility at equilibrium over the rounds, and what a deviation earns.

Left: four random participants at the least equilibrium; their utility moves with the peer drawn and with
nothing else. Right: one participant takes every effort from 0 to 1 while the others hold theirs: by the
formula, and as the mean over five settled rounds.

Source: Pang et al. 2025, Figure 2 (share of the majority label); number of classes as its appendix has it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from scipy import stats

from fedpeer.experiments.cells import Cell
from fedpeer.experiments.data import generator
from fedpeer.experiments.figures.figure import Figure, Finding, Results
from fedpeer.experiments.game import (
    DEVIATIONS,
    START,
    SolvedGame,
    costs,
    deviation_degrees,
    deviation_utilities,
    exact,
    play,
)
from fedpeer.experiments.plots import LINES, FigurePage, by_round
from fedpeer.experiments.populations import Partition, at_degree
from fedpeer.experiments.settings import PARTICIPANTS, Settings
from fedpeer.experiments.settlements import settlement_parameters
from fedpeer.experiments.statistics import (
    LEVEL,
    Interval,
    difference_interval,
    mean_interval,
    slope_interval,
)
from fedpeer.learning.partition import uniform_reference
from mechanism.degree import noniid_degree
from mechanism.settlement import MICRO

Array = npt.NDArray[np.float64]

#: Label counts of every participant.
Counts = tuple[tuple[int, ...], ...]

#: Participants whose utility is drawn, and the seed that chooses them.
SHOWN, SHOWN_SEED = 4, 7
#: Who deviates: one from the middle of the costs.
DEVIATOR = 5
#: Tasks whose slopes are taken. The trend is denied where so many slopes differ from 0 that chance has a
#: probability below CHANCE, or where a drift above DRIFT of the utility over a task is not excluded.
TASKS, TASKS_QUICK, CHANCE, DRIFT = 30, 10, 0.01, 0.05
#: Rounds of one measurement of a deviation, as in the paper, and how often it is repeated.
DEVIATION_ROUNDS, REPETITIONS, REPETITIONS_QUICK = 5, 40, 10


@dataclass(frozen=True)
class UtilityFigure(Figure):
    """Utility at equilibrium and beside it, for one way to skew labels."""

    number: int
    name: str
    title: str
    partition: Partition

    def cells(self, settings: Settings) -> list[Cell]:
        """The rounds at the equilibrium, and those beside it."""
        chosen = play(self.partition, settings)
        tasks, repetitions = (TASKS_QUICK, REPETITIONS_QUICK) if settings.quick else (TASKS, REPETITIONS)

        def cell(populations: list[Counts], rounds: int, repetitions: int, seed: int) -> Cell:
            parameters = settlement_parameters(
                populations, Q=chosen.game.Q, rounds=rounds, repetitions=repetitions, seed=seed
            )
            return Cell("settlement", parameters)

        return [
            cell([chosen.counts], settings.rounds, tasks, 0),
            cell(self._deviating(settings), DEVIATION_ROUNDS, repetitions, 1),
        ]

    def draw(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        cells = self.cells(settings)
        if any(cell.key not in results for cell in cells):
            return []
        chosen = play(self.partition, settings)
        settled, beside = (np.array(results[cell.key]["paid_micro"], np.float64) / MICRO for cell in cells)
        over_rounds = settled[0] - np.array([_cost(k, mix) for k, mix in enumerate(chosen.counts)])
        spent = [_cost(DEVIATOR, counts[DEVIATOR]) for counts in self._deviating(settings)]
        deviation = beside[..., DEVIATOR] - np.array(spent)[:, None, None]
        # Of the equilibrium and of each deviation: one task's rounds, and the means of all tasks.
        measured = [(mean_interval(tasks[0]), mean_interval(tasks.mean(axis=1))) for tasks in deviation]
        shown = sorted(generator(SHOWN_SEED).choice(PARTICIPANTS, SHOWN, replace=False).tolist())
        _tables(page, chosen, over_rounds, measured)
        with page.panels(2) as axes:
            _draw_rounds(axes[0], chosen, over_rounds[0], shown)
            _draw_deviation(axes[1], chosen, measured[1:], deviation.shape[1])
        return [_trend(over_rounds), _by_calculation(chosen), _by_simulation(deviation)]

    def _deviating(self, settings: Settings) -> list[Counts]:
        """Everyone's counts for each deviation, the equilibrium itself first."""
        chosen = play(self.partition, settings)
        populations = [chosen.counts]
        for degree in exact(deviation_degrees(chosen.game, DEVIATOR)):
            counts = list(chosen.counts)
            mix = at_degree(self.partition, DEVIATOR, degree, settings.classes, settings.samples)
            counts[DEVIATOR] = mix.counts
            populations.append(tuple(counts))
        return populations


def _tables(
    page: FigurePage, chosen: SolvedGame, over_rounds: Array, measured: list[tuple[Interval, Interval]]
) -> None:
    found = chosen.equilibrium
    page.table(
        ("participant", "effort", "degree", "cost", "expected_utility"),
        zip(range(PARTICIPANTS), found.effort, found.degree, found.cost, found.utility, strict=True),
        part="participants",
    )
    page.table(
        ("task", "round", "participant", "utility"),
        ((s, r + 1, k, value) for (s, r, k), value in np.ndenumerate(over_rounds)),
    )
    degrees = np.array([found.degree[DEVIATOR], *deviation_degrees(chosen.game, DEVIATOR)])
    efforts = [found.effort[DEVIATOR], *map(float, DEVIATIONS)]
    formula = deviation_utilities(chosen.game, found.degree, DEVIATOR, degrees)
    page.table(
        ("effort", "degree", "expected_utility", "five_rounds", "five_rounds_low", "five_rounds_high",
         "all_repetitions", "all_repetitions_low", "all_repetitions_high"),
        [
            (*point, *(value for i in intervals for value in (i.estimate, i.low, i.high)))
            for *point, intervals in zip(efforts, degrees, formula, measured, strict=True)
        ],
        part="deviation",
    )  # fmt: skip


def _draw_deviation(
    axes: Axes, chosen: SolvedGame, measured: list[tuple[Interval, Interval]], repetitions: int
) -> None:
    found, game = chosen.equilibrium, chosen.game
    fine = np.linspace(0.0, 1.0, 201)
    formula = deviation_utilities(game, found.degree, DEVIATOR, deviation_degrees(game, DEVIATOR, fine))
    axes.plot(fine, formula, color=LINES[0].colour, label="expected, by the formula")
    labels = (f"mean of {DEVIATION_ROUNDS} settled rounds", f"mean of {repetitions} such means")
    for label, intervals, line, shift in zip(
        labels, zip(*measured, strict=True), (LINES[4], LINES[1]), (-0.006, 0.006), strict=True
    ):
        axes.errorbar(
            [float(e) + shift for e in DEVIATIONS],
            [i.estimate for i in intervals],
            yerr=[i.half for i in intervals],
            fmt=line.marker,
            color=line.colour,
            capsize=1.5,
            linewidth=0.8,
            label=label + ", 95 %",
        )
    axes.axvline(found.effort[DEVIATOR], color="0.4", linestyle=":", label="equilibrium effort")
    axes.set(xlabel=f"effort of participant {DEVIATOR}", ylabel="utility (credits a round)")
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.45 * (high - low), high)
    axes.legend(loc="lower center")


def _by_simulation(deviation: Array) -> Finding:
    """Deviations against the equilibrium, over all repetitions; intervals corrected for their number."""
    base = deviation[0].mean(axis=1)
    gains = [difference_interval(tasks.mean(axis=1), base, len(DEVIATIONS)) for tasks in deviation[1:]]
    best = max(gains, key=lambda gain: gain.estimate)
    beaten = sum(gain.low > 0 for gain in gains)
    return Finding(
        claim="The optimal effort earns most, within noise, by simulation.",
        found=(
            f"none of {len(DEVIATIONS)} efforts earns significantly more than the equilibrium's over "
            f"{len(base)} tasks of {DEVIATION_ROUNDS} rounds; the largest difference is {best} credits"
            if beaten == 0
            else f"{beaten} of {len(DEVIATIONS)} efforts earn significantly more; the largest by {best} credits"
        ),
        holds=beaten == 0,
        numbers={"largest_gain": best.estimate, "significant_gains": beaten},
    )


def _draw_rounds(axes: Axes, chosen: SolvedGame, utility: Array, shown: list[int]) -> None:
    rounds = range(1, len(utility) + 1)
    for line, k in zip(LINES, shown, strict=False):
        label = f"$k$ = {k}, $e_k$ = {chosen.equilibrium.effort[k]:.2f}"
        axes.plot(rounds, utility[:, k], label=label, **line.style)
        axes.axhline(chosen.equilibrium.utility[k], color=line.colour, linewidth=0.5)
    by_round(axes)
    axes.set_ylabel("utility at equilibrium (credits a round)")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.45 * (high - low))
    axes.legend(loc="upper center", ncols=2, handlelength=2.6, columnspacing=1.0)


def _trend(over_rounds: Array) -> Finding:
    """Slopes of the utility over the rounds: each participant's in each task, and all together.

    Of single 95 % intervals one in twenty misses 0 by chance, so they are counted; the drift that all of them
    together leave possible is set against the utility itself.
    """
    tasks, number, participants = over_rounds.shape
    claim = "At equilibrium utility is constant but for the peer drawn."
    if number < 3:
        return Finding(claim, f"{number} rounds have no slope with an interval; it takes 3")
    rounds = np.arange(1, number + 1, dtype=np.float64)
    single = [
        slope_interval(rounds.tolist(), task[:, k].tolist())
        for task in over_rounds
        for k in range(participants)
    ]
    missed = sum(not i.low <= 0 <= i.high for i in single)
    chance = float(stats.binom.sf(missed - 1, len(single), 1 - LEVEL))
    pooled = mean_interval([i.estimate for i in single])
    drift = max(abs(pooled.low), abs(pooled.high)) * (number - 1) / float(over_rounds.mean())
    return Finding(
        claim=claim,
        found=(
            f"the mean slope of {len(single)} (of {participants} participants in {tasks} tasks of {number} rounds) "
            f"is {pooled.estimate:.1e} [{pooled.low:.1e}, {pooled.high:.1e}] credits a round, a drift of at most "
            f"{drift:.1%} of the utility over a task; the 95 % intervals of {missed} single slopes miss 0, where "
            f"chance gives {(1 - LEVEL) * len(single):.0f} (that many or more: probability {chance:.2f})"
        ),
        holds=chance > CHANCE and drift < DRIFT,
        numbers={
            "slope": pooled.estimate,
            "slope_low": pooled.low,
            "slope_high": pooled.high,
            "missed": missed,
            "slopes": len(single),
            "drift": drift,
        },
    )


def _by_calculation(chosen: SolvedGame) -> Finding:
    """The largest gain of any participant at any of the efforts."""
    found = chosen.equilibrium
    gains = [
        float(deviation_utilities(chosen.game, found.degree, k, deviation_degrees(chosen.game, k)).max())
        - float(found.utility[k])
        for k in range(PARTICIPANTS)
    ]
    allowed = found.certificate.max_regret
    return Finding(
        claim="No participant gains by deviating, by calculation.",
        found=(
            f"over {len(DEVIATIONS)} efforts of each of {PARTICIPANTS} participants the best deviation changes "
            f"utility by {max(gains):.2e} credits; the certificate proves that none whatever gains more than "
            f"{allowed:.1e}"
        ),
        holds=max(gains) <= allowed,
        numbers={"largest_gain": max(gains), "certificate": allowed},
    )


def _cost(participant: int, counts: tuple[int, ...]) -> float:
    """What the degree of `counts` cost the participant, credits a round."""
    degree = noniid_degree(counts, uniform_reference(len(counts)))
    return float(costs()[participant]) * float(START - degree)
