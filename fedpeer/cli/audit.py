"""`fedpeer audit`: an auditor's key, and the audit itself, where the data are.

    fedpeer audit key auditor               # auditor.pem for the auditor, auditor.pub.pem for the operator's task file
    fedpeer audit site ORDER --data mine.parquet --salt SALT --key auditor.pem --out BROUGHT

The samples stay where they are. What goes back is a signed statement and re-trained weights.
"""

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeer.cli.errors import CommandError
from fedpeer.protocol.audit_folder import RETRAINED, AuditOrder, write_statement
from fedpeer.protocol.certificates import (
    CertificateError,
    load_private_key,
    new_key,
    private_key_pem,
    public_key_pem,
)
from mechanism.degree import noniid_degree
from mechanism.errors import FieldError
from mechanism.ledger.entries import public_key_bytes
from mechanism.sample_tree import sample_digests, samples_root
from mechanism.statements import AuditStatement, sign_statement

if TYPE_CHECKING:
    from fedpeer.learning.samples import Samples

app = typer.Typer(no_args_is_help=True, help="Audit by re-training: an auditor's key, and the audit on site.")


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
    """What the samples on site show."""

    samples: "Samples"
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
    accept: Annotated[
        bool | None,
        typer.Option("--accept/--reject", help="Whether you accept the samples. Left out: it asks."),
    ] = None,
    remark: Annotated[str, typer.Option(help="Why not, or anything else. The ledger commits to it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Audit one submission where the data are: open the samples, check the commitment, train again, sign."""
    given = AuditOrder.read(order)
    signing = _key(private_key, given)
    folders = tuple(str(each) for each in folder or ())
    opened = None if data is None and task is None else _opened(given, data, task, folders, salt)
    degree = None if opened is None else noniid_degree(opened.counts, given.terms.reference)
    found = _findings(given, opened, degree)
    if not as_json:
        typer.echo("\n".join(f"{name:16} {value}" for name, value in found.items()), err=True)
    as_claimed = (
        opened is not None and opened.root == given.claim.samples_root and degree == given.opening.degree
    )
    if opened is None:
        accept, remark = False, remark or "no samples were shown"
    elif accept is None:
        accept, remark = _asked(as_json, remark)
    if not accept and not remark.strip():
        raise CommandError("samples are rejected for a reason; give --remark")
    if out.exists():
        raise CommandError(f"{out} exists already; name a new folder with --out")
    weights = None
    if opened is not None and as_claimed and accept:
        weights = _retrained(given, opened.samples, folders)
    try:
        out.mkdir(parents=True)
        if weights is not None:
            (out / RETRAINED).write_bytes(weights)
    except OSError as error:
        raise CommandError(
            f"{out} cannot be written ({error.strerror}); name another folder with --out"
        ) from None
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
    write_statement(out, statement, sign_statement(statement, signing))
    if as_json:
        typer.echo(
            json.dumps({**found, "accepted": bool(accept), "retrained": weights is not None, "out": str(out)})
        )
    else:
        typer.echo(f"{out} goes back to the operator: `fedpeer coordinator audit record {out.name}`.")


def _key(path: Path, order: AuditOrder) -> Any:
    """The auditor's key, once it is seen to be the one that the terms name."""
    if order.terms.audit is None:
        raise CommandError(f"the terms of task {order.terms.task_id} have no audits")
    try:
        signing = load_private_key(path.read_bytes())
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}); give the auditor's --key") from None
    except CertificateError as error:
        raise CommandError(f"{path}: {error}") from None
    if public_key_bytes(signing.public_key()) != order.terms.audit.auditor:
        raise CommandError(f"{path} is not the key of the auditor whom the terms name")
    return signing


def _opened(
    order: AuditOrder, data: Path | None, task: str | None, folders: tuple[str, ...], salt: str
) -> _Opened:
    """The samples, as the participant's adapter takes them."""
    from fedpeer.learning.duplicates import duplicates
    from fedpeer.learning.samples import Samples
    from participant.adapters.counting import count
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
        counts = count(samples, order.terms, folders)
    except ParticipantError as error:
        raise CommandError(f"the samples cannot be opened: {error}") from None
    try:
        root = samples_root(sample_digests(samples.inputs, samples.targets), bytes.fromhex(salt))
    except (ValueError, FieldError) as error:
        raise CommandError(
            f"the salt is none ({error}); the participant's `fedpeer participant audits TASK --salt` prints it"
        ) from None
    alike = duplicates(samples)
    return _Opened(samples, root, alike.distinct, alike.near, counts)


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
        "distinct": opened.distinct,
        "nearly the same": f"{opened.near}, as another of different content",
        "commitment": "as claimed" if opened.root == claim.samples_root else "OTHER SAMPLES than claimed",
        "degree": f"{degree}, as claimed"
        if degree == order.opening.degree
        else f"{degree}, and {order.opening.degree} CLAIMED",
    }


def _asked(as_json: bool, remark: str) -> tuple[bool, str]:
    if as_json or not sys.stdin.isatty():
        raise CommandError("nobody can be asked here; give --accept, or --reject with --remark")
    accepted = typer.confirm(
        "Do you accept where the samples come from, and how many are the same?", err=True
    )
    if not accepted and not remark:
        remark = typer.prompt("Why not? The participant reads it", err=True)
    return accepted, remark


def _retrained(order: AuditOrder, samples: "Samples", folders: tuple[str, ...]) -> bytes:
    """The file of a model that is trained by the recipe from the round's start, with a seed of the auditor's own."""
    from fedpeer.learning.errors import LearningError
    from fedpeer.learning.workloads.loading import WorkloadSource
    from fedpeer.protocol.model_file import encode_model, open_model

    try:
        source = WorkloadSource.of_recipe(order.terms.recipe, folders)
        assert source is not None, "terms with audits pay on evidence, which trains"
        weights = source.load().train(
            open_model(order.start).weights(), samples, order.terms.recipe, secrets.randbits(63)
        )
    except LearningError as error:
        raise CommandError(f"the model cannot be trained here: {error}") from None
    return encode_model(weights)
