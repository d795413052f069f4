"""A round from its models to its verdicts, and the model that the next one begins from."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from mechanism.canonical import canonical_bytes, parse_canonical
from mechanism.evidence import KEPT_BROADCASTS, OF_MODEL_ALONE, EvidenceModel, Measurement, assess
from mechanism.ledger import entries as events
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay.comparing import Wrong, same, same_parts
from mechanism.ledger.replay.forms import check_evidence
from mechanism.ledger.replay.world import Task, World, moment
from mechanism.lifecycle import State, check_quorum, needs_evidence
from mechanism.settlement import PLAIN_DECIMAL, Assessment
from mechanism.unmeasured import as_claimed, missing


def closing(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """What ends the collecting of a round: everybody is in, the time is over, or the rest is absent."""
    task = world.task(body["task_id"])
    current, schedule = task.round, task.terms.schedule
    if not task.collecting:
        raise Wrong(f"a closing in {task.state}; expected in TRAINING, once a round")
    if not world.part(entry, task, "closing", f"{task.id}/round/{current.number}/closing"):
        return
    world.transaction = None
    heard = current.models.keys() | current.failures.keys()
    awaited = [name for name in task.selected if name not in heard]
    at, absent = body["at"], any(part.body["absent"] for part in task.parts)
    same_parts(task.parts, events.closing_entries(task.id, current.number, at, awaited if absent else []))
    task.parts.clear()
    check_quorum(schedule, len(current.models))
    waited = task.waited(at)
    if awaited and not absent and waited < schedule.round_seconds:
        raise Wrong(
            f"the round is closed after {waited} of {schedule.round_seconds} seconds, without {', '.join(awaited)}"
        )
    task.at, current.closed = moment(at), True


def evidence(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task = world.task(body["task_id"])
    if not needs_evidence(task.terms.rule.name):
        raise Wrong(f"evidence under the rule {task.terms.rule.name}, which pays without")
    _check_closed(task, "evidence")
    if not world.part(entry, task, "settlement", f"{task.id}/round/{task.round.number}/evidence"):
        return
    data = events.joined([str(one.body["data"]) for one in task.parts], str(body["sha256"]))
    record = parse_canonical(data)
    check_evidence(record)
    same_parts(task.parts, events.evidence_parts(task.id, task.round.number, data))
    task.parts.clear()
    found = _assessed(world, task, record, data)
    world.counts.degrees += sum(assessment.scored for assessment in found.values())
    world.begin(task.id, "settlement", _verdicts(task, found), task.state_id(State.SCORED))


def verdict(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """The first verdict of a round whose rule pays without evidence; all others are expected."""
    task = world.task(body["task_id"])
    _check_closed(task, "a verdict")
    if needs_evidence(task.terms.rule.name):
        raise Wrong(
            f"a verdict without evidence; under the rule {task.terms.rule.name} every model in time is measured"
        )
    found = {
        name: as_claimed(name, sent.digest, task.claims[name].degree)
        for name, sent in task.round.models.items()
    }
    world.begin_with(entry, task.id, "settlement", _verdicts(task, found), task.state_id(State.SCORED))


def aggregation(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task = world.task(body["task_id"])
    if world.transaction is None:
        raise Wrong("an aggregation outside a settlement")
    current, digest = task.round, bytes.fromhex(body["model_sha256"])
    state = None if body["state_sha256"] is None else bytes.fromhex(body["state_sha256"])
    same(entry, events.aggregation(task.id, current.number, digest, _figures(body["figures"]), state))
    rule = task.terms.aggregation
    if not any(a.scored for a in current.verdicts.values()):
        if digest != current.start or state != task.server_state:
            raise Wrong(
                "the global model or the server's state has changed in a round in which no model was scored"
            )
    elif (state is None) != (rule.moments == 0):
        raise Wrong(f"a round by {rule.name} {'without' if rule.moments else 'with'} a state of the server's")
    current.result, task.server_state = digest, state
    world.begin(task.id, "settlement", [], task.state_id(State.SETTLED))


def _check_closed(task: Task, what: str) -> None:
    """That what a round is judged on is complete."""
    if task.state is not State.TRAINING or not task.round.closed:
        raise Wrong(f"{what} in {task.state}; expected in TRAINING, once the round is closed")


def _verdicts(task: Task, found: Mapping[str, Assessment]) -> list[Entry]:
    """The verdicts on everyone selected."""
    current = task.round
    current.verdicts = {
        name: found.get(name) or missing(name, task.claims[name].degree, current.failures.get(name))
        for name in task.selected
    }
    return [events.verdict(task.id, current.number, a) for a in current.verdicts.values()]


def _assessed(world: World, task: Task, record: Mapping[str, Any], data: bytes) -> dict[str, Assessment]:
    """The verdicts that a round's evidence gives, once it is seen to be about this round's statements.

    Args:
        data: the record's canonical bytes.
    """
    model = EvidenceModel.from_record(record["model"])
    measurements = [Measurement.from_record(item) for item in record["measurements"]]
    measurements.sort(key=lambda m: m.participant_id)
    if canonical_bytes({"model": model.record(), "measurements": [m.record() for m in measurements]}) != data:
        raise Wrong("the evidence has fields that its form does not know, or is out of order")
    _check_ground(world, task, model)
    names = [m.participant_id for m in measurements]
    if names != sorted(task.round.models):
        differing = ", ".join(sorted(set(names) ^ task.round.models.keys())) or "one is measured twice"
        raise Wrong(f"the evidence and the models in time are not of the same participants: {differing}")
    for measurement in measurements:
        _check_measured(task, measurement)
    _check_copies(measurements)
    if task.terms.audit is not None:
        task.round.evidence = model, {m.participant_id: m for m in measurements}
    earlier = [digest.hex() for digest in task.starts[-KEPT_BROADCASTS:]]
    return {assessment.participant_id: assessment for assessment in assess(model, measurements, earlier)}


def _check_ground(world: World, task: Task, model: EvidenceModel) -> None:
    """That what the submissions are measured against is this round's."""
    start = task.round.start
    if model.round != task.round.number:
        raise Wrong(f"the evidence is of round {model.round}")
    if model.degree.reference != task.terms.reference:
        raise Wrong("the evidence is against another reference distribution than the terms'")
    if model.validation_sha256 != task.terms.validation_commitment.hex():
        raise Wrong("the evidence was measured on another validation set than the terms commit to")
    if model.start_sha256 != start.hex():
        raise Wrong("the evidence is about another model than the one that the round began from")
    if world.shadows.setdefault(model.shadows_sha256, start) != start:
        raise Wrong("the evidence rests on the shadow models of a round that began from another model")
    if model.carried > task.shadows:
        raise Wrong(
            f"the evidence carries over {model.carried} shadow models; the rounds before had {task.shadows}"
        )
    task.shadows += model.shadows


