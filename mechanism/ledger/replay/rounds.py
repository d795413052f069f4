"""A round from its models to its verdicts, and the model that the next one begins from."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from decimal import Decimal
from typing import Any, NoReturn

from mechanism.evidence import KEPT_BROADCASTS, OF_MODEL_ALONE, EvidenceModel, Measurement, assess, first_of
from mechanism.ledger import entries as events
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay.comparing import Wrong, alike, difference_of, same, same_parts
from mechanism.ledger.replay.forms import check_body, check_opening, check_outcome
from mechanism.ledger.replay.layouts import Said, verdict_of
from mechanism.ledger.replay.outcomes import check_in_clear, check_together
from mechanism.ledger.replay.world import Computed, TaskState, World, moment
from mechanism.lifecycle import State, check_quorum, needs_evidence
from mechanism.settlement import MICRO, PLAIN_DECIMAL, Assessment, Outcome, outcome_of
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
    """The commitment to what a round's verdicts rest on; what its opening gives of them, where that is at hand."""
    task = world.task(body["task_id"])
    current, name = task.round, task.terms.rule.name
    if not needs_evidence(name):
        raise Wrong(f"evidence under the rule {name}, which pays without")
    _check_closed(task, "evidence")
    commitment = bytes.fromhex(body["commitment"])
    shadows = {key: body[key] for key in events.SHADOW_FIGURES}
    same(entry, events.evidence_as(task.id, current.number, commitment, shadows))
    _check_shadows(world, task, shadows)
    current.evidence = True
    if task.measured is not None:
        task.measured.take(entry)
    opening = world.opened(entry, commitment)
    if opening is not None:
        check_opening(opening, "model")
        model = _model(task, shadows, opening["model"])
        current.computed = _computed(world, task, model)
    world.begin(task.id, "settlement", [], events.verdict_id(task.id, current.number, task.selected[0]))


def refused_verdict(world: World, entry: Entry, body: Mapping[str, Any]) -> NoReturn:
    """Says what is wrong with a verdict that is none by its layout, its round or its name."""
    check_body(entry)
    task = world.task(body["task_id"])
    name, commitment = _awaited(task), bytes.fromhex(body["commitment"])
    check_outcome(body["outcome"])
    outcome = events.outcome_from_record(body["outcome"])
    if outcome.participant_id != name:
        raise Wrong(f"a verdict on {outcome.participant_id}; the next one is on {name}")
    same(entry, events.verdict_as(task.id, task.round.number, body["outcome"], commitment))
    raise Wrong("its bytes are not laid out as a verdict is")


def verdict(world: World, entry: Entry, said: Said) -> None:
    """One on each of the selected, in id order."""
    task = world.task(said["task"])
    current, name, read = task.round, _awaited(task), verdict_of(said)
    if read is None or read[0] != current.number or read[1].participant_id != name:
        refused_verdict(world, entry, entry.body)
    _, outcome, commitment = read
    check_in_clear(task, outcome)
    opening = world.opened(entry, commitment)
    if opening is not None:
        _check_opened(task, outcome, opening)
    current.verdicts[name] = outcome
    world.counts.verdicts += 1
    if task.measured is not None:
        task.measured.take(entry)
        task.measured.submissions += bool(outcome.model_sha256)
    if len(current.verdicts) < len(task.selected):
        following = events.verdict_id(task.id, current.number, task.selected[len(current.verdicts)])
    else:
        check_together(task, current.verdicts)
        following = task.state_id(State.SCORED)
    world.begin(task.id, "settlement", [], following)


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
    if task.measured is not None:
        task.measured.take(entry)
        task.measured.rounds += 1
    world.begin(task.id, "settlement", [], task.state_id(State.SETTLED))


def _awaited(task: TaskState) -> str:
    """On whom the next verdict is."""
    _check_closed(task, "a verdict")
    if needs_evidence(task.terms.rule.name) and not task.round.evidence:
        raise Wrong(
            f"a verdict without evidence; under the rule {task.terms.rule.name} every model in time is measured"
        )
    if len(task.round.verdicts) == len(task.selected):
        raise Wrong("a verdict more than there are participants")
    return task.selected[len(task.round.verdicts)]


