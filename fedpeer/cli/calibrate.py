"""`fedpeer calibrate`: a task's Phi and Upsilon, measured, and what to pay for the degrees that are wanted."""

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from coordinator.calibration import (
    SEED,
    Kept,
    basis,
    calibratable,
    check_replaceable,
    measure,
    replace_file,
    with_placeholders,
    written,
)
from coordinator.config import (
    CalibrationSection,
    EvidenceSection,
    TaskConfig,
    parse_config,
    resolve_paths,
    validated_config,
)
from coordinator.errors import CoordinatorError, MarketTaskError
from coordinator.opening import PreparedTask, prepare_task, repriced
from fedpeer.cli.errors import CommandError
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.gaps import COVERAGE, MAX_CALIBRATION_SHADOWS, MIN_CALIBRATION_SHADOWS, MeasuredGaps
from fedpeer.evidence.planning import trainings
from fedpeer.terminal import counted
from fedpeer.text_files import TextFileError, naming, parse_toml, read_text
from mechanism.audit import least_probability, least_stake
from mechanism.degree import rational
from mechanism.errors import MechanismError
from mechanism.gap_bound import GapBound
from mechanism.proposal import Proposal, Wishes, propose, rounded
from mechanism.ranges import non_negative
from mechanism.settlement import MICRO

#: With which an audit finds a trick, where nobody says.
AUDIT_POWER = 0.95

#: What the best trick of one identity gains over honest effort without audits, over what a round pays, where nobody
#: says: that of the arena's searches (docs/threat-model.md), rounded up.
AUDIT_GAIN = 0.2

#: Degrees without effort that are expected where nobody says so: from mildly to badly skewed.
STARTS = (0.3, 0.9)


def calibrate(
    file: Annotated[Path, typer.Argument(help="The task file (TOML); its numbers are replaced.")],
    costs: Annotated[
        tuple[float, float],
        typer.Option(help="Least and greatest cost, to a participant, of a degree lower by 1; credits."),
    ],
    degree: Annotated[float, typer.Option(help="The degree that nobody shall be above.")] = 0.2,
    starts: Annotated[
        tuple[float, float], typer.Option(help="Least and greatest degree without effort.")
    ] = STARTS,
    budget: Annotated[
        float | None,
        typer.Option(help="Credits for the whole task; else budget_micro, else the least that does."),
    ] = None,
    shadows: Annotated[
        int,
        typer.Option(
            help="Models that are trained.", min=MIN_CALIBRATION_SHADOWS, max=MAX_CALIBRATION_SHADOWS
        ),
    ] = 100,
    audit_gain: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="What a trick gains in a round, credits: says which audits make it lose. `fedpeer arena` has some. "
            f"[default: {AUDIT_GAIN:g} of what a round pays]",
            show_default=False,
        ),
    ] = None,
    audit_power: Annotated[
        float, typer.Option(min=0, max=1, help="With which probability an audit finds that trick.")
    ] = AUDIT_POWER,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Leave the file as it is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train models by the task's recipe, measure phi and upsilon on D_c, and write them with what follows."""
    config, task, text = _prepared(file)
    if not dry_run:
        check_replaceable(file)
    wishes = _wishes(config, task, degree, costs, starts, budget)
    non_negative("--audit-gain", 0 if audit_gain is None else audit_gain)
    spent = {} if budget is None or config.budget_micro is None else {"budget_micro": round(budget * MICRO)}
    _rehearse(file, text, config, task, wishes, spent)
    assert task.data is not None, "it is calibratable"
    for note in task.data.notes:
        typer.echo(f"LOOK AGAIN: {note}", err=True)
    gaps, since, where, kept = _measured(file, task, config, shadows)
    phi, upsilon = rounded(gaps.phi), rounded(gaps.upsilon)
    with _keeping(kept):
        with _status("solving for what participants would do"):
            made = propose(GapBound(float(phi), float(upsilon)), wishes)
        section = _section(config, task, wishes, gaps, made, phi, upsilon)
        numbers: dict[str, Any] = {
            "Q": made.Q,
            "phi": phi,
            "upsilon": upsilon,
            "payment.name": "log",
            "payment.scale": made.payment.scale,
            "rule.claim_penalty": made.claim_penalty,
            "rule.stake_micro": made.stake_micro,
            **spent,
        }
        after = written(text, numbers, section)
        proposed = parse_config(after, TaskConfig, file)
        with naming(file):
            repriced(task, proposed)
    asked = audit_gain is not None or config.rule.name == "verified"
    audits = _audits(config, made, audit_gain, audit_power) if asked else None
    failed = None
    if not dry_run:
        try:
            replace_file(file, text, after)
        except CoordinatorError as error:
            failed = error  # after what was measured, which took its time
    if as_json:
        record = {**_record(numbers, section, gaps, made, task), "kept_since": since}
        typer.echo(json.dumps(record if audits is None else {**record, "audits": audits}))
    else:
        lines = _lines(file, dry_run or failed is not None, wishes, gaps, made, section, task, where)
        if since is not None:
            by = "" if where == "here" else f" {where}"
            lines.insert(0, f"Measured by an earlier call{by}, {since}; without {kept} it is measured again.")
        typer.echo("\n".join(lines if audits is None else [*lines[:-1], *_audit_lines(audits), lines[-1]]))
    if failed is not None:
        raise failed


