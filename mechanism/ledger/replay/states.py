"""Terms, and the states that a task goes through."""

from collections.abc import Mapping
from typing import Any

from mechanism.dispute import disputes_possible
from mechanism.ledger import entries as events
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay import audits
from mechanism.ledger.replay.comparing import Wrong, same, same_parts
from mechanism.ledger.replay.money import check_fresh_seed, first_of_end
from mechanism.ledger.replay.payouts import check_price
from mechanism.ledger.replay.world import Remeasurement, RoundState, TaskState, World, moment
from mechanism.lifecycle import State, check_step
from mechanism.settlement import least_budget_micro
from mechanism.terms import MAX_ROUNDS, Terms

#: States that are entered at the end of a transaction which no state begins, and what stands in it before.
_RESTS_ON: Mapping[State, str] = {State.SELECTED: "a selection", State.SCORED: "verdicts"}


def terms(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    if "terms" not in body:
        _terms_part(world, entry, body)
        return
    published = Terms.from_record(body["terms"])
    same(entry, events.published(published)[0])
    _publish(world, published)


def _terms_part(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """A part of terms that outgrow an entry; all of them are in the same transaction."""
    task_id, part, parts, pieces = body["task_id"], body["part"], body["parts"], world.pieces
    record = {key: body[key] for key in ("task_id", "part", "parts", "sha256", "data")}
    same(entry, Entry(f"{task_id}/terms/{part}", "terms", record))
    first = pieces[0].body if pieces else body
    of_one = all(body[key] == first[key] for key in ("task_id", "parts", "sha256"))
    if not of_one or part != len(pieces) + 1 or not part <= parts <= events.MAX_TERMS_PARTS:
        raise Wrong(f"part {part} of {parts} of the terms is out of place")
    pieces.append(entry)
    if part < parts:
        world.begin(task_id, "opening", [], f"{task_id}/terms/{part + 1}")
        return
    published = Terms.parse(events.joined([str(p.body["data"]) for p in pieces], body["sha256"]))
    same_parts(pieces, events.published(published))
    pieces.clear()
    _publish(world, published)


def _publish(world: World, published: Terms) -> None:
    name, schedule = published.task_id, published.schedule
    if name in world.tasks or name in world.ended:
        raise Wrong(f"the task {name} has terms already")
    if schedule.rounds > MAX_ROUNDS:
        raise Wrong(f"{schedule.rounds} rounds; a task has at most {MAX_ROUNDS}")
    least = least_budget_micro(published)
    if published.budget_micro < least:
        raise Wrong(
            f"the budget of {published.budget_micro} is below {least}: the maximal bill, and 1 for each round"
        )
    check_price(world, published)
    check_fresh_seed(world, published.seed_commitment)
    auditor = published.measured_by
    measured = Remeasurement(published.digest, auditor) if auditor else None
    task = TaskState(published, published.seed_commitment, RoundState(0, published.initial_model), measured)
    rounds = range(1, schedule.rounds + 1)
    task.unresolved.update(rounds)
    world.tasks[name] = task
    world.counts.tasks += 1
    reservations = [events.reservation(published, number) for number in rounds]
    world.begin(name, "opening", reservations, task.state_id(State.OPEN))


def transition(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task = world.task(body["task_id"])
    number, at, reason = body["round"], body["at"], body["reason"]
    same(entry, events.transition(task.id, number, body["state"], at, reason))
    state = State(body["state"])
    check_step(task.terms.schedule, task.state, task.round.number, state, number, reason)
    waited = task.waited(at)
    alone = world.transaction is None
    if alone and state in _RESTS_ON:
        raise Wrong(f"{state} is entered without {_RESTS_ON[state]}")
    if alone and state.final and (left := first_of_end(world, task)):
        raise Wrong(f"{state} is entered before the task has ended: {left} is missing")
    _check_not_cut_short(task, state, waited)
    if state is State.CLOSED and task.audits:
        (number, name), *_ = sorted(task.audits)
        raise Wrong(f"CLOSED is entered while the audit of {name} for round {number} is pending")
    world.transaction = None
    task.state, task.at = state, moment(at)
    if state is State.SETTLED:
        audits.started(task, moment(at))
    if state is State.SCORED:
        world.begin(task.id, "settlement", [], f"{task.id}/round/{number}/seed")
    elif state is State.TRAINING:
        last = task.round
        task.floors.append(max([task.floors[-1], *(sent.sequence for sent in last.models.values())]))
        if last.number:
            task.starts.append(last.start)
        task.round = RoundState(number, last.result or last.start)
    elif state.final:
        del world.tasks[task.id]
        world.ended.add(task.id)
        if task.measured is not None and task.measured.rounds:
            task.measured.at = moment(at)
            world.measured[task.id] = task.measured
        if task.terms.schedule.retention_seconds is not None:
            world.retained[task.id] = moment(at) + task.terms.schedule.retention_seconds


def deletion(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    name, at = body["task_id"], body["at"]
    same(entry, events.deletion(name, at))
    until = world.retained.get(name)
    if until is None:
        why = "promised no deletion, or had one" if name in world.ended else "has not ended"
        raise Wrong(f"submitted models of {name!r:.80} are deleted, which {why}")
    if moment(at) < until:
        raise Wrong(
            f"submitted models of {name} are deleted at {at}; the terms promise to keep them until "
            f"{events.timestamp(until)}"
        )
    del world.retained[name]
    world.measured.pop(name, None)


def selection(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task = world.task(body["task_id"])
    if task.state is not State.EFFORT:
        raise Wrong(f"a selection in {task.state}; expected in EFFORT")
    if not world.part(entry, task, "selection", f"{task.id}/selection"):
        return
    everyone, quorum = sorted(task.claims), task.terms.schedule.quorum
    standing = [name for name in everyone if world.keys.get(name)]
    made = events.selection_entries(task.id, standing)
    chosen = standing if [e.data for e in task.parts] == [e.data for e in made] else everyone
    same_parts(task.parts, events.selection_entries(task.id, chosen))
    if len(chosen) < quorum:
        raise Wrong(f"{len(chosen)} are selected, fewer than the quorum of {quorum}")
    task.parts.clear()
    task.selected, task.chosen = chosen, set(chosen)
    world.begin(task.id, "selection", [], task.state_id(State.SELECTED))


def _check_not_cut_short(task: TaskState, state: State, waited: float) -> None:
    """That claims and disputes were taken for as long as the terms say."""
    schedule, places = task.terms.schedule, len(task.selected)
    if state is State.SELECTED and waited < schedule.effort_seconds and places < schedule.capacity:
        raise Wrong(
            f"SELECTED is entered after {waited} of {schedule.effort_seconds} seconds, with {places} of "
            f"{schedule.capacity} places taken"
        )
    if state is State.CLOSED and waited < schedule.dispute_seconds and disputes_possible(task.terms):
        raise Wrong(
            f"CLOSED is entered after {waited} of the {schedule.dispute_seconds} seconds for disputes"
        )