def _check_closed(task: TaskState, what: str) -> None:
    """That what a round is judged on is complete."""
    if task.state is not State.TRAINING or not task.round.closed:
        raise Wrong(f"{what} in {task.state}; expected in TRAINING, once the round is closed")


def _model(task: TaskState, shadows: Mapping[str, Any], record: Any) -> EvidenceModel:
    """The opened evidence of a round, seen to be about it."""
    model = EvidenceModel.from_record(record)
    if not alike(model.record(), record):
        raise Wrong("the evidence has fields that its form does not know")
    if any(record[key] != shadows[key] for key in shadows):
        raise Wrong("the opened evidence rests on other shadow models than the entry says")
    _check_ground(task, model)
    return model


def _computed(world: World, task: TaskState, model: EvidenceModel) -> dict[str, Computed]:
    """What a round's opened evidence gives of the models in time, as far as their measurements are opened."""
    found = []
    for name in sorted(task.round.models):
        opening = world.openings.get(events.verdict_id(task.id, task.round.number, name))
        record = None if opening is None else opening.get("measurement")
        if record is not None:
            found.append(_measurement(task, name, record))
    if task.terms.audit is not None:
        task.round.degree = model.degree
        task.round.shown = {
            m.participant_id: model.degree.degree_micro(m.features) for m in found if not m.fault
        }
    earlier = [digest.hex() for digest in task.starts[-KEPT_BROADCASTS:]]
    if whole := len(found) == len(task.round.models):
        _check_copies(found)
        judged = list(assess(model, found, earlier))
    else:  # a likeness to a model that is not here says nothing
        alone = [replace(measured, twins=(), group="", outside=0) for measured in found]
        judged = [one for measured in alone for one in assess(model, [measured], earlier)]
    world.counts.degrees += sum(assessment.scored for assessment in judged)
    return {assessment.participant_id: Computed(assessment, whole) for assessment in judged}


def _check_opened(task: TaskState, outcome: Outcome, opening: Mapping[str, Any]) -> None:
    """That an opened assessment is what its ground gives, and the outcome in clear what the assessment gives."""
    check_opening(opening, "assessment", perhaps="measurement")
    assessment = _assessment(task, outcome.participant_id, opening["assessment"], opening["measurement"])
    made = outcome_of(task.terms, assessment)
    if outcome != made:
        text = difference_of(events.outcome_record(outcome), events.outcome_record(made))
        raise Wrong(f"the outcome is not the one of the opened assessment: {text}")
    task.round.assessments[outcome.participant_id] = assessment


def _assessment(task: TaskState, name: str, record: Any, measured: Any) -> Assessment:
    """An opened assessment, seen to be what its ground gives."""
    current, sent = task.round, task.round.models.get(name)
    if (measured is not None) != (sent is not None and current.evidence):
        raise Wrong(f"{name} is measured, and nothing is there to be measured, or the other way round")
    computed = current.computed.get(name)
    if computed is not None and computed.whole:
        _same_assessment(record, computed.assessment)
        return computed.assessment
    assessment = events.assessment_from_record(record)
    if not alike(events.assessment_record(assessment), record) or assessment.participant_id != name:
        raise Wrong(f"the assessment of {name} has fields that its form does not know, or is of another")
    claimed = task.claims[name].degree
    if claimed is not None and assessment.claimed_degree != claimed:
        raise Wrong(f"the assessment of {name} is about another claim than it signed")
    if sent is None:
        _same_assessment(record, missing(name, assessment.claimed_degree, current.failures.get(name)))
    elif not current.evidence:
        _same_assessment(record, as_claimed(name, sent.digest, assessment.claimed_degree))
    elif computed is not None:
        _same_assessment(events.assessment_record(_alone(assessment)), _alone(computed.assessment))
    else:
        _measurement(task, name, measured)
    return assessment


def _same_assessment(record: Any, expected: Assessment) -> None:
    if text := difference_of(record, events.assessment_record(expected)):
        raise Wrong(f"the opened assessment is not what the evidence gives: {text}")


def _alone(assessment: Assessment) -> Assessment:
    """Without what it says of samples in common with others, who are not known."""
    verdicts = tuple(verdict for verdict in assessment.verdicts if verdict.screen != "overlap")
    return replace(assessment, cluster=None, holders_micro=MICRO, verdicts=verdicts)


