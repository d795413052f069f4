"""What participants may vary of a recipe, and how a wish is kept within it.

    allowed = Allowed(batch_factor=Decimal(2), epochs=1, learning_rate=Decimal("0.25"))
    ranges(recipe)["epochs"]                         # Numbers(4, 6, whole=True) around 5
    kept(recipe, {"epochs": Decimal(9)})             # the recipe with 6 epochs, and a sentence that says so

What terms allow, shadow models vary (`fedpeer.evidence.planning`): who stays within the ranges is measured as one of
them. All parts may be varied at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, TypeAlias

from mechanism.errors import FieldError
from mechanism.ranges import whole
from mechanism.records import MAX_DECIMAL_DIGITS, check_decimal, check_not_negative, check_share

if TYPE_CHECKING:
    from mechanism.terms import Recipe

#: What is done to inputs in training. "light": images are moved by at most a pixel in either direction, each number of
#: other inputs has noise of at most a twentieth of its deviation.
AUGMENTATIONS = ("none", "light")

#: What training computes in: the types of the model's tensors, wider ones, or products in bfloat16.
PRECISIONS = ("tensors", "float64", "bfloat16")

#: What every training follows that does not say what it does, and what a recipe has nothing of unless it says so.
FOLLOWED = frozenset({"epochs", "batch_size", "optimizer", "learning_rate", "proximal"})
_ADDED = ("momentum", "beta2", "epsilon", "weight_decay", "label_smoothing", "augmentation", "precision")

#: What may be varied: far more than anyone needs, and few enough for shadows to cover.
MAX_BATCH_FACTOR, MAX_EPOCHS = 64, 1000

#: A part of a recipe.
Part: TypeAlias = int | Decimal | str


@dataclass(frozen=True)
class Allowed:
    """What participants may vary of a recipe; what is left out is fixed.

    Attributes:
        batch_factor: F in [1, 64]: batches have from 1/F of the recipe's size to F times it.
        epochs: so many more or fewer, at least one in all.
        learning_rate: r in [0, 1): from 1 - r to 1 + r of the recipe's.
        weight_decay, label_smoothing, proximal: from the recipe's to at most this; 0: the recipe's alone.
        augmentation: whether inputs may be augmented lightly (`AUGMENTATIONS`) where the recipe does not.
        precision: of `PRECISIONS`, besides the recipe's; sorted.
    """

    batch_factor: Decimal = field(default=Decimal(1), metadata={"optional": True})
    epochs: int = field(default=0, metadata={"optional": True})
    learning_rate: Decimal = field(default=Decimal(0), metadata={"optional": True})
    weight_decay: Decimal = field(default=Decimal(0), metadata={"optional": True})
    label_smoothing: Decimal = field(default=Decimal(0), metadata={"optional": True})
    proximal: Decimal = field(default=Decimal(0), metadata={"optional": True})
    augmentation: bool = field(default=False, metadata={"optional": True})
    precision: tuple[str, ...] = field(default=(), metadata={"optional": True, "most": len(PRECISIONS)})

    def __post_init__(self) -> None:
        check_decimal("allowed.batch_factor", self.batch_factor)
        if not 1 <= self.batch_factor <= MAX_BATCH_FACTOR:
            raise FieldError(
                "allowed.batch_factor", self.batch_factor, f"a decimal from 1 to {MAX_BATCH_FACTOR}"
            )
        if whole("allowed.epochs", self.epochs, 0) > MAX_EPOCHS:
            raise FieldError("allowed.epochs", self.epochs, f"at most {MAX_EPOCHS}")
        check_share("allowed.learning_rate", self.learning_rate)
        check_share("allowed.label_smoothing", self.label_smoothing)
        for name in ("weight_decay", "proximal"):
            check_not_negative(f"allowed.{name}", getattr(self, name))
        if list(self.precision) != sorted(set(self.precision) & set(PRECISIONS)):
            raise FieldError(
                "allowed.precision",
                self.precision,
                "some of " + ", ".join(sorted(PRECISIONS)) + ", sorted, each once",
            )
        if not str(self):
            raise FieldError("allowed", "nothing", "a range of something, or no such section")

    def __str__(self) -> str:
        said = []
        if self.batch_factor > 1:
            said.append(f"batches by a factor of {self.batch_factor:f}")
        if self.epochs:
            said.append(f"epochs by {self.epochs}")
        if self.learning_rate:
            said.append(f"learning rate by {100 * self.learning_rate:f} %")
        for name in ("weight_decay", "label_smoothing", "proximal"):
            if value := getattr(self, name):
                said.append(f"{name.replace('_', ' ')} to {value:f}")
        if self.augmentation:
            said.append("light augmentation")
        if self.precision:
            said.append(f"precision {' or '.join(self.precision)}")
        return ", ".join(said)


@dataclass(frozen=True)
class Numbers:
    """From `low` to `high`, whole ones alone where `whole`."""

    low: Decimal
    high: Decimal
    whole: bool = False

    @property
    def fixed(self) -> bool:
        return self.low == self.high

    def nearest(self, value: Part) -> Part:
        """What of the range is nearest to `value`, as a part of a recipe."""
        number = min(max(Decimal(value), self.low), self.high)
        return round(number) if self.whole else number

    def __str__(self) -> str:
        return f"{self.low:f}" if self.fixed else f"{self.low:f} to {self.high:f}"


@dataclass(frozen=True)
class Choices:
    """The recipe's own first, then what is allowed in its place."""

    names: tuple[str, ...]

    @property
    def fixed(self) -> bool:
        return len(self.names) == 1

    def nearest(self, value: Part) -> Part:
        return value if value in self.names else self.names[0]

    def __str__(self) -> str:
        return " or ".join(self.names)


