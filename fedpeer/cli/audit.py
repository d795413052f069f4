"""`fedpeer audit`: an auditor's key, an audit by re-training where the data are, and measuring a task again.

    fedpeer audit key auditor               # auditor.pem for the auditor, auditor.pub.pem for the operator's task file
    fedpeer audit site ORDER --data mine.parquet --salt SALT --reference true.parquet --key auditor.pem --out BROUGHT
    fedpeer audit task FOLDER --data D_C --key auditor.pem --out BROUGHT

Of `site`, which trains a submission again, the samples stay where they are: what goes back is a signed statement and
re-trained weights. `task` measures a whole ended task again, on the learner's data; a signed statement goes back.
"""

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.audit.sql.errors import StorageError
from fedpeer.cli.errors import CommandError
from fedpeer.protocol.audit_folder import START, SUBMITTED, AuditOrder, TaskOrder, write_brought
from fedpeer.protocol.certificates import (
    CertificateError,
    load_private_key,
    new_key,
    private_key_pem,
    public_key_pem,
)
from mechanism.audit import MAX_REMARK
from mechanism.degree import noniid_degree
from mechanism.errors import FieldError
from mechanism.ledger.entries import public_key_bytes
from mechanism.ledger.errors import LedgerError
from mechanism.sample_tree import sample_digests, samples_root
from mechanism.settlement import MICRO
from mechanism.statements import (
    CONFIRMED,
    MAX_TOLERANCE_MICRO,
    AuditStatement,
    RemeasurementStatement,
    sign_statement,
)

if TYPE_CHECKING:
    from fedpeer.learning.samples import Samples
    from fedpeer.learning.strata import Codes

app = typer.Typer(
    no_args_is_help=True, help="Audit: an auditor's key, re-training on site, measuring a task again."
)


@app.command()
def key(name: Annotated[Path, typer.Argument(help="NAME.pem and NAME.pub.pem are written.")]) -> None:
    """Make an auditor's key: NAME.pem stays with the auditor, NAME.pub.pem goes into the operator's task file."""
    private, public = Path(f"{name}.pem"), Path(f"{name}.pub.pem")
    if taken := [str(path) for path in (private, public) if path.exists()]:
        raise CommandError(f"{taken[0]} exists already; choose another name")
    made = new_key()
    try:
        with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(private_key_pem(made))
        public.write_text(public_key_pem(made.public_key()))
    except OSError as error:
        raise CommandError(f"{error.filename or private} cannot be written ({error.strerror})") from None
    typer.echo(f"{private} is the auditor's alone; {public} goes into the task file as audit.auditor.")


@dataclass(frozen=True)
class _Opened:
    """What the samples on site show; codes: the stratum of each."""

    samples: "Samples"
    codes: "Codes"
    root: bytes
    distinct: int
    near: int
    counts: Sequence[int]


