"""What may be submitted when: the rules for claims, models and failures, each decided inside the transaction
that records it.

The same submission id with the same content gives the same receipt, for ever; with another content it is a
conflict. A model for a round that has closed is recorded as late and not scored; everything else that comes at
the wrong time is refused and changes nothing.
"""

from coordinator.derivation import nonce, organisation_mark
from coordinator.identity import Caller
from coordinator.storage.store import MarketStore
from coordinator.storage.submissions import ClaimRow, ModelStanding, ReceiptRow
from coordinator.storage.tasks import TaskRow
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.limits import MAX_UPLOADS_PER_ROUND
from mechanism.dispute import DISPUTED_RULE, disputes_possible
from mechanism.lifecycle import State
from mechanism.peers import share_fits
from mechanism.statements import ClaimStatement, ModelStatement, Statement, signature_holds


def check_author(caller: Caller, task: TaskRow, statement: Statement, signature: bytes) -> None:
    """That the caller speaks for itself, to this task and its terms, and signed what it says.

    Raises:
        Refusal: WRONG_PARTICIPANT, TERMS_CHANGED, NONCE_UNKNOWN or SIGNATURE_INVALID.
    """
    check_name(caller, statement.participant_id)
    if statement.terms_digest != task.terms.digest:
        raise Refusal(
            Code.TERMS_CHANGED,
            f"Submission {statement.submission_id} is about terms of the digest {statement.terms_digest.hex()}; those "
            f"of task {task.id} have {task.terms.digest.hex()}.",
        )
    if statement.nonce != nonce(task.root, caller.participant_id):
        raise Refusal(Code.NONCE_UNKNOWN, f"The nonce is not the one of task {task.id} for this participant.")
    if not signature_holds(statement, signature, caller.key):
        raise Refusal(
            Code.SIGNATURE_INVALID, f"The signature does not hold for submission {statement.submission_id}."
        )


def check_name(caller: Caller, participant_id: str) -> None:
    """Raises Refusal where a message speaks for somebody else."""
    if participant_id != caller.participant_id:
        raise Refusal(
            Code.WRONG_PARTICIPANT,
            f"The message is from {participant_id!r}, the certificate is {caller.participant_id!r}'s.",
        )


def same_receipt(receipt: ReceiptRow | None, digest: bytes) -> ReceiptRow | None:
    """The receipt of an id, provided that it is for the same content.

    Raises:
        Refusal: SUBMISSION_CONFLICT where it is not.
    """
    if receipt is not None and receipt.digest != digest:
        raise _conflict(receipt.submission_id, receipt.kind)
    return receipt


def admit_claim(store: MarketStore, task: TaskRow, statement: ClaimStatement) -> None:
    """That a new claim may be recorded now.

    Raises:
        Refusal: WRONG_STATE, TASK_ENDED, TASK_FULL, IDENTITY_BARRED or SUBMISSION_CONFLICT.
    """
    if store.claim(task.id, statement.participant_id) is not None:
        raise Refusal(
            Code.SUBMISSION_CONFLICT,
            f"{statement.participant_id!r} has claimed in task {task.id} already, under another submission id.",
        )
    _refuse_ended(task)
    if task.state is not State.EFFORT:
        raise _wrong_state(task, "a claim", State.EFFORT)
    if (refusal := barred(store, task, statement.participant_id)) is not None:
        raise refusal
    if store.count_claims(task.id) >= task.terms.schedule.capacity:
        raise Refusal(
            Code.TASK_FULL, f"All {task.terms.schedule.capacity} places of task {task.id} are taken."
        )


