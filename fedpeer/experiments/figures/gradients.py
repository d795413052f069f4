"""Figure 5: gradient norms of two participants over training, and what they make of Phi and Upsilon.

The paper reads G in [0, 10] off such norms, and with it Phi = 6 E G^2 in [300, 30000] and Upsilon = 2 G^2 / mu
in [200, 20000]; it assumes L = 100 from a probability of 0.01 for the true label.

Source: Pang et al. 2025, appendix (hyperparameter analysis), Figure 5.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedpeer.experiments.cells import Cell, Record
from fedpeer.experiments.data import generator
from fedpeer.experiments.figures.figure import Figure, Finding, Results, finished, seed_cells, series, tabled
from fedpeer.experiments.plots import LINES, FigurePage, by_round, curve
from fedpeer.experiments.populations import SHARES
from fedpeer.experiments.settings import EPOCHS, PARTICIPANTS, Settings
from mechanism.gap_bound import GapBound

#: The seed that chooses the two participants; the paper's E, its largest G and its L.
SHOWN_SEED, PAPER_STEPS, PAPER_GRADIENT, PAPER_SMOOTHNESS = 5, 50, 10.0, 100.0


class GradientFigure(Figure):
    """Gradient norms and smoothness at the default share of 0.5."""

    number, name = 5, "gradients"
    title = "Gradient norms of two participants, and the constants that follow"

    def cells(self, settings: Settings) -> list[Cell]:
        return list(self._cells(settings).values())

    def _cells(self, settings: Settings) -> dict[int, Cell]:
        shown = sorted(generator(SHOWN_SEED).choice(PARTICIPANTS, 2, replace=False).tolist())
        counts = [
            SHARES.mix(k, SHARES.default, settings.classes, settings.samples).counts
            for k in range(PARTICIPANTS)
        ]
        # One training shows it, two show that it is no accident.
        return seed_cells(settings, counts, EPOCHS, "gradients", kind="gradients", most=2, track=shown)

    def draw(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        runs = finished(self._cells(settings), results)
        if not runs:
            return []
        norms = ("round", "participant", "first", "largest", "single", "single_largest")
        page.table(("seed", *norms), tabled(runs, "norms", norms))
        estimates = ("round", "smoothness", "secant", "likelihood")
        page.table(("seed", *estimates), tabled(runs, "smoothness", estimates), part="smoothness")
        with page.panels(2) as axes:
            shown = sorted({row["participant"] for row in next(iter(runs.values()))["norms"]})
            for line, (k, what) in zip(
                LINES, [(k, what) for what in ("first", "single") for k in shown], strict=False
            ):
                rounds, values = series(runs, "norms", what, k)
                label = f"participant {k}, " + ("first batch" if what == "first" else "single samples, RMS")
                curve(axes[0], rounds, values, line, label)
            axes[0].axhline(PAPER_GRADIENT, color="0.4", linewidth=0.8, label="paper's largest G")
            names = {"smoothness": "largest curvature of $F_c$", "likelihood": "1 / likelihood"}
            for line, (what, label) in zip(LINES, names.items(), strict=False):
                rounds, values = series(runs, "smoothness", what)
                curve(axes[1], rounds, values, line, label)
            axes[1].axhline(PAPER_SMOOTHNESS, color="0.4", linewidth=0.8, label="paper's L")
            by_round(axes[0], f"{settings.dataset}, share 0.5, {EPOCHS} local epochs")
            by_round(axes[1])
            for panel, label in zip(axes, ("gradient norm", "estimate of the smoothness $L$"), strict=True):
                panel.set(yscale="log", ylabel=label)
                panel.legend(loc="best")
        return [_gradient_finding(runs), _smoothness_finding(runs)]


def _gradient_finding(runs: Mapping[int, Record]) -> Finding:
    norms = [row for run in runs.values() for row in run["norms"]]
    first, largest, single = (
        np.array([row[what] for row in norms]) for what in ("first", "largest", "single_largest")
    )
    # The rule of the paper's experiments, with what was measured in place of its G.
    implied = GapBound.paper(float(largest.max()), PAPER_STEPS)
    return Finding(
        claim="Gradient norms lie in [0, 10], so that Phi is in [300, 30000] and Upsilon in [200, 20000].",
        found=(
            f"the first batch's norm is {np.median(first):.1f} in the median and {first.max():.1f} at most, that of "
            f"any batch up to {largest.max():.1f}, that of a single sample up to {single.max():.1f}; with "
            f"G = {largest.max():.1f} the paper's rule gives Phi = {implied.phi:.3g} and "
            f"Upsilon = {implied.upsilon:.3g}, whose ratio, which alone moves efforts, stays "
            f"{implied.ratio:.3f}"
        ),
        holds=bool(largest.max() <= PAPER_GRADIENT),
        numbers={
            "first_median": float(np.median(first)),
            "first_largest": float(first.max()),
            "batch_largest": float(largest.max()),
            "single_largest": float(single.max()),
            "phi": implied.phi,
            "upsilon": implied.upsilon,
        },
    )


def _smoothness_finding(runs: Mapping[int, Record]) -> Finding:
    rows = [row for run in runs.values() for row in run["smoothness"]]
    curvature = np.array([row["smoothness"] for row in rows])
    likelihood = np.array([row["likelihood"] for row in rows])
    return Finding(
        claim="L = 100 bounds the smoothness of the loss.",
        found=(
            f"the largest curvature of F_c at {len(rows)} models is {_span(curvature)}, and 1/likelihood, from "
            f"which the paper takes its L, is {_span(likelihood)}"
        ),
        holds=bool(curvature.max() <= PAPER_SMOOTHNESS and likelihood.max() <= PAPER_SMOOTHNESS),
        numbers={"curvature_largest": float(curvature.max()), "likelihood_largest": float(likelihood.max())},
    )


def _span(values: Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    return f"{np.min(values):.3g} to {np.max(values):.3g}"