def _check_measured(task: Task, measurement: Measurement) -> None:
    """That a measurement is of what its participant signed."""
    name = measurement.participant_id
    sent = task.round.models[name]
    stated = sent.digest.hex(), task.claims[name].degree, sent.samples
    if (measurement.model_sha256, measurement.claimed_degree, measurement.samples) != stated:
        raise Wrong(f"the evidence on {name} is about another model, claim or sample count than it signed")
    if measurement.order != sent.sequence:
        raise Wrong(
            f"the evidence gives the model of {name} the place {measurement.order} in the order of commitments; "
            f"its entry says {sent.sequence}"
        )


def _check_copies(measurements: Sequence[Measurement]) -> None:
    """That the same model has the same figures, and that twins are others whose models came in time, of whom each names
    the other with one likeness."""
    figures: dict[str, list[object]] = {}
    names = {m.participant_id for m in measurements}
    likeness = {m.participant_id: dict(m.twins) for m in measurements if m.twins}
    for m in measurements:
        own = [getattr(m, name) for name in OF_MODEL_ALONE]
        if figures.setdefault(m.model_sha256, own) != own:
            raise Wrong(f"the evidence on {m.participant_id} has other figures than that on the same model")
        twins = [name for name, _ in m.twins]
        if len(set(twins)) != len(twins) or not names - {m.participant_id} >= set(twins):
            raise Wrong(f"the twins of {m.participant_id} are not others whose models came in time")
        for other, alike in m.twins:
            if likeness.get(other, {}).get(m.participant_id) != alike:
                raise Wrong(
                    f"{m.participant_id} is as like {other} as {alike}, which does not say the same of it"
                )


def _figures(record: Any) -> Mapping[str, str]:
    """Loss and, of a classifier, accuracy of a global model, or none of them."""
    if record and (record.keys() | {"accuracy"} != {"accuracy", "loss"} or "loss" not in record):
        raise Wrong("the figures of a global model are its loss, or loss and accuracy, or none")
    if not all(type(value) is str for value in record.values()):
        raise Wrong("the figures of a global model are decimal strings")
    if "accuracy" in record:
        accuracy = record["accuracy"]
        if not PLAIN_DECIMAL.fullmatch(accuracy) or not 0 <= Decimal(accuracy) <= 1:
            raise Wrong(f"the accuracy is {accuracy:.60}; expected a decimal in [0, 1]")
    return dict(record)
