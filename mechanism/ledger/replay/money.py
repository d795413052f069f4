"""Money: settlements, disputes, and what is left when a task ends."""

from collections.abc import Mapping
from typing import Any

from mechanism.dispute import check_opening, disputes_possible, review
from mechanism.ledger import entries as events
from mechanism.ledger.accounts import stake
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay import audits
from mechanism.ledger.replay.comparing import Wrong, same
from mechanism.ledger.replay.keys import check_standing
from mechanism.ledger.replay.world import Disputable, Task, World
from mechanism.lifecycle import State
from mechanism.peers import Draw, check_round_seed
from mechanism.settlement import Settlement


def seed(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """A round's seed; it and the verdicts give the settlement."""
    task = world.task(body["task_id"])
    if task.state is not State.SCORED:
        raise Wrong(f"a seed in {task.state}; expected in SCORED")
    number, revealed = task.round.number, bytes.fromhex(body["seed"])
    check_round_seed(revealed, task.seed)
    check_fresh_seed(world, revealed)
    private = task.private
    disputable = disputes_possible(task.terms, private)
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
        task.kept[number] = _disputable(task, settlement, private)
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
    salt = bytes.fromhex(body["salt"])
    at, schedule = body["at"], task.terms.schedule
    same(entry, events.dispute(task.id, name, body["counts"], salt, at))
    if name not in task.private or name in task.disputes:
        raise Wrong(f"{name} has no private counts to open, or has opened them before")
    check_standing(world, name)
    if not disputes_possible(task.terms, [name]):
        raise Wrong("a dispute where the terms allow none")
    if len(task.unresolved) == schedule.rounds:
        raise Wrong("a dispute before a settlement")
    waited = task.waited(at)
    if not task.unresolved and waited > schedule.dispute_seconds:
        raise Wrong(
            f"a dispute {waited} seconds after the last settlement; the terms allow {schedule.dispute_seconds}"
        )
    claim = task.claims[name]
    check_opening(task.terms, claim.commitment, claim.degree, body["counts"], salt)
    task.disputes.add(name)


def ending(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """The first entry of what ends a task; all others are expected."""
    task = world.task(body["task_id"])
    ends = [task.state_id(state) for state in (State.CLOSED, State.CANCELLED)]
    world.begin_with(entry, task.id, "end", left_to_end(world, task), *ends)


def left_to_end(world: World, task: Task) -> list[Entry]:
    """What must stand before the task's last transition."""
    awards: list[Entry] = []
    for number, kept in sorted(task.kept.items()):
        lines = {
            name: review(task.terms, about.subject, about.peers, about.paid_micro).award_micro
            for name, about in kept.items()
            if name in task.disputes
        }
        awards += events.award_entries(task.terms, number, lines)
    stakes = {name: world.book.holds(stake(task.id, name)) for name in task.claims}
    number = task.round.number
    *left, _ = events.ending_entries(
        task.id,
        number,
        State.CLOSED,
        task.unresolved,
        stakes,
        "",
        awards=awards,
        audits=audits.left_held(world, task),
        convicted=task.convicted,
    )
    return left


def _disputable(task: Task, settlement: Settlement, private: list[str]) -> dict[str, Disputable]:
    lines, verdicts = {line.participant_id: line for line in settlement.payments}, task.round.verdicts
    return {
        name: Disputable(verdicts[name], [verdicts[p] for p in lines[name].peers], lines[name].paid_micro)
        for name in private
    }
