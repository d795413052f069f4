"""Figure 6: what the incentive does to the global model.

Three federations with the same people, who start at degree 0.8:

    equilibrium       everyone makes the effort of the least equilibrium under the learner's best Q
    no payment        nobody makes an effort
    sample count      the budget that the equilibrium's payments take buys samples instead, of the labels that each
                      participant has anyway

The last is made as good as its budget allows: the learner posts the price a sample that buys most. A sample
costs participant k the same in both worlds: moving the degree of n samples by d replaces n * d of them, for
c_k * d credits, so one costs c_k / n. Nobody can more than double its samples.

Ours; the paper shows no comparison of the trained model.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedpeer.experiments.cells import Cell, Record
from fedpeer.experiments.figures.figure import Figure, Finding, Results, finished, seed_cells, series, tabled
from fedpeer.experiments.game import START, costs, play
from fedpeer.experiments.learner import best_offer
from fedpeer.experiments.plots import LINES, FigurePage, by_round, curve
from fedpeer.experiments.populations import SHARES, at_degree
from fedpeer.experiments.settings import EPOCHS, PARTICIPANTS, Settings
from fedpeer.experiments.statistics import Interval, mean_interval

ARMS = ("equilibrium", "sample count", "no payment")


class IncentiveFigure(Figure):
    """Accuracy with and without the incentive."""

    number, name = 6, "incentive"
    title = "Accuracy under equilibrium efforts, payment by samples, and no payment"

    def cells(self, settings: Settings) -> list[Cell]:
        return [cell for arm in ARMS for cell in self._arm(settings, arm).values()]

    def draw(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        runs = {arm: finished(self._arm(settings, arm), results) for arm in ARMS}
        if not all(runs.values()):
            return []
        page.table(
            ("arm", "seed", "round", "accuracy", "loss"),
            [
                (arm, *row)
                for arm, run in runs.items()
                for row in tabled(run, "global", ("round", "accuracy", "loss"))
            ],
        )
        final = {
            arm: mean_interval([run["global"][-1]["accuracy"] for run in seeds.values()])
            for arm, seeds in runs.items()
        }
        with page.panels(2) as axes:
            for line, arm in zip(LINES, ARMS, strict=False):
                curve(axes[0], *series(runs[arm], "global", "accuracy"), line, arm)
            by_round(axes[0], f"{settings.dataset}, {EPOCHS} local epochs")
            axes[0].set_ylabel("test accuracy of the global model")
            axes[0].legend(loc="lower right")
            for j, (line, arm) in enumerate(zip(LINES, ARMS, strict=False)):
                last = final[arm]
                half = 0.0 if np.isnan(last.half) else last.half
                axes[1].errorbar(
                    [j], [last.estimate], yerr=[half], fmt=line.marker, color=line.colour, capsize=4
                )
                axes[1].annotate(
                    f"{last.estimate:.3f}", (j, last.estimate), xytext=(7, -2), textcoords="offset points"
                )
            axes[1].set_xticks(range(len(ARMS)), ARMS)
            axes[1].set(xlim=(-0.5, len(ARMS) - 0.3), ylabel="final test accuracy, mean and 95 %")
        return self._findings(settings, runs, final)

    def _arm(self, settings: Settings, arm: str) -> dict[int, Cell]:
        return seed_cells(settings, arm_counts(settings, arm), EPOCHS, "incentive")

    def _findings(
        self, settings: Settings, runs: dict[str, dict[int, Record]], final: dict[str, Interval]
    ) -> list[Finding]:
        found = best_offer().profile
        bought = purchased_samples(float(found.payment.sum()), settings.samples)
        spent = f"{found.payment.sum():.2f} credits a round"
        findings = []
        for other, text, rival in (
            ("no payment", "with no payment", "no payment does"),
            (
                "sample count",
                f"where the same budget is paid by sample count and buys {np.mean(bought):.0f} instead of "
                f"{settings.samples} samples a participant",
                "the same budget paid by sample count does",
            ),
        ):
            common = sorted(runs["equilibrium"].keys() & runs[other].keys())
            ours, theirs = (
                [runs[arm][seed]["global"][-1]["accuracy"] for seed in common]
                for arm in ("equilibrium", other)
            )
            gains = [one - two for one, two in zip(ours, theirs, strict=True)]
            gain, name = mean_interval(gains), f"gain_over_{other.replace(' ', '_')}"
            findings.append(
                Finding(
                    claim=f"The incentive gives a better model than {rival}.",
                    found=(
                        f"final accuracy {final['equilibrium']} at equilibrium, where degrees fall from "
                        f"{float(START):g} to {found.degree.mean():.2f} on average for {spent}, against "
                        f"{final[other]} {text}: a difference of {gain}, "
                        f"above 0 in {sum(g > 0 for g in gains)} of {len(common)} seeds"
                    ),
                    # Undecided where the interval holds 0, or one seed has none.
                    holds=True if gain.low > 0 else False if gain.high < 0 else None,
                    numbers={name: gain.estimate, f"{name}_low": gain.low, f"{name}_high": gain.high},
                )
            )
        return findings


@lru_cache(maxsize=16)
def arm_counts(settings: Settings, arm: str) -> tuple[tuple[int, ...], ...]:
    """Label counts of every participant in one of `ARMS`."""
    if arm == "equilibrium":
        return play(SHARES, settings).counts
    samples = [settings.samples] * PARTICIPANTS
    if arm == "sample count":
        samples = purchased_samples(float(best_offer().profile.payment.sum()), settings.samples)
    return tuple(at_degree(SHARES, k, START, settings.classes, n).counts for k, n in enumerate(samples))


def purchased_samples(budget: float, held: int) -> list[int]:
    """Samples of each participant after the best posted price has spent `budget` credits.

    At a price of c_(j) / n the j participants of the lowest costs sell, up to n samples each, until the budget is
    spent, in equal parts.
    """
    price_a_full_set = costs()
    best: npt.NDArray[np.float64] = np.zeros(PARTICIPANTS)
    for price in price_a_full_set:
        sellers = price_a_full_set <= price
        each = min(1.0, budget / (price * sellers.sum()))
        sold = np.where(sellers, each, 0.0)
        if sold.sum() > best.sum() + 1e-12:
            best = sold
    return [held + int(held * share) for share in best]
