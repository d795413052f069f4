"""`fedpeer arena --audits`: whom audits by re-training accuse, and what tricks earn where they are drawn."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fedpeer.cli.measuring import CellRun, chosen
from fedpeer.experiments.arena.audited import AuditedSetting, audited_cells, run_audited

#: Tasks whose strata are classes, which cost least.
AUDITED_TASKS = ("digits", "flights-mlp")


def measure_audits(
    tasks: Sequence[str], seeds: int, shadows: int, attackers: int, rounds: int, measurement: CellRun
) -> None:
    """Runs the seeds that are not finished; shows what they found and keeps it in audits.json.

    Raises:
        CommandError: no such task.
    """
    named = chosen("--task", tasks, AUDITED_TASKS, AUDITED_TASKS, "task of --audits")
    turning = min(attackers, AuditedSetting.participants)
    settings = [AuditedSetting(name, attackers=turning, rounds=rounds, shadows=shadows) for name in named]
    found: dict[str, dict[str, Any]] = measurement.run(
        "audits, starts",
        [cell for setting in settings for cell in audited_cells(setting, range(seeds))],
        lambda store, executor, done: {
            setting.dataset: run_audited(setting, range(seeds), store, executor, done) for setting in settings
        },
    )
    measurement.tell("audits", found, lambda: _print(found))


def _print(found: dict[str, dict[str, Any]]) -> None:
    for name, result in found.items():
        _print_task(name, result)


def _print_task(name: str, found: dict[str, Any]) -> None:
    console, audits = Console(), found["audits"]
    console.print(
        f"{name}: of honest participants an audit at a rate of {audits['rate']} accuses by degree "
        f"{_of(found['honest']['degree'])}, by training {_of(found['honest']['training'])}, by where "
        f"samples come from {_of(found['honest']['origin'])}, by any {_of(found['honest']['any'])}"
    )
    drawn = " and ".join("none" if q is None else f"{q:g}" for q in audits["probability"].values())
    table = Table(
        title=f"Tricks on {name}, credits a round; audits: drawn with {drawn}, a stake of {audits['stake']:g}, "
        f"{audits['held_back']:g} of the pay held back, {audits['rounds']} rounds",
        caption="gain: over the best response; same: over honesty on what was collected; found: by degree, training, "
        "where samples come from, any; opened: to the auditor; audited: drawn so that no single one gains, more often: "
        "that no group does",
    )
    for column in ("trick", "opened", "found", "gain", "same", "audited", "more often", "distinct", "near"):
        table.add_column(column)
    for trick, kinds in found["tricks"].items():
        for kind, v in kinds.items():
            table.add_row(
                trick,
                kind,
                ", ".join(f"{v[by]['failed']}" for by in ("degree", "training", "origin", "any"))
                + f" of {v['any']['of']}",
                *(
                    f"{v[key]:+.2f} [{v[f'{key}_ci'][0]:+.2f}, {v[f'{key}_ci'][1]:+.2f}]"
                    for key in ("gain", "same", "audited_single", "audited_groups")
                ),
                *(f"{v[key]:.2f}" for key in ("distinct", "near")),
            )
    console.print(table)


def _of(share: dict[str, Any]) -> str:
    low, high = share["ci"]
    return f"{share['failed']} of {share['of']} (95 %: {low:.3f} to {high:.3f})"
