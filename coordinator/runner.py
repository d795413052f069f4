"""Drives one task through its states: woken by arrivals and by the clock, one transaction a step.

The runner keeps nothing that matters. Killed anywhere, a new one reads the database and takes the same step:
what a step computes from files (evidence, the mean) is a function of what is recorded.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction

import structlog

from coordinator.aggregation import Merged, merge
from coordinator.blobs import BlobStore
from coordinator.boundary import refusal_for
from coordinator.clock import Clock
from coordinator.commits import Transactions
from coordinator.control_socket import RoundProgress
from coordinator.derivation import chain_secret
from coordinator.errors import CoordinatorError, MarketTaskError
from coordinator.history import merged_before, round_start
from coordinator.live import Feed, Presence
from coordinator.metrics import Metrics
from coordinator.notices import Refused
from coordinator.receiving import Uploads
from coordinator.scoring import Parts, Quality, RoundStart, Scored, Scorer, make_scorer, merged_parts
from coordinator.shadow_workers import LocalWorkers
from coordinator.spool import Spool
from coordinator.states import (
    BeginEffort,
    Cancel,
    Close,
    CloseRound,
    EndAudits,
    OpenRound,
    Progress,
    Select,
    Settle,
    Step,
    Wait,
    next_step,
)
from coordinator.storage.changes import Kind
from coordinator.storage.rounds import RoundRow
from coordinator.storage.submissions import ModelRow
from coordinator.storage.tasks import EventRow, StaleTask, TaskRow
from coordinator.tracing import Tracing, annotate
from coordinator.transaction import Transaction
from fedpeer.audit.sql.errors import ConstraintViolated, StorageError
from fedpeer.learning.errors import DatasetMissingError, WorkloadError
from fedpeer.protocol.faults import Outlook, outlook
from fedpeer.protocol.model_file import ModelFileError
from fedpeer.protocol.submission import Submission
from fedpeer.terminal import printable
from mechanism.lifecycle import State
from mechanism.peers import Draw, round_seed
from mechanism.settlement import RoundSettlement
from mechanism.unmeasured import missing

log = structlog.get_logger()

#: Seconds after which a failed step is tried again, doubled up to the second figure: people repair a full disk or
#: restart a database in minutes.
_RETRY_SECONDS = 1.0
_RETRY_LIMIT_SECONDS = 60.0

#: Times that a step may meet a lasting fault on the same input: the task ends then, with refunds.
_ATTEMPTS = 3

#: Characters of such a fault in the reason that everybody sees.
_SHOWN_CHARACTERS = 300

#: Faults that an operator can repair, and the task goes on: data or files that were moved or damaged, a database, a
#: worker that was killed. They pass, as does what `fedpeer.protocol.faults` says so of.
_REPAIRABLE = (
    CoordinatorError, DatasetMissingError, WorkloadError, ModelFileError, BrokenExecutor, StorageError,
)  # fmt: skip

#: Seconds from one look of the runner to the next at what completes nothing, for the metrics to follow it; and the
#: part of the time that such looks take at most: each reads the names of all who take part.
_GLANCE_SECONDS, _GLANCING = 1.0, 0.02

#: Steps after which a head is signed as soon as everybody has heard of them. A settlement is signed before that. The
#: two steps that lead to it wait for its head: signing is a flush, for which a round's first uploads would wait.
_SIGNED_AFTER = (BeginEffort, Select, Close, Cancel)


@dataclass
class LiveTask:
    """A task that the service holds: its row as last read, its events, and who is there.

    Attributes:
        changed: set when something has happened that the runner should look at.
        missing: arrivals that its phase still waits for, as the runner has counted them.
        progress: how far the last round is of which that was said.
        broken: why the last step failed; None while all is well.
        broken_since: when the first of the steps that have failed since all was well did.
    """

    row: TaskRow
    feed: Feed
    presence: Presence
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    missing: int = 0
    progress: RoundProgress = field(default_factory=RoundProgress)
    broken: str | None = None
    broken_since: float = 0.0
    _looked: float = 0.0
    _pause: float = _GLANCE_SECONDS
    _looking: bool = False
    _glance: asyncio.TimerHandle | None = None

    def progress_of(self, round_: int) -> RoundProgress:
        """How far a round is, to be written to; what was said of another is gone."""
        if self.progress.round != round_:
            self.progress = RoundProgress(round_)
        return self.progress

    def arrived(self) -> None:
        """A claim, a model or a failure is recorded, here or elsewhere: the runner looks when all may be there."""
        self.missing -= 1
        if self.missing <= 0 and not self._looking:
            self.changed.set()
        else:
            self.glance()

    def glance(self) -> None:
        """Something has changed that completes nothing: the runner looks once its last look is long enough ago."""
        if self._glance is None:
            loop = asyncio.get_running_loop()
            self._glance = loop.call_at(self._looked + self._pause, self.changed.set)

    def look(self) -> None:
        """A look begins: what has happened so far is seen by it."""
        self.changed.clear()
        self.missing, self._looking = 0, True
        self._looked = asyncio.get_running_loop().time()
        if self._glance is not None:
            self._glance.cancel()
            self._glance = None

    def looked(self, awaited: int) -> None:
        """The look is over, and has found that so many arrivals are awaited.

        Whether it has counted what arrived meanwhile is not known. Only where that may have been all of it is another
        look taken: a look for each would mean one after the other for as long as a crowd arrives.
        """
        meanwhile = -self.missing
        self.missing, self._looking = awaited - meanwhile, False
        if meanwhile and self.missing <= 0:
            self.changed.set()

    def look_took(self, seconds: float) -> None:
        """How long reading was, which says when the next glance may be."""
        self._pause = max(_GLANCE_SECONDS, seconds / _GLANCING)


@dataclass(frozen=True)
class Workplace:
    """What runners share.

    Attributes:
        absence_seconds: silence after which a participant no longer holds up a round.
        refused: hears of each submission that is refused for good.
        shared: whether other processes serve the same market.
        workers: do what is heavy.
    """

    transact: Transactions
    blobs: BlobStore
    spool: Spool
    uploads: Uploads
    clock: Clock
    metrics: Metrics
    tracing: Tracing
    absence_seconds: float
    refused: Callable[[Refused], None]
    workers: LocalWorkers
    shared: bool = False

    async def tell(self, kind: Kind, *subject: str, at: float = 0.0) -> None:
        """Says to the other processes, where there are any, what no transaction of its own says."""
        if self.shared:
            await self.transact(lambda t: t.market.announce(kind, *subject, at=at), durable=False)


@dataclass(frozen=True)
class _ClosedRound:
    """A round as recorded: who was selected with which claim, what came in, what was reported; all rounds up to it, and
    what was merged in the last of them.
    """

    claims: dict[str, Fraction]
    models: dict[str, ModelRow]
    reasons: dict[str, str]
    rounds: list[RoundRow]
    merged: Mapping[int, list[ModelRow]]


@dataclass(frozen=True)
class _TaskView:
    """A task as one transaction sees it.

    Attributes:
        events: those that are not published yet.
        size: entries of the ledger.
        escrow: micro-credits that are reserved for the task.
        seconds: that looking took.
    """

    row: TaskRow
    events: list[EventRow]
    progress: Progress
    size: int
    escrow: int
    seconds: float


@dataclass(frozen=True)
class _Outcome:
    """What was computed for a closed round: evidence, the next model, which is in its place on the disk, and its
    quality.
    """

    scored: Scored
    merged: Merged
    quality: Quality | None


class TaskRunner:
    """Runs one task to its end."""

    def __init__(self, live: LiveTask, workplace: Workplace) -> None:
        self._live = live
        self._work = workplace
        self._scorer: Scorer | None = None
        self._preparation: asyncio.Future[None] | None = None
        self._prepared = 0
        #: When the computing of evidence that now runs began, by `time.monotonic`.
        self._computing_since = 0.0
        #: The step in progress and the version of the task that it starts from; how often it met a lasting fault. A
        #: restart counts from 0: what is certain to fail does so again within seconds.
        self._trying: tuple[str, int] | None = None
        self._failures: Counter[tuple[str, int]] = Counter()

    async def run(self, well: Callable[[], None]) -> None:
        """Takes steps until the task has ended. Cancel it to stop between steps.

        Args:
            well: called each time that nothing more is to be done.
        """
        with structlog.contextvars.bound_contextvars(task=self._live.row.id):
            try:
                if await self._check_terms():
                    await self._take_steps(well)
            except Exception as error:
                self._set_broken(f"{type(error).__name__}: {error}")
                raise
            finally:
                if self._preparation is not None:
                    self._preparation.cancel()
                if self._scorer is not None:
                    self._scorer.close()

    async def _check_terms(self) -> bool:
        try:
            await self._work.transact.read(lambda t: t.check_terms(self._live.row))
        except MarketTaskError as error:
            log.error("task is not taken up", why=str(error))
            self._set_broken(str(error))
            return False
        return True

    async def _take_steps(self, well: Callable[[], None]) -> None:
        retry = _RETRY_SECONDS
        while not self._live.row.state.final:
            try:
                until = await self._advance()
                retry = _RETRY_SECONDS
                self._set_broken(None)
                well()
                if not self._live.row.state.final:
                    await self._work.clock.wait(self._live.changed, until)
            except StaleTask as stale:
                log.info("a step is no longer due; the task is looked at again", why=str(stale))
            except Exception as error:
                log.error("step failed; it is tried again", seconds=retry, exc_info=error)
                self._set_broken(f"{type(error).__name__}: {error}")
                if self._lasts(error) and await self._given_up(error):
                    continue
                await asyncio.sleep(retry)
                retry = min(2 * retry, _RETRY_LIMIT_SECONDS)
        await self._sweep()

    def _lasts(self, error: Exception) -> bool:
        """Whether the step has met lasting faults so often, on the same input, that it will meet them always."""
        if self._trying is None or _passes(error):
            return False
        self._failures[self._trying] += 1
        return self._failures[self._trying] >= _ATTEMPTS

    async def _given_up(self, error: Exception) -> bool:
        """Ends the task with refunds; False where that fails: the step is tried again, and then this."""
        row, why = self._live.row, printable(f"{type(error).__name__}: {error}")[:_SHOWN_CHARACTERS]
        reason = (
            f"a step of round {row.round} failed {_ATTEMPTS} times on the same input, the last time with {why}; "
            "what is not yet paid is refunded"
        )
        try:
            await self._take(Cancel(reason))
            await self._work.transact.sign_head()
        except Exception as refused:
            log.error("the task cannot be ended; it is tried again", exc_info=refused)
            return False
        return True

    def _look(self, t: Transaction) -> _TaskView:
        """The task, its new events and its progress: others than this runner may have moved it."""
        began, row = time.perf_counter(), t.task(self._live.row.id)
        return _TaskView(
            row,
            # Events come with transitions, and each of those is a new version.
            t.market.events(row.id, self._live.feed.cursor) if row.version != self._live.row.version else [],
            progress=t.market.progress(row),
            size=t.ledger.size(),
            escrow=t.escrow_left(row),
            seconds=time.perf_counter() - began,
        )

    async def _advance(self) -> float | None:
        """Takes every step that is due; returns when to look again though nothing has arrived."""
        self._live.look()
        seen = await self._work.transact.read(self._look)
        self._tell(seen)
        while not isinstance(step := self._next(seen.progress), Wait):
            seen = await self._take(step)
            self._tell(seen)
            if isinstance(step, _SIGNED_AFTER):
                await self._work.transact.sign_head()
        return step.until

    def _next(self, progress: Progress) -> Step:
        """The step that is due; Wait until the deadline, or until somebody's absence counts."""
        live = self._live
        if progress.state.final:
            return Wait(None)
        schedule, now = live.row.terms.schedule, self._work.clock.now()
        absent, soonest = live.presence.absent(progress.outstanding, now, self._work.absence_seconds)
        self._work.metrics.task_participants.labels(live.row.id, "absent").set(len(absent))
        step = next_step(schedule, replace(progress, absent=absent), now)
        if not isinstance(step, Wait):
            return step
        if progress.state is not State.TRAINING:
            effort = progress.state is State.EFFORT
            live.looked(schedule.capacity - len(progress.claimed) if effort else 0)
            return step
        live.looked(len(progress.outstanding - absent))
        self._prepare()
        return Wait(min((at for at in (step.until, soonest) if at is not None), default=None))

    async def _take(self, step: Step) -> _TaskView:
        """Takes a step; returns the task as the step leaves it, before anybody hears of it."""
        row = self._live.row
        name = type(step).__name__
        if not isinstance(step, Cancel):
            self._trying = name, row.version
        with (
            structlog.contextvars.bound_contextvars(round=row.round),
            self._work.tracing.span(f"transition {name}", task=row.id, round=row.round, state=row.state),
        ):
            match step:
                case BeginEffort():
                    seen = await self._carry_out(lambda t: t.begin_effort(row))
                case Select():
                    seen = await self._carry_out(lambda t: t.select(row))
                case OpenRound() as opening:
                    seen = await self._carry_out(lambda t: self._open(t, row, opening))
                case CloseRound(absent):
                    seen = await self._carry_out(lambda t: t.close_round(row, absent))
                case Settle():
                    seen = await self._settle(row)
                case EndAudits():
                    seen = await self._carry_out(lambda t: t.end_audits(row))
                case Close():
                    seen = await self._carry_out(lambda t: t.close(row))
                case Cancel(reason):
                    seen = await self._carry_out(lambda t: t.cancel(row, reason))
            self._trying = None
            log.info("step taken", step=name)
            if isinstance(step, Settle) and seen.row.state is State.TRAINING:
                log.info("step taken", step=OpenRound.__name__, round=seen.row.round)
        return seen

    async def _carry_out(self, step: Callable[[Transaction], None]) -> _TaskView:
        """One transaction: the step, and a look at where it leads."""

        def act(t: Transaction) -> _TaskView:
            step(t)
            return self._look(t)

        return await self._work.transact(act)

    def _open_next(self, t: Transaction) -> _TaskView:
        """Opens the round after a settled one in the same transaction, where there is one: nobody waits for a flush
        between the two.
        """
        row = t.task(self._live.row.id)
        step = next_step(row.terms.schedule, t.market.progress(row), t.now)
        if isinstance(step, OpenRound) and self._work.blobs.holds(row.model):
            self._open(t, row, step)  # OpenRound as a step of its own reports a lost model
        return self._look(t)

    def _open(self, t: Transaction, row: TaskRow, step: OpenRound) -> None:
        size = self._work.blobs.size(row.model)
        t.open_round(row, step.round, size)

    def _prepare(self) -> None:
        """Starts the evidence's own work for this round, while the participants train."""
        if self._preparation is None or self._preparation.done():
            row = self._live.row
            if self._prepared == row.round:
                return
            self._prepared = row.round
            self._preparation = asyncio.ensure_future(self._prepare_round(row))
            self._preparation.add_done_callback(_report)

    async def _prepare_round(self, row: TaskRow) -> None:
        before = await self._work.transact.read(
            lambda t: (t.market.rounds(row.id), merged_before(t, row, row.round))
        )
        with self._work.tracing.span("evidence prepared ahead", task=row.id, round=row.round):
            await self._work.transact.compute(
                lambda: self._prepared_ahead(round_start(row, self._work.blobs, *before))
            )

    def _prepared_ahead(self, start: RoundStart) -> None:
        scoring, self._computing_since = self._scoring(), time.monotonic()
        scoring.prepare(start)

    def _scoring(self) -> Scorer:
        """The task's scorer, made where it is first needed: in the scoring thread, it may load data."""
        if self._scorer is None:
            self._scorer = make_scorer(self._live.row, report=self._trained, workers=self._work.workers)
        return self._scorer

    def _trained(self, trained: int, of: int) -> None:
        """Notes how far the shadows of the current round are; in the scoring thread."""
        live, took = self._live, time.monotonic() - self._computing_since
        progress = live.progress_of(live.row.round)
        progress.trained, progress.of, progress.seconds_left = trained, of, took / trained * (of - trained)
        log.debug("shadow models trained", task=live.row.id, round=live.row.round, trained=trained, of=of)

    async def _settle(self, row: TaskRow) -> _TaskView:
        began = self._work.clock.now()
        closed = await self._work.transact.read(lambda t: _closed_round(t, row))
        with self._work.tracing.span("scoring", task=row.id, round=row.round, models=len(closed.models)):
            outcome = await self._work.transact.compute(self._judge, row, closed)
        assessments = [*outcome.scored.assessments]
        assessments += [
            missing(name, degree, closed.reasons.get(name))
            for name, degree in closed.claims.items()
            if name not in closed.models
        ]
        draw = Draw(
            round_seed(chain_secret(row.root), row.terms.schedule.rounds, row.round),
            {name: model.draw_share for name, model in closed.models.items()},
        )
        with self._work.tracing.span("settlement", task=row.id, round=row.round):

            def settle(t: Transaction) -> tuple[RoundSettlement, _TaskView]:
                evidence = outcome.scored.evidence
                settled = t.settle(row, draw, assessments, evidence, outcome.merged, outcome.quality)
                return settled, self._open_next(t)

            settlement, seen = await self._work.transact(settle)
            paid = sum(payment.paid_micro for payment in settlement.payments)
            annotate(paid_micro=paid)
        metrics = self._work.metrics
        metrics.paid.labels(row.id).inc(paid)
        if (quality := outcome.quality) is not None:
            metrics.loss.labels(row.id).set(float(quality.loss))
            if quality.accuracy is not None:
                metrics.accuracy.labels(row.id).set(float(quality.accuracy))
        log.info("round settled", paid_micro=paid, models=len(closed.models))
        # Before anybody hears of the settlement: all ask for their receipts at once.
        await asyncio.gather(self._work.transact.sign_head(), self._sweep())
        await self._work.tell(Kind.TASK, row.id)  # others have kept the event until now
        metrics.settlement_seconds.observe(max(0.0, self._work.clock.now() - began))
        return seen

    def _judge(self, row: TaskRow, closed: _ClosedRound) -> _Outcome:
        """Evidence, mean and quality; in the scoring thread."""
        blobs = self._work.blobs
        submissions = [
            Submission(
                participant_id=name,
                model=blobs.fetch(model.model_sha256),
                model_sha256=model.model_sha256,
                samples=model.samples,
                claimed_degree=closed.claims[name],
                order=model.sequence,
            )
            for name, model in sorted(closed.models.items())
        ]
        scoring, self._computing_since = self._scoring(), time.monotonic()
        scored = scoring.score(round_start(row, blobs, closed.rounds, closed.merged), submissions)
        parts = merged_parts(scored, submissions, row.terms.recipe.samples)
        merged = self._merged(row, closed.rounds, parts)
        return _Outcome(scored, merged, self._scoring().evaluate(blobs.fetch(merged.model_sha256)))

    def _merged(self, row: TaskRow, rounds: Sequence[RoundRow], parts: Parts) -> Merged:
        """The round's next model and the server's state, in their places; those of before where nobody is scored."""
        blobs, spool, terms = self._work.blobs, self._work.spool, row.terms
        start = rounds[-1].start_model
        state = rounds[-2].server_state if len(rounds) > 1 else None
        if not parts:
            return Merged(start, state)
        target, state_target = spool.scratch(f"{row.id}.mean"), spool.scratch(f"{row.id}.state")
        before = None if state is None else blobs.fetch(state)
        merged = merge(
            parts,
            terms.aggregation,
            terms.contract,
            blobs.fetch(start),
            before,
            target,
            state_target,
            self._work.workers.for_means(sum(path.stat().st_size for path, _ in parts.values())),
        )
        blobs.adopt(target, merged.model_sha256)
        if merged.state_sha256 is not None:
            blobs.adopt(state_target, merged.state_sha256)
        return merged

    async def _sweep(self) -> None:
        """Uploads that were broken off are of no use to the next round."""
        name = self._live.row.id
        await asyncio.to_thread(self._work.spool.sweep, name, self._work.uploads.places.busy(name))

    def _tell(self, seen: _TaskView) -> None:
        """What is seen, to watchers and in metrics."""
        live, metrics, row = self._live, self._work.metrics, seen.row
        live.look_took(seen.seconds)
        live.feed.publish(
            seen.events
        )  # first: what fails below is said again by the next look, events are not
        if row.version != live.row.version:
            metrics.phase_started.labels(row.id).set(self._work.clock.now())
            metrics.tasks.labels(live.row.state).dec()
            metrics.tasks.labels(row.state).inc()
        live.row = row
        if row.deadline is not None:
            metrics.task_deadline.labels(row.id).set(row.deadline)
        else:
            with suppress(KeyError):  # there was none
                metrics.task_deadline.remove(row.id)
        metrics.task_round.labels(row.id).set(row.round)
        metrics.ledger_size.set(seen.size)
        metrics.escrow.labels(row.id).set(seen.escrow)
        for standing in ("claimed", "selected", "delivered", "failed"):
            metrics.task_participants.labels(row.id, standing).set(len(getattr(seen.progress, standing)))

    def _set_broken(self, why: str | None) -> None:
        if self._live.broken is None:
            self._live.broken_since = self._work.clock.now()
        self._live.broken = why
        self._work.metrics.stalled.labels(self._live.row.id).set(why is not None)


def _closed_round(t: Transaction, row: TaskRow) -> _ClosedRound:
    return _ClosedRound(
        claims={c.participant_id: Fraction(c.degree) for c in t.market.claims(row.id) if c.selected},
        models={m.participant_id: m for m in t.market.models(row.id, row.round)},
        reasons={f.participant_id: f.reason for f in t.market.failures(row.id, row.round)},
        rounds=t.market.rounds(row.id),
        merged=merged_before(t, row, row.round),
    )


def _passes(error: Exception) -> bool:
    """Whether a step that failed may be taken later: the machine's faults, and what an operator can repair."""
    if isinstance(error, ConstraintViolated):
        return False
    return isinstance(error, _REPAIRABLE) or outlook(refusal_for(error).code) is Outlook.PASSING


def _report(preparation: "asyncio.Future[None]") -> None:
    """A preparation that failed is done again by `score`; its reason is worth a line now."""
    if not preparation.cancelled() and (error := preparation.exception()) is not None:
        log.warning("evidence could not be prepared ahead", exc_info=error)