def _measured(
    file: Path, task: PreparedTask, config: TaskConfig, shadows: int
) -> tuple[MeasuredGaps, str | None, str, Path | None]:
    """What is measured, the moment at which an earlier call did it, where, and the file that keeps it now.

    Raises:
        MarketTaskError: the models say nothing of this task.
    """
    keeper = Kept(task, config, shadows)
    if (found := keeper.find()) is not None:
        gaps, at, machine = found
        where = "here" if machine == gethostname() else f"on {machine}"
        return gaps, at.isoformat(timespec="seconds"), where, keeper.path
    with _status("training models") as status:

        def report(trained: int, of: int) -> None:
            if status is not None:
                status.update(f"training models: {trained} of {of}")

        try:
            gaps = measure(task, shadows, report)
        except EvidenceError as error:
            raise MarketTaskError(f"{file} cannot be calibrated: {error}") from None
    return gaps, None, "here", keeper.path if keeper.put(gaps) else None


def _status(words: str) -> AbstractContextManager[Status | None]:
    console = Console(stderr=True)
    return console.status(words) if console.is_terminal else nullcontext()


@contextmanager
def _keeping(kept: Path | None) -> Iterator[None]:
    """Says of what is refused after the measurement that this needs no second one."""
    try:
        yield
    except (CoordinatorError, MechanismError):
        if kept is not None:
            typer.echo(
                f"What was measured is kept in {kept}: with other wishes this takes seconds.", err=True
            )
        raise


def _rehearse(
    file: Path, text: str, config: TaskConfig, task: PreparedTask, wishes: Wishes, spent: dict[str, int]
) -> None:
    """Writes numbers that stand for those that will be measured, as these are written. Raises ConfigError."""
    one = Decimal(1)
    numbers: dict[str, Any] = {
        "Q": one * 10,
        "phi": one,
        "upsilon": one,
        "payment.name": "log",
        "payment.scale": one,
        "rule.claim_penalty": one,
        "rule.stake_micro": 1,
        **spent,
    }
    section = CalibrationSection(
        **vars(basis(task, config)),
        phi=one,
        upsilon=one,
        kappa=one,
        shadows=MIN_CALIBRATION_SHADOWS,
        pairs=MIN_CALIBRATION_SHADOWS,
        **_wished(wishes),
        sure_scale=one,
        reached=(one, one),
    )
    parse_config(written(text, numbers, section), TaskConfig, file)


