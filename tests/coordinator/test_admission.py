"""What may be recorded, decided on the rows of a real database; in a running service a timer often decides first."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from coordinator.admission import (
    admit_claim,
    admit_dispute,
    admit_failure,
    admit_model,
    admit_upload,
    check_author,
    check_name,
    same_receipt,
)
from coordinator.clock import SystemClock
from coordinator.commits import Transactions
from coordinator.derivation import nonce, organisation_mark
from coordinator.identity import Caller, organisation_name
from coordinator.metrics import Metrics
from coordinator.opening import prepare_task
from coordinator.states import State
from coordinator.storage.identities import ParticipantRow
from coordinator.storage.schema import migrate
from coordinator.storage.submissions import ModelStanding, ReceiptRow
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import FailureReport, Transaction
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog
from fedpeer.protocol.certificates import PrivateKey, new_key, public_key_pem
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.limits import MAX_UPLOADS_PER_ROUND
from mechanism.errors import FieldError
from mechanism.ledger.entry import Entry
from mechanism.ledger.note import SigningKey
from mechanism.peers import draw_head, draw_share
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    commit_counts,
    sign_statement,
)
from tests.backends import DURABLE, scratch_url
from tests.integration.serving import task_config

SECRET = bytes(range(32))

#: Of somebody selected who has sent nothing yet.
STANDING = ModelStanding(
    receipt=None,
    selected=True,
    draw_head=draw_head(SECRET, 3),
    delivered=False,
    sequence=None,
    committed=None,
    begun=0,
)


@pytest.fixture(params=DURABLE)
def transact(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transactions]:
    with scratch_url(request.param, tmp_path) as url:
        database = Database(url)
        migrate(database)
        log = SignedLog(database, SigningKey("test", 1, bytes(32)))
        transactions = Transactions(database, log, SystemClock(), Metrics())
        yield transactions
        transactions.stop()
        database.close()


CLAIM_OPENING, MODEL_OPENING = (
    ClaimOpening(Decimal("0.5"), Fraction(0), bytes(32)),
    ModelOpening(10, bytes(32)),
)


def claim(task: TaskRow, name: str) -> ClaimStatement:
    return ClaimStatement(
        f"claim-{name}",
        task.id,
        task.terms.digest,
        name,
        CLAIM_OPENING.digest,
        commit_counts([1, 1, 1, 1], bytes(32)),
        draw_head(SECRET, 3),
        bytes(16),
    )


def model(task: TaskRow, name: str, round_: int, number: int) -> ModelStatement:
    return ModelStatement(
        submission_id=f"model-{round_}-{number}",
        task_id=task.id,
        terms_digest=task.terms.digest,
        participant_id=name,
        round=round_,
        model_sha256=bytes(32),
        model_bytes=64,
        commitment=MODEL_OPENING.digest,
        draw_share=draw_share(SECRET, 3, round_) if 1 <= round_ <= 3 else bytes(32),
        nonce=bytes(16),
    )


async def opened(transact: Transactions, tmp_path: Path, capacity: int) -> TaskRow:
    prepared = prepare_task(task_config(tmp_path, schedule={"rounds": 3, "capacity": capacity}), 1_000.0)

    def begin(t: Transaction) -> TaskRow:
        t.open_task(prepared)
        t.begin_effort(prepared.row)
        row = t.market.task(prepared.row.id)
        assert row is not None
        return row

    return await transact(begin)


def code(decide: Callable[[], object]) -> Code | None:
    try:
        decide()
    except Refusal as refusal:
        return refusal.code
    return None


async def test_a_task_that_is_full_takes_no_claim(transact: Transactions, tmp_path: Path) -> None:
    task = await opened(transact, tmp_path, capacity=3)

    def claims(t: Transaction) -> list[Code | None]:
        found = []
        for name in ("ann", "bob", "cyd", "dan", "eve"):
            statement = claim(task, name)
            found.append(code(lambda statement=statement: admit_claim(t.market, task, statement)))  # type: ignore[misc]
            if found[-1] is None:
                t.add_claim(task, statement, b"signature", CLAIM_OPENING)
        return found

    assert await transact(claims) == [None, None, None, Code.TASK_FULL, Code.TASK_FULL]
    assert await transact.read(lambda t: t.market.count_claims(task.id)) == 3


async def test_one_organisation_has_as_many_claims_as_the_terms_allow(
    transact: Transactions, tmp_path: Path
) -> None:
    task = await opened(transact, tmp_path, capacity=8)
    two = replace(task.terms.schedule, identities_per_organisation=2)
    wider = replace(task, terms=replace(task.terms, schedule=two))
    of = {
        "ann": "st mary's",
        "bob": "st mary's",
        "cyd": "st mary's",
        "dan": "the lake",
        "eve": None,
        "fay": None,
    }

    def work(t: Transaction) -> None:
        for name, organisation in of.items():
            t.market.put_participant(ParticipantRow(name, name, t.now, None, organisation))
        t.add_claim(task, claim(task, "ann"), b"signature", CLAIM_OPENING)
        for name in ("dan", "eve", "fay"):
            admit_claim(t.market, task, claim(task, name))
            t.add_claim(task, claim(task, name), b"signature", CLAIM_OPENING)
        with pytest.raises(
            Refusal, match=r"one identity in task .*; ann of that of 'bob' has claimed"
        ) as refused:
            admit_claim(t.market, task, claim(task, "bob"))
        assert refused.value.code is Code.IDENTITY_BARRED
        admit_claim(t.market, wider, claim(wider, "bob"))
        t.add_claim(wider, claim(wider, "bob"), b"signature", CLAIM_OPENING)
        with pytest.raises(Refusal, match=r"at most 2 identities .*; ann, bob of that of 'cyd' have claimed"):
            admit_claim(t.market, wider, claim(wider, "cyd"))
        logged = [Entry.parse(data) for data in t.ledger_store.entries(0, t.ledger.size())]
        marks = {e.id.split("/")[2]: e.body["organisation"] for e in logged if e.kind == "claim"}
        assert marks["eve"] == marks["fay"] == ""
        assert marks["ann"] == marks["bob"] == organisation_mark(task.root, "st mary's").hex()
        assert marks["dan"] not in ("", marks["ann"])
        assert not any(b"mary" in e.data or b"lake" in e.data for e in logged)

    await transact(work)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("St Mary's", "st mary's"),
        ("  ST  MARY'S ", "st mary's"),
        ("Stra\u00dfe", "strasse"),
        ("\uff21 1", "a 1"),
    ],
)
def test_an_organisation_is_the_same_however_its_name_is_written(text: str, name: str) -> None:
    assert organisation_name(text) == name


@pytest.mark.parametrize("text", [" ", "x" * 101, "a\x00b", "a\u202eb"])
def test_what_is_no_name_of_an_organisation_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match="1 to 100 printable characters"):
        organisation_name(text)


async def test_one_late_model_a_round_is_recorded_and_no_second(
    transact: Transactions, tmp_path: Path
) -> None:
    task = replace(await opened(transact, tmp_path, capacity=3), state=State.TRAINING, round=2)
    standing = STANDING

    def receipt(name: str, round_: int, kind: str) -> ReceiptRow:
        return ReceiptRow(task.id, name, f"{kind}-{round_}", kind, round_, bytes(32), 0, True, 0.0)

    def admitted(t: Transaction, name: str, round_: int, now: int = 2) -> Code | bool:
        try:
            return admit_model(t.market, replace(task, round=now), model(task, name, round_, 2), standing)
        except Refusal as refusal:
            return refusal.code

    def work(t: Transaction) -> list[Code | bool]:
        first = admitted(t, "ann", 1)
        t.market.add_receipt(receipt("ann", 1, "failure"))
        after_failure = admitted(t, "ann", 1)
        t.market.add_receipt(receipt("ann", 1, "model"))
        return [
            first,
            after_failure,
            admitted(t, "ann", 1),
            admitted(t, "bob", 1),
            admitted(t, "ann", 2),
            admitted(t, "ann", 3),
            admitted(t, "ann", 2, 3),
            admitted(t, "ann", 1, 3),
        ]

    assert await transact(work) == [
        True,  # late, and recorded
        True,  # a failure is not a model
        Code.SUBMISSION_CONFLICT,
        True,  # another's
        False,  # in time, for the round that is open
        Code.WRONG_ROUND,
        True,  # of another round
        Code.SUBMISSION_CONFLICT,
    ]


async def test_a_claim_is_taken_once_and_while_claims_are_taken(
    transact: Transactions, tmp_path: Path
) -> None:
    task = await opened(transact, tmp_path, capacity=3)

    def work(t: Transaction) -> None:
        ann, bob = claim(task, "ann"), claim(task, "bob")
        t.add_claim(task, ann, b"signature", CLAIM_OPENING)
        again = replace(ann, submission_id="another")
        assert code(lambda: admit_claim(t.market, task, again)) is Code.SUBMISSION_CONFLICT
        for state, expected in (
            (State.OPEN, Code.WRONG_STATE),
            (State.SELECTED, Code.WRONG_STATE),
            (State.TRAINING, Code.WRONG_STATE),
            (State.CLOSED, Code.TASK_ENDED),
            (State.CANCELLED, Code.TASK_ENDED),
            (State.EFFORT, None),
        ):
            there = replace(task, state=state)
            assert code(lambda there=there: admit_claim(t.market, there, bob)) is expected  # type: ignore[misc]

    await transact(work)


async def test_who_says_something_speaks_for_itself_to_this_task_and_has_signed_it(
    transact: Transactions, tmp_path: Path
) -> None:
    task = await opened(transact, tmp_path, capacity=3)
    key, other = new_key(), new_key()
    ann = Caller("ann", key.public_key(), public_key_pem(key.public_key()))
    said = replace(claim(task, "ann"), nonce=nonce(task.root, "ann"))

    def found(statement: ClaimStatement | ModelStatement, signed_by: PrivateKey = key) -> Code | None:
        return code(lambda: check_author(ann, task, statement, sign_statement(statement, signed_by)))

    assert found(said) is None
    assert found(replace(model(task, "ann", 1, 1), nonce=said.nonce)) is None
    assert found(replace(said, participant_id="bob")) is Code.WRONG_PARTICIPANT
    assert found(replace(said, terms_digest=bytes(32))) is Code.TERMS_CHANGED
    assert found(replace(said, nonce=nonce(task.root, "bob"))) is Code.NONCE_UNKNOWN
    assert found(replace(said, nonce=nonce(bytes(32), "ann"))) is Code.NONCE_UNKNOWN
    assert found(said, other) is Code.SIGNATURE_INVALID
    assert code(lambda: check_name(ann, "ann")) is None
    assert code(lambda: check_name(ann, "bob")) is Code.WRONG_PARTICIPANT


def refused(decide: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        decide()
    return caught.value


async def test_a_refusal_says_where_the_task_is_and_why_it_ended(
    transact: Transactions, tmp_path: Path
) -> None:
    task = replace(await opened(transact, tmp_path, capacity=3), state=State.TRAINING, round=2)

    def work(t: Transaction) -> None:
        state = refused(lambda: admit_claim(t.market, task, claim(task, "ann")))
        assert state.metadata == {"state": "TRAINING", "round": "2"}
        assert "a claim is taken in EFFORT" in str(state)
        later = refused(lambda: admit_model(t.market, task, model(task, "ann", 3, 1), STANDING))
        assert later.code is Code.WRONG_ROUND
        assert later.metadata == {"state": "TRAINING", "round": "2"}
        ended = replace(task, state=State.CANCELLED, reason="too few")
        assert "is CANCELLED: too few." in str(
            refused(lambda: admit_claim(t.market, ended, claim(task, "ann")))
        )

    await transact(work)


#: State and round of the task, round of the model, what is recorded of the participant, and what is decided.
MODELS: tuple[tuple[State, int, int, ModelStanding, Code | bool], ...] = (
    (State.EFFORT, 0, 1, STANDING, Code.WRONG_STATE),
    (State.SELECTED, 0, 1, STANDING, Code.WRONG_STATE),
    (State.CANCELLED, 0, 1, STANDING, Code.TASK_ENDED),
    (State.TRAINING, 1, 1, STANDING, False),
    (State.SCORED, 1, 1, STANDING, True),
    (State.SETTLED, 1, 1, STANDING, True),
    (State.TRAINING, 2, 1, STANDING, True),
    (State.TRAINING, 2, 3, STANDING, Code.WRONG_ROUND),
    (State.CANCELLED, 1, 1, STANDING, Code.TASK_ENDED),
    (State.CLOSED, 3, 3, STANDING, Code.TASK_ENDED),
    (State.TRAINING, 1, 1, replace(STANDING, selected=False), Code.NOT_SELECTED),
    (State.TRAINING, 1, 1, replace(STANDING, draw_head=bytes(32)), Code.DRAW_SHARE_INVALID),
    (State.TRAINING, 1, 1, replace(STANDING, delivered=True), Code.SUBMISSION_CONFLICT),
    (State.TRAINING, 2, 1, replace(STANDING, delivered=True), Code.WRONG_ROUND),
)


async def test_a_model_is_in_time_or_late_or_refused(transact: Transactions, tmp_path: Path) -> None:
    task = await opened(transact, tmp_path, capacity=3)

    def work(t: Transaction) -> list[Code | bool]:
        found: list[Code | bool] = []
        for state, current, round_, standing, _ in MODELS:
            there = replace(task, state=state, round=current)
            try:
                found.append(admit_model(t.market, there, model(task, "ann", round_, 1), standing))
            except Refusal as refusal:
                found.append(refusal.code)
        return found

    assert await transact(work) == [expected for *_, expected in MODELS]


async def test_an_upload_fits_the_contract_and_goes_on_with_the_same_statement(
    transact: Transactions, tmp_path: Path
) -> None:
    task = await opened(transact, tmp_path, capacity=3)
    one = model(task, "ann", 1, 1)
    limit = task.terms.contract.max_bytes
    admit_upload(task, replace(one, model_bytes=limit), STANDING)
    large = replace(one, model_bytes=limit + 1)
    assert code(lambda: admit_upload(task, large, STANDING)) is Code.TOO_LARGE
    most = replace(STANDING, begun=MAX_UPLOADS_PER_ROUND)
    admit_upload(task, one, replace(most, begun=MAX_UPLOADS_PER_ROUND - 1))
    assert code(lambda: admit_upload(task, one, most)) is Code.QUOTA_EXCEEDED
    admit_upload(task, one, replace(most, committed=one.digest))  # goes on
    other = replace(most, committed=bytes(32))
    assert code(lambda: admit_upload(task, one, other)) is Code.SUBMISSION_CONFLICT


async def test_a_failure_is_reported_once_by_who_trains_now(transact: Transactions, tmp_path: Path) -> None:
    task = await opened(transact, tmp_path, capacity=3)

    def work(t: Transaction) -> None:
        for name in ("ann", "bob", "cyd"):
            t.add_claim(task, claim(task, name), b"signature", CLAIM_OPENING)
        now = replace(task, state=State.TRAINING, round=1)

        def found(name: str, there: TaskRow = now, round_: int = 1) -> Code | None:
            return code(lambda: admit_failure(t.market, there, name, round_))

        assert found("ann", task) is Code.WRONG_STATE  # it may yet be selected
        assert found("zoe", task) is Code.NOT_SELECTED
        t.market.select_participants(task.id, ["ann", "bob"])
        assert found("cyd") is Code.NOT_SELECTED
        assert found("ann") is None
        assert found("ann", replace(now, state=State.SCORED)) is Code.WRONG_STATE
        assert found("ann", replace(now, state=State.CANCELLED)) is Code.TASK_ENDED
        assert found("ann", round_=2) is Code.WRONG_ROUND
        receipt = t.add_failure(now, FailureReport(now.id, now.round, "ann", "f-1", "no disk"))
        assert (receipt.kind, receipt.round, receipt.late) == ("failure", 1, False)
        assert found("ann") is Code.SUBMISSION_CONFLICT
        assert found("bob") is None
        assert found("ann", replace(now, round=2), 2) is None

    await transact(work)


async def test_counts_are_opened_by_who_keeps_them_after_a_settlement(
    transact: Transactions, tmp_path: Path
) -> None:
    opened_task = await opened(transact, tmp_path, capacity=3)
    schedule = replace(opened_task.terms.schedule, dispute_seconds=60)
    rule = replace(opened_task.terms.rule, name="verified")
    task = replace(opened_task, terms=replace(opened_task.terms, schedule=schedule, rule=rule))

    def work(t: Transaction) -> None:
        for name in ("ann", "bob", "cyd"):
            t.add_claim(task, claim(task, name), b"signature", CLAIM_OPENING)
        t.market.select_participants(task.id, ["ann", "bob"])
        there = replace(task, state=State.SETTLED, round=1, deadline=None)

        def found(name: str, about: TaskRow = there) -> Code | None:
            return code(lambda: admit_dispute(t.market, about, name, 99.0))

        assert found("ann") is Code.NOT_YET
        t.market.open_round(task.id, 1, bytes(32), 64, 0.0)
        assert found("ann") is Code.NOT_YET
        t.market.update_round(task.id, 1, settled_at=1.0)
        assert found("ann") is None
        assert admit_dispute(t.market, there, "ann", 99.0).participant_id == "ann"
        assert found("ann", replace(there, deadline=99.1)) is None
        assert found("ann", replace(there, deadline=99.0)) is Code.TASK_ENDED
        assert found("ann", replace(there, state=State.TRAINING, deadline=98.0)) is None
        assert found("cyd") is Code.NOT_SELECTED
        assert found("zoe") is Code.NOT_SELECTED
        assert found("ann", replace(there, state=State.CLOSED)) is Code.TASK_ENDED
        assert found("ann", replace(there, terms=opened_task.terms)) is Code.WRONG_STATE

    await transact(work)


async def test_an_id_stands_for_one_content(transact: Transactions, tmp_path: Path) -> None:
    task = await opened(transact, tmp_path, capacity=3)

    def work(t: Transaction) -> None:
        receipt = ReceiptRow(task.id, "ann", "model-1", "model", 1, bytes(32), 0, False, 0.0)
        t.market.add_receipt(receipt)
        found = t.market.receipt(task.id, "ann", "model-1")
        assert same_receipt(found, bytes(32)) == receipt
        assert t.market.receipt(task.id, "ann", "model-2") is None
        assert t.market.receipt(task.id, "bob", "model-1") is None
        assert code(lambda: same_receipt(found, bytes(31))) is Code.SUBMISSION_CONFLICT
        assert same_receipt(None, bytes(32)) is None

    await transact(work)
