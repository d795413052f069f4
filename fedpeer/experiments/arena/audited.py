"""What audits by re-training find: how often they accuse honest participants, how often they find a trick, and what a
trick earns where they are drawn.

Everybody is measured twice by the round's evidence: v of what is submitted, v_r of a training by the recipe, with a
fresh seed, on the samples that are opened. An audit fails where v_r - v is beyond the conformal limit of shadows that
were trained twice (`mechanism.audit`). Honest participants have foreign mixes, as where accuracy is measured.

A trick has two things to commit to, and claims the degree of either:

    own     what was collected: then v_r shows its true degree, beside v
    made    what was trained on instead: then v_r is like v, and what stands against it are where samples come from, and
            how many are nearly the same

The auditor compares the submission on site with as many trainings on the opened samples as the rate asks for, too
(`fedpeer.learning.fidelity`), and the opened samples with D_c, as with true ones that it brings
(`fedpeer.learning.provenance`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedpeer.experiments.accuracy.trial import foreign_mix
from fedpeer.experiments.arena.attacks import Model
from fedpeer.experiments.arena.families import FAMILIES, Play, trained
from fedpeer.experiments.arena.results import bootstrap_interval
from fedpeer.experiments.arena.setting import ArenaSetting, Trader
from fedpeer.experiments.arena.stage import Stage, stages
from fedpeer.experiments.cells import Cell, CellStore, Record, run_cells
from fedpeer.experiments.statistics import LEVEL
from fedpeer.learning.duplicates import Duplicates, duplicates
from fedpeer.learning.fidelity import comparisons, is_farthest
from fedpeer.learning.partition import LabelMix
from fedpeer.learning.provenance import Compared, compare
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.protocol import train_all
from mechanism.audit import conformal_limit, deterrence, least_probability
from mechanism.degree import noniid_degree

#: The tricks: a family and the values at which a search has found it best on digits, or its usual ones. It claims the
#: degree of what it opens.
TRICKS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "repeat": ("repeat", {"effort": 0.444, "strength": 0.99, "epochs": 1.164, "size": 0.962}),
    "synthesise": (
        "synthesise", {"effort": 0.622, "strength": 0.96, "spread": 0.48, "epochs": 1.33, "size": 1.0},
    ),
    "interpolate": ("interpolate", {}),
    "augment": ("augment", {}),
    "public": ("public", {}),
    "length": ("length", {"effort": 0.63, "epochs": 1.75, "size": 1.1}),
    "copy": ("copy", {"weight": 1.0, "noise": 0.0}),
    "step": ("copy", {"weight": 0.15, "noise": 0.0}),
    "halves": ("parts", {"trainings": 1}),
    "halves-mean": ("parts", {"trainings": 4}),
    "halves-step": ("parts", {"trainings": 1, "step": 0.15}),
}  # fmt: skip

#: Of audits that are measured; and how many trainings on site that takes.
RATE = Fraction(1, 20)
_AGAIN = comparisons(RATE)

#: Of a bootstrap.
_RESAMPLES = 2_000


@dataclass(frozen=True)
class AuditedSetting:
    """What is measured.

    Attributes:
        dataset, participants, attackers, rounds, shadows: as `ArenaSetting`.
        honest: honest participants of each start.
    """

    dataset: str
    participants: int = 8
    attackers: int = 4
    honest: int = 16
    rounds: int = 2
    shadows: int = 100


def audited_cells(setting: AuditedSetting, seeds: Iterable[int]) -> list[Cell]:
    """One cell a start."""
    return [
        Cell("audited", {**asdict(setting), "rounds": round_, "seed": seed}, seed)
        for seed in seeds
        for round_ in range(1, setting.rounds + 1)
    ]


def audited_cell(parameters: Record, device: str) -> Record:
    """Of the start of the last round: {"differences", "honest", "tricks"}, what `summary` is of."""
    given = dict(parameters)
    seed, honest = int(given.pop("seed")), int(given.pop("honest"))
    arena = ArenaSetting(rules=("verified",), attacks=(), seeds=(), **given)
    *_, stage = stages(arena, seed)
    return _start(stage, honest)


def _start(stage: Stage, honest: int) -> Record:
    def audit(
        submitted: Sequence[Model], opened: Sequence[Samples], seeds: Sequence[int], own: bool = True
    ) -> Record:
        """v and v_r of each submission, whether it is the farthest from what the opened samples give, whether these are
        unlike D_c, and counts.

        Args:
            own: what is opened may not be what was trained on; else the first has nothing to find, at the rate.
        """
        task, ensemble = stage.population.evidence, stage.shadows.ensemble
        again = _AGAIN if own else 1
        audited: dict[int, tuple[Sequence[Model], Duplicates, Compared]] = {}
        for samples, seed in zip(opened, seeds, strict=True):
            if id(samples) not in audited:
                seconds = range(seed, seed + again)
                audited[id(samples)] = (
                    train_all(task.workload, stage.start, [samples] * again, task.recipe, seconds),
                    duplicates(samples),
                    compare(
                        samples, samples.targets, task.validation, task.codes, np.random.default_rng(seed)
                    ),
                )
        trained, counts, beside = zip(*(audited[id(samples)] for samples in opened), strict=True)
        return {
            "submitted": [ensemble.measure(model).degree_micro for model in submitted],
            "retrained": [ensemble.measure(models[0]).degree_micro for models in trained],
            "farthest": [
                own and is_farthest(task.workload, *each)
                for each in zip(submitted, trained, opened, strict=True)
            ],
            "unlike": [each.p <= RATE for each in beside],
            "distinct": [round(each.distinct / each.samples, 4) for each in counts],
            "near": [round(each.near / each.samples, 4) for each in counts],
        }

    return {
        "differences": list(stage.differences()),
        "honest": _honest(stage, audit, honest),
        "tricks": {
            name: [_unit(stage, audit, attacker, name) for attacker in stage.attackers] for name in TRICKS
        },
    }


class _Auditing(Protocol):
    def __call__(
        self,
        submitted: Sequence[Model],
        opened: Sequence[Samples],
        seeds: Sequence[int],
        own: bool = True,
    ) -> Record: ...


def _honest(stage: Stage, audit: _Auditing, count: int) -> Record:
    population = stage.population
    generator = np.random.default_rng([population.seed, stage.round, 13])
    mixes: list[LabelMix] = []
    supply = np.bincount(population.pool_codes, minlength=len(population.reference))
    while len(mixes) < count:  # of so many true samples: what is repeated is made up
        mix = foreign_mix(len(mixes), population.reference, population.recipe.samples, generator)
        mixes += [mix] * bool((supply >= mix.counts).all())
    samples = [population.samples(mix, generator) for mix in mixes]
    first, second = ([int(seed) for seed in generator.integers(2**31, size=count)] for _ in range(2))
    models = train_all(population.workload, stage.start, samples, population.recipe, first)
    return {"degree": [float(mix.degree) for mix in mixes], **audit(models, samples, second)}


def _unit(stage: Stage, audit: _Auditing, attacker: Trader, name: str) -> Record:
    """One trick in one round, committed to either."""
    family = FAMILIES[TRICKS[name][0]]
    values = {**family.usual(), **TRICKS[name][1], "claim": 1.0}
    position = stage.position(attacker, name)
    play = family.play(position, values)
    [own] = play.honest
    seeds = [int(seed) for seed in position.generator.integers(2**31, size=len(play.entries))]
    models = [entry.model for entry in play.entries if entry.model is not None]
    honestly = stage.play(
        [replace(play.entries[0], model=trained(position, own.samples, {}), claimed=own.mix.degree)]
    )["verified"]
    record: Record = {
        "attacker": attacker.name,
        "honest": stage.honest.utilities["verified"][attacker.name],
        "same": honestly.earned - play.spent,
        "own": _committed(stage, audit, play, models, [own.samples] * len(models), seeds),
    }
    if play.made:
        record["made"] = _committed(stage, audit, play, models, play.made, seeds)
    return record


def _committed(
    stage: Stage,
    audit: _Auditing,
    play: Play,
    models: Sequence[Model],
    opened: Sequence[Samples],
    seeds: Sequence[int],
) -> Record:
    """What the trick earns that opens these samples and claims their degree, and what its audits find."""
    reference = stage.population.reference
    degrees = [
        noniid_degree(np.bincount(each.targets, minlength=len(reference)).tolist(), reference)
        for each in opened
    ]
    outcome = stage.play(
        [replace(entry, claimed=degree) for entry, degree in zip(play.entries, degrees, strict=True)]
    )["verified"]
    return {
        "earned": outcome.earned,
        "utility": outcome.earned - play.spent,
        "failed": list(outcome.failed),
        **audit(models, opened, seeds, opened is not play.made),
    }


def run_audited(
    setting: AuditedSetting,
    seeds: Sequence[int],
    store: CellStore,
    executor: Executor,
    done: Callable[[Cell, float], None] = lambda cell, seconds: None,
) -> dict[str, Any]:
    """The starts that `store` lacks; the JSON object of all: `summary`.

    Raises:
        CellError: a start failed; the others are kept.
    """
    cells = audited_cells(setting, seeds)
    found = run_cells(cells, store, executor, done=done)
    starts = [(int(cell.parameters["seed"]), found[cell.key]) for cell in cells]
    places = [[cell.parameters["seed"], cell.parameters["rounds"]] for cell in cells]
    return {**asdict(setting), "starts": places, **summary(starts)}


@dataclass(frozen=True)
class AuditTerms:
    """Under which terms a trick is held against audits; as of `mechanism.audit`.

    Attributes:
        power: that the operator assumes of one audit where it sets q; rounds: T; stake: S, credits.

    Who fails appeals, and is convicted where a second audit fails, too: by the square of either probability.
    """

    rate: Fraction = RATE
    power: float = 0.95
    held_back: float = 0.5
    stake: float = 0.5
    rounds: int = 10

    @property
    def accused(self) -> float:
        """alpha, at most: by any comparison, and by both audits."""
        return float((len(_FINDINGS) - 1) * self.rate) ** 2

    def lost(self, q: float, power: float, pay: float) -> float:
        """D(T) / T, credits a round, of a trick that one audit finds with `power`; what nothing tells from honesty is
        accused as honesty is."""
        found = max(power**2, self.accused)
        return deterrence(q, found, self.accused, pay, self.held_back, self.stake, self.rounds) / self.rounds


#: What an audit may find: another degree than the submission's, another training than that of the opened samples, other
#: samples than true ones; any of them.
_FINDINGS = ("degree", "training", "origin", "any")

_Start = tuple[int, Record]


def summary(starts: Sequence[_Start], terms: AuditTerms = AuditTerms()) -> dict[str, Any]:
    """{"audits": {...}, "honest": {...}, "tricks": {T: {"own": {...}, "made": {...}}}}, of (seed, start).

    Audits are drawn with the least probability at which no trick pays that gains as the best does, whatever it opens,
    and is found with the assumed power (`fedpeer calibrate --audit-gain`): the best of one identity, and
    of groups, too. What a trick is expected to gain then is its gain less D(T) / T for each identity, at the power
    that is measured; intervals are bootstraps over (seed, attacker), in which gains and findings move together.
    """
    units = {
        name: [(seed, start, unit) for seed, start in starts for unit in start["tricks"][name]]
        for name in TRICKS
    }
    pay = float(np.mean([unit["honest"] for _, _, unit in units["repeat"]]))
    gains = [
        (
            len(each[0][2][kind]["submitted"]),
            float(np.mean([unit[kind]["utility"] - unit["honest"] for _, _, unit in each])),
        )
        for each in units.values()
        for kind in ("own", "made")
        if kind in each[0][2]
    ]
    drawn = {
        name: least_probability(
            max(0.0, *(gain / identities for identities, gain in gains if identities <= most)),
            terms.power**2,
            terms.accused,
            pay,
            terms.held_back,
            terms.stake,
            terms.rounds,
        )
        for name, most in (("single", 1), ("groups", 99))
    }
    honest = [(start, start["honest"]) for _, start in starts]
    return {
        "audits": {**asdict(terms), "rate": str(terms.rate), "pay": round(pay, 3), "probability": drawn},
        "honest": {
            **{
                name: _share([f for start, each in honest for f in _found(start, each, name, terms.rate)])
                for name in _FINDINGS
            },
            **_counted([each for _, each in honest]),
        },
        "tricks": {
            name: {
                kind: _figures(kind, each, terms, pay, drawn)
                for kind in ("own", "made")
                if kind in each[0][2]
            }
            for name, each in units.items()
        },
    }


def _found(start: Record, audited: Record, finding: str, rate: Fraction) -> list[bool]:
    """Of each audit."""
    if finding == "any":
        return [
            any(each) for each in zip(*(_found(start, audited, n, rate) for n in _FINDINGS[:-1]), strict=True)
        ]
    if finding != "degree":
        return list(audited["farthest" if finding == "training" else "unlike"])
    limit = conformal_limit(start["differences"], rate)
    pairs = zip(audited["submitted"], audited["retrained"], strict=True)
    return [limit is not None and again - shown > limit for shown, again in pairs]


def _share(found: Sequence[bool]) -> dict[str, Any]:
    """How many of how many, with the Clopper-Pearson interval of the share."""
    interval = stats.binomtest(sum(found), len(found)).proportion_ci(LEVEL, method="exact")
    ends = [round(float(interval.low), 4), round(float(interval.high), 4)]
    return {"failed": sum(found), "of": len(found), "ci": ends}


def _counted(audited: Sequence[Record]) -> dict[str, float]:
    """What the auditor counts, over all samples; means."""
    return {
        name: round(float(np.mean([x for each in audited for x in each[name]])), 3)
        for name in ("distinct", "near")
    }


def _figures(
    kind: str,
    units: Sequence[tuple[int, Record, Record]],
    terms: AuditTerms,
    pay: float,
    drawn: Mapping[str, float | None],
) -> dict[str, Any]:
    """Of one trick that opens one thing; findings are counted per identity."""
    found = {
        name: [_found(start, unit[kind], name, terms.rate) for _, start, unit in units] for name in _FINDINGS
    }
    of: dict[tuple[int, str], list[list[float]]] = {}
    for row, (seed, _, unit) in enumerate(units):
        gains = [unit[kind]["utility"] - unit[against] for against in ("honest", "same")]
        of.setdefault((seed, unit["attacker"]), []).append([*gains, float(np.mean(found["any"][row]))])
    means = np.array([np.mean(each, axis=0) for each in of.values()])
    identities = len(units[0][2][kind]["submitted"])
    paid = min(pay, float(np.mean([unit[kind]["earned"] for _, _, unit in units])) / identities)

    def audited(rows: npt.NDArray[np.float64], q: float) -> float:
        gain, _, power = rows.mean(axis=0)
        return float(gain - identities * terms.lost(q, power, paid))

    figures: dict[str, Any] = {
        **{name: _share([one for each in found[name] for one in each]) for name in _FINDINGS},
        **_counted([unit[kind] for _, _, unit in units]),
        "screens": dict(sorted(Counter(x for _, _, unit in units for x in unit[kind]["failed"]).items())),
        "units": len(means),
    }
    for name, column in (("gain", 0), ("same", 1)):
        figures[name] = round(float(means[:, column].mean()), 3)
        figures[f"{name}_ci"] = [round(x, 3) for x in bootstrap_interval(means[:, column])]
    generator = np.random.default_rng(len(means))
    resamples = generator.integers(len(means), size=(_RESAMPLES, len(means)))
    for name, q in drawn.items():
        again = [audited(means[rows], 1.0 if q is None else q) for rows in resamples]
        ends = np.quantile(again, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
        figures[f"audited_{name}"] = round(audited(means, 1.0 if q is None else q), 3)
        figures[f"audited_{name}_ci"] = [round(x, 3) for x in ends]
    return figures
