"""Data, terms and costs of an arena, and its honest population at the least equilibrium.

The task is one of `fedpeer.experiments.accuracy.tasks`, whatever its model and data. Participant k starts with a
majority-minority mix of degree delta_k(0); full effort takes its degree to a twentieth of that, at c_k a unit of
degree. Honest participants collect what the equilibrium says, claim the degree that their counts give, and train by the
recipe.

The bound's constants are chosen so that payment depends on degrees within reach: Upsilon/Phi = 1/20, where the
paper's 2/3 leaves most participants no reason to make an effort. The claim's penalty and the stake are those of
the service's examples, and the fee is the least at which no split of one's data gains.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedpeer.evidence import EvidenceTask
from fedpeer.experiments.accuracy.tasks import TASKS, Parts
from fedpeer.experiments.accuracy.trial import drawn
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import FOR_DATASET, Weights
from fedpeer.learning.partition import LabelMix, majority_minority, toward_reference
from fedpeer.learning.samples import Samples, of_labelled
from fedpeer.learning.strata import Codes
from fedpeer.learning.workloads.protocol import Workload
from fedpeer.protocol.model_file import contract_of
from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import equilibrium
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.payment import Log
from mechanism.settlement import MICRO, least_fee_of
from mechanism.terms import Recipe, Rule, Schedule, Terms

Rows = npt.NDArray[np.int64]

#: Q, Phi and Upsilon: f(Q/Upsilon) = ln 60 = 4.1 credits at best, 0.6 where both degrees are 0.9.
_Q, _PHI, _UPSILON = Decimal(60), Decimal(20), Decimal(1)

#: Effort curve delta_k(e) = delta_k(0) exp(-RATE e): full effort leaves a twentieth.
_RATE = 3.0

#: Range of the participants' costs, credits a unit of degree, and of their degrees without effort.
_COSTS, _STARTS = (0.8, 2.0), (0.4, 0.8)

#: Credits lost for a squared claim error of 1, and micro-credits of stake for a refuted claim.
_PENALTY, _STAKE = Decimal(4), MICRO // 2

#: Samples on which global models are compared; nobody trains on them.
_TEST_SAMPLES = 1_000

#: Participants of an arena, at least.
LEAST_PARTICIPANTS = 5


@dataclass(frozen=True)
class ArenaSetting:
    """What one run of the arena covers.

    Attributes:
        dataset: one that `fedpeer arena` names.
        rules, attacks: names.
        participants: honest participants, of whom one at a time is replaced by an attacker; at least
            `LEAST_PARTICIPANTS`. Of a pool that is too small for samples of their own there are fewer.
        attackers: how many of them take the attacker's part, each in its own run of a round.
        rounds: from a fresh start; later rounds start from the honest aggregate.
        seeds: populations, data splits and shadows, new ones each.
        shadows: sound shadow models a round; tricked: tricked ones for each of them.
        selection: who of those who claim trains: "all", or an installed extension's.
        aggregation: how models become one: "mean", or an installed extension's.
    """

    dataset: str
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    participants: int = 8
    attackers: int = 8
    rounds: int = 2
    seeds: tuple[int, ...] = (0, 1, 2)
    shadows: int = 100
    tricked: float = 0.0
    selection: str = "all"
    aggregation: str = "mean"


@dataclass(frozen=True)
class Trader:
    """One participant: where its data start, what it does about it, and what a unit of degree costs it."""

    name: str
    start: LabelMix
    optimal: LabelMix
    cost: float

    def spent(self, mix: LabelMix) -> float:
        """Cost of going from the start to `mix`, credits."""
        return self.cost * max(0.0, float(self.start.degree - mix.degree))


@dataclass(frozen=True)
class ArenaPopulation:
    """A seed's data, traders and terms."""

    seed: int
    evidence: EvidenceTask
    pool: Samples
    pool_codes: Codes
    test: Samples
    test_codes: Codes
    terms: Terms
    traders: tuple[Trader, ...]
    generator: np.random.Generator = field(compare=False)

    @property
    def workload(self) -> Workload:
        return self.evidence.workload

    @property
    def recipe(self) -> Recipe:
        return self.terms.recipe

    @property
    def reference(self) -> tuple[Fraction, ...]:
        return self.terms.reference

    def samples(self, mix: LabelMix, generator: np.random.Generator, taken: Rows | None = None) -> Samples:
        """A round's samples at `mix`, drawn from the pool; `taken` as `drawn` has it."""
        return self.drawn(mix, generator, taken)[0]

    def drawn(
        self, mix: LabelMix, generator: np.random.Generator, taken: Rows | None = None
    ) -> tuple[Samples, Codes]:
        """Such samples, and the stratum of each."""
        rows = drawn(self.pool_codes, mix.counts, generator, taken)
        return self.pool.select(rows), self.pool_codes[rows]

    @cached_property
    def rows(self) -> tuple[list[Rows], list[Rows]]:
        """Rows of the pool of each trader at its optimum, and at its start. It keeps them from round to round: drawn
        anew from a pool that is nearly used up, they would be those that others have trained the start on.
        """
        optimal = self.apart([trader.optimal for trader in self.traders])
        return optimal, self.apart([trader.start for trader in self.traders])

    def apart(self, mixes: Sequence[LabelMix]) -> list[Rows]:
        """Rows of the pool of one participant a mix, as few in common as there are samples for."""
        taken, found = np.zeros(len(self.pool), dtype=np.int64), []
        for mix in mixes:
            found.append(drawn(self.pool_codes, mix.counts, self.generator, taken))
            taken[found[-1]] += 1
        return found

    def taken(self, attacker: Trader) -> Rows:
        """How many honest others have each sample of the pool; one less of those that the attacker has."""
        found = np.zeros(len(self.pool), dtype=np.int64)
        for trader, rows in zip(self.traders, self.rows[0], strict=True):
            found[rows] += 1 if trader is not attacker else -1
        return found

    def goodness(self, weights: Weights) -> float:
        """Of a global model on the test samples: its accuracy; without classes the share of an untrained model's loss
        that it takes off."""
        judged = self.workload.judge(weights, self.test)
        if self.workload.classes is not None and judged.outputs is not None:
            return float((judged.outputs.argmax(axis=1) == self.test.targets).mean())
        untrained = self.workload.judge(self.workload.build(0), self.test).losses.mean()
        return 1 - float(judged.losses.mean() / untrained)

    def balanced(self, samples: int) -> LabelMix:
        return LabelMix(
            majority_minority(self.reference, samples, majority=0, degree=0).counts, self.reference
        )


