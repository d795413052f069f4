"""The best that an optimiser finds in a family of attacks, and what it is worth where it was not searched.

A search is SciPy's differential evolution over the family's parameters. It begins with the family's usual point, some
around it, and a Latin hypercube. The value of a point is the mean advantage over an honest participant at its best
response, under the first rule, on the search's own seeds: the same chance at every point, so that two points differ by
their values alone. The best few of them are looked at on another seed, too, so that none is taken for its luck. What is
then the best is played on fresh seeds, with other data, shadows and participants, against two
honest ones: the best response, and honesty on the data that the attack has collected. What the other rules pay for the
same play is printed beside it: the least that a search under them would find.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, differential_evolution
from scipy.stats import qmc

from fedpeer.experiments.arena.attacks import AttackSubmission
from fedpeer.experiments.arena.families import FAMILIES, Family, Play, trained
from fedpeer.experiments.arena.results import bootstrap_interval
from fedpeer.experiments.arena.setting import ArenaSetting, Trader
from fedpeer.experiments.arena.stage import RuleOutcome, Stage, stages
from fedpeer.experiments.cells import Cell, CellStore, Record, run_cells

#: Points of a generation; of the first, those around the usual one, and how far off, over each range.
POPULATION, _NEAR, _SPREAD = 8, 3, 0.15

#: What differential evolution multiplies differences by, drawn anew each generation: below SciPy's default, as a budget
#: of few generations has no time to come back from far.
_MUTATION = (0.2, 0.7)

#: Points that are looked at on every seed of a search.
_FEW = 5

#: Seeds of a search begin here, where no reported one is.
_SEARCHED = 1_000

#: Seeds whose starts one process remembers: those of a search and of its report.
_REMEMBERED = 12


@dataclass(frozen=True)
class SearchSetting:
    """What a search covers.

    Attributes:
        dataset, rules, participants, rounds, shadows, tricked: as `ArenaSetting`; the first rule is searched under.
        attackers: of a reported seed; half as many take the part in the search.
        budget: points that are looked at, at least `POPULATION`; 0: none, and the usual point is played.
        searched: seeds of the search: the first for every point, all for the best few; seeds: reported ones.
    """

    dataset: str
    rules: tuple[str, ...]
    participants: int = 8
    attackers: int = 8
    rounds: int = 2
    shadows: int = 100
    tricked: float = 0.0
    budget: int = 40
    searched: int = 2
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
            tricked=self.tricked,
        )


@dataclass(frozen=True)
class Unit:
    """One play on a fresh start under one rule; credits, per attacking head.

    Attributes:
        utility: of the attack; honest: of the best response; same: of honesty on the data that it collected.
        failed: the screens that it fails.
    """

    rule: str
    seed: int
    round: int
    attacker: str
    utility: float
    honest: float
    same: float
    failed: tuple[str, ...]


def search_cells(setting: SearchSetting, families: Sequence[str]) -> list[Cell]:
    """One cell a family."""
    return [
        Cell("search", {**asdict(setting), "family": name}, priority)
        for priority, name in enumerate(families)
    ]


def search_cell(parameters: Record, device: str) -> Record:
    """Every point with its advantage under the first rule, in order; the best one's values, and its units."""
    given: Record = {n: tuple(v) if isinstance(v, list) else v for n, v in parameters.items()}
    family = FAMILIES[given.pop("family")]
    setting = SearchSetting(**given)
    if not setting.budget:
        usual = family.usual()
        units = [asdict(unit) for unit in _units(family, usual, setting)]
        return {"points": [], "values": usual, "searched": None, "units": units}
    ground, first = setting.arena(search=True), setting.rules[0]
    fought = [
        [(stage, attacker) for stage in _stages(ground, _SEARCHED + k) for attacker in stage.attackers]
        for k in range(setting.searched)
    ]
    points = search_points(
        family, setting.budget, lambda values: _advantage(family, values, first, fought[0])
    )
    few = sorted(points, key=lambda point: -point["advantage"])[:_FEW]
    for point in few:
        others = [_advantage(family, point["values"], first, each) for each in fought[1:]]
        point["searched"] = float(np.mean([point["advantage"], *others]))
    best = max(few, key=lambda point: point["searched"])
    units = [asdict(unit) for unit in _units(family, best["values"], setting)]
    return {"points": points, "values": best["values"], "searched": best["searched"], "units": units}


@lru_cache(maxsize=_REMEMBERED)
def _stages(setting: ArenaSetting, seed: int) -> tuple[Stage, ...]:
    return tuple(stages(setting, seed))


