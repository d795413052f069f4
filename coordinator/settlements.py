"""What a settled round paid, for each participant: with the reasons, and a receipt of the ledger."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass

import structlog

from coordinator.commits import Transactions
from coordinator.storage.rounds import SettlementRow
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import Transaction
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.limits import PARTICIPANTS_AT_ONCE
from mechanism.errors import FieldError
from mechanism.ledger.entries import verdict_id

log = structlog.get_logger()

#: Payments of the last settled rounds that are kept in memory, for all tasks together; of a round with more none are.
_KEPT_LINES = PARTICIPANTS_AT_ONCE


@dataclass(frozen=True)
class PaidRound:
    """What one participant was paid in one round and why, with a C2SP tlog-proof of the payment's entry, and what the
    verdict's entry commits to; empty where that was erased."""

    line: SettlementRow
    proof: str
    opening: bytes


class Settlements:
    """Reads what rounds paid. One instance for one service."""

    def __init__(self, transact: Transactions) -> None:
        self._transact = transact
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def line(self, row: TaskRow, round_: int, name: str) -> PaidRound:
        """What a round paid to one participant.

        Raises:
            Refusal: NOT_YET before the round is settled, NOT_SELECTED for one that did not train.
        """
        if not 1 <= round_ <= row.terms.schedule.rounds:
            raise FieldError("round", round_, f"1 to {row.terms.schedule.rounds}")

        def read(t: Transaction) -> tuple[SettlementRow, str | None, bytes]:
            settled = t.market.settlement(row.id, round_, name)
            if settled is not None:
                kept = t.market.opening(row.id, verdict_id(row.id, round_, name))
                opening = b"" if kept is None else kept.opening
                return settled, self._transact.covered(t, [settled.ledger_index])[0], opening
            if any(r.round == round_ and r.settled_at is not None for r in t.market.rounds(row.id)):
                raise Refusal(Code.NOT_SELECTED, f"{name!r} did not train in task {row.id}.")
            raise Refusal(Code.NOT_YET, f"Round {round_} of task {row.id} is not settled.")

        settled, proof, opening = await self._transact.read(read)
        return PaidRound(settled, proof or await self._transact.proof(settled.ledger_index), opening)

    async def of_event(self, row: TaskRow, round_: int, name: str) -> PaidRound | None:
        """`line` of the last settled round, read once for all who get the event.

        None where it is not kept: for a name that did not train, for another round, where it cannot be read now, in a
        round of more than are kept, and for a task that ended before anybody asked. The participant then asks for its
        `line`.
        """
        kept = self._kept.get(row.id)
        if kept is None or kept.round < round_:
            if row.state.final:
                return None
            # Out of the context of the one who happens to be the first.
            lines = asyncio.create_task(self._read(row.id, round_), context=Context())
            kept = self._kept[row.id] = _Kept(round_, lines)
        self._kept.move_to_end(row.id)
        if kept.round != round_:
            return None
        return (await asyncio.shield(kept.lines)).get(name)  # others wait for it too

    def drop(self, participant_id: str | None = None) -> None:
        """Keeps nothing more of rounds that paid a participant; None: of no round.

        What was erased in the database is served no more, once this has been called after that. A round that is just
        being read may have been read before, and is not kept either.
        """
        for task_id, kept in list(self._kept.items()):
            read = kept.lines.done() and not kept.lines.cancelled()
            if participant_id is None or not read or participant_id in kept.lines.result():
                del self._kept[task_id]

    async def _read(self, task_id: str, round_: int) -> Mapping[str, PaidRound]:
        def read(t: Transaction) -> dict[str, PaidRound] | None:
            if t.market.count_claims(task_id) > _KEPT_LINES:
                return None
            lines = t.market.round_settlements(task_id, round_)
            proofs = self._transact.covered(t, [line.ledger_index for line in lines])
            kept = t.market.openings_of_round(task_id, round_, "verdict")
            openings = {opening.participant_id: opening.opening for opening in kept}
            return {
                line.participant_id: PaidRound(line, proof, openings.get(line.participant_id, b""))
                for line, proof in zip(lines, proofs, strict=True)
                if proof is not None
            }

        try:
            found = await self._transact.read(read)
            if found is None:
                return {}
        except Exception as error:
            log.warning("payments do not come with the event", task=task_id, round=round_, why=str(error))
            found = {}
        kept = self._kept.get(task_id)
        if not found and kept is not None and kept.round == round_:
            del self._kept[task_id]  # a later read may find it
        self._bound()
        return found

    def _bound(self) -> None:
        """Forgets what was not asked for longest."""
        sizes = {name: len(kept.lines.result()) for name, kept in self._kept.items() if kept.lines.done()}
        while sum(sizes.values()) > _KEPT_LINES:
            oldest = next(iter(sizes))
            del sizes[oldest], self._kept[oldest]


@dataclass(frozen=True)
class _Kept:
    """A task's last settled round.

    Attributes:
        lines: ends with what the round paid by participant.
    """

    round: int
    lines: asyncio.Task[Mapping[str, PaidRound]]
