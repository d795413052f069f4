"""How a figure looks, and where its numbers go.

One page a figure: a PNG to look at, a PDF to print, a CSV with every number in the plot. Lines differ in
dash, marker and lightness, so that a grey print still tells them apart.
"""

import csv
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no window, whatever the machine has

import matplotlib.pyplot as plt  # the backend is chosen first
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import MaxNLocator

# The font library warns of the file dates that reproducible PDFs do without.
logging.getLogger("fontTools").setLevel(logging.ERROR)

#: Dots per inch of a PNG: a double-column figure stays below 100 KB.
RESOLUTION = 130

#: Inches of one panel.
PANEL = (3.3, 2.6)


@dataclass(frozen=True)
class LineStyle:
    """A colour, dash and marker that differ from all others also in grey."""

    colour: str
    dash: str | tuple[int, tuple[int, ...]]
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """What matplotlib's `plot` takes."""
        return {"color": self.colour, "linestyle": self.dash, "marker": self.marker}


#: From dark to light; the lightness (L* of CIELAB) falls by at least 12 from one to the next.
LINES = (
    LineStyle("#1b1e4b", "-", "o"),
    LineStyle("#a3262a", "--", "s"),
    LineStyle("#2a8c82", "-.", "^"),
    LineStyle("#e39a2d", ":", "D"),
    LineStyle("#a8cdea", (0, (5, 1, 1, 1, 1, 1)), "v"),
)

_STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # TrueType: text stays text in print
    "savefig.dpi": RESOLUTION,
}


@dataclass
class FigurePage:
    """Where one figure of one data set is written.

    Attributes:
        folder: of the plots and tables.
        stem: file name without ending, such as "accuracy-digits".
        files: what has been written, in order.
    """

    folder: Path
    stem: str
    files: list[Path] = field(default_factory=list)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], part: str = "") -> None:
        """Write a CSV; floats keep six significant digits."""
        path = self._path(part, "csv")
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([_cell(value) for value in row] for row in rows)

    @contextmanager
    def panels(
        self, columns: int, rows: int = 1, part: str = "", share_y: bool = False
    ) -> Iterator[list[Axes]]:
        """Axes to draw on, row by row; written as PNG and PDF when done."""
        with mpl.rc_context(_STYLE):
            sheet: Sheet
            sheet, axes = plt.subplots(
                rows,
                columns,
                figsize=(PANEL[0] * columns, PANEL[1] * rows),
                squeeze=False,
                sharey="row" if share_y else False,
            )
            try:
                yield list(axes.ravel())
                # No date in the files: the same numbers give the same bytes.
                sheet.savefig(self._path(part, "png"), metadata={"Software": None})
                sheet.savefig(self._path(part, "pdf"), metadata={"CreationDate": None})
            finally:
                plt.close(sheet)

    def _path(self, part: str, ending: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.stem}{'-' + part if part else ''}.{ending}"
        self.files.append(path)
        return path


def curve(
    axes: Axes,
    x: Sequence[float],
    repetitions: Sequence[Sequence[float]],
    line: LineStyle,
    label: str,
) -> None:
    """The mean over repetitions, and a band from the least to the greatest of them.

    With the three to five repetitions that training affords, Student's interval of every single point would
    be wider than the plot; the intervals of what is claimed are in the findings.
    """
    values = np.asarray(repetitions, dtype=np.float64)
    axes.plot(x, values.mean(axis=0), markevery=max(1, len(x) // 7), label=label, **line.style)
    if len(values) > 1:
        axes.fill_between(
            x, values.min(axis=0), values.max(axis=0), color=line.colour, alpha=0.18, linewidth=0
        )


def by_round(axes: Axes, title: str = "") -> None:
    """Label the horizontal axis of a plot over the rounds."""
    axes.set(xlabel="communication round", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return f"{float(value):.6g}"
    return str(value)
