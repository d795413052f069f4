"""Money: settlements, disputes, and what is left when a task ends."""

from collections.abc import Mapping
from typing import Any

from mechanism.dispute import check_opening, disputes_possible, review
from mechanism.ledger import entries as events
from mechanism.ledger.accounts import stake
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay import audits
from mechanism.ledger.replay.comparing import Wrong, same
from mechanism.ledger.replay.forms import check_counts
from mechanism.ledger.replay.keys import check_standing
from mechanism.ledger.replay.world import Awarding, Disputable, TaskState, World
from mechanism.lifecycle import State
from mechanism.peers import Draw, check_round_seed
from mechanism.settlement import RoundSettlement, max_payment_micro
from mechanism.terms import Terms


def seed(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """A round's seed; it and the verdicts give the settlement."""
    task = world.task(body["task_id"])
    if task.state is not State.SCORED:
        raise Wrong(f"a seed in {task.state}; expected in SCORED")
    number, revealed = task.round.number, bytes.fromhex(body["seed"])
    check_round_seed(revealed, task.seed)
    check_fresh_seed(world, revealed)
    disputable = disputes_possible(task.terms)
    settlement, expected = events.settlement_entries(
        task.terms,
        number,
        Draw(revealed, {name: sent.share for name, sent in task.round.models.items()}),
        list(task.round.verdicts.values()),
        {name: world.book.holds(stake(task.id, name)) for name in task.selected},
        disputable,
        world.key_history,
        task.meetings,
    )
    task.meetings.add((line.participant_id, line.peers) for line in settlement.payments)
    if disputable and events.kept_micro(task.terms, number, settlement):
        task.kept[number] = _disputable(task, settlement)
    audits.begin(task, settlement)
    task.seed = revealed
    task.unresolved.discard(number)
    world.counts.settlements += 1
    world.begin_with(entry, task.id, "settlement", expected, f"{task.id}/round/{number}/aggregate")


def check_fresh_seed(world: World, value: bytes) -> None:
    """Of a seed or a commitment: those who have seen it in another task know draws before they are made."""
    if value in world.seeds:
        raise Wrong(f"the seed or commitment {value.hex()} stands in this log already; each is used once")
    world.seeds.add(value)


def dispute(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task, name = world.task(body["task_id"]), body["participant_id"]
    at, schedule = body["at"], task.terms.schedule
    same(entry, events.dispute(task.id, name, at))
    if name not in task.chosen or name in task.disputes:
        raise Wrong(f"{name} was not selected, or has opened its counts before")
    check_standing(world, name)
    if not disputes_possible(task.terms):
        raise Wrong("a dispute where the terms allow none")
    if len(task.unresolved) == schedule.rounds:
        raise Wrong("a dispute before a settlement")
    waited = task.waited(at)
    if not task.unresolved and waited > schedule.dispute_seconds:
        raise Wrong(
            f"a dispute {waited} seconds after the last settlement; the terms allow {schedule.dispute_seconds}"
        )
    claim = task.claims[name]
    opening = world.opened(entry, claim.counts_commitment)
    if opening is not None:
        check_counts(opening)
        salt = bytes.fromhex(opening["salt"])
        check_opening(task.terms, claim.counts_commitment, claim.degree, opening["counts"], salt)
    task.disputes.add(name)


def awards(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """The disputes of a round end: the first of what ends a task, or after the awards of an earlier round."""
    task, number, total = world.task(body["task_id"]), body["round"], body["total_micro"]
    if not task.kept or number != min(task.kept):
        raise Wrong(f"awards of round {number}, which are not the next to come")
    same(entry, events.awards_ended(task.terms, number, total))
    kept = task.kept.pop(number)
    task.awarding = Awarding(number, total, {name: kept[name] for name in sorted(task.disputes)})
    _go_on(world, task)


def award(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task, name, micro = world.task(body["task_id"]), body["participant_id"], body["award_micro"]
    awarding = task.awarding
    if awarding is None or name not in awarding.waiting:
        raise Wrong(f"an award to {name}, which has no dispute, or out of order")
    same(entry, events.award(task.terms, awarding.number, name, micro))
    about = awarding.waiting[name]
    if not 1 <= micro <= awarding.left_micro:
        raise Wrong(
            f"an award of {micro} micro-credits, where {awarding.left_micro} are left of the round's awards"
        )
    most = most_of_round(task.terms) - about.paid_micro
    if micro > most:
        raise Wrong(f"an award of {micro} micro-credits; with what was paid, the terms allow at most {most}")
    while awarding.waiting:
        other, passed = next(iter(awarding.waiting.items()))
        del awarding.waiting[other]
        _check_award(world, task, other, passed, micro if other == name else 0)
        if other == name:
            break
    awarding.left_micro -= micro
    world.counts.paid_micro += micro
    _go_on(world, task)


def _check_award(world: World, task: TaskState, name: str, about: Disputable, micro: int) -> None:
    """That a participant is awarded what its dispute gives, where that is opened."""
    world.counts.reviews += 1
    if about.subject is None:
        return
    world.counts.reviewed += 1
    due = review(task.terms, about.subject, about.peers, about.paid_micro).award_micro
    if due != micro:
        raise Wrong(f"{name} is awarded {micro} micro-credits; its dispute gives {due}")


def _go_on(world: World, task: TaskState) -> None:
    """What comes after awards: further ones of the round, those of the next round, then the rest of the end."""
    awarding, ends = task.awarding, [task.state_id(state) for state in (State.CLOSED, State.CANCELLED)]
    assert awarding is not None
    if awarding.left_micro:
        then = [events.award_id(task.id, awarding.number, name) for name in awarding.waiting]
        if not then:
            raise Wrong(f"{awarding.left_micro} micro-credits of the round's awards go to nobody")
        world.begin(task.id, "end", [], *then)
        return
    for name, about in awarding.waiting.items():
        _check_award(world, task, name, about, 0)
    task.awarding = None
    if task.kept:
        world.begin(task.id, "end", [], events.awards_id(task.id, min(task.kept)))
    else:
        world.begin(task.id, "end", _left_over(world, task), *ends)


def ending(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """The first entry of what ends a task where no round has kept something back; all others are expected."""
    task = world.task(body["task_id"])
    ends = [task.state_id(state) for state in (State.CLOSED, State.CANCELLED)]
    if task.kept:
        raise Wrong(f"the task's end begins with the {events.awards_id(task.id, min(task.kept))}")
    world.begin_with(entry, task.id, "end", _left_over(world, task), *ends)


def first_of_end(world: World, task: TaskState) -> str | None:
    """Id of the entry that must stand before the task's last transition; None where nothing must."""
    if task.kept:
        return events.awards_id(task.id, min(task.kept))
    left = _left_over(world, task)
    return left[0].id if left else None


def _left_over(world: World, task: TaskState) -> list[Entry]:
    """Refunds and stakes that stand before the task's last transition, once the disputes have ended."""
    stakes = {name: world.book.holds(stake(task.id, name)) for name in task.claims}
    *left, _ = events.ending_entries(
        task.id,
        task.round.number,
        State.CLOSED,
        task.unresolved,
        stakes,
        "",
        audits=audits.left_held(world, task),
        convicted=task.convicted,
    )
    return left


def most_of_round(terms: Terms) -> int:
    """The most that a round pays one participant, micro-credits."""
    return max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)


def _disputable(task: TaskState, settlement: RoundSettlement) -> dict[str, Disputable]:
    verdicts, opened = task.round.verdicts, task.round.assessments
    return {
        line.participant_id: Disputable(
            opened.get(line.participant_id), [verdicts[peer] for peer in line.peers], line.paid_micro
        )
        for line in settlement.payments
    }