def ranges(recipe: "Recipe") -> dict[str, Numbers | Choices]:
    """Of each part of a recipe that decides how samples become a model, what a participant may choose."""
    allowed = recipe.allowed
    factor, epochs, rate = Decimal(1), 0, Decimal(0)
    most = dict.fromkeys(("weight_decay", "label_smoothing", "proximal"), Decimal(0))
    augmentations: tuple[str, ...] = (recipe.augmentation,)
    precisions: tuple[str, ...] = (recipe.precision,)
    if allowed is not None:
        factor, epochs, rate = allowed.batch_factor, allowed.epochs, allowed.learning_rate
        most = {name: getattr(allowed, name) for name in most}
        if recipe.privacy is not None and recipe.privacy.method == "dp-sgd":
            factor, epochs = Decimal(1), 0  # what a round tells of the data is accounted by the recipe's
        if allowed.augmentation and recipe.augmentation == "none":
            augmentations = AUGMENTATIONS
        precisions += tuple(name for name in allowed.precision if name != recipe.precision)
    # Batches of one sample have no variance to normalise by.
    smallest = min(recipe.batch_size, max(2, ceil(recipe.batch_size / Fraction(factor))))
    largest = floor(recipe.batch_size * Fraction(factor))
    slowest = fastest = recipe.learning_rate
    if rate:
        with localcontext() as context:
            context.prec = 4 * MAX_DECIMAL_DIGITS
            places = Decimal(1).scaleb(-MAX_DECIMAL_DIGITS)
            slowest, fastest = (
                (recipe.learning_rate * part).quantize(places).normalize() for part in (1 - rate, 1 + rate)
            )
    found: dict[str, Numbers | Choices] = {
        "epochs": Numbers(Decimal(max(1, recipe.epochs - epochs)), Decimal(recipe.epochs + epochs), True),
        "batch_size": Numbers(Decimal(smallest), Decimal(largest), True),
        "learning_rate": Numbers(slowest, fastest),
    }
    for name in ("momentum", "beta2", "epsilon"):
        found[name] = Numbers(getattr(recipe, name), getattr(recipe, name))
    for name, limit in most.items():
        own = getattr(recipe, name)
        found[name] = Numbers(own, max(own, limit))
    return found | {
        "optimizer": Choices((recipe.optimizer,)),
        "augmentation": Choices(augmentations),
        "precision": Choices(precisions),
    }


def varied(recipe: "Recipe") -> dict[str, Numbers | Choices]:
    """Those of `ranges` that leave a choice."""
    return {name: range_ for name, range_ in ranges(recipe).items() if not range_.fixed}


def asked_beyond(recipe: "Recipe", follows: Collection[str]) -> list[str]:
    """What the recipe asks for and a training that follows these parts does not look at."""
    usual = type(recipe)
    return sorted(
        name for name in _ADDED if getattr(recipe, name) != getattr(usual, name) and name not in follows
    )


def kept(recipe: "Recipe", wishes: Mapping[str, Part]) -> tuple["Recipe", tuple[str, ...]]:
    """The recipe with each wish as nearly as it allows, and a sentence for each that it does not.

    Raises:
        FieldError: a wish for what is no part of a recipe, or of another kind.
    """
    known, parts, changed = ranges(recipe), {}, []
    for name, wish in wishes.items():
        if name not in known:
            raise FieldError(f"recipe.{name}", wish, "one of " + ", ".join(known))
        if isinstance(known[name], Choices) is not isinstance(wish, str):
            raise FieldError(f"recipe.{name}", wish, str(known[name]))
        parts[name] = nearest = known[name].nearest(wish)
        if nearest != wish:
            changed.append(
                f"{name} {_text(wish)} is not what the task's recipe allows ({known[name]}): "
                f"{_text(nearest)} is used in its place"
            )
    made = replace(recipe, **parts)  # type: ignore[arg-type]  # each is of its field's kind
    return made, tuple(changed)


def _text(part: Part) -> str:
    return f"{part:f}" if isinstance(part, Decimal) else str(part)
