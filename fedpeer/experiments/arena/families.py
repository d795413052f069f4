"""Families of attacks: what one does with chosen data, with parameters that an optimiser searches.

    identities     several identities, each trained on a part of one data set
    parts          identities on disjoint parts of one data set, each the mean of several trainings
    pooled         two participants that train on what both have
    copy           a model between one's own and another's
    repeat         rare samples repeated
    reweight       each epoch draws its own samples, rare ones more often
    interpolate    rare strata filled with points between two of their samples
    augment        rare samples copied with noise
    synthesise     rare strata filled with their mean and deviations of other strata
    logits         the output's bias moved by how rare each class is
    invert         samples that the broadcast model takes for a rare class, found by its gradient
    public         a few public samples of each stratum beside one's own, repeated
    length         longer or shorter training, updates of other sizes
    whitebox       of many variants the one that an evidence of one's own, with the map opened last, reads as best
    contribution   away from the others' mean, as scores of contribution are raised (arXiv 2509.19921)

All collect to a degree first: `effort` 0 leaves the data as they are, 1 takes the degree to a twentieth, at the true
cost. They claim so large a part of that degree as `claim` says; 1 is the truth. Everything but collecting is free.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from fedpeer.evidence import tricks as tricking
from fedpeer.experiments.arena import tricks
from fedpeer.experiments.arena.attacks import AttackSubmission, Model, Position, blended, noisy
from fedpeer.experiments.arena.setting import Trader
from fedpeer.experiments.arena.tricks import Collected
from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.mean import weighted_mean
from fedpeer.learning.partition import toward_reference
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.protocol import flat_change
from mechanism.degree import noniid_degree

#: Parameters of a family by name.
Values = Mapping[str, float]

#: Degree that full effort leaves, over that of the start.
_LEAST_DEGREE = Fraction(1, 20)


@dataclass(frozen=True)
class Parameter:
    """What the optimiser may choose.

    Attributes:
        low, high: its range, ends included.
        usual: where the search begins.
        whole: whether it is a whole number.
    """

    name: str
    low: float
    high: float
    usual: float
    whole: bool = False


@dataclass(frozen=True)
class Play:
    """What a family does in one round.

    Attributes:
        entries: submissions.
        spent: credits, on collecting.
        honest: for each head what honest participants train on and claim that have the same data.
        made: for each entry what it trains on, where that is other data than its head's.
    """

    entries: Sequence[AttackSubmission]
    spent: float
    honest: Sequence[Collected]
    made: Sequence[Samples] = ()


@dataclass(frozen=True)
class Family:
    """See the module's text.

    Attributes:
        play: what it does at the values of its parameters.
        heads: honest traders that it replaces.
    """

    name: str
    parameters: tuple[Parameter, ...]
    play: Callable[[Position, Values], Play]
    heads: int = 1

    def usual(self) -> dict[str, float]:
        return {p.name: p.usual for p in self.parameters}


EFFORT = Parameter("effort", 0, 1, 0.7)
CLAIM = Parameter("claim", 0, 1, 0.5)
STRENGTH = Parameter("strength", 0, 1, 1)
EPOCHS = Parameter("epochs", 0.4, 2.5, 1)
SIZE = Parameter("size", 0.7, 1.3, 1)
JITTER = Parameter("jitter", 0, 0.5, 0.4)


def collected(position: Position, effort: float, trader: Trader | None = None) -> Collected:
    """The data of the attacker, or of another `trader`, after so much effort."""
    population, own = position.population, trader or position.trader
    share = 1 - Fraction(effort) * (1 - _LEAST_DEGREE)
    mix = toward_reference(own.start, own.start.degree * share)
    samples, codes = population.drawn(mix, position.generator, position.taken)
    return Collected(mix, samples, codes, population.reference, own.spent(mix))


def trained(position: Position, samples: Samples, values: Values) -> Model:
    """A model of `samples`, by so many `epochs` over the recipe's and with an update of that `size`, if `values` have
    any."""
    population = position.population
    epochs = max(1, round(values.get("epochs", 1) * population.recipe.epochs))
    recipe = replace(population.recipe, epochs=epochs)
    model = population.workload.train(position.start, samples, recipe, _seed(position))
    return sized(position, model, values["size"]) if "size" in values else model


def sized(position: Position, model: Model, size: float) -> Model:
    """The model with its update `size` times as long as that of one's honest model: longer training does not show."""
    names, start = position.population.workload.trainable, position.start
    usual, own = (
        float(np.linalg.norm(flat_change(names, weights, start))) for weights in (position.optimal, model)
    )
    return blended(position.population.workload, start, model, size * usual / max(own, 1e-12))


def _seed(position: Position) -> int:
    return int(position.generator.integers(2**31))


def _alone(
    position: Position, own: Collected, model: Model, values: Values, made: Samples | None = None
) -> Play:
    entry = AttackSubmission(position.trader.name, model, _claimed(own, values))
    return Play([entry], own.spent, [own], () if made is None else [made])


