"""The best that an optimiser finds in a family of attacks, and what it is worth where it was not searched.

A search is SciPy's differential evolution over the family's parameters, from its usual point and a Latin hypercube. The
value of a point is the mean advantage over an honest participant at its best response, on the search's own seeds: the
same chance at every point, so that two points differ by their values alone. The best is then played on fresh seeds,
with other data, shadows and participants, against two honest ones: the best response, and honesty on the data that the
attack has collected.

The search is made under the first rule. Of the other rules the best of the same points is taken, which is no search of
theirs: what it gains there is the least that a search would.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import differential_evolution
from scipy.stats import qmc

from fedpeer.experiments.arena.attacks import Entry
from fedpeer.experiments.arena.families import FAMILIES, Family, Play, trained
from fedpeer.experiments.arena.results import bootstrap_interval
from fedpeer.experiments.arena.setting import ArenaSetting, Trader
from fedpeer.experiments.arena.stage import Outcome, Stage, stages
from fedpeer.experiments.cells import Cell, CellStore, Record, run_cells

#: Points of a generation.
POPULATION = 8

#: Seeds of a search begin here, where no reported one is.
_SEARCHED = 1_000

#: Seeds whose starts one process remembers: those of a search and of its report.
_REMEMBERED = 12


@dataclass(frozen=True)
class SearchSetting:
    """What a search covers.

    Attributes:
        dataset, rules, participants, rounds, shadows: as `ArenaSetting`; the search is made under the first rule.
        attackers: of a reported seed; half as many take the part in the search.
        budget: points that are looked at, at least `POPULATION`.
        searched: how many seeds they are looked at on; seeds: reported ones.
    """

    dataset: str
    rules: tuple[str, ...]
    participants: int = 8
    attackers: int = 8
    rounds: int = 2
    shadows: int = 100
    budget: int = 40
    searched: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)

    def arena(self, *, search: bool) -> ArenaSetting:
        return ArenaSetting(
            dataset=self.dataset,
            rules=self.rules,
            attacks=(),
            participants=self.participants,
            attackers=max(1, self.attackers // 2) if search else self.attackers,
            rounds=self.rounds,
            seeds=(),
            shadows=self.shadows,
        )


@dataclass(frozen=True)
class Unit:
    """One play on a fresh start; credits, per attacking head.

    Attributes:
        utility: of the attack; honest: of the best response; same: of honesty on the data that it collected.
        caught: whether a screen failed.
    """

    seed: int
    round: int
    attacker: str
    utility: float
    honest: float
    same: float
    caught: bool


def search_cells(setting: SearchSetting, families: Sequence[str]) -> list[Cell]:
    """One cell a family."""
    return [
        Cell("search", {**asdict(setting), "family": name}, priority)
        for priority, name in enumerate(families)
    ]


def search_cell(parameters: Record, device: str) -> Record:
    """Every point with its advantages, and by rule the best one's values and units on fresh starts."""
    given: Record = {n: tuple(v) if isinstance(v, list) else v for n, v in parameters.items()}
    family = FAMILIES[given.pop("family")]
    setting = SearchSetting(**given)
    ground = setting.arena(search=True)
    fought = [
        (stage, attacker)
        for seed in range(_SEARCHED, _SEARCHED + setting.searched)
        for stage in _stages(ground, seed)
        for attacker in stage.attackers
    ]
    points = _points(family, setting, lambda values: _advantages(family, values, fought))
    best: Record = {}
    for rule in setting.rules:
        point = max(points, key=lambda p: p["advantages"][rule])
        best[rule] = {
            "values": point["values"],
            "searched": point["advantages"][rule],
            "units": [asdict(unit) for unit in _units(family, point["values"], rule, setting)],
        }
    return {"points": points, "best": best}


@lru_cache(maxsize=_REMEMBERED)
def _stages(setting: ArenaSetting, seed: int) -> tuple[Stage, ...]:
    return tuple(stages(setting, seed))


