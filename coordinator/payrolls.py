"""What a settled round paid, as each participant is told it: with the reasons, and a receipt of the ledger."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from coordinator.storage.market import TaskRow
from coordinator.transactions import Transaction, Transactions
from mechanism.errors import FieldError
from mechanism.ledger.entries import assessment_from_record
from mechanism.settlement import Assessment
from wire.errors import Code, Refusal

log = structlog.get_logger()

#: Tasks whose last settled round is kept at hand: everybody asks for it at once, and nobody later.
_KEPT = 8


@dataclass(frozen=True)
class PaidRound:
    """What one participant was paid in one round, and why.

    Attributes:
        proof: a C2SP tlog-proof of the payment's entry.
    """

    paid_micro: int
    penalty_micro: int
    stake_lost_micro: int
    peers: tuple[str, ...]
    assessment: Assessment
    ledger_index: int
    proof: str


class Payrolls:
    """Reads what rounds paid. One instance for one service."""

    def __init__(self, transact: Transactions) -> None:
        self._transact = transact
        self._rounds: OrderedDict[str, tuple[int, asyncio.Task[Mapping[str, PaidRound]]]] = OrderedDict()

    async def line(self, row: TaskRow, round_: int, name: str) -> PaidRound:
        """What a round paid to one participant.

        Raises:
            Refusal: NOT_YET before the round is settled, NOT_SELECTED for who did not train.
        """
        if not 1 <= round_ <= row.terms.schedule.rounds:
            raise FieldError("round", round_, f"1 to {row.terms.schedule.rounds}")

        def read(t: Transaction) -> tuple[int, Any, str | None]:
            settled = t.market.settlement(row.id, round_, name)
            if settled is not None:
                return *settled, self._transact.covered(t, settled[0])
            if any(r.round == round_ and r.settled_at is not None for r in t.market.rounds(row.id)):
                raise Refusal(Code.NOT_SELECTED, f"{name!r} did not train in task {row.id}.")
            raise Refusal(Code.NOT_YET, f"Round {round_} of task {row.id} is not settled.")

        index, record, proof = await self._transact.read(read)
        return _paid_round(index, record, proof or await self._transact.proof(index))

    async def known_line(self, row: TaskRow, round_: int, name: str) -> PaidRound | None:
        """As `line`, of the last settled round, read once for all who ask; None for who did not train, and where it
        cannot be read now.
        """
        kept = self._rounds.get(row.id)
        if kept is None or kept[0] < round_:
            kept = self._rounds[row.id] = round_, asyncio.create_task(self._read(row.id, round_))
            if len(self._rounds) > _KEPT:
                self._rounds.popitem(last=False)
        if kept[0] != round_:
            return None
        return (await asyncio.shield(kept[1])).get(name)  # others wait for it too

    async def _read(self, task_id: str, round_: int) -> Mapping[str, PaidRound]:
        def read(t: Transaction) -> dict[str, PaidRound]:
            lines = t.market.round_settlements(task_id, round_)
            proofs = self._transact.all_covered(t, [index for _, index, _ in lines])
            return {
                name: _paid_round(index, record, proof)
                for (name, index, record), proof in zip(lines, proofs, strict=True)
                if proof is not None
            }

        try:
            return await self._transact.read(read)
        except Exception as error:  # participants ask for it themselves then
            log.warning("payments are not told with the event", task=task_id, round=round_, why=str(error))
            return {}


def _paid_round(index: int, record: Mapping[str, Any], proof: str) -> PaidRound:
    return PaidRound(
        paid_micro=record["paid_micro"],
        penalty_micro=record["penalty_micro"],
        stake_lost_micro=record["stake_lost_micro"],
        peers=tuple(record["peers"]),
        assessment=assessment_from_record(record["assessment"]),
        ledger_index=index,
        proof=proof,
    )
