"""Which shadow models are trained.

D_c is cut into two disjoint halves, each with every stratum's share. A shadow is trained on samples of one half: what
its update says of the shadows of that half, whose samples it shares, it says of no participant, so the maps from
updates are fitted on one half's shadows and tried on the other's (`fedpeer.evidence.vector_maps`). All rounds of a task
have the same halves, so that the same holds of shadows that are carried over.

*Sound* shadows have mixes of four families: majority and minority by degree, the same by share with other tails,
Dirichlet, and few strata. Every other one has up to `WRONG_TARGETS` of its targets from other strata, as honest data
have. *Flawed* ones are nearly balanced, but trained on a handful of samples over and over, or on
wrong targets.

Some of the sound ones are *anchors*, which show how alike two models are that have a mix in common, and samples or not:
each is two shadows of one mix on samples of two disjoint quarters of D_c that lie in one half, and every other one has
a third, which counts as nothing else, on the samples of the first again. The quarters are the same for all, so that no
first or third has a sample in common with any second.

*Repeated* ones have 0.3 to 0.85 of the samples that a sound one of their mix has, repeated up to the recipe's number
(`fedpeer.evidence.straying`). Half of them are trained by the recipe; the others more *calmly*, as one does whose
samples shall not be seen to be few: in batches of twice the size, at three quarters of the learning rate, or for an
epoch less. Below `LEAST_SHADOWS` sound ones nothing could be read from them, and none are trained.

*Checks* are planned when models look alike (`fedpeer.evidence.measuring.checked`): shadows of the mixes that these
show, on samples of either half.

*Tricked* ones, where the operator wants some, hold mixes of sound ones that are neither near the reference nor far
from it, and are trained to seem balanced by the tricks of `fedpeer.evidence.tricks` in turn, with numbers of chance.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.fitting import MIN_SHADOWS
from fedpeer.evidence.tricks import TRICKS
from fedpeer.learning.partition import LabelMix, dirichlet, majority_minority, number_of_classes
from fedpeer.learning.strata import Codes, balanced_halves
from mechanism.coverage import LEAST_SHADOWS
from mechanism.terms import Recipe
from mechanism.variation import Choices, Numbers, Part, varied

Rows = npt.NDArray[np.int64]

#: Separates the seed of the halves from those of the plans.
_HALVES = 1

#: Flawed shadows for each sound one.
FLAWED_SHARE = 0.25

#: Sound shadows that are trained once more as participants that took part before: at most so many, enough for a median,
#: and at most this share of them. Each is two trainings, in rounds after the first.
KEPT, KEPT_SHARE = 12, 0.25

#: Anchors for each sound shadow, and at least how many.
ANCHOR_SHARE, LEAST_ANCHORS = 0.08, 4


#: Repeated shadows for each sound one that are trained by the recipe, and as many that are trained more calmly; the
#: least and the most of a sound one's samples that they have.
REPEATED_SHARE, REPEATED_PART = 0.2, (0.3, 0.85)

#: Wrong targets of a sound shadow, at most: as many as honest data have at worst.
WRONG_TARGETS = 0.04

#: Degrees of tricked shadows, over the largest one: of less there is little to fill up, and more is not filled up.
TRICKED_DEGREES = (0.125, 0.625)

#: Mixes that are drawn for one of them, at most.
_TRICKED_DRAWS = 1_000

#: Tell the seeds of variations, of wrong targets, of tricked shadows and of checks from others of the plans.
_VARIATIONS, _WRONG, _TRICKED, _CHECKS = 2, 3, 4, 5

#: Families of repeated shadows: 1 is trained by the recipe, the others by `calmer`.
BY_RECIPE, CALM_FAMILIES = 1, (2, 3, 4)


@dataclass(frozen=True, eq=False)
class Plan:
    """One shadow before its training.

    Attributes:
        mix: its counts over strata.
        rows: the samples of D_c that it is trained on, repeats included.
        targets_from: the sample of D_c whose target each row has; the row itself but for wrong targets.
        half: of D_c, 0 or 1.
        sound: trained as the recipe wants, on samples of its own.
        seed: of its training.
        anchor: the number of the anchor whose first, second or third shadow it is; None for all others. The first and
            the second are sound.
        family: 0, or that of a repeated shadow.
        keeps: whether it is trained once more, from a start in which it took part (`fedpeer.evidence.measuring`).
        recipe: by which it is trained, as `varying` has it; None: the task's.
        trick: the name of what a tricked one is trained by; empty for all others.
    """

    mix: LabelMix
    rows: Rows
    targets_from: Rows
    half: int
    sound: bool
    seed: int
    anchor: int | None = None
    family: int = 0
    keeps: bool = False
    recipe: Recipe | None = None
    trick: str = ""

    @property
    def wrong(self) -> float:
        """Share of its targets that are those of other samples."""
        return float((self.rows != self.targets_from).mean())

    @property
    def repeated(self) -> bool:
        """Whether it has fewer samples, repeated."""
        return self.family > 0

    @property
    def flawed(self) -> bool:
        """Whether it has a handful of samples, or wrong targets."""
        return not (self.sound or self.repeated or self.trick) and self.anchor is None


def plan_shadows(
    codes: Codes,
    reference: Sequence[Fraction],
    samples: int,
    count: int,
    seed: Sequence[int],
    tricked: float = 0.0,
) -> list[Plan]:
    """`count` sound shadows, a quarter as many flawed ones, the repeated and the tricked ones. Sound ones that are no
    anchors stand first, anchors after the flawed ones. The same seed gives the same.

    Args:
        codes: the stratum of each sample of D_c.
        samples: of the recipe.
        seed: its first number alone gives the halves.
        tricked: tricked shadows for each sound one.
    """
    generator, imperfect = np.random.default_rng(list(seed)), np.random.default_rng([*seed, _WRONG])
    halves = balanced_halves(codes, np.random.default_rng([seed[0], _HALVES]))
    strata = len(reference)
    plans = []
    anchors = anchor_count(count)
    alone = count - 2 * anchors
    for k in range(alone):
        # Each four, each family, and each number of strata in the last one, takes turns with the halves.
        half = (k + k // 4 + k // (4 * (strata - 1))) % 2
        mix = sound_mix(k, reference, samples, generator)
        rows = _resample(codes, halves[half], mix.counts, generator)
        targets = _few_wrong(codes, rows, halves[half], imperfect) if imperfect.integers(2) else rows
        plans.append(Plan(mix, rows, targets, half, True, int(generator.integers(2**31))))
    for k in range(flawed_count(count)):
        half = k // 2 % 2
        make = _handful if k % 2 else _wrong_targets
        mix, rows, targets = make(codes, halves[half], reference, samples, generator)
        plans.append(Plan(mix, rows, targets, half, False, int(generator.integers(2**31))))
    quarters = [[half[rows] for rows in balanced_halves(codes[half], generator)] for half in halves]
    for k in range(anchors):
        mix = _anchor_mix(k, anchors, reference, samples, generator)
        first, second = (_resample(codes, quarter, mix.counts, generator) for quarter in quarters[k % 2])
        for place, rows in enumerate((first, second, first)[: 3 - k % 2]):
            plans.append(Plan(mix, rows, rows, k % 2, place < 2, int(generator.integers(2**31)), k))
    for k in generator.permutation(alone)[: kept_count(count)]:
        plans[k] = replace(plans[k], keeps=True)
    repeated = repeated_count(count)
    for k in range(2 * repeated):
        half = (k + k // 4) % 2
        mix = sound_mix(k, reference, samples, generator)
        rows = _resample(codes, halves[half], mix.counts, generator)
        part = float(np.exp(generator.uniform(*np.log(REPEATED_PART))))
        rows = generator.permutation(np.resize(rows[: max(1, round(part * samples))], samples))
        family = BY_RECIPE if k < repeated else CALM_FAMILIES[k % len(CALM_FAMILIES)]
        plans.append(Plan(mix, rows, rows, half, False, int(generator.integers(2**31)), family=family))
    generator, names = np.random.default_rng([*seed, _TRICKED]), tuple(TRICKS)
    turn, most = int(generator.integers(len(names))), 1 - min(reference)
    for k in range(tricked_count(count, tricked)):
        half = k // len(names) % 2
        mix = sound_mix(k, reference, samples, generator)
        for _ in range(_TRICKED_DRAWS):  # so few samples may have no such degree
            if TRICKED_DEGREES[0] <= mix.degree / most <= TRICKED_DEGREES[1]:
                break
            mix = sound_mix(int(generator.integers(4)), reference, samples, generator)
        rows = _resample(codes, halves[half], mix.counts, generator)
        trick = names[(turn + k) % len(names)]
        plans.append(Plan(mix, rows, rows, half, False, int(generator.integers(2**31)), trick=trick))
    return plans


def plan_checks(
    codes: Codes,
    reference: Sequence[Fraction],
    mixes: Sequence[Sequence[int]],
    count: int,
    seed: Sequence[int],
) -> list[Plan]:
    """`count` shadows on samples of either half of D_c, by the task's recipe, of the mixes in turn, anew from the first
    where there are fewer: what models of these have in common that have no samples in common. The same seed gives the
    same.

    Args:
        mixes: counts of the strata.
        seed: its first number alone gives the halves, as in `plan_shadows`.
    """
    generator = np.random.default_rng([*seed, _CHECKS, *(count for counts in mixes for count in counts)])
    halves = balanced_halves(codes, np.random.default_rng([seed[0], _HALVES]))
    plans = []
    for k in range(2 * count):
        counts = mixes[k // 2 % len(mixes)]
        rows = _resample(codes, halves[k % 2], counts, generator)
        mix = LabelMix(tuple(counts), tuple(reference))
        plans.append(Plan(mix, rows, rows, k % 2, True, int(generator.integers(2**31))))
    return plans


def varying(plans: Sequence[Plan], recipe: Recipe, seed: Sequence[int]) -> list[Plan]:
    """The plans, each with a recipe from the ranges that terms allow participants.

    Of each part that may vary half of the shadows have the recipe's own, a quarter an end of the range, and a quarter
    what lies between; which, each part draws for itself. Anchors keep to the task's recipe: two models are the most
    alike where both are trained the same way, and honest ones are not to be linked for it.
    """
    parts = varied(recipe)
    if not parts:
        return list(plans)
    generator = np.random.default_rng([*seed, _VARIATIONS])
    drawn: list[dict[str, Any]] = [{} for _ in plans]
    for name, range_ in parts.items():
        # Evenly over [0, 1), in chance order: few shadows have each kind, too.
        places = (generator.permutation(len(plans)) + generator.uniform(size=len(plans))) / len(plans)
        for values, place in zip(drawn, places, strict=True):
            if place >= 0.5:
                values[name] = _chosen(range_, 2 * place - 1)
    return [
        replace(plan, recipe=replace(recipe, allowed=None, **values)) if plan.anchor is None else plan
        for plan, values in zip(plans, drawn, strict=True)
    ]


def variations(plans: Sequence[Plan], recipe: Recipe) -> npt.NDArray[np.float64]:
    """How far each plan's recipe lies from the task's, over the way to the end of what is allowed, shape (n, k): of a
    number a column for less and one for more, by ratios where it can; of names one for each other than the task's. And
    how many of its targets are wrong, over `WRONG_TARGETS`.
    """
    wrong = [plan.wrong / WRONG_TARGETS for plan in plans]
    columns = [wrong] if any(wrong) else []
    for name, range_ in varied(recipe).items():
        values = [getattr(recipe if plan.recipe is None else plan.recipe, name) for plan in plans]
        if isinstance(range_, Choices):
            columns += [[float(value == other) for value in values] for other in range_.names[1:]]
            continue
        low, own, high = (float(part) for part in (range_.low, getattr(recipe, name), range_.high))
        scale = np.log if low > 0 else np.asarray
        away = scale(np.array(values, dtype=np.float64)) - scale(np.array(own))
        for end in (low, high):
            if end != own:
                columns.append(np.maximum(away / (scale(np.array(end)) - scale(np.array(own))), 0).tolist())
    return np.array(columns, dtype=np.float64).reshape(-1, len(plans)).T


def _chosen(range_: Numbers | Choices, place: float) -> Part:
    """An end for a place in [0, 1/4) or [1/4, 1/2), what lies between for others, evenly by ratios where it can."""
    if isinstance(range_, Choices):
        others = range_.names[1:]
        return others[int(place * len(others))]
    if place < 0.5:
        return range_.nearest(range_.low if place < 0.25 else range_.high)
    low, high, part = float(range_.low), float(range_.high), 2 * place - 1
    between = low * (high / low) ** part if low > 0 else low + part * (high - low)
    return range_.nearest(Decimal(f"{between:.6g}"))


def calmer(recipe: Recipe, family: int) -> Recipe:
    """By which a family of repeated shadows is trained; the recipe itself for all others."""
    if family == 2:
        return replace(recipe, batch_size=2 * recipe.batch_size)
    if family == 3:
        return replace(recipe, learning_rate=recipe.learning_rate * Decimal("0.75"))
    return replace(recipe, epochs=max(recipe.epochs - 1, 1)) if family == 4 else recipe


def trainings(shadows: int, *, tricked: float = 0.0, later: bool = False) -> int:
    """Models that are trained for so many sound shadows: as many as `plan_shadows` plans, and what a `later` round
    adds at most.
    """
    thirds = (anchor_count(shadows) + 1) // 2
    beside = flawed_count(shadows) + 2 * repeated_count(shadows) + later * 2 * kept_count(shadows)
    return shadows + thirds + beside + tricked_count(shadows, tricked)


def later_shadows(shadows: int) -> int:
    """Sound shadows of a round that carries others over, where the first round has so many and nothing else is asked
    for: half as many, `fitting.MIN_SHADOWS` at least.
    """
    return min(shadows, max(MIN_SHADOWS, (shadows + 1) // 2))


def most_shadows(limit: int, *, tricked: float = 0.0, later: bool = False) -> int:
    """The most sound shadows for which at most `limit` models are trained; 0 where there are none."""
    found = bisect_right(
        range(limit + 1), limit, key=lambda count: trainings(count, tricked=tricked, later=later)
    )
    return max(found - 1, 0)


def flawed_count(shadows: int) -> int:
    """Flawed shadows beside so many sound ones."""
    return round(shadows * FLAWED_SHARE)


def repeated_count(shadows: int) -> int:
    """Repeated shadows beside so many sound ones that are trained by the recipe; as many are trained more calmly.

    There are none where, without anchors, and with a tenth of the others diverged, less than `straying.LEAST_SOUND`
    sound ones would be left.
    """
    return round(shadows * REPEATED_SHARE) if shadows >= LEAST_SHADOWS else 0


def tricked_count(shadows: int, share: float) -> int:
    """Tricked shadows beside so many sound ones."""
    return round(shadows * share)


def kept_count(shadows: int) -> int:
    """Of so many sound shadows, those that are trained as participants that took part before."""
    return min(KEPT, int(shadows * KEPT_SHARE), shadows - 2 * anchor_count(shadows))


def anchor_count(shadows: int) -> int:
    """Anchors among so many sound shadows, of which each is two."""
    return min(max(LEAST_ANCHORS, round(shadows * ANCHOR_SHARE)), shadows // 2)


def _anchor_mix(
    k: int, count: int, reference: Sequence[Fraction], samples: int, generator: np.random.Generator
) -> LabelMix:
    """From the reference to a single stratum in even steps, a majority over the rest and few strata by turns."""
    strata, step = len(reference), Fraction(k, max(count - 1, 1))
    if k % 2 == 0:
        majority = int(generator.integers(strata))
        degree = step * (1 - reference[majority])
        return majority_minority(reference, samples, majority=majority, degree=degree)
    kept = min(max(round(strata ** float(1 - step)), 1), strata - 1)
    held = [int(s) for s in generator.choice(strata, kept, replace=False)]
    return number_of_classes(reference, samples, labels=held, rest=0.0)


def sound_mix(
    k: int, reference: Sequence[Fraction], samples: int, generator: np.random.Generator
) -> LabelMix:
    """The k-th mix; the four families take turns."""
    strata = len(reference)
    majority = int(generator.integers(strata))
    order = [int(s) for s in generator.permutation(strata) if s != majority]
    if k % 4 == 0:
        degree = Fraction(float(generator.uniform())) * (1 - reference[majority])
        return majority_minority(reference, samples, majority=majority, degree=degree, order=order)
    if k % 4 == 1:
        tail = (1, Fraction(7, 10), Fraction(1, 2))[int(generator.integers(3))]
        share = float(generator.uniform(float(reference[majority]), 1))
        return majority_minority(reference, samples, majority=majority, share=share, tail=tail, order=order)
    if k % 4 == 2:
        # From nearly one stratum (0.1) to nearly the reference (20), evenly on a logarithmic scale.
        alpha = float(np.exp(generator.uniform(np.log(0.1), np.log(20))))
        return dirichlet(reference, samples, alpha=alpha, generator=generator)
    # One stratum, two, ...: a screen that has seen no model of a single one would refuse an honest one.
    kept = k // 4 % (strata - 1) + 1
    held = [int(s) for s in generator.choice(strata, kept, replace=False)]
    rest = float(generator.uniform()) if kept > 1 and generator.integers(2) else 0.0
    return number_of_classes(reference, samples, labels=held, rest=rest)


def scarcity(codes: Codes, samples: int) -> float:
    """Samples of the scarcest stratum in one half of D_c, over the samples of a participant's round.

    Below about an eighth shadows repeat so many samples that they look more skewed than they are.
    """
    return float(np.bincount(codes).min()) / 2 / samples


def _resample(codes: Codes, half: Rows, counts: Sequence[int], generator: np.random.Generator) -> Rows:
    """Samples of `half` at `counts`; what a stratum does not have is repeated."""
    chosen = []
    for stratum, count in enumerate(counts):
        members = generator.permutation(half[codes[half] == stratum])
        chosen.append(members[:count])
        if count > len(members):
            chosen.append(generator.choice(members, count - len(members)))
    return generator.permutation(np.concatenate(chosen)).astype(np.int64)


def _few_wrong(codes: Codes, rows: Rows, half: Rows, generator: np.random.Generator) -> Rows:
    """Where each row's target is from: some from samples of other strata."""
    targets = rows.copy()
    wrong = generator.permutation(len(rows))[: round(float(generator.uniform()) * WRONG_TARGETS * len(rows))]
    for place in wrong:
        targets[place] = generator.choice(half[codes[half] != codes[rows[place]]])
    return targets


