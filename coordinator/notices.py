"""Notices of what happens in a market, to the receivers in `[notices.NAME]` of coordinator.toml.

A transition leaves a notice in the transaction that makes it (`Transaction.notice`), so that nothing is sent that did
not happen and nothing that happened is forgotten. One duty for each receiver sends them in order, each until the
receiver has taken it: at least once, with the id by which a receiver knows one that it has had. The market never waits:
it writes a row and goes on.

    sent                          the receiver's place moves on
    not reached, 5xx, 408, 429    tried again after 1, 2, 4, ... 300 seconds, for three days
    refused: any other answer     tried five times, then passed over
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import structlog

from coordinator.clock import Clock
from coordinator.commits import Transactions
from coordinator.config import NOTICES, NOTICES_FOR_PARTICIPANTS, ReceiverSection, ServiceConfig
from coordinator.errors import ConfigError
from coordinator.metrics import Metrics
from coordinator.sending import Event, NoticeSender, NotSent
from coordinator.storage.notices import NoticeRow
from coordinator.transaction import Transaction
from mechanism.price import grouped_credits

log = structlog.get_logger()

#: Seconds from one look at what is new to the next, and at what the service knows besides.
LOOK_SECONDS = 1.0
ALARM_SECONDS = 15.0

#: Seconds until a notice is tried again, doubled up to the second figure.
FIRST_RETRY_SECONDS = 1.0
RETRY_LIMIT_SECONDS = 300.0

#: Seconds after which a notice is given up, and its row deleted.
KEPT_SECONDS = 3 * 86_400.0

#: Attempts at a notice that its receiver refuses.
_REFUSED_ATTEMPTS = 5

#: Notices that are read at once.
_BATCH = 20

#: Refusals that are remembered, so that one that is repeated gives one notice; those that wait to be stored.
_REMEMBERED, _PENDING = 1000, 100

#: Notices of refusals an hour, of one participant: each is a row of the database, whatever it sends.
_REFUSALS_PER_HOUR = 60


@dataclass(frozen=True)
class Alarm:
    """Something that the operator must see to, for as long as it lasts.

    Attributes:
        type: of the notice.
        subject: what it is about, which tells alarms of a type apart.
        why: a sentence.
    """

    type: str
    subject: str
    why: str


@dataclass(frozen=True)
class Refused:
    """A submission that was refused for what it is, not for what the machine lacks."""

    participant_id: str
    task_id: str
    kind: str
    code: str
    message: str


class Notices:
    """Tells receivers. One instance for one service; each of its methods that loops is a duty.

    Args:
        alarms: what the operator must see to just now.
    """

    def __init__(
        self,
        config: ServiceConfig,
        transact: Transactions,
        clock: Clock,
        metrics: Metrics,
        alarms: Callable[[], Awaitable[list[Alarm]]],
    ) -> None:
        self._market, self.receivers = config.name, config.notices
        self._transact, self._clock, self._metrics, self._alarms = transact, clock, metrics, alarms
        self._post = NoticeSender(config.mail) if config.notices else None
        self._raised: dict[tuple[str, str], Alarm] = {}
        self._refused: OrderedDict[Refused, None] = OrderedDict()
        self._pending: list[Refused] = []
        #: Of the present hour, by participant.
        self._noticed: Counter[str] = Counter()
        self._hour = 0
        #: Why a receiver has not taken a notice yet, by its name.
        self._troubles: dict[str, str] = {}

    def troubles(self) -> dict[str, str]:
        """Receivers that do not take what they are sent, and why; for `status`."""
        return {f"notices to {name}": why for name, why in self._troubles.items()}

    def refused(self, refused: Refused) -> None:
        """Notes a refusal, for the participant's own receivers; from the service's loop, and at once."""
        if not any(each.participant == refused.participant_id for each in self.receivers.values()):
            return
        hour = int(self._clock.now() // 3600)
        if hour != self._hour:
            self._hour, self._noticed = hour, Counter()
        noticed = self._noticed[refused.participant_id]
        if refused not in self._refused and len(self._pending) < _PENDING and noticed < _REFUSALS_PER_HOUR:
            self._pending.append(refused)
            self._noticed[refused.participant_id] += 1
            self._refused[refused] = None
            if len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)

    async def forget_others(self) -> None:
        """Forgets receivers that the configuration no longer names; new ones begin after what there is."""

        def act(t: Transaction) -> None:
            places = t.market.notice_places()
            for name in places.keys() - self.receivers.keys():
                t.market.drop_notice_place(name)
            for name in self.receivers.keys() - places.keys():
                t.market.put_notice_place(name, t.market.last_notice())

        await self._transact(act)

    async def close(self) -> None:
        if self._post is not None:
            await self._post.close()

    async def keep_noting(self, well: Callable[[], None]) -> None:
        """Stores what no transition says: alarms as they come and go, and refusals."""
        while True:
            for _ in range(round(ALARM_SECONDS / LOOK_SECONDS)):
                await self._store_refused()
                await asyncio.sleep(LOOK_SECONDS)
                well()
            await self.look_at_alarms()

    async def look_at_alarms(self) -> None:
        """Stores a notice of each alarm that has come or gone since the last look."""
        found = {(alarm.type, alarm.subject): alarm for alarm in await self._alarms()}
        come = [alarm for key, alarm in found.items() if key not in self._raised]
        gone = [alarm for key, alarm in self._raised.items() if key not in found]

        def act(t: Transaction) -> None:
            for state, alarms in (("raised", come), ("over", gone)):
                for alarm in alarms:
                    t.notice(alarm.type, {"state": state, "subject": alarm.subject, "why": alarm.why})

        if come or gone:
            await self._transact(act)
        self._raised = found

    async def _store_refused(self) -> None:
        pending, self._pending = self._pending, []

        def act(t: Transaction) -> None:
            for each in pending:
                said = {"submission": each.kind, "code": each.code, "reason": each.message}
                t.notice("submission.refused", said, each.task_id, each.participant_id)

        if pending:
            try:
                await self._transact(act)
            except BaseException:
                self._pending = pending + self._pending
                raise

    async def keep_sending(self, name: str, well: Callable[[], None]) -> None:
        """Sends one receiver what is for it, in order, and looks for more."""
        receiver = self.receivers[name]
        place = (await self._transact.read(lambda t: t.market.notice_places()))[name]
        waiting = self._metrics.notices_waiting.labels(name)
        while True:
            found, last = await self._transact.read(_reading(self._market, receiver, place))
            waiting.set(max(0, last - place))
            for number, event in found:
                if event is not None:
                    await self._deliver(name, receiver, event)
                place = number
                waiting.set(max(0, last - place))
                if event is not None or number == found[-1][0]:
                    await self._transact(_moving(name, place), durable=False)
            well()
            if not found:
                await asyncio.sleep(LOOK_SECONDS)

    async def _deliver(self, name: str, receiver: ReceiverSection, event: Event) -> None:
        """Returns when the receiver has taken it, or it is given up."""
        assert self._post is not None  # there are receivers
        attempts, retry, refusals = 0, FIRST_RETRY_SECONDS, 0
        while True:
            try:
                await self._post.send(receiver, event, self._clock.now())
            except NotSent as failed:
                attempts, refusals = attempts + 1, refusals + failed.lasting
                why, pause = str(failed), min(max(retry, failed.retry_after), RETRY_LIMIT_SECONDS)
            else:
                self._troubles.pop(name, None)
                self._metrics.notices.labels(name, "sent").inc()
                return
            self._metrics.notices.labels(name, "failed").inc()
            over = self._clock.now() - event.at > KEPT_SECONDS
            if over or refusals >= _REFUSED_ATTEMPTS:
                self._metrics.notices.labels(name, "given_up").inc()
                self._troubles[name] = f"{why}; a notice of {event.type} is given up"
                log.error(
                    "a notice is given up",
                    receiver=name,
                    notice=event.type,
                    id=event.id,
                    why=why,
                    attempts=attempts,
                )
                return
            self._troubles[name] = f"{why}; tried {attempts} times"
            log.warning("a notice did not arrive; it is tried again", receiver=name, why=why, seconds=pause)
            await asyncio.sleep(pause)
            retry = min(2 * retry, RETRY_LIMIT_SECONDS)


async def try_out(config: ServiceConfig, name: str, now: float) -> None:
    """Sends a receiver a notice that says nothing, once.

    Raises:
        ConfigError: the configuration names no such receiver.
        ServeError: what sends is not installed.
        NotSent: it did not take it.
    """
    if (receiver := config.notices.get(name)) is None:
        known = ", ".join(sorted(config.notices)) or "none"
        raise ConfigError(f"coordinator.toml has no section [notices.{name}]; it names {known}")
    post = NoticeSender(config.mail)
    try:
        text = "This is a test: nothing has happened."
        await post.send(receiver, Event(uuid4().hex, config.name, "test", "", now, text, {}), now)
    finally:
        await post.close()


def _moving(name: str, place: int) -> Callable[[Transaction], None]:
    return lambda t: t.market.put_notice_place(name, place)


def _reading(
    market: str, receiver: ReceiverSection, place: int
) -> Callable[[Transaction], tuple[list[tuple[int, Event | None]], int]]:
    """Reads the notices after a place, each as this receiver gets it, None where not for it; and the last number."""

    def read(t: Transaction) -> tuple[list[tuple[int, Event | None]], int]:
        rows = t.market.notices_after(place, _BATCH)
        return [(row.number, event_for(t, market, receiver, row)) for row in rows], t.market.last_notice()

    return read


def event_for(t: Transaction, market: str, receiver: ReceiverSection, row: NoticeRow) -> Event | None:
    """A notice as a receiver gets it; None where it is not for this one."""
    if receiver.types and row.type not in receiver.types:
        return None
    if receiver.participant:
        data = _for_participant(t, receiver.participant, row)
    else:
        data = row.data if row.type in NOTICES else None
    if data is None:
        return None
    if row.task_id:
        data = {"task": row.task_id, **data}
    subject = row.task_id or str(data.get("subject", ""))
    return Event(row.id, market, row.type, subject, row.at, _sentence(row.type, data), data)


def _for_participant(t: Transaction, name: str, row: NoticeRow) -> Mapping[str, Any] | None:
    """A participant's notices: what is offered to all, and its own part of the tasks that it takes part in."""
    if row.type not in NOTICES_FOR_PARTICIPANTS or row.participant_id not in ("", name):
        return None
    known = t.market.participant(name)
    if known is None or known.revoked_at is not None:
        return None
    if row.type in ("task.opened", "submission.refused"):
        return row.data
    claim = t.market.claim(row.task_id, name)
    if claim is None:
        return None
    if row.type == "round.opened":
        return row.data if claim.selected else None
    if row.type != "round.settled":
        return row.data
    line = t.market.settlement(row.task_id, row.data["round"], name)
    if line is None:
        return None
    amounts = {
        key: line.record[key] for key in ("paid_micro", "penalty_micro", "withheld_micro", "stake_lost_micro")
    }
    failed = [verdict.explanation for verdict in line.assessment.verdicts if not verdict.passed]
    return {"round": line.round, **amounts, "entry": line.ledger_index, "failed": failed}


def _sentence(type_: str, data: Mapping[str, Any]) -> str:
    """A notice in words."""
    task, round_ = data.get("task", ""), data.get("round", 0)
    match type_:
        case "task.opened":
            return f"Task {task} is open: claims are taken."
        case "round.opened":
            return f"Round {round_} of task {task} is open: models are awaited."
        case "round.settled":
            checks = f" Failed: {' '.join(data['failed'])}" if data.get("failed") else ""
            return f"Round {round_} of task {task} is settled: {grouped_credits(data['paid_micro'])} credits.{checks}"
        case "task.closed":
            return f"Task {task} has ended; stakes are released."
        case "task.cancelled":
            return f"Task {task} is cancelled: {data.get('reason', '')}"
        case "submission.refused":
            return f"The {data['submission']} for task {task} was refused: {data['reason']}"
        case "payout.due":
            return f"{grouped_credits(data['payable_micro'])} credits are payable to participants of task {task}."
    return f"{data['subject']}: {data['why']}" if data["state"] == "raised" else f"{data['subject']}: over."
