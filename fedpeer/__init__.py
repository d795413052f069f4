"""An incentive marketplace for federated learning: participants are paid for what their data is worth.

    from fedpeer import Participant, Task

This is the face of the package: the participant's SDK, and the costs and effort curves that an effort is decided
by. Each name is imported when it is first used, so that `import fedpeer` itself costs nothing. What is public and
stable stands in docs/reference/public.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechanism.cost import CallableCost, LinearCost, PowerCost
    from mechanism.effort import CallableEffort, ExponentialEffort, TabulatedEffort
    from participant import AsyncParticipant, Participant, Task, Trained

__all__ = [
    "AsyncParticipant",
    "CallableCost",
    "CallableEffort",
    "ExponentialEffort",
    "LinearCost",
    "Participant",
    "PowerCost",
    "TabulatedEffort",
    "Task",
    "Trained",
    "__version__",
]

#: The public names by where they are defined.
_HOMES = {
    "mechanism.cost": ("CallableCost", "LinearCost", "PowerCost"),
    "mechanism.effort": ("CallableEffort", "ExponentialEffort", "TabulatedEffort"),
    "participant": ("AsyncParticipant", "Participant", "Task", "Trained"),
}

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("fedpeer")
    elif home := next((module for module, names in _HOMES.items() if name in names), None):
        try:
            found = getattr(import_module(home), name)
        except (AttributeError, ImportError) as error:
            from fedpeer.extras import hidden

            if (sentence := hidden()) is None:
                raise
            raise ImportError(sentence) from error
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