def barred(store: MarketStore, task: TaskRow, participant_id: str) -> Refusal | None:
    """Why a participant that has not claimed gets no place: the task takes other identities, or its organisation's
    others leave none. None: there is one."""
    row = store.participant(participant_id)
    if row is not None and row.task_id != (task.id if task.terms.pseudonyms else None):
        takes = "identities that were made for it alone" if task.terms.pseudonyms else "no pseudonyms"
        return Refusal(
            Code.IDENTITY_BARRED, f"By its terms task {task.id} takes {takes}; {participant_id!r} is another."
        )
    mark = mark_of(store, task, participant_id)
    most = task.terms.schedule.identities_per_organisation
    if mark is None or len(taken := store.claimants_of(task.id, mark)) < most:
        return None
    few = "one identity" if most == 1 else f"at most {most} identities"
    return Refusal(
        Code.IDENTITY_BARRED,
        f"An organisation has {few} in task {task.id}, by its terms; {', '.join(taken)} of that of {participant_id!r} "
        f"{'has' if len(taken) == 1 else 'have'} claimed already.",
    )


def mark_of(store: MarketStore, task: TaskRow, participant_id: str) -> bytes | None:
    """The mark of a participant's organisation in a task; None where it is one by itself."""
    row = store.participant(participant_id)
    if row is None or row.organisation is None:
        return None
    return organisation_mark(task.root, row.organisation)


def admit_model(
    store: MarketStore, task: TaskRow, statement: ModelStatement, standing: ModelStanding
) -> bool:
    """That a new model may be uploaded or recorded now; returns whether it is late.

    Raises:
        Refusal: WRONG_STATE, WRONG_ROUND, TASK_ENDED, NOT_SELECTED, DRAW_SHARE_INVALID, SUBMISSION_CONFLICT or
            QUOTA_EXCEEDED.
    """
    if task.round < 1:
        _refuse_ended(task)
        raise _wrong_state(task, "a model", State.TRAINING)
    if not standing.selected:
        raise Refusal(
            Code.NOT_SELECTED, f"{statement.participant_id!r} was not selected to train in task {task.id}."
        )
    if statement.round > task.round:
        raise _wrong_round(task, statement.round)
    if not share_fits(statement.draw_share, statement.round, standing.draw_head):
        raise Refusal(
            Code.DRAW_SHARE_INVALID,
            f"The draw share is not the one of round {statement.round} of the chain that the claim of "
            f"{statement.participant_id!r} in task {task.id} commits to: hashed {statement.round} times by SHA-256 "
            f"it must give the claim's head, {standing.draw_head.hex()}.",
        )
    if standing.delivered:
        if statement.round < task.round:
            raise _wrong_round(task, statement.round)
        raise Refusal(
            Code.SUBMISSION_CONFLICT,
            f"{statement.participant_id!r} has delivered a model for round {statement.round} already, "
            "under another submission id.",
        )
    _refuse_ended(task)
    late = statement.round < task.round or task.state is not State.TRAINING
    if late and any(
        r.kind == "model" and r.round == statement.round
        for r in store.receipts(task.id, statement.participant_id)
    ):
        raise Refusal(
            Code.SUBMISSION_CONFLICT,
            f"{statement.participant_id!r} has sent a late model for round {statement.round} already.",
        )
    return late


def admit_upload(task: TaskRow, statement: ModelStatement, standing: ModelStanding) -> None:
    """That one more upload may begin.

    Raises:
        Refusal: TOO_LARGE, SUBMISSION_CONFLICT or QUOTA_EXCEEDED.
    """
    limit = task.terms.contract.max_bytes
    if statement.model_bytes > limit:
        raise Refusal(
            Code.TOO_LARGE,
            f"The model has {statement.model_bytes} bytes; task {task.id} accepts at most {limit}.",
        )
    if standing.committed is not None:
        if standing.committed != statement.digest:
            raise _conflict(statement.submission_id, "model")
        return
    if standing.begun >= MAX_UPLOADS_PER_ROUND:
        raise Refusal(
            Code.QUOTA_EXCEEDED,
            f"{MAX_UPLOADS_PER_ROUND} uploads were begun for round {statement.round} already, "
            "which is the limit.",
        )