def make_population(setting: ArenaSetting, seed: int) -> ArenaPopulation:
    """The population of one seed."""
    task = TASKS[setting.dataset]
    recipe, parts = task.recipe, task.parts(seed)
    evidence = EvidenceTask(
        task.workload(),
        recipe,
        parts.validation,
        parts.validation_codes,
        parts.strata,
        task.strata_are_classes,
        tricked=setting.tricked,
    )
    test, test_codes, held = _held_out(setting.dataset, parts, seed)
    rows = np.arange(len(parts.pool) - held)
    generator = np.random.default_rng([seed, 1])
    reference = evidence.reference
    count = min(setting.participants, max(LEAST_PARTICIPANTS, len(rows) // recipe.samples))
    degrees = np.linspace(*_STARTS, count)
    costs = generator.permutation(np.linspace(*_COSTS, count))
    # A majority of which the pool has too few, or that several have, would make honest participants share samples.
    supply = np.bincount(parts.pool_codes[rows], minlength=parts.strata)
    common = np.flatnonzero(supply >= recipe.samples)
    majorities = np.resize(generator.permutation(common if len(common) else np.arange(parts.strata)), count)
    starts = [
        _start(reference, recipe.samples, float(degree), int(majority), generator)
        for degree, majority in zip(degrees, majorities, strict=True)
    ]
    optimal = _optimal_degrees([float(s.degree) for s in starts], costs)
    traders = tuple(
        Trader(
            name=f"p{k:02d}",
            start=start,
            optimal=toward_reference(start, min(Fraction(float(degree)), start.degree)),
            cost=float(cost),
        )
        for k, (start, degree, cost) in enumerate(zip(starts, optimal, costs, strict=True))
    )
    terms = _terms(reference, recipe, setting, seed, evidence.workload.build(seed))
    pool = parts.pool.select(rows)
    pool_codes = parts.pool_codes[rows]
    return ArenaPopulation(seed, evidence, pool, pool_codes, test, test_codes, terms, traders, generator)


def _held_out(dataset: str, parts: Parts, seed: int) -> tuple[Samples, Codes, int]:
    """The test samples, their strata, and how many of them are the pool's last: the images' own test set, else a part
    of the pool."""
    if dataset not in FOR_DATASET:
        rows = np.arange(len(parts.pool) - _TEST_SAMPLES, len(parts.pool))
        return parts.pool.select(rows), parts.pool_codes[rows], _TEST_SAMPLES
    test = of_labelled(load_splits(dataset, seed=seed).test)
    test = test.select(np.arange(min(len(test), _TEST_SAMPLES)))
    return test, test.targets, 0


def _start(
    reference: Sequence[Fraction],
    samples: int,
    degree: float,
    majority: int,
    generator: np.random.Generator,
) -> LabelMix:
    order = [int(label) for label in generator.permutation(len(reference)) if label != majority]
    most = min(Fraction(degree), 1 - reference[majority])
    return majority_minority(reference, samples, majority=majority, degree=most, order=order)


def _optimal_degrees(starts: Sequence[float], costs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    game = Game(
        payment=Log(),
        Q=float(_Q),
        bound=GapBound(float(_PHI), float(_UPSILON)),
        effort=ExponentialEffort(np.array(starts), _RATE),
        cost=LinearCost(costs),
    )
    return equilibrium(game, "least").degree


def _terms(
    reference: tuple[Fraction, ...], recipe: Recipe, setting: ArenaSetting, seed: int, weights: Weights
) -> Terms:
    salt = hashlib.sha256(f"arena {seed}".encode()).digest()
    terms = Terms(
        task_id=f"arena-{setting.dataset}-{seed}",
        reference=reference,
        Q=_Q,
        phi=_PHI,
        upsilon=_UPSILON,
        payment=Log(),
        # Every other participant as a peer: the payment is then its own expectation over the random peer.
        rule=Rule("verified", peers=setting.participants + 8, claim_penalty=_PENALTY, stake_micro=_STAKE),
        schedule=Schedule(setting.rounds, 3, setting.participants + 8, 60, 60),
        contract=contract_of(weights, Decimal(10_000), 1 << 26),
        recipe=recipe,
        budget_micro=0,
        seed_commitment=salt,
        validation_commitment=salt,
        initial_model=salt,
    )
    return replace(terms, rule=replace(terms.rule, fee=least_fee_of(terms)))
