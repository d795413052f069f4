"""`fedpeer figures`: the paper's experiments and some more, from one command."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeer.cli.errors import CommandError, writable

if TYPE_CHECKING:  # the experiments import torch, which `--help` need not wait for
    from fedpeer.experiments.study import Drawn, Study


def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Figures by name or number; all by default."),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="Data set; may be given several times. digits needs no download.  [default: digits]"
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Communication rounds T.  [default: 20, with --quick 5]", min=1)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Repetitions.  [default: 3, with --quick 2]", min=1)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: few rounds, few seeds.")] = False,
    device: Annotated[str, typer.Option(help="Where torch computes: auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of plots, tables and finished cells.")] = Path("figures"),
    jobs: Annotated[int | None, typer.Option(help="Processes.  [default: one a CPU core]", min=1)] = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Compute nothing; draw from the cells that are finished.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Reproduce the paper's experiments.

    Finished cells are kept in the folder's cells/ and not computed again: stop it at any time and start it again.
    """
    from fedpeer.experiments.data import splits
    from fedpeer.experiments.figures import figures as chosen_figures
    from fedpeer.experiments.settings import ROUNDS, ROUNDS_QUICK, SEEDS, SEEDS_QUICK, Settings
    from fedpeer.experiments.study import Study

    chosen = chosen_figures(names)
    datasets = list(dict.fromkeys(dataset or ["digits"]))
    studies = [
        Study(
            Settings(
                dataset=name,
                rounds=rounds or (ROUNDS_QUICK if quick else ROUNDS),
                seeds=seeds or (SEEDS_QUICK if quick else SEEDS),
                quick=quick,
            ),
            chosen,
            out,
        )
        for name in datasets
    ]
    where = _device(device)
    drawn: list[Drawn] = []
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
    for study in studies:
        if not draw_only and study.missing():
            # Read (and perhaps fetch) every data set once here: a missing one is said before any work.
            splits(study.settings.dataset, 0)
    with writable(out):
        for study in studies:
            if not draw_only:
                _compute(study, where, jobs or os.cpu_count() or 1)
            drawn += study.draw()
    if as_json:
        typer.echo(json.dumps([one.record() for one in drawn], indent=1, allow_nan=False))
    else:
        _print(drawn)


def _device(name: str) -> str:
    """The device that `name` stands for.

    Raises:
        CommandError: an unknown name, or cuda where there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise CommandError(f"--device is {name!r}; expected auto, cpu or cuda")
    if name == "cpu":
        return name
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise CommandError("--device is cuda, but torch finds no CUDA device here; use --device cpu")
    return "cpu"


def _compute(study: "Study", device: str, jobs: int) -> None:
    """Compute what is missing, with progress on standard error."""
    from fedpeer.cli.progress import cell_progress
    from fedpeer.experiments.cells import local_executor

    missing = study.missing()
    if missing:
        with (
            cell_progress(study.settings.dataset, len(missing)) as done,
            local_executor(min(jobs, len(missing))) as executor,
        ):
            study.compute(executor, device, done)


def _print(drawn: "list[Drawn]") -> None:
    """The findings, for people."""
    from rich.console import Console
    from rich.markup import escape

    from fedpeer.experiments.figures.figure import answer

    console = Console(highlight=False, soft_wrap=True)
    colours = {"holds": "green", "does not hold": "red"}
    for one in drawn:
        console.print(
            f"[bold]{one.figure.number}. {escape(one.figure.title)}[/] ({one.settings.dataset}, "
            f"{one.finished} of {one.cells} cells)"
        )
        for finding in one.findings:
            said = answer(finding.holds, quick=one.settings.quick)
            console.print(f"  {escape(finding.claim)} ", end="")
            console.print(said, style=colours.get(said, ""), end="")
            console.print(f": {escape(finding.found)}.")
        for path in one.files:
            console.print(f"    {escape(str(path))}", style="dim")
        if not one.findings:
            console.print("  too few cells are finished to draw it")
