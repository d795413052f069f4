"""What a task does next: pure functions of what is recorded and of the time. Its states are `mechanism.lifecycle`'s.

SCORED is entered here when a round's models are fixed. SETTLED(T) lasts as long as the terms let private label
counts be opened in a dispute.

`next_step` looks at a `Progress`, which is read from the database alone, so that a coordinator that was killed
decides the same after its restart. It returns a step to take now or the moment until which nothing happens
unless something arrives. Each step becomes one database transaction, which looks again whether its phase is over by
the time that it records; an OpenRound after a Settle is part of that one.
"""

from dataclasses import dataclass

from mechanism.lifecycle import State
from mechanism.terms import Schedule


@dataclass(frozen=True)
class Progress:
    """What decides a task's next step.

    Attributes:
        state, round: round is 0 before the first.
        deadline: when the phase closes, seconds since the epoch; None where none runs.
        claimed: participants whose claim came in time.
        selected: who trains.
        delivered: those of them that delivered a model for this round in time.
        failed: those of them that reported that they cannot.
        audits_due: when the first thing that an audit awaits is over; None where none is pending.
        absent: those of them that have shown no sign of life for longer than the grace period.
    """

    state: State
    round: int
    deadline: float | None
    claimed: frozenset[str] = frozenset()
    selected: frozenset[str] = frozenset()
    delivered: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    audits_due: float | None = None

    @property
    def outstanding(self) -> frozenset[str]:
        """Those of the selected that have neither delivered nor failed."""
        return self.selected - self.delivered - self.failed


@dataclass(frozen=True)
class BeginEffort:
    """Start to take claims."""


@dataclass(frozen=True)
class Select:
    """Claims are closed: choose who trains."""


@dataclass(frozen=True)
class OpenRound:
    """Publish the model of `round` and take trained ones."""

    round: int


@dataclass(frozen=True)
class CloseRound:
    """The set of models of the round is fixed; what comes now is late. Who is `absent` is not waited for."""

    absent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Settle:
    """Compute evidence and payments of the closed round and post them."""


@dataclass(frozen=True)
class EndAudits:
    """What audits await has not come in time."""


@dataclass(frozen=True)
class Close:
    """All rounds are settled."""


@dataclass(frozen=True)
class Cancel:
    """Give up and refund; `reason` is a sentence for everyone."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until`, or before something arrives; None: for ever."""

    until: float | None


Step = BeginEffort | Select | OpenRound | CloseRound | Settle | EndAudits | Close | Cancel | Wait


#: States in which an audit may be pending and nothing is being computed.
_AUDITED_IN = (State.TRAINING, State.SETTLED)


def next_step(schedule: Schedule, progress: Progress, now: float) -> Step:
    """What to do next with a task.

    Args:
        schedule: of the task's terms.
        progress: what is recorded of it.
        now: seconds since the epoch.
    """
    due = progress.audits_due
    if due is None or progress.state not in _AUDITED_IN:
        return _next_step(schedule, progress, now)
    if now >= due:
        return EndAudits()
    step = _next_step(schedule, progress, now)
    if isinstance(step, Close):
        return Wait(due)
    return Wait(min(due, step.until or due)) if isinstance(step, Wait) else step


def _next_step(schedule: Schedule, progress: Progress, now: float) -> Step:
    """The same but for audits."""
    match progress.state:
        case State.OPEN:
            return BeginEffort()
        case State.EFFORT:
            return _claims(schedule, progress, now)
        case State.SELECTED:
            return OpenRound(1)
        case State.TRAINING:
            return _models(schedule, progress, now)
        case State.SCORED:
            return Settle()
        case State.SETTLED if progress.round < schedule.rounds:
            return OpenRound(progress.round + 1)
        case State.SETTLED if progress.deadline is not None and now < progress.deadline:
            return Wait(progress.deadline)
        case State.SETTLED:
            return Close()
    return Wait(None)


def _claims(schedule: Schedule, progress: Progress, now: float) -> Step:
    claims = len(progress.claimed)
    if claims >= schedule.capacity:
        return Select()
    if progress.deadline is not None and now < progress.deadline:
        return Wait(progress.deadline)
    if claims >= schedule.quorum:
        return Select()
    return Cancel(
        f"{_came(claims, 'claim')} in before the deadline, fewer than the quorum of {schedule.quorum}; "
        "the budget is refunded"
    )


def _models(schedule: Schedule, progress: Progress, now: float) -> Step:
    outstanding = progress.outstanding
    delivered = len(progress.delivered)
    if not outstanding or (progress.deadline is not None and now >= progress.deadline):
        if delivered >= schedule.quorum:
            return CloseRound()
        return Cancel(
            f"{_came(delivered, 'model')} in for round {progress.round}, fewer than the quorum of "
            f"{schedule.quorum}; what is not yet paid is refunded"
        )
    if outstanding <= progress.absent and delivered >= schedule.quorum:
        return CloseRound(outstanding)
    return Wait(progress.deadline)


def _came(number: int, noun: str) -> str:
    """ "no claim came", "1 claim came", "2 claims came"."""
    if number > 1:
        return f"{number} {noun}s came"
    return f"{number or 'no'} {noun} came"
