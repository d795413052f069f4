"""How adapters keep to the recipe of the terms: what a participant would rather do is done as nearly as they allow."""

import logging
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

from mechanism.errors import FieldError, kind_of
from mechanism.records import decimal
from mechanism.terms import Recipe
from mechanism.variation import Part, asked_beyond
from mechanism.variation import kept as kept_wishes
from participant.errors import TaskError

_log = logging.getLogger("participant")


def wished(recipe: Mapping[str, Any] | None) -> dict[str, Part]:
    """Wishes such as {"epochs": 6, "learning_rate": 0.002} as parts of a recipe.

    Raises:
        TaskError: a value that is neither a number nor a name.
    """
    try:
        return {name: _part(name, value) for name, value in (recipe or {}).items()}
    except FieldError as error:
        raise TaskError(str(error)) from None


def keep(recipe: Recipe, wishes: Mapping[str, Part], *, say: bool = False) -> Recipe:
    """The recipe with each wish as nearly as it allows.

    Args:
        say: whether a sentence for each that it does not allow goes to the log "participant".

    Raises:
        TaskError: a wish for what is no part of a recipe.
    """
    try:
        made, changed = kept_wishes(recipe, wishes)
    except FieldError as error:
        raise TaskError(str(error)) from None
    for sentence in changed if say else ():
        _log.warning("%s; models that are trained otherwise may not be paid", sentence)
    return made


def check_followed(recipe: Recipe, follows: Collection[str], what: str) -> None:
    """Raises TaskError where the recipe asks for what an adapter, or a workload, does not look at."""
    if lacking := asked_beyond(recipe, follows):
        raise TaskError(
            f"the recipe asks for {', '.join(lacking)}, which {what} does not follow; bring a task that does, or stay "
            "out",
            public="the participant's task does not follow the recipe",
        )


def wishes_of(optimizer: Any) -> dict[str, Part]:
    """What an optimizer of torch's that somebody made would have a recipe say; of one without a kind of its own there,
    its name."""
    import torch  # not every adapter has it

    group = optimizer.param_groups[0]
    wishes: dict[str, Part] = {"optimizer": type(optimizer).__name__.lower()}
    names = {"lr": "learning_rate", "weight_decay": "weight_decay"}
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        wishes["optimizer"] = "adam"
        wishes |= {"momentum": _part("betas", group["betas"][0]), "beta2": _part("betas", group["betas"][1])}
        names["eps"] = "epsilon"
    elif isinstance(optimizer, torch.optim.SGD):
        wishes["optimizer"] = "sgd"
        names["momentum"] = "momentum"
    else:
        names = {}
    return wishes | {name: _part(key, group[key]) for key, name in names.items()}


def _part(name: str, value: Any) -> Part:
    if isinstance(value, str | Decimal) or type(value) is int:
        return value
    if isinstance(value, float):
        return decimal(f"recipe.{name}", format(Decimal(repr(value)), "f"))
    raise FieldError(f"recipe.{name}", kind_of(value), "a number, or a name")
