"""Figure 9: the degree that the evidence verifies against the true one.

Ours: the paper pays on the degree that a participant reports.
"""

from collections.abc import Mapping

import numpy as np
from scipy import stats

from fedpeer.experiments.cells import Cell, Record
from fedpeer.experiments.figures.figure import Figure, Finding, Results, finished, seed_cells
from fedpeer.experiments.figures.gap import spread_counts
from fedpeer.experiments.plots import LINES, FigurePage
from fedpeer.experiments.settings import EPOCHS, Settings

#: Shadow models a round: the service's default, and with --quick.
SHADOWS, SHADOWS_QUICK = 100, 40
#: Rounds after which the evidence is asked: the first, and one in the middle of the training.
PROBED = (1, 5)


class VerifiedFigure(Figure):
    """Verified against true degree."""

    number, name, title = 9, "verified", "Verified against true degree"

    def cells(self, settings: Settings) -> list[Cell]:
        return list(self._cells(settings).values())

    def _cells(self, settings: Settings) -> dict[int, Cell]:
        probed = sorted({min(r, settings.rounds) for r in PROBED})
        extra = {"probed": probed, "shadows": SHADOWS_QUICK if settings.quick else SHADOWS}
        counts = spread_counts(settings)
        return seed_cells(settings, counts, EPOCHS, "verified", kind="verified", most=2, more=extra)

    def draw(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        runs = finished(self._cells(settings), results)
        if not runs:
            return []
        columns = ("round", "participant", "degree", "verified", "lower", "upper", "refuted")
        page.table(
            ("seed", *columns, "screens_failed"),
            [
                (seed, *("" if row[c] is None else row[c] for c in columns), " ".join(row["failed"]))
                for seed, run in runs.items()
                for row in run["degrees"]
            ],
        )
        with page.panels(1) as axes:
            panel = axes[0]
            panel.plot((0, 1), (0, 1), color="0.5", linewidth=0.8)
            numbers = sorted({row["round"] for run in runs.values() for row in run["degrees"]})
            for line, number in zip(LINES, numbers, strict=False):
                rows = [row for row in _scored(runs) if row["round"] == number]
                if not rows:
                    continue
                x, y = (np.array([row[c] for row in rows]) for c in ("degree", "verified"))
                ends = [np.clip(y - [row["lower"] for row in rows], 0, None),
                        np.clip([row["upper"] for row in rows] - y, 0, None)]  # fmt: skip
                panel.errorbar(
                    x, y, yerr=ends, fmt=line.marker, color=line.colour, linewidth=0.7, capsize=1.5,
                    label=f"round {number}, with its interval",
                )  # fmt: skip
            panel.set(
                xlabel=r"true degree $\delta_k$", ylabel="verified degree $v_k$", title=settings.dataset
            )
            panel.legend(loc="upper left")
        return [_finding(runs)]


def _scored(runs: Mapping[int, Record]) -> list[Record]:
    return [row for run in runs.values() for row in run["degrees"] if row["verified"] is not None]


def _finding(runs: Mapping[int, Record]) -> Finding:
    every = [row for run in runs.values() for row in run["degrees"]]
    scored = _scored(runs)
    if len(scored) < 3:
        return Finding(
            claim="The model that a participant sends shows its degree.",
            found=f"only {len(scored)} of {len(every)} honest submissions were scored",
            holds=False,
        )
    x, y = (np.array([row[c] for row in scored]) for c in ("degree", "verified"))
    inside = float(np.mean([row["lower"] <= row["degree"] <= row["upper"] for row in scored]))
    error, rank = float(np.abs(x - y).mean()), float(stats.spearmanr(x, y).statistic)
    refuted = sum(row["refuted"] for row in every)
    return Finding(
        claim="The model that a participant sends shows its degree.",
        found=(
            f"over {len(every)} honest submissions, {len(scored)} of them scored, the mean error is {error:.3f}, the "
            f"rank correlation {rank:.2f}, the interval holds the truth in {inside:.0%}, and {refuted} true claims "
            "were refuted"
        ),
        numbers={"mean_error": error, "rank_correlation": rank, "coverage": inside, "refuted": refuted},
    )
