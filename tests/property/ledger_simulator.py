"""A seeded simulation of clients, a network and a ledger that crashes, against an independent model.

Clients send transactions; the network delays, reorders, drops and doubles them by a virtual clock; the service is
killed at any of its durable steps: inside the transaction, after the commit, before and after the head is durable,
before the answer. The model knows nothing of the ledger's code: lists, dictionaries and the recursion of RFC 6962.
After every step all of it is compared.
"""

import hashlib
import heapq
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from mechanism.ledger.accounts import Post, Reserve, Resolve, Transfer
from mechanism.ledger.appending import Ledger
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryConflictError, PostingError
from mechanism.ledger.note import Checkpoint
from tests.memory_source import KEY

CLIENTS = 4
STEPS = 24
TASKS = ("a", "b", "c")
PEOPLE = ("p", "q", "r")

DROPPED, DOUBLED, KILLED = 0.15, 0.15, 0.25
LATEST_S = 5.0


class Killed(Exception):
    """The service dies here; what its transaction wrote is gone."""


class MortalStore(SqlLedgerStore):
    """A store whose process dies at its n-th write."""

    writes_left: int | None = None

    def insert(self, first: int, ids: Sequence[str], data: Sequence[bytes]) -> None:
        self._step()
        super().insert(first, ids, data)
        self._step()

    def write_tiles(self, tiles: Any) -> None:
        self._step()
        super().write_tiles(tiles)

    def post(self, transfers: Any) -> None:
        self._step()
        super().post(transfers)

    def _step(self) -> None:
        if self.writes_left is not None:
            if self.writes_left == 0:
                raise Killed
            self.writes_left -= 1


@dataclass
class Model:
    """What the ledger must hold, the plain way."""

    log: list[tuple[str, bytes]] = field(default_factory=list)
    balances: dict[str, list[int]] = field(default_factory=dict)
    held: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    resolved: set[str] = field(default_factory=set)

    def after(self, batch: Sequence[Entry]) -> "Model | str":
        """The model after a transaction, or why it must be refused."""
        log, balances = list(self.log), {k: list(v) for k, v in self.balances.items()}
        new = Model(log, balances, dict(self.held), set(self.resolved))
        bodies = dict(self.log)
        for entry in batch:
            text = plain_bytes(entry)
            if entry.id in bodies:
                if bodies[entry.id] != text:
                    return "conflict"
                continue
            bodies[entry.id] = text
            log.append((entry.id, text))
            for transfer in entry.transfers:
                if not new.move(transfer):
                    return "refused"
        return new

    def move(self, transfer: Transfer) -> bool:
        if isinstance(transfer, Post):
            return self.add(transfer.debit, transfer.credit, posted=transfer.micro)
        if isinstance(transfer, Reserve):
            if transfer.reservation in self.held:
                return False
            self.held[transfer.reservation] = (transfer.debit, transfer.credit, transfer.micro)
            return self.add(transfer.debit, transfer.credit, pending=transfer.micro)
        known = self.held.get(transfer.reservation)
        if known is None or transfer.reservation in self.resolved or transfer.micro > known[2]:
            return False
        self.resolved.add(transfer.reservation)
        return self.add(known[0], known[1], posted=transfer.micro, pending=-known[2])

    def add(self, debit: str, credit: str, posted: int = 0, pending: int = 0) -> bool:
        source = self.balances.setdefault(debit, [0, 0, 0, 0])
        target = self.balances.setdefault(credit, [0, 0, 0, 0])
        source[0] += posted
        source[2] += pending
        target[1] += posted
        target[3] += pending
        return debit == "treasury" or source[0] + source[2] <= source[1]


def plain_bytes(entry: Entry) -> bytes:
    record: dict[str, Any] = {"v": 1, "id": entry.id, "kind": entry.kind, "body": dict(entry.body)}
    if entry.transfers:
        record["transfers"] = [t.record() for t in entry.transfers]
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def plain_root(data: Sequence[bytes]) -> bytes:
    if len(data) == 0:
        return hashlib.sha256(b"").digest()
    if len(data) == 1:
        return hashlib.sha256(b"\0" + data[0]).digest()
    k = 1 << (len(data) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + plain_root(data[:k]) + plain_root(data[k:])).digest()


