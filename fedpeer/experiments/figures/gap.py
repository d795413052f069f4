"""Figure 8: the loss gap of two participants against delta_k^2 + delta_k'^2.

Ten participants at the degrees 0, 0.1, ..., 0.9; every pair's gap |F_c(w^k) - F_c(w^k')| in every second round,
the line that is fitted to them (least squares, then raised until it covers 95 %), and the bound.

Ours; the paper states the bound (Theorem 2) and shows no measurement of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedpeer.experiments.cells import Cell, Record
from fedpeer.experiments.figures.figure import (
    Figure,
    Finding,
    Results,
    corrected_bound,
    finished,
    local_epochs,
    seed_cells,
)
from fedpeer.experiments.plots import LINES, FigurePage
from fedpeer.experiments.populations import SHARES, at_degrees
from fedpeer.experiments.settings import EPOCHS, EPOCHS_ONCE, PARTICIPANTS, Settings
from fedpeer.learning.partition import uniform_reference
from mechanism.degree import noniid_degree
from mechanism.errors import MechanismError
from mechanism.gap_bound import GapBound

Array = npt.NDArray[np.float64]

#: Share of the measured pairs that the fitted bound covers.
COVERAGE = 0.95
#: Local models are evaluated in every second round.
EVERY = 2


@dataclass(frozen=True)
class Pairs:
    """Measured pairs, one an entry: the two degrees and the two losses on D_c."""

    degree: Array
    peer: Array
    loss: Array
    peer_loss: Array

    @property
    def squares(self) -> Array:
        return self.degree**2 + self.peer**2

    @property
    def gap(self) -> Array:
        return np.abs(self.loss - self.peer_loss)

    @property
    def ordered(self) -> float:
        """Share of pairs in which the participant of the greater degree has the greater loss."""
        return float(((self.loss > self.peer_loss) == (self.degree > self.peer)).mean())


class GapFigure(Figure):
    """Loss gaps and the fitted bound."""

    number, name, title = 8, "gap", "Loss gap of two participants against their degrees"

    def cells(self, settings: Settings) -> list[Cell]:
        return [cell for epochs in (EPOCHS, EPOCHS_ONCE) for cell in spread_cells(settings, epochs).values()]

    def draw(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        found = {e: finished(spread_cells(settings, e), results) for e in (EPOCHS, EPOCHS_ONCE)}
        runs = {epochs: run for epochs, run in found.items() if run}
        if not runs:
            return []
        degrees = spread_degrees(settings)
        pairs = {epochs: _pairs(run, degrees) for epochs, run in runs.items()}
        fits = {epochs: _fit(measured) for epochs, measured in pairs.items()}
        page.table(
            ("local_epochs", "degree", "peer_degree", "squares", "loss", "peer_loss", "gap"),
            [
                (epochs, *row)
                for epochs, p in pairs.items()
                for row in zip(p.degree, p.peer, p.squares, p.loss, p.peer_loss, p.gap, strict=True)
            ],
        )
        with page.panels(len(pairs)) as axes:
            for panel, epochs in zip(axes, pairs, strict=True):
                measured, fit = pairs[epochs], fits[epochs]
                dots = LINES[4].colour
                panel.plot(measured.squares, measured.gap, ".", color=dots, ms=3, label="a pair in a round")
                panel.plot(*_bins(measured), label="mean of each tenth of the pairs", **LINES[0].style)
                if fit is not None:
                    x = np.array([0.0, float(measured.squares.max())])
                    label = f"fitted $\\Phi$ = {fit.phi:.2f}, $\\Upsilon$ = {fit.upsilon:.2f} (95 %)"
                    panel.plot(
                        x, fit.phi * x + fit.upsilon, color=LINES[1].colour, linestyle="--", label=label
                    )
                panel.set(
                    xlabel=r"$\delta_k^2 + \delta_{k'}^2$",
                    ylim=(0.0, 1.45 * float(measured.gap.max())),
                    title=f"{settings.dataset}, {local_epochs(epochs)}",
                )
                panel.legend(loc="upper left")
            axes[0].set_ylabel("loss gap on $D_c$ (nats)")
        return [_finding(settings, epochs, pairs[epochs], fits[epochs]) for epochs in pairs]


def spread_degrees(settings: Settings) -> Array:
    """The exact degrees of the ten participants, shape (N,)."""
    reference = uniform_reference(settings.classes)
    return np.array([float(noniid_degree(mix, reference)) for mix in spread_counts(settings)])


@lru_cache(maxsize=8)
def spread_counts(settings: Settings) -> tuple[tuple[int, ...], ...]:
    """Participant k at the degree k / 10."""
    degrees = [Fraction(k, PARTICIPANTS) for k in range(PARTICIPANTS)]
    return tuple(mix.counts for mix in at_degrees(SHARES, degrees, settings.classes, settings.samples))


def spread_cells(settings: Settings, epochs: int) -> dict[int, Cell]:
    """One federation a seed."""
    track = range(PARTICIPANTS)
    return seed_cells(settings, spread_counts(settings), epochs, "gap", most=2, track=track, every=EVERY)


def _pairs(runs: Mapping[int, Record], degrees: Array) -> Pairs:
    rows = []
    for run in runs.values():
        for number in sorted({row["round"] for row in run["local"]}):
            losses = {row["participant"]: row["loss"] for row in run["local"] if row["round"] == number}
            rows += [
                (degrees[a], degrees[b], losses[a], losses[b]) for a, b in combinations(sorted(losses), 2)
            ]
    return Pairs(*np.array(rows, dtype=np.float64).T)


def _fit(pairs: Pairs) -> GapBound | None:
    """None where the gaps do not grow with the degrees, so that no bound of this form describes them."""
    try:
        return GapBound.fit(pairs.degree, pairs.peer, pairs.gap, COVERAGE)
    except MechanismError:
        return None


def _bins(pairs: Pairs) -> tuple[list[float], list[float]]:
    """Mean gap of each tenth of the pairs, by delta^2 + delta'^2."""
    order = np.argsort(pairs.squares, kind="stable")
    parts = np.array_split(order, 10)
    return [float(pairs.squares[p].mean()) for p in parts], [float(pairs.gap[p].mean()) for p in parts]