def _points(
    family: Family, setting: SearchSetting, advantages: Callable[[dict[str, float]], dict[str, float]]
) -> list[Record]:
    """What was looked at, in order."""
    points: list[Record] = []

    def loss(x: npt.NDArray[np.float64]) -> float:
        values = {
            p.name: float(round(v) if p.whole else v) for p, v in zip(family.parameters, x, strict=True)
        }
        found = advantages(values)
        points.append({"values": values, "advantages": found})
        return -found[setting.rules[0]]

    low, high = (np.array([getattr(p, end) for p in family.parameters]) for end in ("low", "high"))
    drawn = qmc.LatinHypercube(len(low), rng=np.random.default_rng(0)).random(POPULATION - 1)
    usual = np.array([p.usual for p in family.parameters])
    differential_evolution(
        loss,
        list(zip(low, high, strict=True)),
        init=np.vstack([usual, low + drawn * (high - low)]),
        maxiter=max(0, setting.budget // POPULATION - 1),
        integrality=[p.whole for p in family.parameters],
        tol=0,
        polish=False,
        rng=np.random.default_rng(0),
    )
    return points


def _play(family: Family, values: dict[str, float], stage: Stage, attacker: Trader) -> Play:
    return family.play(stage.position(attacker, family.name), values)


def _advantages(
    family: Family, values: dict[str, float], fought: Sequence[tuple[Stage, Trader]]
) -> dict[str, float]:
    """Over the best response, by rule; means over stages and attackers."""
    found: list[dict[str, float]] = []
    for stage, attacker in fought:
        play = _play(family, values, stage, attacker)
        found.append(
            {
                rule: _utility(outcome, play) - _honest(stage, rule, play)
                for rule, outcome in stage.play(play.entries).items()
            }
        )
    return {rule: float(np.mean([each[rule] for each in found])) for rule in found[0]}


def _units(family: Family, values: dict[str, float], rule: str, setting: SearchSetting) -> Iterator[Unit]:
    for seed in setting.seeds:
        for stage in _stages(setting.arena(search=False), seed):
            for attacker in stage.attackers:
                position = stage.position(attacker, family.name)
                play = family.play(position, values)
                names = [e.name for e in play.entries if e.head is not None]
                same = [
                    Entry(name, trained(position, own.samples, {}), own.mix.degree)
                    for name, own in zip(names, play.honest, strict=True)
                ]
                outcome = stage.play(play.entries, (rule,))[rule]
                yield Unit(
                    seed=seed,
                    round=stage.round,
                    attacker=attacker.name,
                    utility=_utility(outcome, play),
                    honest=_honest(stage, rule, play),
                    same=_utility(stage.play(same, (rule,))[rule], play),
                    caught=outcome.caught,
                )


def _utility(outcome: Outcome, play: Play) -> float:
    return (outcome.earned - play.spent) / len(play.honest)


def _honest(stage: Stage, rule: str, play: Play) -> float:
    utilities = stage.honest.utilities[rule]
    return float(np.mean([utilities[e.name] for e in play.entries if e.head is not None]))


def run_searches(
    setting: SearchSetting,
    families: Sequence[str],
    store: CellStore,
    executor: Executor,
    done: Callable[[Cell, float], None] = lambda cell, seconds: None,
) -> dict[str, Any]:
    """Searches that `store` lacks, side by side; the JSON object of all: `summary`.

    Raises:
        CellError: a search failed; the others are kept.
    """
    cells = search_cells(setting, families)
    found = run_cells(cells, store, executor, done=done)
    return summary(setting, {cell.parameters["family"]: found[cell.key] for cell in cells})


def summary(setting: SearchSetting, found: dict[str, Record]) -> dict[str, Any]:
    """{"families": {F: {"evaluations", "rules": {R: {"values", "searched", "advantage", "ci", ...}}}}, ...}.

    Advantages are means over (seed, attacker), of which rounds are no units of their own, with bootstrap intervals.
    """
    return {
        **asdict(setting),
        "families": {
            name: {
                "evaluations": len(record["points"]),
                "rules": {rule: _figures(best) for rule, best in record["best"].items()},
            }
            for name, record in found.items()
        },
    }


def _figures(best: Record) -> dict[str, Any]:
    units = [Unit(**unit) for unit in best["units"]]
    figures: dict[str, Any] = {
        "values": {name: round(value, 3) for name, value in best["values"].items()},
        "searched": round(best["searched"], 3),
    }
    for name, against in (("", "honest"), ("same_", "same")):
        gains: dict[tuple[int, str], list[float]] = {}
        for unit in units:
            gains.setdefault((unit.seed, unit.attacker), []).append(unit.utility - getattr(unit, against))
        means = np.array([np.mean(each) for each in gains.values()])
        figures[f"{name}advantage"] = round(float(means.mean()), 3)
        figures[f"{name}ci"] = [round(x, 3) for x in bootstrap_interval(means)]
    figures["units"] = len(means)
    for name in ("utility", "honest", "same", "caught"):
        figures[name] = round(float(np.mean([getattr(unit, name) for unit in units])), 3)
    return figures
