"""What other distributions add, by entry point: a group for each kind, a name for each thing.

    [project.entry-points."fedpeer.attacks"]
    slow-poison = "my_lab.attacks:SLOW_POISON"

group                  what the entry point is                                        used by
fedpeer.attacks        an `Attack`                                                    `fedpeer arena --attack`
fedpeer.payment_rules  (terms, outcome, peers' outcomes) to credits, a Decimal  `fedpeer arena --rule`
fedpeer.selections     (terms, claimed degrees by name) to the names that train       `fedpeer arena --selection`
fedpeer.aggregations   (models, samples) to a model, all of one layout                `fedpeer arena --aggregation`
fedpeer.datasets       a function to (whole, held-out or None), both `LabelledData`   `dataset` of a task file

A market takes data sets only. Its ledger can be verified because everybody has the code that recomputes who trains and
what is paid; with a rule or a selection of somebody's own it could not. The arena keeps no ledger.
"""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

ATTACKS = "fedpeer.attacks"
PAYMENT_RULES = "fedpeer.payment_rules"
SELECTIONS = "fedpeer.selections"
AGGREGATIONS = "fedpeer.aggregations"
DATASETS = "fedpeer.datasets"


class ExtensionError(Exception):
    """An installed extension that cannot be used, or not here; the message says why."""


def extension_names(group: str) -> tuple[str, ...]:
    """The names that installed distributions give in a group, sorted; nothing is imported."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def extension(group: str, name: str) -> Any:
    """What an installed distribution gives under a name.

    Raises:
        ExtensionError: nobody gives it, two do, or it cannot be imported.
    """
    point = _point(group, name)
    try:
        return point.load()
    except Exception as error:
        raise ExtensionError(
            f"{name!r} of {group} ({_origin(point)}) cannot be loaded from {point.value}: "
            f"{type(error).__name__}: {error}"
        ) from error


def extension_versions(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Name and version of the distribution of each (group, name) that is an extension."""
    return {
        f"{group}:{name}": _origin(_point(group, name))
        for group, name in names
        if name in extension_names(group)
    }


def _point(group: str, name: str) -> EntryPoint:
    found = list(entry_points(group=group, name=name))
    if not found:
        known = ", ".join(extension_names(group)) or "none is installed"
        raise ExtensionError(f"there is no {name!r} in {group}; installed there: {known}")
    if len({point.value for point in found}) > 1:
        raise ExtensionError(
            f"{name!r} of {group} is given by {' and by '.join(map(_origin, found))}; uninstall all but one"
        )
    return found[0]


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
