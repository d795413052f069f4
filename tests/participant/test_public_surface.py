"""What `participant` offers: complete, documented, light to import, and one exception for every refusal."""

import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import participant
import participant.errors
from fedpeer.protocol.errors import Code, FieldViolation, Refusal
from participant.aio import AsyncClient, AsyncJoinedTask, AsyncParticipant, AsyncRound
from participant.client import Client
from participant.errors import ParticipantError, RefusedError, refused
from participant.identity import Credentials
from participant.report import Settlement
from participant.sync import JoinedTask, Participant, Round

ROOT = Path(__file__).resolve().parents[2]


def test_everything_that_is_announced_is_there_and_documented() -> None:
    assert len(set(participant.__all__)) == len(participant.__all__)
    for name in participant.__all__:
        item = getattr(participant, name)
        if name != "Weights":  # an alias has no docstring of its own
            assert inspect.getdoc(item), name


def test_every_public_method_is_documented() -> None:
    for kind in (
        Participant,
        JoinedTask,
        Round,
        AsyncParticipant,
        AsyncJoinedTask,
        AsyncRound,
        participant.Task,
    ):
        for name, member in inspect.getmembers(kind):
            if (
                not name.startswith("_")
                and inspect.isfunction(member)
                and member.__module__.startswith("part")
            ):
                assert member.__doc__, f"{kind.__name__}.{name}"


@pytest.mark.parametrize(
    ("sync", "asynchronous"),
    [
        (Participant, AsyncParticipant),
        (JoinedTask, AsyncJoinedTask),
        (Round, AsyncRound),
        (Client, AsyncClient),
    ],
)
def test_both_clients_have_the_same_shape(sync: type, asynchronous: type) -> None:
    names = {name for name in dir(sync) if not name.startswith("_")}
    assert names == {name for name in dir(asynchronous) if not name.startswith("_")}
    for name in names:
        ours, theirs = getattr(sync, name), getattr(asynchronous, name)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs), name
        if inspect.isfunction(ours):
            assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters, name


def test_a_call_shows_what_it_takes_and_gives() -> None:
    assert str(inspect.signature(Participant.claimed)) == "(self, task_id: str) -> bool"
    for kind, joined, round_, iterator in (
        (Participant, JoinedTask, Round, Iterator),
        (AsyncParticipant, AsyncJoinedTask, AsyncRound, AsyncIterator),
    ):
        assert inspect.signature(kind.join).return_annotation is joined
        assert inspect.signature(kind.enroll).return_annotation is Credentials
        assert inspect.signature(joined.rounds).return_annotation == iterator[round_]
        assert inspect.signature(joined.settlement).return_annotation is Settlement
    assert inspect.iscoroutinefunction(AsyncParticipant.join)
    assert inspect.iscoroutinefunction(AsyncParticipant.enroll)
    assert not inspect.iscoroutinefunction(Participant.join)
    assert Participant.join.__qualname__ == "Participant.join"


TYPED = """
from participant import AsyncParticipant, Participant

def blocking(me: Participant) -> None:
    joined = me.join("task", private_counts=True)
    reveal_type(joined.claim(0.5, [1, 2]))
    for round_ in joined.rounds():
        reveal_type(round_.submit({}, samples=1))
    for event in me.client.watch("task"):
        reveal_type(event)
    me.join(3)

async def awaited(me: AsyncParticipant) -> None:
    joined = await me.join("task")
    reveal_type(await joined.claim(0.5, [1, 2]))
    async for round_ in joined.rounds():
        reveal_type(await round_.submit({}, samples=1))
    await me.find_task(wrong=1)
"""


@pytest.mark.slow
def test_a_type_checker_knows_both_clients(tmp_path: Path) -> None:
    script = tmp_path / "typed.py"
    script.write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", script],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith(str(script))]
    receipt = 'note: Revealed type is "participant.report.Receipt"'
    event = 'note: Revealed type is "fedpeer.v1.market_pb2.Event"'
    wrong_type, wrong_name = said.pop(3), said.pop(-1)
    assert said == [receipt, receipt, event, receipt, receipt]
    assert 'incompatible type "int"; expected "str"' in wrong_type
    assert 'Unexpected keyword argument "wrong"' in wrong_name


def test_every_error_is_public_and_in_the_tree() -> None:
    tree = participant.errors.__doc__
    assert tree is not None
    defined = {
        name
        for name, item in vars(participant.errors).items()
        if inspect.isclass(item) and issubclass(item, ParticipantError)
    }
    assert defined | {"refused", "ForeignKeyWarning"} == set(participant.errors.__all__)
    for name in defined:
        assert name in tree
        assert name in participant.__all__


@pytest.mark.parametrize("code", Code)
def test_every_refusal_has_an_exception_that_says_what_to_do(code: Code) -> None:
    violations = [FieldViolation("model", "tensor 'a' is missing")]
    error = refused(Refusal(code, "This was wrong.", violations=violations, request_id="r1"))
    assert type(error) is not RefusedError, "a leaf of its own"
    assert code.advice in str(error)
    assert "tensor 'a' is missing" in str(error)
    assert "r1" in str(error)
    assert error.code is code


#: What nobody needs who only imports the package; each would take a noticeable part of half a second.
HEAVY = (
    "torch", "scipy", "sklearn", "pydantic", "sqlalchemy", "alembic", "typer", "rich", "structlog",
    "cryptography.x509", "mechanism.ledger", "mechanism.best_response", "participant.config", "participant.service",
)  # fmt: skip

#: Modules that the package may bring besides those of NumPy and gRPC: 161 when this was written.
MODULES = 170


def test_importing_is_light() -> None:
    """How long it takes is in docs/benchmarks.md; a module that comes along unasked is what makes it longer."""
    program = (
        "import sys, numpy, numpy.typing, grpc; before = set(sys.modules); import participant; "
        f"print(len(sys.modules) - len(before), *(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    brought, *heavy = done.stdout.split()
    assert heavy == []
    assert int(brought) <= MODULES


def test_the_reference_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