@app.command()
def site(
    order: Annotated[Path, typer.Argument(help="The folder that the operator has made.")],
    private_key: Annotated[Path, typer.Option("--key", help="The auditor's private key.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new folder that goes back to the operator.")],
    data: Annotated[
        Path | None,
        typer.Option(help="The participant's samples, as in its participant.toml. Left out: it shows none."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="In place of --data: package.module:factory of the participant's task.")
    ] = None,
    folder: Annotated[
        list[Path] | None, typer.Option(help="Where the modules of factories lie; may be given again.")
    ] = None,
    salt: Annotated[
        str,
        typer.Option(help="Of the commitment, in hexadecimal: `fedpeer participant audits TASK --salt`."),
    ] = "",
    reference: Annotated[
        Path | None,
        typer.Option(
            help="True samples of the same kind that you bring, with their targets, to hold the opened ones against. "
            "None of D_c: the participant's machine sees them."
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(help="With --reference: samples that anybody has, such as public ones."),
    ] = None,
    accept: Annotated[
        bool | None,
        typer.Option("--accept/--reject", help="Whether you accept the samples. Left out: it asks."),
    ] = None,
    by_tests: Annotated[
        bool,
        typer.Option("--by-tests", help="Accept them where no test at the rate of the terms is against it."),
    ] = False,
    remark: Annotated[str, typer.Option(help="Why not, or anything else. The ledger commits to it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Audit one submission where the data are: open the samples, check the commitment, train again, sign."""
    if known is not None and reference is None:
        raise CommandError("--known: goes with --reference alone")
    if by_tests and accept is not None:
        raise CommandError("--by-tests: decides by itself; leave --accept and --reject out")
    given = AuditOrder.read(order)
    if given.terms.audit is None:
        raise CommandError(f"the terms of task {given.terms.task_id} have no audits")
    signing = _signing_key(private_key, given.terms.audit.auditor)
    folders = tuple(str(each) for each in folder or ())
    opened = None if data is None and task is None else _opened(given, data, task, folders, salt)
    degree = None if opened is None else noniid_degree(opened.counts, given.terms.reference)
    found, trained = _findings(given, opened, degree), None
    against: list[str] = []
    if opened is not None and reference is not None:
        found["provenance"], unlike = _compared(given, opened, reference, known, folders)
        against += ["the samples are unlike the auditor's own"] * unlike
    as_claimed = (
        opened is not None and opened.root == given.claim.samples_root and degree == given.opening.degree
    )
    if opened is not None and as_claimed and accept is not False:
        trained = _retrained(given, order, opened.samples, folders)
        found["trained again"] = trained.words
        if trained.unlike and given.terms.recipe.allowed is None:
            against.append("the submission is unlike what the samples give")
    if by_tests:
        accept, remark = not against, remark or "; ".join(against)
    if not as_json:
        typer.echo("\n".join(f"{name:16} {value}" for name, value in found.items()), err=True)
    if opened is None:
        accept, remark = False, remark or "no samples were shown"
    elif accept is None:
        accept, remark = _asked(as_json, remark)
    if not accept and not remark.strip():
        raise CommandError("samples are rejected for a reason; give --remark")
    if out.exists():
        raise CommandError(f"{out} exists already; name a new folder with --out")
    weights = trained.weights if trained is not None and accept else None
    statement = AuditStatement(
        task_id=given.terms.task_id,
        terms_digest=given.terms.digest,
        participant_id=given.claim.participant_id,
        round=given.round,
        number=given.number,
        start_sha256=given.start_sha256,
        samples_root=b"" if opened is None else opened.root,
        samples=0 if opened is None else len(opened.samples),
        distinct=0 if opened is None else opened.distinct,
        near=0 if opened is None else opened.near,
        degree=given.opening.degree if degree is None else degree,
        accepted=bool(accept),
        remark=remark,
        model_sha256=b"" if weights is None else hashlib.sha256(weights).digest(),
    )
    write_brought(out, statement, sign_statement(statement, signing), weights)
    if as_json:
        typer.echo(
            json.dumps({**found, "accepted": bool(accept), "retrained": weights is not None, "out": str(out)})
        )
    else:
        typer.echo(f"{out} goes back to the operator: `fedpeer coordinator audit record {out.name}`.")


@app.command()
def task(
    folder: Annotated[
        Path, typer.Argument(help="What the operator has made: `fedpeer coordinator audit task`.")
    ],
    private_key: Annotated[Path, typer.Option("--key", help="The auditor's private key.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new folder that goes back to the operator.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="D_c: the file or folder that the operator's [data] names. Left out: a data set by name."
        ),
    ] = None,
    modules: Annotated[
        Path | None, typer.Option("--folder", help="Where the modules of factories lie.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="Your own copy of the ledger, a SOURCE as of `fedpeer ledger`. Left out: the operator's."
        ),
    ] = None,
    log_key: Annotated[
        str, typer.Option("--log-key", help="The log's verification key, as you know it.")
    ] = "",
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=MAX_TOLERANCE_MICRO / MICRO,
            help="Up to which degrees, weights and multipliers may differ on another processor.",
        ),
    ] = 0.02,
    remark: Annotated[str, typer.Option(help="For the ledger, where everybody reads it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure an ended task again on D_c: train its shadows, measure its models, merge them; sign what that comes to.

    Exit 0 where the task is confirmed, 1 where it deviates; the statement is signed either way.
    """
    from coordinator.errors import CoordinatorError
    from coordinator.remeasuring import measure_again, read_task, task_row
    from fedpeer.learning.arithmetic import arithmetic
    from fedpeer.learning.errors import LearningError

    order = TaskOrder.read(folder)
    signing = _signing_key(private_key, order.terms.measured_by)
    if out.exists():
        raise CommandError(f"{out} exists already; name a new folder with --out")
    entries, openings = _verified(order, ledger, log_key)

    def say(text: str) -> None:
        if not as_json:
            typer.echo(text, err=True)

    try:
        logged = read_task(order, entries, openings)
        row = task_row(order, _data_section(order, data), modules)
        say(f"task {order.terms.task_id}: {len(logged.rounds)} rounds; ledger and openings hold")
        found = measure_again(order, row, logged, _Reporting(say))
    except (CoordinatorError, LearningError) as error:
        raise CommandError(f"the task cannot be measured again: {error}") from None
    computed_on = ", ".join(f"{name} {value}" for name, value in sorted(arithmetic().items()))
    try:
        statement = RemeasurementStatement(
            task_id=order.terms.task_id,
            terms_digest=order.terms.digest,
            number=logged.statements + 1,
            measured=logged.measured,
            **vars(found),
            tolerance_micro=round(tolerance * MICRO),
            computed_on=computed_on[:MAX_REMARK],
            remark=remark,
        )
    except FieldError as error:
        raise CommandError(str(error)) from None
    write_brought(out, statement, sign_statement(statement, signing))
    if as_json:
        typer.echo(json.dumps({**statement.record(), "outcome": statement.outcome, "out": str(out)}))
    else:
        figures = {
            "evidence": f"{found.identical} of {found.rounds} rounds bit for bit",
            "next models": f"{found.merged} of {found.rounds} rounds bit for bit",
            "submissions": f"{found.submissions}; of {found.turned} a test came out otherwise",
            "degrees": f"at most {found.degree_micro / MICRO:.6f} apart",
            "weights": f"at most {found.weight_micro / MICRO:.6f} apart",
            "multipliers": f"at most {found.multiplier_micro / MICRO:.6f} apart",
            "outcome": f"{statement.outcome}, with a tolerance of {tolerance:.6f}",
        }
        typer.echo("\n".join(f"{name:12} {value}" for name, value in figures.items()))
        typer.echo(
            f"{out} goes back to the operator: `fedpeer coordinator audit record {out.name}`.", err=True
        )
    if statement.outcome != CONFIRMED:
        raise typer.Exit(1)


class _Reporting:
    """Says each tenth of a round's shadows."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last = say, (0, -1)

    def __call__(self, round_: int, trained: int, of: int) -> None:
        here = round_, 10 * trained // of
        if here != self._last:
            self._last = here
            self._say(f"round {round_}: {trained} of {of} shadow models")


def _verified(
    order: TaskOrder, ledger: str | None, log_key: str
) -> tuple[list[bytes], Mapping[str, Mapping[str, Any]]]:
    """The entries and openings, once both are seen to hold."""
    from fedpeer.audit.sources import open_source
    from mechanism.ledger.note import VerificationKey
    from mechanism.ledger.openings import read_openings
    from mechanism.ledger.verify import verify_ledger

    with ExitStack() as resources:
        try:
            trusted = VerificationKey.parse(log_key) if log_key else None
            source = open_source(ledger or str(order.ledger), resources)
            openings = read_openings(order.openings.read_bytes().splitlines())
            report = verify_ledger(source, trusted, openings=openings)
        except OSError as error:
            raise CommandError(
                f"{error.filename}: {error.strerror}; ask the operator for the folder again"
            ) from None
        except (LedgerError, StorageError) as error:
            raise CommandError(
                f"the ledger or its openings cannot be read: {error}; ask the operator for the folder again"
            ) from None
        if not report.verified:
            first = report.problems[0]
            raise CommandError(
                f"the ledger does not hold, so nothing is measured: {first.place}: {first.message}"
            )
        return list(source.entries()), openings.by_id


def _data_section(order: TaskOrder, data: Path | None) -> dict[str, Any] | None:
    """The operator's section [data], with the path where D_c lies here."""
    if order.data is None:
        return None
    section = dict(order.data)
    source = next((name for name in ("file", "folder") if section.get(name) is not None), None)
    if source is None:
        if data is not None:
            raise CommandError(f"the data of {order.terms.task_id} are no file or folder; leave --data out")
        return section
    if data is None:
        raise CommandError(f"D_c of {order.terms.task_id} is a {source}; say with --data where it lies here")
    # What is held out to report on is paid on by nothing.
    return {**section, source: str(data.absolute()), f"test_{source}": None}


def _signing_key(path: Path, auditor: bytes) -> Any:
    """A private key, once it is seen to be that of the auditor whom the terms name."""
    try:
        signing = load_private_key(path.read_bytes())
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}); give the auditor's --key") from None
    except CertificateError as error:
        raise CommandError(f"{path}: {error}") from None
    if public_key_bytes(signing.public_key()) != auditor:
        raise CommandError(f"{path} is not the key of the auditor whom the terms name")
    return signing


def _opened(
    order: AuditOrder, data: Path | None, task: str | None, folders: tuple[str, ...], salt: str
) -> _Opened:
    """The samples, as the participant's adapter takes them."""
    from fedpeer.learning.duplicates import duplicates
    from fedpeer.learning.samples import Samples
    from fedpeer.learning.strata import counts_over
    from participant.adapters.counting import codes
    from participant.adapters.workload import WorkloadTask
    from participant.errors import ParticipantError
    from participant.trainer_process import TaskSpec

    try:
        made = WorkloadTask(data, folders=folders) if data is not None else TaskSpec(str(task)).build()
        made.prepare(order.terms)
        made.collect(float(order.opening.effort))
        shown = made.training_samples()
        if shown is None:
            raise CommandError(f"{type(made).__name__} does not say what its samples are: training_samples()")
        samples = Samples(*shown)
        of = codes(samples, order.terms, folders)
    except ParticipantError as error:
        raise CommandError(f"the samples cannot be opened: {error}") from None
    try:
        digests = sample_digests(samples.inputs, samples.targets, samples.columns)
        root = samples_root(digests, bytes.fromhex(salt))
    except (ValueError, FieldError) as error:
        raise CommandError(
            f"the salt is none ({error}); the participant's `fedpeer participant audits TASK --salt` prints it"
        ) from None
    alike, counts = duplicates(samples), counts_over(of, len(order.terms.reference))
    return _Opened(samples, of, root, alike.distinct, alike.near, counts)


def _compared(
    order: AuditOrder, opened: _Opened, reference: Path, known: Path | None, folders: tuple[str, ...]
) -> tuple[str, bool]:
    """How the opened samples stand beside the auditor's own, in words, and whether they are unlike these."""
    import numpy as np

    from fedpeer.learning.errors import DataError
    from fedpeer.learning.provenance import compare, permutations
    from fedpeer.learning.samples import Samples
    from participant.adapters.counting import codes
    from participant.adapters.workload import WorkloadTask
    from participant.errors import ParticipantError

    def read(path: Path) -> Samples:
        task = WorkloadTask(path, folders=folders)
        task.prepare(order.terms)
        return Samples(*task.training_samples())

    assert order.terms.audit is not None, "the order was read"
    rate = order.terms.audit.rate
    try:
        own = read(reference)
        others = None if known is None else read(known)
        of = codes(own, order.terms, folders)
    except ParticipantError as error:
        raise CommandError(f"the auditor's own samples cannot be read: {error}") from None
    generator = np.random.default_rng(secrets.randbits(128))
    try:
        found = compare(opened.samples, opened.codes, own, of, generator, others, permutations(rate))
    except DataError as error:
        raise CommandError(f"the opened samples cannot be compared: {error}") from None
    if not found.samples:
        return (
            "NOT COMPARED: no stratum of theirs has two samples in the reference, or no number varies",
            False,
        )
    unlike = found.p <= rate
    verdict = f"UNLIKE the reference, as {rate} of honest ones are" if unlike else "like the reference"
    left = len(opened.samples) - found.samples
    without = f"; {left} not compared, whose strata the reference lacks" if left else ""
    return f"{verdict}: p = {float(found.p):.4f}, most by {found.by}{without}", unlike


def _findings(order: AuditOrder, opened: _Opened | None, degree: Any) -> dict[str, Any]:
    """What the auditor decides by."""
    claim = order.claim
    found: dict[str, Any] = {
        "task": order.terms.task_id, "participant": claim.participant_id, "round": order.round, "audit": order.number,
    }  # fmt: skip
    if opened is None:
        return {**found, "samples": 0}
    recipe = order.terms.recipe.samples
    return {
        **found,
        "samples": f"{len(opened.samples)}, of {recipe} in the recipe",
        "distinct": f"{opened.distinct}, what is nearly the same counted once",
        "nearly the same": f"{opened.near}, as another of different content",
        "commitment": "as claimed" if opened.root == claim.samples_root else "OTHER SAMPLES than claimed",
        "degree": f"{degree}, as claimed"
        if degree == order.opening.degree
        else f"{degree}, and {order.opening.degree} CLAIMED",
    }


def _asked(as_json: bool, remark: str) -> tuple[bool, str]:
    if as_json or not sys.stdin.isatty():
        raise CommandError("nobody can be asked here; give --by-tests, --accept, or --reject with --remark")
    accepted = typer.confirm(
        "Do you accept where the samples come from, how many are the same, and how they were trained on?",
        err=True,
    )
    if not accepted and not remark:
        remark = typer.prompt("Why not? The participant reads it", err=True)
    return accepted, remark


@dataclass(frozen=True)
class _Retrained:
    """What training on the opened samples shows.

    Attributes:
        weights: the file of the first model.
        words: how the submission stands among all of them; unlike: whether it is the farthest.
    """

    weights: bytes
    words: str
    unlike: bool


def _retrained(order: AuditOrder, folder: Path, samples: "Samples", folders: tuple[str, ...]) -> _Retrained:
    """Models that are trained by the recipe from the round's start, with seeds of the auditor's own: enough to tell
    whether the submission is one like them at the rate of the terms."""
    from fedpeer.learning.errors import LearningError
    from fedpeer.learning.fidelity import comparisons, is_farthest
    from fedpeer.learning.workloads.loading import WorkloadSource
    from fedpeer.learning.workloads.protocol import train_all
    from fedpeer.protocol.model_file import encode_model, open_model

    assert order.terms.audit is not None, "the order was read"
    rate, recipe = order.terms.audit.rate, order.terms.recipe
    count = comparisons(rate)
    try:
        source = WorkloadSource.of_recipe(recipe, folders)
        assert source is not None, "terms with audits pay on evidence, which trains"
        workload, start = source.load(), open_model(folder / START).weights()
        seeds = [secrets.randbits(63) for _ in range(count)]
        models = train_all(workload, start, [samples] * count, recipe, seeds)
        farthest = is_farthest(workload, open_model(folder / SUBMITTED).weights(), models, samples)
    except LearningError as error:
        raise CommandError(f"the model cannot be trained here: {error}") from None
    unlike = f"UNLIKE all of these, as {Fraction(1, count + 1)} of honest ones are"
    return _Retrained(
        encode_model(models[0]),
        f"{count} times on these; the submission is {unlike if farthest else 'like these'}",
        farthest,
    )