def _claimed(own: Collected, values: Values) -> Fraction:
    return own.mix.degree * Fraction(values["claim"])


def _with_data(make: Callable[[Position, Collected, Values], Samples]) -> Callable[[Position, Values], Play]:
    """A family that trains on other data than it collected."""

    def play(position: Position, values: Values) -> Play:
        own = collected(position, values["effort"])
        samples = make(position, own, values)
        return _alone(position, own, trained(position, samples, values), values, samples)

    return play


def _repeat(position: Position, own: Collected, values: Values) -> Samples:
    return own.samples.select(tricking.repeated(own, values["strength"], position.generator))


def _interpolate(position: Position, own: Collected, values: Values) -> Samples:
    return tricking.interpolated(own, values["strength"], values["reach"], position.generator)


def _augment(position: Position, own: Collected, values: Values) -> Samples:
    return tricking.augmented(own, values["strength"], values["noise"], position.generator)


def _synthesise(position: Position, own: Collected, values: Values) -> Samples:
    return tricking.synthesised(own, values["strength"], values["spread"], position.generator)


def _public(position: Position, own: Collected, values: Values) -> Samples:
    population = position.population
    return tricks.with_public(
        own,
        population.test,
        population.test_codes,
        round(values["public"]),
        values["strength"],
        position.generator,
    )


def _invert(position: Position, own: Collected, values: Values) -> Samples:
    return tricks.inverted(
        own,
        position.population.workload,
        position.start,
        values["strength"],
        round(values["steps"]),
        values["pull"],
        position.generator,
    )


def _length(position: Position, own: Collected, values: Values) -> Samples:
    return own.samples


def _reweight(position: Position, values: Values) -> Play:
    """Epoch by epoch, as the recipe's losses know no weights; the optimizer begins anew with each."""
    population, own = position.population, collected(position, values["effort"])
    one = replace(population.recipe, epochs=1)
    model: Model = position.start
    for _ in range(max(1, round(values["epochs"] * population.recipe.epochs))):
        rows = tricking.weighted(own, values["strength"], position.generator)
        model = population.workload.train(model, own.samples.select(rows), one, _seed(position))
    return _alone(position, own, sized(position, model, values["size"]), values)


def _logits(position: Position, values: Values) -> Play:
    own = collected(position, values["effort"])
    rows = tricking.repeated(own, values["strength"], position.generator)
    model = trained(position, own.samples.select(rows), values)
    name = tricking.output_bias(position.population.workload, model)
    if name is None:
        raise ExperimentError("the family logits needs a model whose output has a bias")
    return _alone(position, own, tricking.adjusted(model, name, own, values["tau"]), values)


def _identities(position: Position, values: Values) -> Play:
    """Identity i trains on the part of the shuffled data that begins at i/k of it, repeated up to the recipe's number
    of samples: disjoint where the parts are small enough, else overlapping as little as they can."""
    own = collected(position, values["effort"])
    count, size = round(values["identities"]), max(1, round(values["share"] * len(own.samples)))
    order = position.generator.permutation(len(own.samples))
    entries, parts = [], []
    for i in range(count):
        first = i * len(order) // count
        rows = np.resize(np.roll(order, -first)[:size], len(order))
        samples = tricks.jittered(own.samples.select(rows), values["jitter"], position.generator)
        parts.append(samples)
        name, head = _identity(position, i)
        entries.append(
            AttackSubmission(name, trained(position, samples, values), _claimed(own, values), head=head)
        )
    return Play(entries, own.spent, [own], parts)


def _identity(position: Position, i: int) -> tuple[str, int | None]:
    """Name and head of the i-th of several identities."""
    return (f"{position.trader.name}-i{i}", None) if i else (position.trader.name, 0)


def _parts(position: Position, values: Values) -> Play:
    """Identities on disjoint parts of one data set, each repeated up to the recipe's number of samples; of each the
    mean of several trainings, then moved toward the next one's. Training costs nothing, and a mean averages out what
    few samples leave in a model."""
    own = collected(position, values["effort"])
    count, times = round(values["identities"]), round(values["trainings"])
    order = position.generator.permutation(len(own.samples))
    parts = [own.samples.select(np.resize(order[i::count], len(order))) for i in range(count)]
    means = [
        weighted_mean([trained(position, part, values) for _ in range(times)], [1] * times) for part in parts
    ]
    entries = []
    for i, model in enumerate(means):
        moved = blended(position.population.workload, means[(i + 1) % count], model, 1 - values["step"])
        name, head = _identity(position, i)
        entries.append(AttackSubmission(name, moved, _claimed(own, values), head=head))
    return Play(entries, own.spent, [own], parts)


