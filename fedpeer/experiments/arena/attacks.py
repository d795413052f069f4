"""What attackers submit, what they claim, and what it truly costs them.

An attack turns the position of one trader into entries of a round. Its cost is that of the data it collects;
training, copying and noise are free to it, which favours the attacker. Every attack but the honest ones claims
the degree of full effort, unless its name says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedpeer import extensions
from fedpeer.evidence.measuring import Ensemble
from fedpeer.experiments.accuracy.trial import drawn
from fedpeer.experiments.arena.setting import ArenaPopulation, Rows, Trader
from fedpeer.experiments.arena.tricks import jittered
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import Codes
from fedpeer.learning.workloads.protocol import Workload
from mechanism.evidence import EvidenceModel
from mechanism.settlement import MICRO

Model = Mapping[str, Any]

#: Noise added to a model, over what training changes in each tensor.
_NOISE = 0.5

#: Noise added to real inputs, over their deviation.
_INPUT_NOISE = 0.25

#: Samples a label of an attacker that repeats a handful.
_HANDFUL = 2


@dataclass(frozen=True)
class AttackSubmission:
    """One submission of an attack.

    Attributes:
        name: identity under which it comes.
        model: what is submitted; None where nothing comes.
        claimed: degree.
        fault: why the service does not score it whatever it holds.
        head: which of the attacking traders it stands in for; None for an identity beyond these.
    """

    name: str
    model: Model | None
    claimed: Fraction
    fault: str = ""
    head: int | None = 0


@dataclass(frozen=True, eq=False)
class OwnEvidence:
    """What an attacker knows of the evidence: shadows of its own, and the map that the round before had.

    A settled round's maps are public, but not D_c nor the maps from updates: it takes its own for those.
    """

    ensemble: Ensemble
    opened: EvidenceModel | None

    def read(self, model: Model, weight: float) -> tuple[float, bool]:
        """The degree, by its own map and, so much of it, the opened one; and whether its own screens let it pass."""
        found = self.ensemble.measure(model)
        degree = found.degree_micro
        if self.opened is not None:
            known = self.opened.degree
            other = known.degree_of(known.regressors(found.features.tolist()))
            degree = round((1 - weight) * degree + weight * other)
        return degree / MICRO, not found.failed


@dataclass(frozen=True)
class Position:
    """What an attacker knows and has in one round.

    Attributes:
        population: of the seed.
        trader: whose part it plays; `others` are the honest rest, the best data first.
        start: this round's broadcast model; `history` those before, oldest first.
        optimal: its own model had it been honest.
        idle: its own model trained on its data without effort.
        models: every honest trader's model.
        round: 1..T.
        spoilt_peer: whether its peer of the round before had a worse degree than the median.
        evidence: makes evidence of its own, on data of its own, with the map that was opened last.
        taken: how many others have each sample of the pool, and one less of those that it has itself, which it keeps
            from round to round: it takes these first, then those that nobody has.
    """

    population: ArenaPopulation
    trader: Trader
    others: Sequence[Trader]
    start: Model
    history: Sequence[Model]
    optimal: Model
    idle: Model
    models: Mapping[str, Model]
    round: int
    spoilt_peer: bool
    generator: np.random.Generator
    evidence: "Callable[[], OwnEvidence]"
    taken: Rows

    @property
    def full_effort(self) -> Fraction:
        """The degree that full effort would reach, a twentieth of the start's."""
        return self.trader.start.degree / 20

    def alone(
        self, model: Model | None, claimed: Fraction | None = None, fault: str = ""
    ) -> list[AttackSubmission]:
        return [
            AttackSubmission(self.trader.name, model, self.full_effort if claimed is None else claimed, fault)
        ]


@dataclass(frozen=True)
class Attack:
    """A strategy.

    Attributes:
        play: entries of a round.
        spent: share of the honest optimum's cost that it pays; or a function of the position.
        heads: honest traders that it replaces.
        needs_history: only possible from the second round on.
    """

    name: str
    play: Callable[[Position], list[AttackSubmission]]
    spent: Callable[[Position], float]
    heads: int = 1
    needs_history: bool = False


def blended(workload: Workload, start: Model, model: Model, factor: float) -> Model:
    """start + factor * (model - start) of what training moves, each tensor in its own type.

    Buffers are the model's: a running variance that is led beyond it can be negative, and nothing is finite then.
    """
    moved = {
        n: (start[n] + factor * (model[n] - start[n])).astype(start[n].dtype) for n in workload.trainable
    }
    return {**model, **moved}


def _led(position: Position, factor: float) -> Model:
    """The model without effort, so much of the way that training went."""
    return blended(position.population.workload, position.start, position.idle, factor)


