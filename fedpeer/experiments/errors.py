"""What the experiments refuse.

ExperimentError(ValueError)
 +- CellError     a cell's computation failed; says which, and what went wrong
"""


class ExperimentError(ValueError):
    """A setting out of range, an unknown figure, or a folder with something else in it."""


class CellError(ExperimentError):
    """A cell could not be computed; the finished ones are kept."""
