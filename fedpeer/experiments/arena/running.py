"""Rounds of honest participants, and of one attacker among them.

Every seed has its own data split, population and shadows. A round is settled once with everyone honest; then, for
each attacker and attack, once more with the attacker's entries in place of its honest one. The difference of the two
is the attack's advantage: the same data, peers and models on both sides. The next round starts from the honest
aggregate, so that every attack meets the same market. A seed is a cell (`fedpeer.experiments.cells`): kept once it is
done, and computed beside others.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace

import numpy as np

from fedpeer import extensions
from fedpeer.evidence import ShadowEvidence
from fedpeer.evidence.assessing import RoundMeasurements
from fedpeer.evidence.planning import later_shadows
from fedpeer.evidence.sent import Broadcast
from fedpeer.experiments.arena.attacks import Attack, Entry, Model, Position, attack_named
from fedpeer.experiments.arena.results import ArenaResult, Fight, HonestRound
from fedpeer.experiments.arena.rules import assessments_under, settled
from fedpeer.experiments.arena.setting import ArenaSetting, Population, Trader, make_population
from fedpeer.experiments.cells import Cell, CellStore, Record, run_cells
from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.mean import weighted_mean
from fedpeer.learning.models import weights_digest
from fedpeer.learning.workloads.protocol import train_all
from fedpeer.protocol.submission import Submission
from mechanism.peers import Draw
from mechanism.settlement import MICRO, Assessment, Settlement
from mechanism.terms import MIN_QUORUM


def run_arena(
    setting: ArenaSetting,
    store: CellStore,
    executor: Executor,
    done: Callable[[Cell, float], None] = lambda cell, seconds: None,
) -> ArenaResult:
    """Runs the seeds that `store` lacks, side by side on the executor; the same setting gives the same result.

    Raises:
        ExperimentError: the store has seeds of another setting.
        CellError: a seed failed; the others are kept.
    """
    wanted = arena_cells(setting)
    _check_store(setting, store)
    results = run_cells(wanted, store, executor, done=done)
    try:
        return ArenaResult.from_records(setting, [results[cell.key] for cell in wanted])
    except (KeyError, TypeError) as error:
        raise ExperimentError(
            f"a finished seed in the folder is not what an arena writes ({error!r}); delete its cells to run them again"
        ) from error


def arena_cells(setting: ArenaSetting) -> list[Cell]:
    """One cell a seed."""
    parameters = asdict(setting)
    del parameters["seeds"]
    # Results of another version of an extension are not taken for this one's.
    parameters["extensions"] = extensions.extension_versions(
        [
            *((extensions.ATTACKS, name) for name in setting.attacks),
            *((extensions.PAYMENT_RULES, name) for name in setting.rules),
            (extensions.SELECTIONS, setting.selection),
            (extensions.AGGREGATIONS, setting.aggregation),
        ]
    )
    return [Cell("arena", {**parameters, "seed": seed}) for seed in setting.seeds]


def arena_cell(parameters: Record, device: str) -> Record:
    """All rounds of one seed, on the CPU: `ArenaResult.record`."""
    given: Record = {n: tuple(v) if isinstance(v, list) else v for n, v in parameters.items()}
    del given["extensions"]
    setting = ArenaSetting(seeds=(given.pop("seed"),), **given)
    result = ArenaResult(setting)
    run = _SeedRun(setting, make_population(setting, parameters["seed"]))
    for round_ in range(1, setting.rounds + 1):
        run.play(round_, result)
    return result.record()


def _check_store(setting: ArenaSetting, store: CellStore) -> None:
    """Raises ExperimentError where the store has a seed that was not run as `setting` says."""
    for path, parameters in store.of_kind("arena"):
        (expected,) = arena_cells(replace(setting, seeds=(parameters.get("seed", 0),)))
        if path.stem == expected.key:
            continue
        asked = json.loads(json.dumps(expected.parameters))
        other = [
            f"{k} {parameters.get(k)!r} in place of {v!r}" for k, v in asked.items() if parameters.get(k) != v
        ]
        raise ExperimentError(
            f"{path} was computed with {', '.join(other) or 'another version of the arena'}; "
            "name another folder, or delete it"
        )


@dataclass(frozen=True)
class _Honest:
    """A round with everyone honest: models, submissions, settlements and utilities by rule."""

    optimal: Mapping[str, Model]
    idle: Mapping[str, Model]
    submissions: Mapping[str, Submission]
    found: Mapping[str, Sequence[Assessment]]
    utilities: Mapping[str, Mapping[str, float]]
    accuracy: float


class _SeedRun:
    """One seed's rounds."""

    def __init__(self, setting: ArenaSetting, population: Population) -> None:
        self._setting = setting
        self._population = population
        self._evidence = ShadowEvidence(
            population.evidence,
            population.seed,
            shadows=setting.shadows,
            later=later_shadows(setting.shadows),
        )
        self._start: Model = population.workload.build(population.seed)
        self._broadcasts: list[Broadcast] = []
        self._spoilt: dict[str, bool] = {}

    def play(self, round_: int, result: ArenaResult) -> None:
        ensemble = self._evidence.prepare(self._start, round_, self._broadcasts)
        table = self._evidence.measurements(ensemble, self._broadcasts)
        honest = self._honest_round(round_, table)
        self._record_honest(round_, honest, table, result)
        traders = self._population.traders
        attackers = self._setting.attackers
        for attacker in traders[:: max(1, len(traders) // attackers)][:attackers]:
            for name in self._setting.attacks:
                attack = attack_named(name)
                if attack.needs_history and not self._broadcasts:
                    continue
                self._fight(round_, attacker, attack, honest, table, result)
        self._spoilt = self._spoilt_peers(round_, honest)
        samples, plain = self._population.recipe.samples, self._setting.aggregation == "mean"
        merged = {name: (model, samples) for name, model in honest.optimal.items()}
        self._broadcasts.append(Broadcast(f"round {round_}", self._start, merged, plain))
        self._start = self._aggregated(list(honest.optimal.values()))

    def _honest_round(self, round_: int, table: RoundMeasurements) -> _Honest:
        population, traders = self._population, self._population.traders
        seeds = [int(s) for s in population.generator.integers(2**31, size=2 * len(traders))]
        samples = [population.samples(t.optimal) for t in traders]
        samples += [population.samples(t.start) for t in traders]
        models = train_all(population.workload, self._start, samples, population.recipe, seeds)
        optimal = {t.name: m for t, m in zip(traders, models, strict=False)}
        idle = {t.name: m for t, m in zip(traders, models[len(traders) :], strict=True)}
        submissions = {
            t.name: self._measured(table, Entry(t.name, optimal[t.name], t.optimal.degree), order=k)
            for k, t in enumerate(traders)
        }
        chosen = self._selected(list(submissions.values()))
        found = {r: assessments_under(r, table, chosen) for r in self._setting.rules}
        utilities = {}
        for rule, assessments in found.items():
            income = _incomes(self._settled(rule, round_, assessments))
            utilities[rule] = {t.name: income.get(t.name, 0.0) - t.spent(t.optimal) for t in traders}
        return _Honest(optimal, idle, submissions, found, utilities, self._accuracy(list(optimal.values())))

    def _record_honest(
        self, round_: int, honest: _Honest, table: RoundMeasurements, result: ArenaResult
    ) -> None:
        """Degrees and refusals of the honest; those that make no effort count, too, in a round of their own."""
        traders = self._population.traders
        seed = self._population.seed
        for rule, assessments in honest.found.items():
            by_id = {a.participant_id: a for a in assessments}
            result.honest += [
                HonestRound.of(rule, seed, round_, float(t.optimal.degree), by_id[t.name])
                for t in traders
                if t.name in by_id
            ]
        if "verified" not in honest.found:
            return
        idle = [
            self._measured(table, Entry(f"{t.name}-idle", honest.idle[t.name], t.start.degree), order=k)
            for k, t in enumerate(traders)
        ]
        result.honest += [
            HonestRound.of("verified", seed, round_, float(trader.start.degree), assessment)
            for trader, assessment in zip(traders, assessments_under("verified", table, idle), strict=True)
        ]

    def _fight(
        self,
        round_: int,
        attacker: Trader,
        attack: Attack,
        honest: _Honest,
        table: RoundMeasurements,
        result: ArenaResult,
    ) -> None:
        position = self._position(round_, attacker, attack, honest)
        entries = attack.play(position)
        heads = [e.name for e in entries if e.head is not None]
        renamed = {e.name: f"{e.name}.{attack.name}" for e in entries}
        attacking = [
            self._measured(table, replace(e, name=renamed[e.name]), order=100 + i)
            for i, e in enumerate(entries)
            if e.model
        ]
        others = [s for name, s in honest.submissions.items() if name not in heads]
        submissions = self._selected(others + attacking)
        for rule in self._setting.rules:
            found = assessments_under(rule, table, submissions)
            income = _incomes(self._settled(rule, round_, found))
            earned = sum(income.get(s.participant_id, 0.0) for s in attacking) - attack.spent(position)
            own = [a for a in found if a.participant_id in set(renamed.values())]
            accepted = [a.participant_id for a in found if a.scored and a.multiplier_ppm]
            by_id = {s.participant_id: s for s in submissions}
            kept = [by_id[name].weights() for name in accepted]
            result.fights.append(
                Fight(
                    rule=rule,
                    attack=attack.name,
                    seed=self._population.seed,
                    round=round_,
                    attacker=attacker.name,
                    utility=earned / len(heads),
                    honest=float(np.mean([honest.utilities[rule][name] for name in heads])),
                    caught=any(not v.passed for a in own for v in a.verdicts),
                    accuracy_lost=honest.accuracy - self._accuracy(kept),
                )
            )

    def _position(self, round_: int, attacker: Trader, attack: Attack, honest: _Honest) -> Position:
        others = sorted(
            (t for t in self._population.traders if t is not attacker), key=lambda t: t.optimal.degree
        )
        digest = hashlib.sha256(f"{attack.name}/{attacker.name}".encode()).digest()
        return Position(
            population=self._population,
            trader=attacker,
            others=others,
            start=self._start,
            history=[broadcast.weights() for broadcast in self._broadcasts],
            optimal=honest.optimal[attacker.name],
            idle=honest.idle[attacker.name],
            models=honest.optimal,
            round=round_,
            spoilt_peer=self._spoilt.get(attacker.name, False),
            generator=np.random.default_rng(
                [self._population.seed, round_, int.from_bytes(digest[:4], "big")]
            ),
        )

    def _spoilt_peers(self, round_: int, honest: _Honest) -> dict[str, bool]:
        """Who drew, as its one peer, somebody with a degree above the median in this round."""
        rule, found = next(iter(honest.found.items()))
        terms = self._population.terms
        one_peer = replace(terms, rule=replace(terms.rule, peers=1))
        settlement = settled(rule, one_peer, round_, _draw(f"peer {round_}", found), found)
        degree = {a.participant_id: a.verified_micro or 0 for a in found}
        median = float(np.median(list(degree.values())))
        return {p.participant_id: any(degree[q] > median for q in p.peers) for p in settlement.payments}

    def _measured(self, table: RoundMeasurements, entry: Entry, order: int) -> Submission:
        """The submission of an entry, which `table` has measured."""
        assert entry.model is not None
        submission = Submission(
            participant_id=entry.name,
            model=entry.model,
            model_sha256=hashlib.sha256(f"{entry.name} {weights_digest(entry.model)}".encode()).digest(),
            samples=self._population.recipe.samples,
            claimed_degree=entry.claimed,
            order=order,
            fault=entry.fault,
        )
        table.measure(submission)
        return submission

    def _settled(self, rule: str, round_: int, found: Sequence[Assessment]) -> Settlement:
        draw = _draw(f"{self._population.seed} {round_}", found)
        return settled(rule, self._population.terms, round_, draw, found)

    def _selected(self, submissions: list[Submission]) -> list[Submission]:
        """Those of participants that the selection lets train."""
        name = self._setting.selection
        if name == "all":
            return submissions
        claims = {s.participant_id: s.claimed_degree for s in submissions}
        chosen = set(extensions.extension(extensions.SELECTIONS, name)(self._population.terms, claims))
        if not chosen <= claims.keys() or len(chosen) < MIN_QUORUM:
            raise ExperimentError(
                f"the selection {name} gives {sorted(map(str, chosen))}; expected at least {MIN_QUORUM} of "
                f"{', '.join(sorted(claims))}"
            )
        return [s for s in submissions if s.participant_id in chosen]

    def _aggregated(self, models: Sequence[Model]) -> Model:
        samples = [self._population.recipe.samples] * len(models)
        name = self._setting.aggregation
        if name == "mean":
            return weighted_mean(models, samples)
        made: Model = extensions.extension(extensions.AGGREGATIONS, name)(models, samples)
        if _layout(made) != _layout(self._start):
            raise ExperimentError(
                f"the aggregation {name} gives a model of another layout: {_layout(made)}; expected names, shapes and "
                f"types as they came: {_layout(self._start)}"
            )
        return made

    def _accuracy(self, models: Sequence[Model]) -> float:
        """Of the models' mean on the test samples; of the start where there is none."""
        return self._population.goodness(self._aggregated(models) if models else self._start)


def _layout(model: Model) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each tensor, by name."""
    return {name: (np.shape(model[name]), str(np.asarray(model[name]).dtype)) for name in sorted(model)}


def _draw(label: str, found: Sequence[Assessment]) -> Draw:
    """The same for one label and the same submissions: a share comes of its participant's name."""
    names = [a.participant_id for a in found if a.model_sha256]
    shares = {name: hashlib.sha256(f"{label} {name}".encode()).digest() for name in names}
    return Draw(hashlib.sha256(label.encode()).digest(), shares)


def _incomes(settlement: Settlement) -> dict[str, float]:
    """What each takes out of a round, credits: paid, less the stake that it loses."""
    return {p.participant_id: (p.paid_micro - p.stake_lost_micro) / MICRO for p in settlement.payments}