def _finding(settings: Settings, epochs: int, pairs: Pairs, fit: GapBound | None) -> Finding:
    bound = corrected_bound(settings.recipe(epochs))
    rank = float(stats.spearmanr(pairs.squares, pairs.gap).statistic)
    own = float(stats.spearmanr(np.abs(pairs.degree - pairs.peer), pairs.gap).statistic)
    loose = float(bound.gap(pairs.degree, pairs.peer).min() / pairs.gap.max())
    fitted = (
        f"a fit gives Phi = {fit.phi:.3g} and Upsilon = {fit.upsilon:.3g}, so Upsilon/Phi = {fit.ratio:.2f}"
        if fit is not None
        else "no line with a rising slope fits"
    )
    return Finding(
        claim="The loss gap is bounded by Phi * (delta_k^2 + delta_k'^2) + Upsilon.",
        found=(
            f"{local_epochs(epochs)}: over {len(pairs.gap)} pairs the rank correlation of "
            f"gap and delta_k^2 + delta_k'^2 is {rank:.2f} (of gap and |delta_k - delta_k'| {own:.2f}); {fitted}; "
            f"the corrected bound at L = 100, G = 10, mu = 0.01 is Phi = {bound.phi:.3g}, Upsilon = "
            f"{bound.upsilon:.3g}, {loose:.1g} times the largest gap; the participant of the greater degree has the "
            f"greater loss in {pairs.ordered:.0%} of pairs"
        ),
        holds=bool((pairs.gap <= bound.gap(pairs.degree, pairs.peer)).all()),
        numbers={
            f"rank_correlation_epochs_{epochs}": rank,
            f"rank_correlation_difference_epochs_{epochs}": own,
            f"ordered_share_epochs_{epochs}": pairs.ordered,
            **({f"phi_epochs_{epochs}": fit.phi, f"upsilon_epochs_{epochs}": fit.upsilon} if fit else {}),
        },
    )
