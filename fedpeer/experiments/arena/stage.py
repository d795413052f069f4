"""One start with everyone honest, on which an attacker then plays.

What costs most, the shadows and the honest models, is made once: a play trains the attacker's models alone and measures
them. Honest submissions are those of the same participants, so that attacker and honest one have the same data, peers
and models.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from fedpeer import extensions
from fedpeer.evidence import EvidenceTask, ShadowEvidence
from fedpeer.evidence.assessing import RoundMeasurements, ShadowEnsemble
from fedpeer.evidence.measuring import prepare_ensemble
from fedpeer.evidence.planning import later_shadows
from fedpeer.evidence.sent import Broadcast
from fedpeer.experiments.arena.attacks import AttackSubmission, Model, OwnEvidence, Position
from fedpeer.experiments.arena.compared import PartComparison
from fedpeer.experiments.arena.rules import assessments_under, settled
from fedpeer.experiments.arena.setting import ArenaPopulation, ArenaSetting, Rows, Trader, make_population
from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.mean import weighted_mean
from fedpeer.learning.models import weights_digest
from fedpeer.learning.workloads.protocol import train_all
from fedpeer.protocol.submission import Submission
from mechanism.evidence import EvidenceModel
from mechanism.peers import Draw
from mechanism.settlement import MICRO, Assessment, RoundSettlement
from mechanism.terms import MIN_QUORUM

#: Shadows of an attacker's own evidence, and what its seed is more than the coordinator's.
_OWN_SHADOWS, _OWN_SEED = 48, 50_000


@dataclass(frozen=True)
class RuleOutcome:
    """What entries come to under one rule.

    Attributes:
        earned: credits, of all of them, before what was spent on data.
        failed: the screens that one of them fails, sorted.
        kept: the models that the round accepts, those of others among them.
    """

    earned: float
    failed: tuple[str, ...]
    kept: Sequence[Model]


@dataclass(frozen=True, eq=False)
class Honest:
    """A round with everyone honest: models, submissions, assessments, and utilities in credits by rule.

    Attributes:
        holders, idle_holders: of each, how many have one of its samples, in the mean, itself included.
    """

    optimal: Mapping[str, Model]
    idle: Mapping[str, Model]
    submissions: Mapping[str, Submission]
    found: Mapping[str, Sequence[Assessment]]
    utilities: Mapping[str, Mapping[str, float]]
    holders: Mapping[str, float]
    idle_holders: Mapping[str, float]


class Stage:
    """See the module's text.

    Args:
        setting, population: of the seed.
        round_: 1..T.
        start: model that the round begins with; `broadcasts` those before, oldest first.
        shadows: around it.
        spoilt: whose one peer of the round before had a degree above the median.
        opened: what the round before rests on, which is public.
        differences: of the shadows, each trained a second time (`fedpeer.evidence.retraining`).
    """

    def __init__(
        self,
        setting: ArenaSetting,
        population: ArenaPopulation,
        round_: int,
        start: Model,
        broadcasts: Sequence[Broadcast],
        shadows: ShadowEnsemble,
        table: RoundMeasurements,
        spoilt: Mapping[str, bool],
        opened: EvidenceModel | None,
        differences: Callable[[], tuple[int, ...]],
    ) -> None:
        self.setting, self.population, self.round = setting, population, round_
        self.start, self.broadcasts, self.shadows = start, tuple(broadcasts), shadows
        self._table, self._spoilt, self._opened = table, spoilt, opened
        self.differences = differences
        self.honest = self._play_honestly()

    @cached_property
    def accuracy(self) -> float:
        """Of the mean of all honest models."""
        return self.goodness(list(self.honest.optimal.values()))

    @cached_property
    def _probe(self) -> PartComparison:
        return PartComparison(self.population.evidence, self.start, self.population.seed)

    @property
    def attackers(self) -> Sequence[Trader]:
        """Those that take the attacker's part, from the best data to the worst."""
        traders, count = self.population.traders, self.setting.attackers
        return traders[:: max(1, len(traders) // count)][:count]

    def _play_honestly(self) -> Honest:
        population, traders = self.population, self.population.traders
        seeds = [int(s) for s in population.generator.integers(2**31, size=2 * len(traders))]
        optimal_rows, idle_rows = population.rows
        samples = [population.pool.select(rows) for rows in (*optimal_rows, *idle_rows)]
        models = train_all(population.workload, self.start, samples, population.recipe, seeds)
        optimal = {t.name: m for t, m in zip(traders, models, strict=False)}
        idle = {t.name: m for t, m in zip(traders, models[len(traders) :], strict=True)}
        submissions = {
            t.name: self._measured(
                self._table, AttackSubmission(t.name, optimal[t.name], t.optimal.degree), order=k
            )
            for k, t in enumerate(traders)
        }
        chosen = self._selected(list(submissions.values()))
        found = {r: assessments_under(r, self._table, chosen, self._probe) for r in self.setting.rules}
        utilities = {}
        for rule, assessments in found.items():
            income = _incomes(self._settled(rule, assessments))
            utilities[rule] = {t.name: income.get(t.name, 0.0) - t.spent(t.optimal) for t in traders}
        names = [t.name for t in traders]
        holders, of_idle = (
            dict(zip(names, _holders(rows), strict=True)) for rows in (optimal_rows, idle_rows)
        )
        return Honest(optimal, idle, submissions, found, utilities, holders, of_idle)

    def assessed_idle(self) -> Sequence[Assessment]:
        """Everyone honest without effort, in a round of their own, in the traders' order."""
        table = self._table.fork(without=self.honest.idle)
        idle = [
            self._measured(table, AttackSubmission(t.name, self.honest.idle[t.name], t.start.degree), order=k)
            for k, t in enumerate(self.population.traders)
        ]
        return assessments_under("verified", table, idle, self._probe)

    def play(
        self, entries: Sequence[AttackSubmission], rules: Sequence[str] = (), *, earned_alone: bool = False
    ) -> dict[str, RuleOutcome]:
        """What the entries come to in the place of the traders whose names they have, by rule.

        Args:
            earned_alone: what else is accepted is not asked for: the harm of others is left out, which is most of the
                work, and no part of what the entries earn.
        """
        table = self._table.fork(without=[e.name for e in entries])
        attacking = [self._measured(table, e, order=100 + i) for i, e in enumerate(entries) if e.model]
        heads = {e.name for e in entries if e.head is not None}
        others = [s for name, s in self.honest.submissions.items() if name not in heads]
        submissions = self._selected(others + attacking)
        by_id, names = {s.participant_id: s for s in submissions}, {s.participant_id for s in attacking}
        outcomes = {}
        for rule in rules or self.setting.rules:
            found = assessments_under(rule, table, submissions, self._probe, names if earned_alone else None)
            income = _incomes(self._settled(rule, found))
            accepted = [a.participant_id for a in found if a.scored and a.multiplier_ppm]
            outcomes[rule] = RuleOutcome(
                earned=sum(income.get(name, 0.0) for name in sorted(names)),
                failed=tuple(
                    sorted(
                        {
                            v.screen
                            for a in found
                            if a.participant_id in names
                            for v in a.verdicts
                            if not v.passed
                        }
                    )
                ),
                kept=[by_id[name].weights() for name in accepted],
            )
        return outcomes

    def position(self, attacker: Trader, label: str) -> Position:
        """What `attacker` knows and has; `label` decides its chance."""
        others = sorted(
            (t for t in self.population.traders if t is not attacker), key=lambda t: t.optimal.degree
        )
        digest = hashlib.sha256(f"{label}/{attacker.name}".encode()).digest()
        return Position(
            population=self.population,
            trader=attacker,
            others=others,
            start=self.start,
            history=[broadcast.weights() for broadcast in self.broadcasts],
            optimal=self.honest.optimal[attacker.name],
            idle=self.honest.idle[attacker.name],
            models=self.honest.optimal,
            round=self.round,
            spoilt_peer=self._spoilt.get(attacker.name, False),
            generator=np.random.default_rng(
                [self.population.seed, self.round, int.from_bytes(digest[:4], "big")]
            ),
            evidence=lambda: self._own_evidence,
            taken=self.population.taken(attacker),
        )

    @cached_property
    def _own_evidence(self) -> OwnEvidence:
        """On as many samples as D_c has, of the pool that participants draw from: as good as D_c."""
        population, task = self.population, self.population.evidence
        generator = np.random.default_rng([population.seed, _OWN_SEED])
        rows = generator.permutation(len(population.pool))[: len(task.validation)]
        own = EvidenceTask(
            task.workload,
            task.recipe,
            population.pool.select(rows),
            population.pool_codes[rows],
            task.strata,
            task.strata_are_classes,
            task.reference,
        )
        ensemble = prepare_ensemble(own, self.start, population.seed + _OWN_SEED, shadows=_OWN_SHADOWS)
        return OwnEvidence(ensemble, self._opened)

    def spoilt_peers(self) -> dict[str, bool]:
        """Who drew, as its one peer, somebody with a degree above the median in this round."""
        rule, found = next(iter(self.honest.found.items()))
        terms = self.population.terms
        one_peer = replace(terms, rule=replace(terms.rule, peers=1))
        settlement = settled(rule, one_peer, self.round, _draw(f"peer {self.round}", found), found)
        degree = {a.participant_id: a.verified_micro or 0 for a in found}
        median = float(np.median(list(degree.values())))
        return {p.participant_id: any(degree[q] > median for q in p.peers) for p in settlement.payments}

    def _measured(self, table: RoundMeasurements, entry: AttackSubmission, order: int) -> Submission:
        """The submission of an entry, which `table` has measured."""
        assert entry.model is not None
        submission = Submission(
            participant_id=entry.name,
            model=entry.model,
            model_sha256=hashlib.sha256(f"{entry.name} {weights_digest(entry.model)}".encode()).digest(),
            samples=self.population.recipe.samples,
            claimed_degree=entry.claimed,
            order=order,
            fault=entry.fault,
        )
        table.measure(submission)
        return submission

    def _settled(self, rule: str, found: Sequence[Assessment]) -> RoundSettlement:
        draw = _draw(f"{self.population.seed} {self.round}", found)
        return settled(rule, self.population.terms, self.round, draw, found)

    def _selected(self, submissions: list[Submission]) -> list[Submission]:
        """Those of participants that the selection lets train."""
        name = self.setting.selection
        if name == "all":
            return submissions
        claims = {s.participant_id: s.claimed_degree for s in submissions}
        chosen = set(extensions.extension(extensions.SELECTIONS, name)(self.population.terms, claims))
        if not chosen <= claims.keys() or len(chosen) < MIN_QUORUM:
            raise ExperimentError(
                f"the selection {name} gives {sorted(map(str, chosen))}; expected at least {MIN_QUORUM} of "
                f"{', '.join(sorted(claims))}"
            )
        return [s for s in submissions if s.participant_id in chosen]

    def aggregated(self, models: Sequence[Model]) -> Model:
        """What the setting's aggregation makes of models."""
        samples = [self.population.recipe.samples] * len(models)
        name = self.setting.aggregation
        if name == "mean":
            return weighted_mean(models, samples)
        made: Model = extensions.extension(extensions.AGGREGATIONS, name)(models, samples)
        if _layout(made) != _layout(self.start):
            raise ExperimentError(
                f"the aggregation {name} gives a model of another layout: {_layout(made)}; expected names, shapes and "
                f"types as they came: {_layout(self.start)}"
            )
        return made

    def goodness(self, models: Sequence[Model]) -> float:
        """Of the models' mean on the test samples; of the start where there is none."""
        return self.population.goodness(self.aggregated(models) if models else self.start)


def stages(setting: ArenaSetting, seed: int) -> Iterator[Stage]:
    """The rounds of one seed, each from the aggregate of honest models of the one before."""
    population = make_population(setting, seed)
    evidence = ShadowEvidence(
        population.evidence, seed, shadows=setting.shadows, later=later_shadows(setting.shadows)
    )
    start: Model = population.workload.build(seed)
    broadcasts: list[Broadcast] = []
    spoilt: Mapping[str, bool] = {}
    opened: EvidenceModel | None = None
    for round_ in range(1, setting.rounds + 1):
        shadows = evidence.prepare(start, round_, broadcasts)
        table = evidence.measurements(shadows, broadcasts)
        differences = partial(evidence.differences, shadows, tuple(broadcasts))
        stage = Stage(
            setting, population, round_, start, broadcasts, shadows, table, spoilt, opened, differences
        )
        yield stage
        models = stage.honest.optimal
        merged = {name: (model, population.recipe.samples) for name, model in models.items()}
        broadcasts.append(Broadcast(f"round {round_}", start, merged, setting.aggregation == "mean"))
        spoilt, opened = stage.spoilt_peers(), shadows.model(len(models))
        start = stage.aggregated(list(models.values()))


def _holders(rows: Sequence[Rows]) -> list[float]:
    """How many have one of each one's samples, in the mean."""
    held = np.bincount(np.concatenate([np.unique(each) for each in rows]))
    return [float(held[each].mean()) for each in rows]


def _layout(model: Model) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor, by name."""
    return {name: (np.shape(model[name]), str(np.asarray(model[name]).dtype)) for name in sorted(model)}


def _draw(label: str, found: Sequence[Assessment]) -> Draw:
    """The same for one label and the same submissions: a share comes of its participant's name."""
    names = [a.participant_id for a in found if a.model_sha256]
    shares = {name: hashlib.sha256(f"{label} {name}".encode()).digest() for name in names}
    return Draw(hashlib.sha256(label.encode()).digest(), shares)


def _incomes(settlement: RoundSettlement) -> dict[str, float]:
    """What each takes out of a round, credits: paid, less the stake that it loses."""
    return {p.participant_id: (p.paid_micro - p.stake_lost_micro) / MICRO for p in settlement.payments}