def noisy(position: Position, model: Model, factor: float) -> Model:
    """`model` with noise, in each trained tensor `factor` times as long as what training changes there."""
    result = dict(model)
    for name in position.population.workload.trainable:
        noise = position.generator.normal(size=model[name].shape)
        length = np.linalg.norm(position.idle[name] - position.start[name])
        noise *= factor * length / max(float(np.linalg.norm(noise)), 1e-12)
        result[name] = (model[name] + noise).astype(model[name].dtype)
    return result


def _trained(position: Position, samples: Samples) -> Model:
    population, seed = position.population, int(position.generator.integers(2**31))
    return population.workload.train(position.start, samples, population.recipe, seed)


def _nothing(position: Position) -> float:
    return 0.0


def _honest_cost(position: Position) -> float:
    return position.trader.spent(position.trader.optimal)


def _handful_cost(position: Position) -> float:
    """Collecting a handful costs as much less as it is smaller."""
    balanced = position.population.balanced(position.population.recipe.samples)
    share = _HANDFUL * len(position.population.reference) / position.population.recipe.samples
    return share * position.trader.spent(balanced)


def _last_step(position: Position) -> Model:
    return blended(position.population.workload, position.start, position.history[-1], -1.0)


def _handful(position: Position) -> Model:
    population = position.population
    mix = population.balanced(_HANDFUL * len(population.reference))
    few = population.samples(mix, position.generator, position.taken)
    return _trained(position, few.select(np.resize(np.arange(len(few)), population.recipe.samples)))


def _shuffled(position: Position) -> Model:
    """Skewed data with the targets of balanced ones: surplus samples get those of samples of the missing strata."""
    population, generator = position.population, position.generator
    rows = drawn(population.pool_codes, position.trader.start.counts, generator, position.taken)
    codes = population.pool_codes[rows]
    wanted = relabelled(codes, population.reference, generator)
    donors = np.where(
        wanted == codes,
        rows,
        [generator.choice(np.flatnonzero(population.pool_codes == stratum)) for stratum in wanted],
    )
    return _trained(position, population.pool.select(rows, population.pool.targets[donors]))


def relabelled(codes: Codes, reference: Sequence[Fraction], generator: np.random.Generator) -> Codes:
    """`codes` with as few changed as makes their counts those of `reference`, within rounding."""
    strata = len(reference)
    wanted = np.floor(np.array([float(p) for p in reference]) * len(codes)).astype(np.int64)
    counts = np.bincount(codes, minlength=strata)
    surplus = np.concatenate(
        [
            generator.permutation(np.flatnonzero(codes == s))[: max(0, counts[s] - wanted[s])]
            for s in range(strata)
        ]
    )
    missing = np.repeat(np.arange(strata), np.maximum(0, wanted - counts))
    changed = codes.copy()
    chosen = generator.permutation(surplus)[: len(missing)]
    changed[chosen] = generator.permutation(missing)[: len(chosen)]
    return changed


def _best_peer(position: Position) -> Model:
    return position.models[position.others[0].name]


def _colluders(count: int) -> Callable[[Position], list[AttackSubmission]]:
    def play(position: Position) -> list[AttackSubmission]:
        names = [position.trader.name, *(t.name for t in position.others[-(count - 1) :])]
        return [AttackSubmission(n, position.idle, position.full_effort, head=i) for i, n in enumerate(names)]

    return play


def _sybils(position: Position) -> list[AttackSubmission]:
    """Three identities with one honest model, lightly disguised."""
    claimed = position.trader.optimal.degree
    own = [AttackSubmission(position.trader.name, position.optimal, claimed)]
    extra = [noisy(position, position.optimal, 0.2 * (i + 1)) for i in range(2)]
    return own + [
        AttackSubmission(f"{position.trader.name}-s{i}", m, claimed, head=None) for i, m in enumerate(extra)
    ]