def _wished(wishes: Wishes) -> dict[str, Any]:
    return {
        "degree": rounded(wishes.degree),
        "costs": tuple(map(rounded, wishes.costs)),
        "starts": tuple(map(rounded, wishes.starts)),
    }


def _audits(config: TaskConfig, made: Proposal, gain: float | None, power: float) -> dict[str, Any]:
    """Which audits make a trick lose that gains so much a round (`mechanism.audit.deterrence`).

    Without a section [audit] in the file the rate is that of its default, nothing is held back, and a tenth is drawn.
    """
    pay = min(float(profile.payment.mean()) for profile in (made.least, made.greatest))
    gain = AUDIT_GAIN * pay if gain is None else gain
    section = config.audit
    rate = float(rational("audit.rate", "1/20" if section is None else section.rate))
    drawn = float(rational("audit.probability", "1/10" if section is None else section.probability))
    terms = {
        "power": power,
        "rate": rate,
        "pay": pay,
        "held_back": 0.0 if section is None else float(section.held_back),
        "rounds": config.schedule.rounds,
    }
    stake = made.stake_micro / MICRO
    least = least_stake(gain, drawn, **terms)  # type: ignore[arg-type]
    return {
        **terms,
        "drawn": section is not None,
        "gain": gain,
        "stake": stake,
        "least_probability": least_probability(gain, stake=stake, **terms),  # type: ignore[arg-type]
        "probability": drawn,
        "least_stake": least if math.isfinite(least) else None,  # JSON has no infinity
    }


def _audit_lines(found: dict[str, Any]) -> list[str]:
    q, stake = found["least_probability"], found["least_stake"]
    drawn = (
        "no probability of audits" if q is None else f"audits with a probability of {q:.3f}, with that stake,"
    )
    staked = "no stake" if stake is None else f"a stake of {stake:.3f} credits"
    lacking = (
        "The file has no [audit]: skewed data that are trained to look balanced are paid as balanced ones."
    )
    return [
        *([] if found["drawn"] else [lacking]),
        f"A trick that gains {found['gain']:.3g} credits a round, which an audit finds with {found['power']:g}, where "
        f"a round pays {found['pay']:.3f}, {found['held_back']:g} of it held back:",
        f"  {drawn} make it lose over the task; at a probability of {found['probability']:g} {staked} does",
    ]


def _prepared(file: Path) -> tuple[TaskConfig, PreparedTask, str]:
    """The file's settings, its task under other numbers, and its text."""
    try:
        document = parse_toml(text := read_text(file))
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from None
    except TextFileError as error:
        raise CommandError(f"{file} cannot be used: {error}") from None
    config = resolve_paths(validated_config(with_placeholders(document), TaskConfig, file), file.parent)
    with naming(file):
        task = prepare_task(config, 0.0)
    if not calibratable(task):
        raise MarketTaskError(
            f"{file} cannot be calibrated: expected a [data] section with D_c, and a model that can be trained here"
        )
    given = document.get("budget_micro")
    return config.model_copy(update={"budget_micro": given if isinstance(given, int) else None}), task, text


def _wishes(
    config: TaskConfig,
    task: PreparedTask,
    degree: float,
    costs: tuple[float, float],
    starts: tuple[float, float],
    budget: float | None,
) -> Wishes:
    most = float(1 - min(task.row.terms.reference))
    if budget is None and config.budget_micro is not None:
        budget = config.budget_micro / MICRO
    schedule = config.schedule
    wishes = Wishes(degree, costs, starts, schedule.capacity, schedule.rounds, budget)
    return replace(wishes, starts=(min(starts[0], most), min(starts[1], most)))


