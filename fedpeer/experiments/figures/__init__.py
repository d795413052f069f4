"""The figures, by number and by name."""

from fedpeer.experiments.errors import ExperimentError
from fedpeer.experiments.figures.accuracy import AccuracyFigure
from fedpeer.experiments.figures.figure import Figure
from fedpeer.experiments.figures.gap import GapFigure
from fedpeer.experiments.figures.gradients import GradientFigure
from fedpeer.experiments.figures.incentive import IncentiveFigure
from fedpeer.experiments.figures.payoff import PayoffFigure
from fedpeer.experiments.figures.utility import UtilityFigure
from fedpeer.experiments.figures.verified import VerifiedFigure
from fedpeer.experiments.populations import CLASSES, SHARES
from fedpeer.experiments.settings import EPOCHS, EPOCHS_ONCE

FIGURES: tuple[Figure, ...] = (
    AccuracyFigure(
        1,
        "accuracy",
        "Accuracy by degree, and two peers (share of the majority label)",
        SHARES,
        (EPOCHS, EPOCHS_ONCE),
    ),
    UtilityFigure(2, "utility", "Utility at equilibrium and beside it (share of the majority label)", SHARES),
    AccuracyFigure(
        3, "accuracy-classes", "Accuracy by degree, and two peers (number of classes)", CLASSES, (EPOCHS,)
    ),
    UtilityFigure(4, "utility-classes", "Utility at equilibrium and beside it (number of classes)", CLASSES),
    GradientFigure(),
    IncentiveFigure(),
    PayoffFigure(),
    GapFigure(),
    VerifiedFigure(),
)


def figures(names: list[str] | None = None) -> list[Figure]:
    """The figures of these names or numbers, in the order of their numbers; all of them for none.

    Raises:
        ExperimentError: a name that no figure has.
    """
    if not names:
        return list(FIGURES)
    known = {key: figure for figure in FIGURES for key in (figure.name, str(figure.number))}
    for name in names:
        if name not in known:
            listed = ", ".join(f"{figure.number} ({figure.name})" for figure in FIGURES)
            raise ExperimentError(f"there is no figure {name!r}; expected one of {listed}")
    chosen = {known[name].number for name in names}
    return [figure for figure in FIGURES if figure.number in chosen]
