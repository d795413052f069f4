"""Money that comes and goes: what learners deposit, and what participants are paid out."""

from collections.abc import Mapping
from typing import Any

from mechanism.ledger import entries as events
from mechanism.ledger.accounts import payable
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay.comparing import Wrong, same, same_parts
from mechanism.ledger.replay.world import PayoutState, World, moment
from mechanism.terms import Terms, identifier


def check_price(world: World, published: Terms) -> None:
    """That a credit has one price in a log: it is one credit, whichever task has paid it."""
    if world.price is None:
        world.price = published.price
    elif published.price != world.price:
        raise Wrong(f"the price of a credit is {published.price or 'none'}; in this log it is {world.price}")


def funding(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """A deposit or a withdrawal."""
    make = events.deposit if entry.kind == "deposit" else events.withdrawal
    learner = identifier("learner_id", body["learner_id"])
    reference = identifier("reference", body["reference"])
    same(entry, make(learner, reference, body["micro"], body["at"]))
    moment(body["at"])
    if entry.id in world.funded:
        raise Wrong(f"this {entry.kind} was recorded before")
    world.funded.add(entry.id)


def payout(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """The parts of a run's list; its lines are computed."""
    number, at = body["number"], body["at"]
    if world.transaction is None:
        if world.run is not None:
            raise Wrong(f"run {number} begins before run {world.run.number} is confirmed or withdrawn")
        if number != world.runs + 1:
            raise Wrong(f"run {number} follows run {world.runs}")
        world.runs, world.run = number, PayoutState(number, moment(at))
    run, price = world.run, world.price
    if price is None or run is None:
        raise Wrong("a payout where no terms have a price")
    if not world.part(entry, run, "run", run.id):
        return
    bodies: list[Mapping[str, Any]] = [part.body for part in run.parts]
    names = [name for part in bodies for name in part["participants"]]
    free = {identifier("participants", name): world.book.balance(payable(name)).free for name in names}
    if not names or len(free) < len(names):
        raise Wrong("a run has nobody in it, or somebody twice")
    for name, micro in free.items():
        if not price.units(micro):
            raise Wrong(f"{name} is owed {micro} micro-credits, which are worth less than {price.text(1)}")
    made = events.payout_entries(number, at, price, free)
    same_parts(run.parts, made[: -len(names)])
    run.parts.clear()
    run.lines = {name: price.micro(price.units(micro)) for name, micro in free.items()}
    world.begin(run.id, "run", made[-len(names) :])


def payout_end(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    run, outcome, reason = world.run, body["outcome"], body["reason"]
    if run is None or run.number != body["number"]:
        raise Wrong(f"no run {body['number']} is on its way")
    first, *resolved = events.payout_end_entries(run.number, body["at"], outcome, reason, run.lines)
    same(entry, first)
    _check_at(run, body["at"])
    if bool(reason.strip()) != (outcome == events.WITHDRAWN):
        raise Wrong("a run is withdrawn for a reason, and confirmed without one")
    world.run = None
    if outcome == events.CONFIRMED:
        world.confirmed[run.number] = run
    world.begin(run.id, "end of the run", resolved)


def payout_return(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    number, name = body["number"], body["participant_id"]
    run = world.confirmed.get(number)
    if run is None or name not in run.lines:
        raise Wrong(f"run {number} has not paid {name!r:.80}, or that payment came back before")
    same(entry, events.payout_return(number, name, body["at"], body["reason"], run.lines.pop(name)))
    if not body["reason"].strip():
        raise Wrong("a payment comes back for a reason")
    _check_at(run, body["at"], advance=False)


def _check_at(run: PayoutState, at: str, *, advance: bool = True) -> None:
    """That a run's times do not go back; `advance`: `at` is the last of them."""
    now = moment(at)
    if now < run.at:
        raise Wrong(f"at is {at}, before the run's last step at {events.timestamp(run.at)}")
    run.at = now if advance else run.at