def _section(
    config: TaskConfig,
    task: PreparedTask,
    wishes: Wishes,
    gaps: MeasuredGaps,
    made: Proposal,
    phi: Decimal,
    upsilon: Decimal,
) -> CalibrationSection:
    return CalibrationSection(
        **vars(basis(task, config)),
        phi=phi,
        upsilon=upsilon,
        kappa=rounded(gaps.kappa),
        shadows=gaps.shadows,
        pairs=gaps.held,
        **_wished(wishes),
        sure_scale=made.sure,
        reached=(rounded(float(made.least.degree.min())), rounded(float(made.greatest.degree.max()))),
    )


def _evidence_seconds(task: PreparedTask, gaps: MeasuredGaps) -> float:
    section = EvidenceSection(**task.row.settings["evidence"])
    return trainings(section.shadows, tricked=section.tricked) * gaps.training_seconds


def _record(
    numbers: dict[str, Any],
    section: CalibrationSection,
    gaps: MeasuredGaps,
    made: Proposal,
    task: PreparedTask,
) -> dict[str, Any]:
    equilibria = {
        name: {
            "degrees": [float(profile.degree.min()), float(profile.degree.max())],
            "payment": float(profile.payment.mean()),
            "cost": float(profile.cost.mean()),
            "certified": bool(profile.certified),
        }
        for name, profile in (("least", made.least), ("greatest", made.greatest))
    }
    return {
        "numbers": {name: f"{v:f}" if isinstance(v, Decimal) else v for name, v in numbers.items()},
        "calibration": section.model_dump(mode="json"),
        "seed": SEED,
        "covered": gaps.covered,
        "slack": gaps.slack,
        "bill": str(made.bill),
        "equilibria": equilibria,
        "training_seconds": gaps.training_seconds,
        "evidence_seconds": _evidence_seconds(task, gaps),
    }


def _lines(
    file: Path,
    dry_run: bool,
    wishes: Wishes,
    gaps: MeasuredGaps,
    made: Proposal,
    section: CalibrationSection,
    task: PreparedTask,
    where: str,
) -> list[str]:
    low, high = (f"{x:g}" for x in wishes.costs)
    start_low, start_high = (f"{x:g}" for x in wishes.starts)
    lines = [
        f"Measured on {gaps.shadows} models by the recipe, from the task's first model:",
        f"  phi {section.phi:f}, upsilon {section.upsilon:f} (ratio {section.upsilon / section.phi:.2f}); with at "
        f"least {COVERAGE:.0%} a fresh pair's loss gap lies below",
        f"  kappa {section.kappa:f} from {gaps.held} pairs; {gaps.covered:.0%} of all held-out pairs lie below, at "
        f"{gaps.slack:.1f} times their gap's 95 % point",
        f"For a degree of {wishes.degree:g}, costs of {low} to {high} credits, starts of {start_low} to {start_high}:",
        f"  scale {made.payment.scale:f}, Q {made.Q:f}, claim penalty {made.claim_penalty:f}, stake "
        f"{Decimal(made.stake_micro) / MICRO:.6f} credits",
        f"  at most {made.bill:f} credits for {counted(wishes.rounds, 'round')} of {wishes.participants} participants",
        "  That is enough for every population within those ranges."
        if made.payment.scale >= made.sure
        else f"  A scale of {made.sure:f} would be enough for every population within those ranges.",
        "What participants would then do:",
    ]
    for name, profile in (("least", made.least), ("greatest", made.greatest)):
        lines.append(
            f"  {name:<9} degrees {profile.degree.min():.3f} to {profile.degree.max():.3f}, paid "
            f"{profile.payment.mean():.3f} credits a round in the mean, for costs of {profile.cost.mean():.3f}"
            + ("" if profile.certified else " (not proved to be an equilibrium)")
        )
    evidence = _evidence_seconds(task, gaps)
    shadows = task.row.settings["evidence"]["shadows"]
    lines += [
        f"Evidence: a training takes {gaps.training_seconds:.2g} s {where}, a round's {shadows} shadows about "
        f"{max(evidence, 1):.0f} s on one core.",
        f"{file} is left as it was." if dry_run else f"{file} has these numbers now.",
    ]
    return lines