def _check_shadows(world: World, task: TaskState, shadows: Mapping[str, Any]) -> None:
    """That the shadow models which the evidence rests on can be this round's."""
    start = task.round.start
    if shadows["shadows"] < 1 or not 0 <= shadows["carried"] <= task.shadows:
        raise Wrong(
            f"the evidence rests on {shadows['shadows']} shadow models and carries over {shadows['carried']}; the "
            f"rounds before had {task.shadows}"
        )
    if world.shadows.setdefault(shadows["shadows_sha256"], start) != start:
        raise Wrong("the evidence rests on the shadow models of a round that began from another model")
    task.shadows += shadows["shadows"]


def _check_ground(task: TaskState, model: EvidenceModel) -> None:
    """That what the submissions are measured against is this round's."""
    if model.round != task.round.number:
        raise Wrong(f"the evidence is of round {model.round}")
    if model.degree.reference != task.terms.reference:
        raise Wrong("the evidence is against another reference distribution than the terms'")
    if model.validation_sha256 != task.terms.validation_commitment.hex():
        raise Wrong("the evidence was measured on another validation set than the terms commit to")
    if model.start_sha256 != task.round.start.hex():
        raise Wrong("the evidence is about another model than the one that the round began from")


def _measurement(task: TaskState, name: str, record: Any) -> Measurement:
    """An opened measurement, seen to be of what its participant signed, as far as that is opened."""
    measurement = Measurement.from_record(record)
    if measurement.participant_id != name:
        raise Wrong(f"the measurement of {name} is of {measurement.participant_id}")
    sent, claimed = task.round.models[name], task.claims[name].degree
    stated = (
        sent.digest.hex(),
        measurement.claimed_degree if claimed is None else claimed,
        measurement.samples if sent.samples is None else sent.samples,
    )
    if (measurement.model_sha256, measurement.claimed_degree, measurement.samples) != stated:
        raise Wrong(f"the evidence on {name} is about another model, claim or sample count than it signed")
    if measurement.order != sent.sequence:
        raise Wrong(
            f"the evidence gives the model of {name} the place {measurement.order} in the order of commitments; "
            f"its entry says {sent.sequence}"
        )
    return measurement


def _check_copies(measurements: Sequence[Measurement]) -> None:
    """That the same model has the same figures, and that twins are others who were the first to send a model, of whom
    each names the other with one likeness and one r."""
    figures: dict[str, list[object]] = {}
    names = set(first_of(measurements).values())
    said = {m.participant_id: {name: of for name, *of in m.twins} for m in measurements if m.twins}
    for m in measurements:
        own = [getattr(m, name) for name in OF_MODEL_ALONE]
        if figures.setdefault(m.model_sha256, own) != own:
            raise Wrong(f"the evidence on {m.participant_id} has other figures than that on the same model")
        twins = [name for name, *_ in m.twins]
        if len(set(twins)) != len(twins) or not names - {m.participant_id} >= set(twins):
            raise Wrong(f"the twins of {m.participant_id} are not others who were the first to send a model")
        if twins and m.participant_id not in names:
            raise Wrong(f"{m.participant_id} has twins, and another has sent its model before")
        for other, like, r in m.twins:
            if said.get(other, {}).get(m.participant_id) != [like, r]:
                raise Wrong(
                    f"{m.participant_id} is as like {other} as {like} at an r of {r}, which does not say the same of it"
                )
    _check_groups(measurements, names)


def _check_groups(measurements: Sequence[Measurement], firsts: Set[str]) -> None:
    """That groups are of those who were the first to send a model, bear the name of their first, and have one
    `outside`."""
    members: dict[str, list[Measurement]] = {}
    for m in measurements:
        if m.group:
            members.setdefault(m.group, []).append(m)
        elif m.outside:
            raise Wrong(f"the evidence on {m.participant_id} has an outside of {m.outside} without a group")
    for group, of in members.items():
        if not firsts >= {m.participant_id for m in of}:
            raise Wrong(f"the group {group} has a member whose model another has sent before")
        if group != min(m.participant_id for m in of):
            raise Wrong(f"the group {group} does not have the name of its first member")
        if len({m.outside for m in of}) > 1:
            raise Wrong(f"the members of the group {group} have different values of outside")


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
