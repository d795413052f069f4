"""A whole study: figures times data sets, computed, drawn, and summed up.

Writes below one folder:

    NAME-DATASET[-PART].png, .pdf, .csv    the plots with their numbers
    cells/                                 finished computations
    NAME-DATASET.json                      settings, seeds, versions, findings of that figure
    findings-DATASET.md                    the claims and what was found, of all figures in the folder
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path

from fedpeer.experiments.cells import Cell, CellStore, Record, first_of_each, run_cells, versions
from fedpeer.experiments.figures import FIGURES
from fedpeer.experiments.figures.figure import Figure, Finding, answer
from fedpeer.experiments.plots import FigurePage
from fedpeer.experiments.settings import Settings


@dataclass(frozen=True)
class Drawn:
    """One figure of one data set, as far as it got.

    Attributes:
        figure, settings: which.
        finished, cells: how many of its cells are there, and how many it asks for.
        files: what was written.
        findings: empty where too little was finished to draw it.
        versions: what drew it; each cell's file says what computed it.
    """

    figure: Figure
    settings: Settings
    finished: int
    cells: int
    files: tuple[Path, ...]
    findings: tuple[Finding, ...]
    versions: dict[str, str]

    def record(self) -> Record:
        return {
            "figure": self.figure.number,
            "name": self.figure.name,
            "title": self.figure.title,
            "settings": asdict(self.settings),
            "seeds": list(range(self.settings.seeds)),
            "versions": self.versions,
            "finished_cells": self.finished,
            "cells": self.cells,
            "files": [path.name for path in self.files],
            "findings": [finding.record() for finding in self.findings],
        }


@dataclass(frozen=True)
class Study:
    """Figures on one data set, in one folder."""

    settings: Settings
    figures: Sequence[Figure]
    folder: Path

    @property
    def store(self) -> CellStore:
        return CellStore(self.folder / "cells")

    def cells(self) -> list[Cell]:
        """All cells, each once, by priority and then in the order of the figures."""
        every = [cell for figure in self.figures for cell in figure.cells(self.settings)]
        return first_of_each(every)

    def missing(self) -> list[Cell]:
        """The cells that are still to be computed."""
        wanted = self.cells()
        there = self.store.finished(wanted)
        return [cell for cell in wanted if cell.key not in there]

    def compute(
        self,
        executor: Executor,
        device: str = "cpu",
        done: Callable[[Cell, float], None] = lambda cell, seconds: None,
    ) -> None:
        """Compute what is missing.

        Raises:
            CellError: a cell failed; the others are kept.
        """
        run_cells(self.cells(), self.store, executor, device=device, done=done)

    def draw(self) -> list[Drawn]:
        """Draw every figure from what is finished, and write what it found beside it."""
        drawn = [self._draw(figure) for figure in self.figures]
        written = [self._record_path(figure) for figure in FIGURES]
        records = [json.loads(path.read_text()) for path in written if path.exists()]
        (self.folder / f"findings-{self.settings.dataset}.md").write_text(
            findings_text(self.settings.dataset, records)
        )
        return drawn

    def _draw(self, figure: Figure) -> Drawn:
        cells = {cell.key: cell for cell in figure.cells(self.settings)}
        results = self.store.finished(cells.values())
        page = FigurePage(self.folder, f"{figure.name}-{self.settings.dataset}")
        findings = figure.draw(self.settings, results, page)
        drawn = Drawn(
            figure, self.settings, len(results), len(cells), tuple(page.files), tuple(findings), versions()
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._record_path(figure).write_text(json.dumps(drawn.record(), indent=1, allow_nan=False) + "\n")
        return drawn

    def _record_path(self, figure: Figure) -> Path:
        return self.folder / f"{figure.name}-{self.settings.dataset}.json"


def findings_text(dataset: str, records: Sequence[Record]) -> str:
    """The findings of figures, in the order given, as Markdown."""
    lines = [f"# Findings on {dataset}"]
    for record in records:
        settings = record["settings"]
        lines += ["", f"## {record['figure']}. {record['title']}", ""]
        lines.append(
            f"{settings['rounds']} rounds, seeds 0 to {settings['seeds'] - 1}; "
            f"{record['finished_cells']} of {record['cells']} cells finished."
        )
        for finding in record["findings"]:
            said = answer(finding["holds"], quick=settings["quick"])
            lines += ["", f"- Claim: {finding['claim']}", f"  Found ({said}): {finding['found']}."]
    return "\n".join(lines) + "\n"