def admit_failure(store: MarketStore, task: TaskRow, participant_id: str, round_: int) -> None:
    """That a failure may be recorded now.

    Raises:
        Refusal: TASK_ENDED, WRONG_STATE, WRONG_ROUND, NOT_SELECTED or SUBMISSION_CONFLICT.
    """
    _refuse_ended(task)
    claim = store.claim(task.id, participant_id)
    if claim is None or (not claim.selected and task.state is not State.EFFORT):
        raise Refusal(Code.NOT_SELECTED, f"{participant_id!r} does not train in task {task.id}.")
    if task.state is not State.TRAINING:
        raise _wrong_state(task, "a failure", State.TRAINING)
    if round_ != task.round:
        raise _wrong_round(task, round_)
    if any(f.participant_id == participant_id for f in store.failures(task.id, round_)):
        raise Refusal(
            Code.SUBMISSION_CONFLICT, f"{participant_id!r} has reported a failure in round {round_} already."
        )


def admit_progress(task: TaskRow, selected: frozenset[str], participant_id: str, round_: int) -> None:
    """That somebody trains in a round now, so that its progress is worth knowing.

    Raises:
        Refusal: TASK_ENDED, WRONG_STATE, WRONG_ROUND or NOT_SELECTED.
    """
    _refuse_ended(task)
    if task.state is not State.TRAINING:
        raise _wrong_state(task, "progress", State.TRAINING)
    if round_ != task.round:
        raise _wrong_round(task, round_)
    if participant_id not in selected:
        raise Refusal(Code.NOT_SELECTED, f"{participant_id!r} does not train in task {task.id}.")


def admit_dispute(store: MarketStore, task: TaskRow, participant_id: str, now: float) -> ClaimRow:
    """That a participant may open its counts `now`; returns its claim.

    Raises:
        Refusal: NOT_SELECTED, WRONG_STATE where the terms know no disputes, NOT_YET before the first settlement,
            TASK_ENDED after the window.
    """
    claim = store.claim(task.id, participant_id)
    if claim is None or not claim.selected:
        raise Refusal(Code.NOT_SELECTED, f"{participant_id!r} does not train in task {task.id}.")
    if not disputes_possible(task.terms):
        raise Refusal(
            Code.WRONG_STATE,
            f"The terms of task {task.id} know no disputes: they need schedule.dispute_seconds above 0 and the "
            f"rule {DISPUTED_RULE!r}.",
        )
    if task.state.final:
        raise Refusal(Code.TASK_ENDED, f"Task {task.id} is {task.state}; disputes were taken until it ended.")
    if task.state is State.SETTLED and task.deadline is not None and now >= task.deadline:
        raise Refusal(
            Code.TASK_ENDED, f"Disputes of task {task.id} were taken until its last deadline, which is over."
        )
    if not any(r.settled_at is not None for r in store.rounds(task.id)):
        raise Refusal(Code.NOT_YET, f"No round of task {task.id} is settled, so nothing can be disputed.")
    return claim


def _conflict(submission_id: str, kind: str) -> Refusal:
    return Refusal(Code.SUBMISSION_CONFLICT, f"Submission {submission_id} stands for another {kind} already.")


def _refuse_ended(task: TaskRow) -> None:
    if task.state.final:
        why = f": {task.reason}" if task.reason else ""
        raise Refusal(Code.TASK_ENDED, f"Task {task.id} is {task.state}{why}.")


def _wrong_state(task: TaskRow, what: str, expected: State) -> Refusal:
    return Refusal(
        Code.WRONG_STATE,
        f"Task {task.id} is in state {task.state}; {what} is taken in {expected}.",
        metadata={"state": task.state, "round": str(task.round)},
    )


def _wrong_round(task: TaskRow, round_: int) -> Refusal:
    return Refusal(
        Code.WRONG_ROUND,
        f"Task {task.id} is in round {task.round}; the message is for round {round_}.",
        metadata={"state": task.state, "round": str(task.round)},
    )
