"""The Ledger service: checkpoints, entries, proofs and balances; read-only, for anybody."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from coordinator.commits import Transactions
from coordinator.transaction import Transaction
from fedpeer.protocol.limits import LEDGER_BATCH_BYTES, LEDGER_BATCH_ENTRIES, LEDGER_MESSAGE_BYTES
from fedpeer.v1 import ledger_pb2, ledger_pb2_grpc
from mechanism.errors import FieldError
from mechanism.ledger.accounts import account_name
from mechanism.ledger.errors import EntryError
from mechanism.ledger.note import Note


class LedgerServicer(ledger_pb2_grpc.LedgerServicer):
    """Serves what is committed and signed."""

    def __init__(self, transact: Transactions) -> None:
        self._transact = transact

    async def GetCheckpoint(self, request: Any, context: Any) -> ledger_pb2.Checkpoint:
        note, key, changes = await self._transact.published()
        return ledger_pb2.Checkpoint(note=note, verification_key=key, key_changes=changes)

    async def GetKeys(self, request: ledger_pb2.GetKeysRequest, context: Any) -> ledger_pb2.Keys:
        proof = ""
        if request.HasField("index"):
            size = await self._transact.read(lambda t: t.ledger.size())
            if request.index >= size:
                raise FieldError("index", request.index, f"below the size {size}")
            # Before the keys are read: all that it covers are then among them.
            proof = await self._transact.proof(request.index)

        def read(t: Transaction) -> ledger_pb2.Keys:
            count, _ = t.ledger_store.key_history()
            if request.first > count:
                raise FieldError("first", request.first, f"at most {count}, the enrolments and revocations")
            rows = list(t.ledger_store.keys(request.first, LEDGER_BATCH_ENTRIES))
            found = list(_filling((row[3] for row in rows), LEDGER_BATCH_BYTES))
            indices = [row[1] for row in rows[: len(found)]]
            return ledger_pb2.Keys(count=count, proof=proof, entries=found, indices=indices)

        return await self._transact.read(read)

    async def GetEntries(
        self, request: ledger_pb2.GetEntriesRequest, context: Any
    ) -> AsyncIterator[ledger_pb2.Entries]:
        size = _covered(await self._transact.sign_head())
        position = request.first
        if position > size:
            raise FieldError("first", position, f"at most {size}, which the checkpoint covers")
        end = size if request.count == 0 else min(size, position + request.count)
        while position < end:
            count = min(LEDGER_BATCH_ENTRIES, end - position)
            entries = await self._transact.read(_reader(position, count))
            while entries:
                batch = list(_filling(entries, LEDGER_MESSAGE_BYTES))
                yield ledger_pb2.Entries(first=position, entries=batch)
                position, entries = position + len(batch), entries[len(batch) :]

    async def GetInclusionProof(
        self, request: ledger_pb2.GetInclusionProofRequest, context: Any
    ) -> ledger_pb2.InclusionProof:
        def prove(t: Transaction) -> tuple[int, list[bytes]]:
            size = _size("size", request.size, t)
            if request.index >= size:
                raise FieldError("index", request.index, f"below the size {size}")
            return size, t.ledger.inclusion_proof(request.index, size)

        size, hashes = await self._transact.read(prove)
        return ledger_pb2.InclusionProof(index=request.index, size=size, hashes=hashes)

    async def GetConsistencyProof(
        self, request: ledger_pb2.GetConsistencyProofRequest, context: Any
    ) -> ledger_pb2.ConsistencyProof:
        def prove(t: Transaction) -> list[bytes]:
            second = _size("second", request.second, t)
            if request.first > second:
                raise FieldError("first", request.first, f"at most {second}")
            return t.ledger.consistency_proof(request.first, second)

        return ledger_pb2.ConsistencyProof(hashes=await self._transact.read(prove))

    async def GetBalance(self, request: ledger_pb2.GetBalanceRequest, context: Any) -> ledger_pb2.Balance:
        try:
            account_name(request.account)
        except EntryError:
            forms = "an account such as treasury, escrow:TASK or payable:PARTICIPANT"
            raise FieldError("account", request.account[:80], forms) from None
        balance, size = await self._transact.read(
            lambda t: (t.ledger.balance(request.account), t.ledger.size())
        )
        return ledger_pb2.Balance(
            account=request.account,
            **{f"{name}_micro": value for name, value in asdict(balance).items()},
            ledger_size=size,
        )


def _reader(first: int, count: int) -> Callable[[Transaction], list[bytes]]:
    """Reads entries from `first` on: at least one, up to `count`, until a batch is full."""
    return lambda t: list(_filling(t.ledger_store.entries(first, count), LEDGER_BATCH_BYTES))


def _filling(entries: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The first of the entries, and those after it that fill `most` bytes with it at the most."""
    used = 0
    for number, entry in enumerate(entries):
        used += len(entry)
        if number and used > most:
            return
        yield entry


def _covered(note: str) -> int:
    """The size of a signed head: the second line of its text."""
    return int(Note.parse(note).text.split("\n")[1])


def _size(field: str, asked: int, t: Transaction) -> int:
    """The tree size that is asked for; 0 means all."""
    present = t.ledger.size()
    if asked > present:
        raise FieldError(field, asked, f"at most {present}, the size of the ledger")
    return asked or present
