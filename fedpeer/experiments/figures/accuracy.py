"""Figures 1 and 3: accuracy by degree, and two peers of different degrees.

Upper: the global model's accuracy over the rounds when all participants have one degree, for three degrees,
with five local epochs and with one. Lower: two participants of different degrees in a federation whose others
are at the default, the accuracy of the models that they send and the gap of their losses on D_c, beside the
bounds on it.

Source: Pang et al. 2025, Figure 1 (share of the majority label) and appendix (number of classes).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from fedpeer.experiments.cells import Cell, Record
from fedpeer.experiments.figures.figure import (
    CONVEXITY,
    GRADIENT,
    Figure,
    Finding,
    Results,
    corrected_bound,
    finished,
    local_epochs,
    seed_cells,
    series,
    steps_of,
    tabled,
)
from fedpeer.experiments.plots import LINES, FigurePage, by_round, curve
from fedpeer.experiments.populations import Partition
from fedpeer.experiments.settings import EPOCHS_ONCE, PARTICIPANTS, Settings
from fedpeer.experiments.statistics import mean_interval
from mechanism.gap_bound import GapBound


@dataclass(frozen=True)
class AccuracyFigure(Figure):
    """Accuracy by degree, for one way to skew labels."""

    number: int
    name: str
    title: str
    partition: Partition
    epochs: tuple[int, ...]

    def cells(self, settings: Settings) -> list[Cell]:
        ladder = [
            cell
            for epochs in self.epochs
            for level in self.partition.levels
            for cell in self._level_cells(settings, level, epochs).values()
        ]
        return ladder + [
            cell for epochs in self.epochs for cell in self._peer_cells(settings, epochs).values()
        ]

    def draw(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        return [
            *self._draw_levels(settings, results, page),
            *self._draw_peers(settings, results, page),
        ]

    def _level_cells(self, settings: Settings, level: Fraction, epochs: int) -> dict[int, Cell]:
        """All participants at `level`, a cell a seed."""
        kind = {"share": "accuracy", "classes": "classes"}[self.partition.name]
        if epochs == EPOCHS_ONCE:
            kind = "accuracy-one-epoch"
        return self._cells(settings, [level] * PARTICIPANTS, epochs, (), kind)

    def _peer_cells(self, settings: Settings, epochs: int) -> dict[int, Cell]:
        """Participants 0 and 1 at the two peers' levels, the others at the default."""
        levels = [*self.partition.peers, *[self.partition.default] * (PARTICIPANTS - 2)]
        kind = {"share": "peers", "classes": "classes-peers"}[self.partition.name]
        return self._cells(settings, levels, epochs, (0, 1), kind)

    def _cells(
        self, settings: Settings, levels: Sequence[Fraction], epochs: int, track: tuple[int, ...], kind: str
    ) -> dict[int, Cell]:
        """Participant k at levels[k], a cell a seed."""
        counts = [
            self.partition.mix(k, level, settings.classes, settings.samples).counts
            for k, level in enumerate(levels)
        ]
        return seed_cells(settings, counts, epochs, kind, track=track)

    def _draw_levels(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        runs = {
            (epochs, level): finished(self._level_cells(settings, level, epochs), results)
            for epochs in self.epochs
            for level in self.partition.levels
        }
        # Each column of the plot stands for itself: what is finished is drawn.
        shown = [epochs for epochs in self.epochs if all(runs[epochs, v] for v in self.partition.levels)]
        if not shown:
            return []
        degrees = {level: self._degree(settings, level) for level in self.partition.levels}
        page.table(
            ("local_epochs", self.partition.name, "degree", "seed", "round", "accuracy", "loss"),
            [
                (epochs, float(level), degrees[level], *row)
                for (epochs, level), seeds in runs.items()
                for row in tabled(seeds, "global", ("round", "accuracy", "loss"))
            ],
        )
        with page.panels(len(shown), share_y=True) as axes:
            for panel, epochs in zip(axes, shown, strict=True):
                for line, level in zip(LINES, self.partition.levels, strict=False):
                    rounds, values = series(runs[epochs, level], "global", "accuracy")
                    curve(panel, rounds, values, line, self._label(settings, level))
                by_round(panel, f"{settings.dataset}, {local_epochs(epochs)}")
                panel.legend(loc="lower right")
            axes[0].set_ylabel("test accuracy of the global model")
        return [
            self._ordering(epochs, {level: runs[epochs, level] for level in self.partition.levels})
            for epochs in shown
        ]

    def _label(self, settings: Settings, level: Fraction) -> str:
        return self.partition.label(level, settings.classes, settings.samples)

    def _ordering(self, epochs: int, runs: Mapping[Fraction, Mapping[int, Record]]) -> Finding:
        """Whether the final accuracy falls with the degree, in every seed."""
        final = {
            level: {seed: result["global"][-1]["accuracy"] for seed, result in seeds.items()}
            for level, seeds in runs.items()
        }
        common = sorted(set.intersection(*(set(values) for values in final.values())))
        ordered = [
            seed for seed in common if all(final[a][seed] > final[b][seed] for a, b in pairwise(final))
        ]
        means = {
            level: mean_interval([values[seed] for seed in common or values])
            for level, values in final.items()
        }
        shown = ", ".join(f"{float(level):g}: {interval}" for level, interval in means.items())
        return Finding(
            claim="The more skewed the labels, the lower the accuracy.",
            found=(
                f"{local_epochs(epochs)}: final accuracy by {self.partition.name} {shown}; "
                f"in this order in {len(ordered)} of {len(common)} seeds"
            ),
            holds=len(ordered) == len(common) if common else None,
            numbers={
                "ordered_seeds": len(ordered),
                "seeds": len(common),
                **{
                    f"accuracy_{self.partition.name}_{float(v):g}_epochs_{epochs}": i.estimate
                    for v, i in means.items()
                },
            },
        )

    def _draw_peers(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        found = {epochs: finished(self._peer_cells(settings, epochs), results) for epochs in self.epochs}
        runs = {epochs: run for epochs, run in found.items() if run}
        if not runs:
            return []
        levels = self.partition.peers
        degrees = [self._degree(settings, level) for level in levels]
        page.table(
            ("local_epochs", "seed", "round", self.partition.name, "degree", "accuracy", "loss_on_validation"),
            [
                (e, seed, row["round"], float(levels[row["participant"]]), degrees[row["participant"]],
                 row["accuracy"], row["loss"])
                for e, seeds in runs.items() for seed, result in seeds.items() for row in result["local"]
            ],
            part="peers",
        )  # fmt: skip
        bounds = {epochs: _bounds(settings, epochs, degrees) for epochs in runs}
        with page.panels(len(runs), 2, part="peers", share_y=True) as axes:
            for column, epochs in enumerate(runs):
                upper, lower = axes[column], axes[len(runs) + column]
                for k, level in enumerate(levels):
                    rounds, values = series(runs[epochs], "local", "accuracy", k)
                    curve(upper, rounds, values, LINES[k], self._label(settings, level))
                upper.set_title(f"{settings.dataset}, {local_epochs(epochs)}")
                rounds, gaps = _gaps(runs[epochs])
                curve(lower, rounds, np.abs(gaps).tolist(), LINES[2], "measured |gap|")
                for line, (name, value) in zip(LINES[3:], bounds[epochs].items(), strict=False):
                    lower.axhline(value, color=line.colour, linestyle=line.dash, label=name)
                room = 1e4 * max(bounds[epochs].values())  # for the legend
                lower.set(yscale="log", ylim=(None, room))
                by_round(lower)
                upper.legend(loc="best")
                lower.legend(loc="upper right")
            axes[0].set_ylabel("test accuracy of the local model")
            axes[len(runs)].set_ylabel("loss gap on $D_c$ (nats)")
        return [self._separation(epochs, run, bounds[epochs]) for epochs, run in runs.items()]

    def _separation(self, epochs: int, run: Mapping[int, Record], bounds: Mapping[str, float]) -> Finding:
        _, gaps = _gaps(run)
        share = float((gaps > 0).mean())
        accuracy = [np.mean(series(run, "local", "accuracy", k)[1]) for k in (0, 1)]
        mean = mean_interval(gaps.mean(axis=1))
        low, high = (f"{float(level):g}" for level in self.partition.peers)
        return Finding(
            claim="The models of two participants of different degrees differ.",
            found=(
                f"{local_epochs(epochs)}: the loss on D_c at {self.partition.name} {high} is above that at {low} in "
                f"{share:.0%} of rounds, by {mean} nats on average; local accuracy {accuracy[0]:.3f} against "
                f"{accuracy[1]:.3f}; the largest gap {np.abs(gaps).max():.2f} is "
                + " and ".join(
                    f"1/{value / np.abs(gaps).max():.2g} of {name}" for name, value in bounds.items()
                )
            ),
            holds=bool(mean.estimate > 0 and share > 0.5),
            numbers={
                f"separated_share_epochs_{epochs}": share,
                f"mean_gap_epochs_{epochs}": mean.estimate,
                f"largest_gap_epochs_{epochs}": float(np.abs(gaps).max()),
            },
        )

    def _degree(self, settings: Settings, level: Fraction) -> float:
        return float(self.partition.mix(0, level, settings.classes, settings.samples).degree)


def _gaps(run: Mapping[int, Record]) -> tuple[list[int], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Rounds, and the loss of participant 1 above that of participant 0, shape (seeds, rounds)."""
    rounds, low = series(run, "local", "loss", 0)
    _, high = series(run, "local", "loss", 1)
    return rounds, np.asarray(high, dtype=np.float64) - np.asarray(low, dtype=np.float64)


def _bounds(settings: Settings, epochs: int, degrees: list[float]) -> dict[str, float]:
    """Phi * (delta^2 + delta'^2) + Upsilon, corrected and as the paper's experiments have it."""
    recipe = settings.recipe(epochs)
    # The paper counts local steps; it needs an even number of them.
    steps = steps_of(recipe)
    bounds = {
        "corrected bound": corrected_bound(recipe),
        "paper's constants": GapBound.paper(GRADIENT, steps + steps % 2, CONVEXITY),
    }
    return {name: float(bound.gap(degrees[0], degrees[1])) for name, bound in bounds.items()}
