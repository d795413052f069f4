"""What participants say: claims, models, failures."""

from collections.abc import Mapping
from typing import Any, NoReturn

from mechanism.ledger import entries as events
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay.comparing import Wrong, same
from mechanism.ledger.replay.forms import check_body
from mechanism.ledger.replay.keys import check_signature, check_standing
from mechanism.ledger.replay.layouts import Said, model_of
from mechanism.ledger.replay.world import Claim, Model, TaskState, World
from mechanism.lifecycle import State
from mechanism.peers import share_fits
from mechanism.statements import ClaimOpening, ClaimStatement, ModelOpening, ModelStatement
from mechanism.terms import identifier


def claim(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    statement = ClaimStatement.from_record(body["statement"])
    task = world.task(statement.task_id)
    signature, organisation = bytes.fromhex(body["signature"]), bytes.fromhex(body["organisation"])
    same(entry, events.claim(statement, signature, keys=world.key_history, organisation=organisation))
    name = statement.participant_id
    if task.state is not State.EFFORT:
        raise Wrong(f"a claim in {task.state}; claims are taken in EFFORT")
    if name in task.claims:
        raise Wrong(f"{name} has claimed before")
    if world.pseudonyms.get(name) != (task.id if task.terms.pseudonyms else None):
        raise Wrong(
            f"{name} claims in {task.id}, which takes pseudonyms of its own where its terms say so, and no others"
        )
    if len(task.claims) >= task.terms.schedule.capacity:
        raise Wrong(f"all {task.terms.schedule.capacity} places of the task are taken")
    most = task.terms.schedule.identities_per_organisation
    if organisation and task.organisations[organisation] >= most:
        raise Wrong(f"the organisation of {name} has {most} claims already; the terms allow no more")
    if bool(statement.samples_root) != (task.terms.audit is not None):
        raise Wrong("samples are committed to where the terms have audits, and only there")
    _check_statement(task, statement)
    check_signature(world, statement, signature)
    task.organisations[organisation] += 1
    opening = world.opened(entry, statement.commitment)
    task.claims[name] = Claim(
        degree=None if opening is None else ClaimOpening.from_record(opening).degree,
        counts_commitment=statement.counts_commitment,
        nonce=statement.nonce,
        draw_head=statement.draw_head,
        share=statement.draw_head,
        samples_root=statement.samples_root,
    )


def refused_model(world: World, entry: Entry, body: Mapping[str, Any]) -> NoReturn:
    """Says what is wrong with a model's entry that is none by its layout or its keys."""
    check_body(entry)
    statement = ModelStatement.from_record(body["statement"])
    world.task(statement.task_id)
    signature, sequence, late = bytes.fromhex(body["signature"]), body["sequence"], body["late"]
    same(entry, events.model(statement, signature, sequence, late, keys=world.key_history))
    raise Wrong("its bytes are not laid out as a model's entry is")


def model(world: World, entry: Entry, said: Said) -> None:
    read = model_of(said)
    if read is None or read[2] != world.key_history.hex():
        refused_model(world, entry, entry.body)
    statement, signature, _, sequence, late = read
    task = world.task(statement.task_id)
    name, number, most = statement.participant_id, statement.round, task.terms.contract.max_bytes
    if name not in task.chosen:
        raise Wrong(f"{name} was not selected to train")
    if statement.nonce != task.claims[name].nonce:
        raise Wrong(f"the nonce is not the one of {name}'s claim in this task")
    if statement.model_bytes > most:
        raise Wrong(f"the model has {statement.model_bytes} bytes; the contract allows {most}")
    if number > task.round.number:
        raise Wrong(f"a model of round {number} in round {task.round.number}")
    if (number, name) in task.delivered:
        raise Wrong(f"{name} has a model in round {number} already")
    if sequence in task.sequences or sequence <= task.floors[number]:
        raise Wrong(
            f"the sequence {sequence} is taken, or not above {task.floors[number]}, "
            "the last before the round began"
        )
    _check_statement(task, statement)
    check_signature(world, statement, bytes.fromhex(signature))
    _check_share(task.claims[name], name, number, statement.draw_share)
    opening = world.opened(entry, statement.commitment)
    samples = None if opening is None else ModelOpening.from_record(opening).samples
    task.delivered.add((number, name))
    task.sequences.add(sequence)
    in_time = task.collecting and number == task.round.number
    if late is in_time:
        raise Wrong(
            "a model marked late that came before its round was closed"
            if late
            else "a model outside its round's training, or after its closing, that is not marked late"
        )
    if in_time:
        task.round.models[name] = Model(statement.model_sha256, samples, sequence, statement.draw_share)


def failure(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task, name, reason = world.task(body["task_id"]), body["participant_id"], body["reason"]
    submission = identifier("submission_id", body["submission_id"])
    same(entry, events.failure(task.id, task.round.number, name, submission, reason))
    if not task.collecting:
        raise Wrong(f"a failure in {task.state}; failures are taken in TRAINING, until the round is closed")
    if name not in task.chosen:
        raise Wrong(f"{name} was not selected, so it has nothing to fail at")
    check_standing(world, name)
    if name in task.round.failures:
        raise Wrong(f"{name} has reported a failure in this round already")
    _take_submission(task, name, submission)
    task.round.failures[name] = reason


def _check_share(claim: Claim, name: str, round_: int, share: bytes) -> None:
    """That a model has its round's share of the chain that its claim commits to."""
    # A late model's is counted from the head, to which its way is the shorter one.
    newer = round_ > claim.share_round
    known, steps = (claim.share, round_ - claim.share_round) if newer else (claim.draw_head, round_)
    if not share_fits(share, steps, known):
        raise Wrong(
            f"the draw share {share.hex()} of {name} in round {round_} is not of the chain whose head "
            f"{claim.draw_head.hex()} its claim has"
        )
    if newer:
        claim.share, claim.share_round = share, round_


def _check_statement(task: TaskState, statement: ClaimStatement | ModelStatement) -> None:
    if statement.terms_digest != task.terms.digest:
        raise Wrong("the statement is about other terms than the task's")
    _take_submission(task, statement.participant_id, statement.submission_id)


def _take_submission(task: TaskState, name: str, submission_id: str) -> None:
    submission = f"{name}/{submission_id}"
    if submission in task.submissions:
        raise Wrong(f"the submission id {submission} was used before")
    task.submissions.add(submission)
