"""What a figure is: the cells that it needs, how they are drawn, and what they say of the paper's claim."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from fedpeer.experiments.cells import Cell, Record
from fedpeer.experiments.plots import Page
from fedpeer.experiments.settings import Settings

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


class Figure(Protocol):
    """One figure, on one data set."""

    @property
    def number(self) -> int:
        """Its number on the command line."""

    @property
    def name(self) -> str:
        """Its name on the command line and in files."""

    @property
    def title(self) -> str:
        """What it shows, in a line."""

    def cells(self, settings: Settings) -> list[Cell]:
        """What must be computed, most important first by `Cell.priority`."""

    def draw(self, settings: Settings, results: Results, page: Page) -> list[Finding]:
        """Draw from the finished cells, which may be fewer than all: an empty list where nothing can be drawn."""


def finished(cells: Mapping[int, Cell], results: Results) -> dict[int, Record]:
    """The finished ones of one cell a seed, by seed."""
    return {seed: results[cell.key] for seed, cell in sorted(cells.items()) if cell.key in results}