def _identities(
    count: int, share: float, repeated: bool = False, noise: float = 0.0
) -> Callable[[Position], list[AttackSubmission]]:
    """Several identities, each trained on so large a part of one data set of the honest optimum: parts by chance where
    they overlap, else disjoint ones; repeated up to the recipe's number of samples, or as few as they are; with noise
    of so many deviations on real inputs."""

    def play(position: Position) -> list[AttackSubmission]:
        mix = position.trader.optimal
        own = position.population.samples(mix, position.generator, position.taken)
        order = position.generator.permutation(len(own))
        size = round(share * len(own))
        entries = []
        for i in range(count):
            if share * count <= 1 + 1e-9:
                rows = order[i * len(own) // count : (i + 1) * len(own) // count]
            else:
                rows = position.generator.permutation(len(own))[:size]
            rows = np.resize(rows, len(own)) if repeated else rows
            samples = jittered(own.select(rows), noise, position.generator)
            name, head = (f"{position.trader.name}-i{i}", None) if i else (position.trader.name, 0)
            entries.append(AttackSubmission(name, _trained(position, samples), mix.degree, head=head))
        return entries

    return play


def _drop_out(position: Position) -> list[AttackSubmission]:
    if position.spoilt_peer:
        return position.alone(None)
    return position.alone(position.optimal, position.trader.optimal.degree)


def _broken(position: Position) -> Model:
    name = sorted(position.start)[0]
    return {**position.idle, name: np.full_like(position.idle[name], np.nan)}


def _over_claim(position: Position) -> list[AttackSubmission]:
    degree = position.trader.optimal.degree
    return position.alone(position.optimal, max(Fraction(0), degree - Fraction(3, 10)))


def _attacks() -> list[Attack]:
    free = _nothing
    return [
        Attack("no-effort", lambda p: p.alone(p.idle, p.trader.start.degree), free),
        Attack("over-claim", _over_claim, _honest_cost),
        Attack("no-effort-claims-full", lambda p: p.alone(p.idle), free),
        Attack("echo", lambda p: p.alone(p.start), free),
        Attack("echo-noise", lambda p: p.alone(noisy(p, p.start, 1.0)), free),
        Attack("old-model", lambda p: p.alone(p.history[-1]), free, needs_history=True),
        Attack("last-step", lambda p: p.alone(_last_step(p)), free, needs_history=True),
        Attack(
            "last-step-noise", lambda p: p.alone(noisy(p, _last_step(p), _NOISE)), free, needs_history=True
        ),
        Attack("random", lambda p: p.alone(p.population.workload.build(10_000 + p.round)), free),
        Attack("pulled-back", lambda p: p.alone(_led(p, 0.5)), free),
        Attack("scaled", lambda p: p.alone(_led(p, 2.0)), free),
        Attack("sign-flipped", lambda p: p.alone(_led(p, -1.0)), free),
        Attack("copy", lambda p: p.alone(_best_peer(p)), free),
        Attack("copy-noise", lambda p: p.alone(noisy(p, _best_peer(p), _NOISE)), free),
        Attack("colluders-2", _colluders(2), free, heads=2),
        Attack("colluders-4", _colluders(4), free, heads=4),
        Attack("sybils", _sybils, _honest_cost),
        Attack("identities-3", _identities(3, 0.8, repeated=True), _honest_cost),
        Attack("identities-8", _identities(8, 0.8, repeated=True), _honest_cost),
        Attack("halves", _identities(2, 1 / 2), _honest_cost),
        Attack("thirds", _identities(3, 1 / 3), _honest_cost),
        Attack("halves-repeated", _identities(2, 1 / 2, repeated=True), _honest_cost),
        Attack("thirds-repeated", _identities(3, 1 / 3, repeated=True), _honest_cost),
        Attack("identities-3-noise", _identities(3, 0.8, repeated=True, noise=_INPUT_NOISE), _honest_cost),
        Attack("identities-8-noise", _identities(8, 0.8, repeated=True, noise=_INPUT_NOISE), _honest_cost),
        Attack("halves-noise", _identities(2, 1 / 2, repeated=True, noise=_INPUT_NOISE), _honest_cost),
        Attack("thirds-noise", _identities(3, 1 / 3, repeated=True, noise=_INPUT_NOISE), _honest_cost),
        Attack("shuffled-labels", lambda p: p.alone(_shuffled(p)), free),
        Attack("handful", lambda p: p.alone(_handful(p)), _handful_cost),
        Attack("drop-out", _drop_out, lambda p: 0.0 if p.spoilt_peer else _honest_cost(p)),
        Attack("late", lambda p: p.alone(p.optimal, fault="it came after the deadline"), _honest_cost),
        # The second submission is refused (another digest under one round); the first one counts.
        Attack("double", lambda p: p.alone(p.optimal, p.trader.optimal.degree), _honest_cost),
        Attack("nan", lambda p: p.alone(_broken(p)), free),
    ]


def attack_named(name: str) -> Attack:
    """One of `ATTACKS`, or an installed extension's.

    Raises:
        ExtensionError: there is none, or it is no `Attack`.
    """
    if name in ATTACKS:
        return ATTACKS[name]
    found = extensions.extension(extensions.ATTACKS, name)
    if not isinstance(found, Attack) or found.name != name:
        raise extensions.ExtensionError(
            f"{name!r} of {extensions.ATTACKS} is {found!r:.80}; expected an Attack with that name"
        )
    return found


ATTACKS: Mapping[str, Attack] = {attack.name: attack for attack in _attacks()}
