"""Rounds of honest participants, and of one attacker among them.

Every seed has its own data split, population and shadows. A round is settled once with everyone honest; then, for
each attacker and attack, once more with the attacker's entries in place of its honest one. The difference of the two
is the attack's advantage: the same data, peers and models on both sides. The next round starts from the honest
aggregate, so that every attack meets the same market. A seed is a cell (`fedpeer.experiments.cells`): kept once it is
done, and computed beside others.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, replace

import numpy as np

from fedpeer import extensions
from fedpeer.experiments.arena.attacks import Attack, attack_named
from fedpeer.experiments.arena.results import ArenaResult, Fight, HonestRound
from fedpeer.experiments.arena.setting import ArenaSetting, Trader
from fedpeer.experiments.arena.stage import Stage, stages
from fedpeer.experiments.cells import Cell, CellStore, Record, run_cells
from fedpeer.experiments.errors import ExperimentError


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
    for stage in stages(setting, parameters["seed"]):
        _record_honest(stage, result)
        for attacker in stage.attackers:
            for name in setting.attacks:
                attack = attack_named(name)
                if stage.broadcasts or not attack.needs_history:
                    result.fights += _fights(stage, attacker, attack)
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


def _record_honest(stage: Stage, result: ArenaResult) -> None:
    """Degrees and refusals of the honest; those that make no effort count, too, in a round of their own."""
    traders, seed = stage.population.traders, stage.population.seed
    optimal, idle = stage.honest.holders, stage.honest.idle_holders
    for rule, assessments in stage.honest.found.items():
        by_id = {a.participant_id: a for a in assessments}
        result.honest += [
            HonestRound.of(rule, seed, stage.round, float(t.optimal.degree), optimal[t.name], by_id[t.name])
            for t in traders
            if t.name in by_id
        ]
    if "verified" in stage.honest.found:
        result.honest += [
            HonestRound.of(
                "verified", seed, stage.round, float(trader.start.degree), idle[trader.name], assessment
            )
            for trader, assessment in zip(traders, stage.assessed_idle(), strict=True)
        ]


def _fights(stage: Stage, attacker: Trader, attack: Attack) -> Iterator[Fight]:
    """One a rule."""
    position = stage.position(attacker, attack.name)
    entries = attack.play(position)
    heads = [e.name for e in entries if e.head is not None]
    spent = attack.spent(position)
    for rule, outcome in stage.play(entries).items():
        yield Fight(
            rule=rule,
            attack=attack.name,
            seed=stage.population.seed,
            round=stage.round,
            attacker=attacker.name,
            utility=(outcome.earned - spent) / len(heads),
            honest=float(np.mean([stage.honest.utilities[rule][name] for name in heads])),
            caught=bool(outcome.failed),
            accuracy_lost=stage.accuracy - stage.goodness(outcome.kept),
        )
