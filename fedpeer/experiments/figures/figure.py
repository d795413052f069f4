"""What a figure is: the cells that it needs, how they are drawn, and what they say of the paper's claim."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from fedpeer.experiments.cells import Cell, Record
from fedpeer.experiments.federation import federation_parameters
from fedpeer.experiments.plots import FigurePage
from fedpeer.experiments.priorities import priority
from fedpeer.experiments.settings import Settings
from mechanism.gap_bound import GapBound
from mechanism.terms import Recipe

#: The paper's assumptions, with which the bounds are drawn: L and mu, and G from its Figure 5.
SMOOTHNESS, CONVEXITY, GRADIENT = 100.0, 0.01, 10.0

#: Results of the finished cells, by `Cell.key`.
Results = Mapping[str, Record]


@dataclass(frozen=True)
class Finding:
    """A claim of the paper (or of ours) and what came out.

    Attributes:
        claim: what is claimed, in a sentence.
        found: what was found, in a sentence with its numbers.
        holds: whether the claim holds here; None where the finding is a number and not an answer.
        numbers: the numbers by name.
    """

    claim: str
    found: str
    holds: bool | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> Record:
        """As JSON; a number that could not be had (an interval of one repetition) is left out."""
        known = {name: value for name, value in self.numbers.items() if math.isfinite(value)}
        return {**asdict(self), "numbers": known}


def answer(holds: bool | None, *, quick: bool) -> str:
    """What a finding says of its claim, in words. A first look has too few rounds and seeds to deny anything."""
    if holds is None:
        return "measured"
    if holds:
        return "holds"
    return "too few seeds to tell" if quick else "does not hold"


class Figure(ABC):
    """One figure, on one data set.

    Attributes:
        number: on the command line.
        name: on the command line and in files.
        title: what it shows, in a line.
    """

    number: int
    name: str
    title: str

    @abstractmethod
    def cells(self, settings: Settings) -> list[Cell]:
        """What must be computed, most important first by `Cell.priority`."""

    @abstractmethod
    def draw(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        """Draw from the finished cells, which may be fewer than all: an empty list where nothing can be drawn."""


def seed_cells(
    settings: Settings,
    counts: Sequence[Sequence[int]],
    epochs: int,
    rank: str,
    *,
    kind: str = "federation",
    most: int | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
    **tracked: Any,
) -> dict[int, Cell]:
    """One federation a seed.

    Args:
        counts: label counts of each participant.
        rank: what the cells are in `fedpeer.experiments.priorities`.
        most: seeds, at most.
        more: further parameters of this kind of cell.
        tracked: as `federation_parameters` has it.
    """
    return {
        seed: Cell(
            kind,
            {**federation_parameters(settings, counts, epochs, seed, **tracked), **more},
            priority(rank, seed),
        )
        for seed in range(settings.seeds if most is None else min(settings.seeds, most))
    }


def finished(cells: Mapping[int, Cell], results: Results) -> dict[int, Record]:
    """The finished ones of one cell a seed, by seed."""
    return {seed: results[cell.key] for seed, cell in sorted(cells.items()) if cell.key in results}


def series(
    runs: Mapping[int, Record], rows: str, what: str, participant: int | None = None
) -> tuple[list[int], list[list[float]]]:
    """Rounds, and a list of values a seed: `what` in the rows of that name, of one participant where there are more."""
    chosen = [
        [row for row in run[rows] if participant is None or row["participant"] == participant]
        for run in runs.values()
    ]
    return [row["round"] for row in chosen[0]], [[row[what] for row in seed] for seed in chosen]


def tabled(runs: Mapping[int, Record], rows: str, columns: Sequence[str]) -> list[list[object]]:
    """The seed, then the columns of each row of that name; what could not be had is empty."""
    return [
        [seed, *("" if row[column] is None else row[column] for column in columns)]
        for seed, run in runs.items()
        for row in run[rows]
    ]


def steps_of(recipe: Recipe) -> int:
    """Local steps of a round."""
    return recipe.epochs * -(-recipe.samples // recipe.batch_size)


def corrected_bound(recipe: Recipe) -> GapBound:
    """The corrected bound at the paper's assumptions."""
    rates = [float(recipe.learning_rate)] * steps_of(recipe)
    return GapBound.strongly_convex(SMOOTHNESS, GRADIENT, CONVEXITY, rates)


def local_epochs(epochs: int) -> str:
    return f"{epochs} local epoch" + ("s" if epochs > 1 else "")