class Simulation:
    """One seed's run over a migrated, empty database."""

    def __init__(self, seed: int, database: Database) -> None:
        self.chance = random.Random(seed)
        self.database = database
        self.log = SignedLog(database, KEY)
        self.model = Model()
        self.clock = 0.0
        self.network: list[tuple[float, int, list[Entry]]] = []
        self.sent = 0
        self.acknowledged: dict[str, int] = {}
        self.heads: dict[int, bytes] = {}
        self.roots: dict[int, bytes] = {}
        self.outcomes: dict[str, int] = {}

    def run(self) -> dict[str, int]:
        """Outcomes by name; AssertionError at the first invariant that does not hold."""
        for _ in range(STEPS):
            self.send(self.transaction())
        while self.network:
            self.clock, _, batch = heapq.heappop(self.network)
            outcome = self.deliver(batch)
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            self.check()
            if outcome.startswith("killed") and self.chance.random() < 0.8:
                self.send(batch)  # the client had no answer and asks again
        self.log.sign_head()
        self.check()
        return self.outcomes

    def send(self, batch: list[Entry]) -> None:
        copies = 0 if self.chance.random() < DROPPED else 2 if self.chance.random() < DOUBLED else 1
        for _ in range(copies):
            self.sent += 1
            arrival = self.clock + self.chance.uniform(0, LATEST_S)
            heapq.heappush(self.network, (arrival, self.sent, batch))

    def transaction(self) -> list[Entry]:
        """What a client may ask: sensible, late, contradictory or greedy."""
        task, person = self.chance.choice(TASKS), self.chance.choice(PEOPLE)
        round_ = self.chance.randint(1, 2)
        name, escrow = f"{task}/{round_}", f"escrow:{task}"
        kind = self.chance.choice(("open", "settle", "settle", "refund", "note", "note", "withdraw"))
        if kind == "open":
            held = [Reserve(f"{task}/{r}", "treasury", escrow, 100 * r) for r in (1, 2)]
            return [Entry(f"open/{task}", "x", {}, tuple(held))]
        if kind == "settle":
            paid = self.chance.choice((10, 100, 150, 201))
            shares = [paid // 3, paid - paid // 3 - 1]
            entries = [
                Entry(
                    f"settle/{name}", "x", {"paid": paid}, (Resolve(name, paid), Post(escrow, "rounding", 1))
                )
            ]
            for share, who in zip(shares, PEOPLE[:2], strict=True):
                entries.append(Entry(f"pay/{name}/{who}", "x", {}, (Post(escrow, f"payable:{who}", share),)))
            return entries
        if kind == "refund":
            return [Entry(f"settle/{name}", "x", {"paid": 0}, (Resolve(name, 0),))]
        if kind == "withdraw":
            amount = self.chance.choice((1, 1000))
            take = (Post(f"payable:{person}", "treasury", amount),)
            return [Entry(f"take/{person}/{self.chance.randint(0, 3)}", "x", {}, take)]
        number = self.chance.randint(0, 6)
        return [Entry(f"note/{number + i}", "x", {"by": self.chance.randint(0, 1)}) for i in range(3)]

    def deliver(self, batch: list[Entry]) -> str:
        """One transaction through the service, which may die at any durable step."""
        expected = self.model.after(batch)
        kill = self.chance.randint(0, 7) if self.chance.random() < KILLED else None
        try:
            with self.database.begin() as connection:
                store = MortalStore(connection)
                store.writes_left = kill
                recorded = Ledger(store).append(batch)
                if kill is not None and kill >= 4 and kill % 2 == 0:
                    raise Killed
        except Killed:
            return "killed in the transaction"
        except (EntryConflictError, PostingError) as error:
            refusal = "conflict" if isinstance(error, EntryConflictError) else "refused"
            assert isinstance(expected, str), f"{refusal}, but the model takes it: {batch}"
            return refusal
        assert isinstance(expected, Model), f"taken, but the model says {expected}: {batch}"
        self.model = expected
        if kill == 5:
            return "killed after the commit"
        self.log.sign_head()
        self.note_heads()
        if kill == 7:
            return "killed before the answer"
        for place in recorded:
            assert self.acknowledged.setdefault(place.id, place.index) == place.index
        return "new" if any(place.new for place in recorded) else "known"

    def note_heads(self) -> None:
        with self.database.read() as connection:
            note = SqlLedgerStore(connection).checkpoint()
        assert note is not None
        head = Checkpoint.open(note, KEY.verification_key)
        assert self.heads.setdefault(head.size, head.root) == head.root

    def check(self) -> None:
        """Every invariant."""
        log = self.model.log
        with self.database.read() as connection:
            store = SqlLedgerStore(connection)
            assert store.size() == len(log)
            assert list(store.entries(0, len(log))) == [data for _, data in log]
            assert store.find([entry_id for entry_id, _ in log]) == {
                entry_id: i for i, (entry_id, _) in enumerate(log)
            }
            assert Ledger(store).root() == self.root(len(log))
            balances = store.all_balances()
            found = {
                name: [b.debits_posted, b.credits_posted, b.debits_pending, b.credits_pending]
                for name, b in balances.items()
            }
            assert found == self.model.balances
            sums = [sum(column) for column in zip(*found.values(), strict=True)] or [0, 0, 0, 0]
            assert sums[0] == sums[1]
            assert sums[2] == sums[3]
        for entry_id, index in self.acknowledged.items():
            assert log[index][0] == entry_id, "an acknowledged entry is lost"
        for size, root in self.heads.items():
            assert self.root(size) == root, "a signed head is forked"

    def root(self, size: int) -> bytes:
        """The model's root of its first entries, which never change."""
        if size not in self.roots:
            self.roots[size] = plain_root([data for _, data in self.model.log[:size]])
        return self.roots[size]
