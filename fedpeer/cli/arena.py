"""`fedpeer arena`: what every attack earns under every payment rule."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpeer import extensions
from fedpeer.cli.accuracy import measure_accuracy
from fedpeer.cli.audited import measure_audits
from fedpeer.cli.errors import CommandError
from fedpeer.cli.estimators import measure_estimators
from fedpeer.cli.honest import measure_honest
from fedpeer.cli.made import measure_made
from fedpeer.cli.measuring import CellRun, chosen, columns
from fedpeer.cli.privacy import measure_privacy
from fedpeer.cli.search import search_families
from fedpeer.experiments.arena import ATTACKS, RULES, ArenaSetting, attack_named, run_arena
from fedpeer.experiments.arena.families import FAMILIES
from fedpeer.experiments.arena.running import arena_cells
from fedpeer.experiments.arena.searching import SearchSetting


class ArenaDataset(StrEnum):
    DIGITS = "digits"
    FASHION_MNIST = "fashion-mnist"
    FLIGHTS_MLP = "flights-mlp"
    TEXT_HEAD = "text-head"


def arena(
    dataset: Annotated[ArenaDataset, typer.Option(help="Data set that is traded.")] = ArenaDataset.DIGITS,
    rule: Annotated[
        list[str] | None,
        typer.Option(help=f"Payment rule, repeatable: {', '.join(RULES)}. Default: verified, paper."),
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="Attack, repeatable. Default: all that are built in.")
    ] = None,
    selection: Annotated[str, typer.Option(help="Who trains: all, or an extension's.")] = "all",
    aggregation: Annotated[
        str, typer.Option(help="How models become one: mean, or an extension's.")
    ] = "mean",
    participants: Annotated[int, typer.Option(min=5, help="Honest participants; one at a time turns.")] = 8,
    attackers: Annotated[
        int, typer.Option(min=1, help="How many of them turn, each in a run of its own.")
    ] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, the first from a fresh start.")] = 2,
    seeds: Annotated[
        int, typer.Option(min=1, help="Populations, data splits and shadows, new ones each.")
    ] = 3,
    shadows: Annotated[
        int, typer.Option(min=12, help="Sound shadow models a round; with --accuracy, at most.")
    ] = 100,
    tricked: Annotated[
        float,
        typer.Option(
            min=0, max=0.5, help="Tricked shadow models for each sound one; of attacks and families."
        ),
    ] = 0.0,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="Family of attacks that an optimiser searches instead, repeatable: "
            f"{', '.join(FAMILIES)}, or all of them."
        ),
    ] = None,
    budget: Annotated[
        int,
        typer.Option(
            min=0, help="With --search: points that are looked at; 0: none, the usual one is played."
        ),
    ] = 40,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, a seed each at a time.  [default: one a CPU core]")
    ] = None,
    accuracy: Annotated[
        bool,
        typer.Option(
            "--accuracy",
            help="Instead of attacks: how well degrees are measured, for every kind of model and data.",
        ),
    ] = False,
    estimators: Annotated[
        bool,
        typer.Option(
            "--estimators",
            help="Instead of attacks: estimators of label distributions of other work, on the same starts.",
        ),
    ] = False,
    honest: Annotated[
        bool,
        typer.Option(
            "--honest",
            help="Instead of attacks: how many honest participants are hurt, by habits beside the recipe.",
        ),
    ] = False,
    audits: Annotated[
        bool,
        typer.Option(
            "--audits",
            help="Instead of attacks: whom audits by re-training accuse, and what tricks earn where they are drawn.",
        ),
    ] = False,
    made: Annotated[
        bool,
        typer.Option(
            "--made",
            help="Instead of attacks: how often an auditor finds that samples were made up, and accuses honest ones.",
        ),
    ] = False,
    allow: Annotated[
        bool,
        typer.Option(
            "--allow", help="With --honest: the terms allow the habits that they would have to allow."
        ),
    ] = False,
    privacy: Annotated[
        str | None,
        typer.Option(
            help="Instead of attacks: what noise costs, by epsilon. dp-sgd, or update.", show_default=False
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="With --accuracy, --honest, --audits, --made, --estimators or --privacy: what is measured, "
            "repeatable. Default: all; with --privacy digits-mlp and flights-mlp."
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for arena.json, arena.png and finished seeds: what is there is not run again."
        ),
    ] = None,
) -> None:
    """Measure what every attack earns under every payment rule, through the real evidence and settlement."""
    if allow and not honest:
        raise CommandError("--allow: goes with --honest alone")
    measurement, tasks = CellRun(workers, json_output, out), task or ()
    if accuracy:
        measure_accuracy(tasks, seeds, shadows, measurement)
        return
    if honest:
        measure_honest(tasks, seeds, shadows, allow, measurement)
        return
    if audits:
        measure_audits(tasks, seeds, shadows, attackers, rounds, measurement)
        return
    if made:
        measure_made(tasks, seeds, measurement)
        return
    if privacy is not None:
        measure_privacy(tasks, privacy, seeds, shadows, measurement)
        return
    if estimators:
        measure_estimators(tasks, seeds, shadows, measurement)
        return
    rules = chosen("--rule", rule, _with(RULES, extensions.PAYMENT_RULES), ("verified", "paper"))
    if search:
        searched = SearchSetting(
            dataset=dataset.value,
            rules=rules,
            participants=participants,
            attackers=min(attackers, participants),
            rounds=rounds,
            shadows=shadows,
            tricked=tricked,
            budget=budget,
            seeds=tuple(range(seeds)),
        )
        search_families(searched, search, measurement)
        return
    setting = ArenaSetting(
        dataset=dataset.value,
        rules=rules,
        attacks=chosen("--attack", attack, _with(tuple(ATTACKS), extensions.ATTACKS), tuple(ATTACKS)),
        selection=_one("--selection", selection, "all", extensions.SELECTIONS),
        aggregation=_one("--aggregation", aggregation, "mean", extensions.AGGREGATIONS),
        participants=participants,
        attackers=min(attackers, participants),
        rounds=rounds,
        seeds=tuple(range(seeds)),
        shadows=shadows,
        tricked=tricked,
    )
    _load_extensions(setting)
    _check_rounds(setting)
    for name in ("arena.json", "arena.png"):
        if out is not None and (out / name).is_dir():
            raise CommandError(f"{out / name} is a folder; name another one with --out")
    result = measurement.run(f"{setting.dataset}, seeds", arena_cells(setting), partial(run_arena, setting))
    summary = result.summary()
    measurement.tell("arena", summary, lambda: _print(summary), result.heat_map)


def _with(known: tuple[str, ...], group: str) -> tuple[str, ...]:
    """The built-in names and those of installed extensions.

    Raises:
        ExtensionError: an extension takes a built-in name.
    """
    added = extensions.extension_names(group)
    if taken := set(known) & set(added):
        raise extensions.ExtensionError(
            f"{', '.join(sorted(taken))} of {group} is a built-in name; choose another"
        )
    return known + added


def _one(option: str, given: str, default: str, group: str) -> str:
    return chosen(option, [given], _with((default,), group), (default,))[0]


def _load_extensions(setting: ArenaSetting) -> None:
    """Raises ExtensionError for an extension that cannot be loaded, before anything is run."""
    for name in setting.attacks:
        attack_named(name)
    for group, names in (
        (extensions.PAYMENT_RULES, set(setting.rules) - set(RULES)),
        (extensions.SELECTIONS, {setting.selection} - {"all"}),
        (extensions.AGGREGATIONS, {setting.aggregation} - {"mean"}),
    ):
        for name in names:
            extensions.extension(group, name)


def _check_rounds(setting: ArenaSetting) -> None:
    """Raises CommandError where no round is late enough for an attack."""
    late = [name for name in setting.attacks if attack_named(name).needs_history]
    if setting.rounds < 2 and len(late) == len(setting.attacks):
        raise CommandError(
            f"--rounds {setting.rounds}: {', '.join(late)} need a round before theirs; ask for 2 rounds at least"
        )
    if setting.rounds < 2 and late:
        Console(stderr=True).print(f"Left out, since there is no second round: {', '.join(late)}.")


def _print(summary: dict[str, Any]) -> None:
    console = Console()
    for rule, found in summary["rules"].items():
        table = Table(
            *columns(("attack",), ("earns", "honest", "gain", "from", "to", "caught", "lost")),
            title=f"{summary['dataset']}, rule {rule}: credits a round",
            caption="gain: over an honest participant with the same data, with its 95 % interval",
            box=None, padding=(0, 1), header_style="underline",
        )  # fmt: skip
        for attack, v in found["attacks"].items():
            low, high = v["ci"]
            amounts = [f"{v[name]:.2f}" for name in ("attacker", "honest")]
            gains = [f"{gain:+.2f}" for gain in (v["advantage"], low, high)]
            shares = [f"{100 * v['caught']:.0f} %", f"{100 * v['accuracy_lost']:+.1f} %"]
            table.add_row(attack, *amounts, *gains, *shares, style="red" if high > 0 else None)
        console.print(table)
        console.print(
            f"lost: accuracy of the global model. Honest participants wrongly hurt: "
            f"{100 * found['honest_refused']:.1f} %"
        )
        if (linked := found["honest_linked"])["n"]:
            console.print(
                f"linked for samples that others have, too: {linked['n']}; of each sample there are "
                f"{linked['had']:.2f}, and {linked['holders']:.2f} are found"
            )
        if "degree" in found and found["degree"]["mae"] is not None:
            degree = found["degree"]
            console.print(
                f"verified degree: mean error {degree['mae']:.3f}, rank correlation {degree['rank']:.3f}, "
                f"coverage of the 90 % interval {100 * degree['coverage']:.0f} %, n = {degree['n']}"
            )