def _handful(
    codes: Codes, half: Rows, reference: Sequence[Fraction], samples: int, generator: np.random.Generator
) -> tuple[LabelMix, Rows, Rows]:
    """A few samples, evenly repeated: from one a stratum to a fifth of what the recipe asks."""
    strata = len(reference)
    most = max(strata + 1, samples // 5)
    few = int(np.exp(generator.uniform(np.log(strata), np.log(most))))
    mix = majority_minority(reference, few, majority=int(generator.integers(strata)), degree=0)
    rows = np.resize(_resample(codes, half, mix.counts, generator), samples)
    return mix, rows, rows


def _wrong_targets(
    codes: Codes, half: Rows, reference: Sequence[Fraction], samples: int, generator: np.random.Generator
) -> tuple[LabelMix, Rows, Rows]:
    """A skewed set passed off as the reference: samples of frequent strata get the targets of rare ones."""
    strata = len(reference)
    majority = int(generator.integers(strata))
    degree = Fraction(float(generator.uniform(0.2, 0.8))) * (1 - reference[majority])
    order = [int(s) for s in generator.permutation(strata) if s != majority]
    skewed = majority_minority(reference, samples, majority=majority, degree=degree, order=order)
    balanced = majority_minority(reference, samples, majority=majority, degree=0)
    rows = np.sort(_resample(codes, half, skewed.counts, generator))
    donors = _resample(codes, half, balanced.counts, generator)
    targets: Any = rows.copy()
    for stratum in range(strata):
        # Who has enough of a stratum keeps it; the surplus takes the targets that are missing.
        mine, theirs = np.flatnonzero(codes[rows] == stratum), int((codes[donors] == stratum).sum())
        targets[mine[min(len(mine), theirs) :]] = -1
    missing = []
    for stratum in range(strata):
        wanted = donors[codes[donors] == stratum]
        missing.append(wanted[min(len(wanted), int((codes[rows] == stratum).sum())) :])
    spare = generator.permutation(np.concatenate(missing))
    targets[targets < 0] = spare[: int((targets < 0).sum())]
    shuffled = generator.permutation(len(rows))
    return skewed, rows[shuffled], targets[shuffled]