def _pooled(position: Position, values: Values) -> Play:
    """Each trains on so many samples as the recipe asks for: a part that both have, the rest of either's own half."""
    partner = position.others[-1]
    own, other = (collected(position, values["effort"], trader) for trader in (position.trader, partner))
    both, n = tricks.joined(own, other), len(own.samples)
    order = position.generator.permutation(len(both.samples))
    common = round(values["overlap"] * n)
    entries = []
    for i, trader in enumerate((position.trader, partner)):
        rest = order[common:]
        rows = np.concatenate([order[:common], rest[i::2][: n - common]])
        part = both.select(rows)
        samples = tricks.jittered(part.samples, values["jitter"], position.generator)
        claimed = noniid_degree(np.bincount(part.codes, minlength=len(own.reference)).tolist(), own.reference)
        claimed *= Fraction(values["claim"])
        entries.append(AttackSubmission(trader.name, trained(position, samples, values), claimed, head=i))
    return Play(entries, own.spent + other.spent, [own, other])


def _copy(position: Position, values: Values) -> Play:
    own = collected(position, values["effort"])
    mine = trained(position, own.samples, values)
    theirs = position.models[position.others[0].name]
    return _alone(
        position,
        own,
        noisy(
            position, blended(position.population.workload, mine, theirs, values["weight"]), values["noise"]
        ),
        values,
    )


def _contribution(position: Position, values: Values) -> Play:
    """As 2509.19921 grants the attacker: it knows what the others send."""
    own = collected(position, values["effort"])
    mine = trained(position, own.samples, values)
    others = [position.models[trader.name] for trader in position.others]
    mean = {n: np.mean([m[n] for m in others], axis=0).astype(mine[n].dtype) for n in mine}
    model = noisy(
        position, blended(position.population.workload, mean, mine, 1 + values["push"]), values["noise"]
    )
    return _alone(position, own, model, values)


def _whitebox(position: Position, values: Values) -> Play:
    """Among variants of two models, plain and repeated, the one that its own evidence reads as the most balanced."""
    own = collected(position, values["effort"])
    plain = trained(position, own.samples, values)
    rows = tricking.repeated(own, 1, position.generator)
    level = trained(position, own.samples.select(rows), values)
    generator, bold, workload = position.generator, values["boldness"], position.population.workload
    best, least = plain, np.inf
    for variant in range(_VARIANTS):
        model = plain
        if variant:
            model = blended(workload, plain, level, float(generator.uniform(0, 1 + bold)))
            model = blended(
                workload, position.start, model, float(generator.uniform(1 - bold / 2, 1 + bold / 2))
            )
        degree, passes = position.evidence().read(model, values["opened"])
        if passes and degree < least:
            best, least = model, degree
    return _alone(position, own, best, values)


#: Variants that the white-box attacker looks at in a round.
_VARIANTS = 10

_DATA = (EFFORT, CLAIM, STRENGTH)


def _families() -> list[Family]:
    return [
        Family(
            "identities",
            (
                EFFORT, CLAIM, Parameter("identities", 2, 8, 3, whole=True), Parameter("share", 0.2, 1, 0.8), JITTER,
            ),
            _identities,
        ),
        Family(
            "parts",
            (
                EFFORT, CLAIM, Parameter("identities", 2, 4, 2, whole=True),
                Parameter("trainings", 1, 6, 2, whole=True), Parameter("step", 0, 0.5, 0),
            ),
            _parts,
        ),
        Family("pooled", (EFFORT, CLAIM, Parameter("overlap", 0, 1, 0.5), JITTER), _pooled, heads=2),
        Family("copy", (EFFORT, CLAIM, Parameter("weight", 0, 1, 0.5), Parameter("noise", 0, 1, 0.2)), _copy),
        Family("repeat", (*_DATA, EPOCHS, SIZE), _with_data(_repeat)),
        Family("reweight", (*_DATA, EPOCHS, SIZE), _reweight),
        Family(
            "interpolate", (*_DATA, Parameter("reach", 0, 1, 0.5), EPOCHS, SIZE), _with_data(_interpolate)
        ),
        Family("augment", (*_DATA, Parameter("noise", 0, 1, 0.2), EPOCHS, SIZE), _with_data(_augment)),
        Family("synthesise", (*_DATA, Parameter("spread", 0, 1.5, 1), EPOCHS, SIZE), _with_data(_synthesise)),
        Family("logits", (*_DATA, Parameter("tau", -0.5, 1.5, 0.3), EPOCHS, SIZE), _logits),
        Family(
            "invert",
            (*_DATA, Parameter("steps", 5, 40, 20, whole=True), Parameter("pull", 0, 1, 0.1), EPOCHS),
            _with_data(_invert),
        ),
        Family(
            "public", (*_DATA, Parameter("public", 1, 15, 5, whole=True), EPOCHS, SIZE), _with_data(_public)
        ),
        Family("length", (EFFORT, CLAIM, EPOCHS, SIZE), _with_data(_length)),
        Family(
            "whitebox", (EFFORT, CLAIM, Parameter("boldness", 0, 1, 0.5), Parameter("opened", 0, 1, 0.5)), _whitebox
        ),
        Family(
            "contribution",
            (EFFORT, CLAIM, Parameter("push", -0.5, 4, 1), Parameter("noise", 0, 1, 0)),
            _contribution,
        ),
    ]  # fmt: skip


FAMILIES: Mapping[str, Family] = {family.name: family for family in _families()}