def search_points(
    family: Family, budget: int, advantage: Callable[[dict[str, float]], float]
) -> list[Record]:
    """What an optimiser looks at, in order: {"values", "advantage"}."""
    points: list[Record] = []

    def loss(x: npt.NDArray[np.float64]) -> float:
        values = {
            p.name: float(round(v) if p.whole else v) for p, v in zip(family.parameters, x, strict=True)
        }
        points.append({"values": values, "advantage": advantage(values)})
        return -float(points[-1]["advantage"])

    generator = np.random.default_rng(0)
    low, high, usual = (
        np.array([getattr(p, end) for p in family.parameters], dtype=np.float64)
        for end in ("low", "high", "usual")
    )
    near = usual + _SPREAD * (high - low) * generator.normal(size=(_NEAR, len(low)))
    far = qmc.LatinHypercube(len(low), rng=generator).random(POPULATION - 1 - _NEAR)
    differential_evolution(
        loss,
        Bounds(low, high),
        init=np.vstack([usual, np.clip(near, low, high), low + far * (high - low)]),
        maxiter=max(0, budget // POPULATION - 1),
        mutation=_MUTATION,
        integrality=[p.whole for p in family.parameters],
        tol=0,
        polish=False,
        rng=generator,
    )
    return points


def _advantage(
    family: Family, values: dict[str, float], rule: str, fought: Sequence[tuple[Stage, Trader]]
) -> float:
    """Over the best response; the mean over stages and attackers."""
    found = []
    for stage, attacker in fought:
        play = family.play(stage.position(attacker, family.name), values)
        outcome = stage.play(play.entries, (rule,), earned_alone=True)[rule]
        found.append(_utility(outcome, play) - _honest(stage, rule, play))
    return float(np.mean(found))


def _units(family: Family, values: dict[str, float], setting: SearchSetting) -> Iterator[Unit]:
    for seed in setting.seeds:
        for stage in _stages(setting.arena(search=False), seed):
            for attacker in stage.attackers:
                position = stage.position(attacker, family.name)
                play = family.play(position, values)
                names = [e.name for e in play.entries if e.head is not None]
                honestly = stage.play(
                    [
                        AttackSubmission(name, trained(position, own.samples, {}), own.mix.degree)
                        for name, own in zip(names, play.honest, strict=True)
                    ],
                    earned_alone=True,
                )
                for rule, outcome in stage.play(play.entries, earned_alone=True).items():
                    yield Unit(
                        rule=rule,
                        seed=seed,
                        round=stage.round,
                        attacker=attacker.name,
                        utility=_utility(outcome, play),
                        honest=_honest(stage, rule, play),
                        same=_utility(honestly[rule], play),
                        failed=outcome.failed,
                    )


def _utility(outcome: RuleOutcome, play: Play) -> float:
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
    """{"families": {F: {"evaluations", "values", "searched", "rules": {R: {"advantage", "ci", ...}}}}, ...}.

    Advantages are means over (seed, attacker), of which rounds are no units of their own, with bootstrap intervals.
    """
    return {**asdict(setting), "families": {name: _found(setting, record) for name, record in found.items()}}


def _found(setting: SearchSetting, record: Record) -> dict[str, Any]:
    units = [Unit(**unit) for unit in record["units"]]
    return {
        "evaluations": len(record["points"]),
        "values": {name: round(value, 3) for name, value in record["values"].items()},
        "searched": None if record["searched"] is None else round(record["searched"], 3),
        "rules": {rule: _figures([unit for unit in units if unit.rule == rule]) for rule in setting.rules},
    }


def _figures(units: Sequence[Unit]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, against in (("", "honest"), ("same_", "same")):
        gains: dict[tuple[int, str], list[float]] = {}
        for unit in units:
            gains.setdefault((unit.seed, unit.attacker), []).append(unit.utility - getattr(unit, against))
        means = np.array([np.mean(each) for each in gains.values()])
        figures[f"{name}advantage"] = round(float(means.mean()), 3)
        figures[f"{name}ci"] = [round(x, 3) for x in bootstrap_interval(means)]
        figures["units"] = len(means)
    for name in ("utility", "honest", "same"):
        figures[name] = round(float(np.mean([getattr(unit, name) for unit in units])), 3)
    figures["caught"] = round(float(np.mean([bool(unit.failed) for unit in units])), 3)
    figures["failed"] = dict(sorted(Counter(screen for unit in units for screen in unit.failed).items()))
    return figures
