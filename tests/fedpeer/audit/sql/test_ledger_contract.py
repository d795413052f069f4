"""What every ledger store must do, over in-memory SQLite, file SQLite and PostgreSQL."""

import contextlib
from dataclasses import replace

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from coordinator.storage.schema import METADATA, migrate
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import ConstraintViolated, HeadRefused, UnknownSchema
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.accounts import Balance, Post, Reserve, Resolve
from mechanism.ledger.appending import AppendedEntry, Ledger
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryConflictError, EntryError, PostingError, ProofError
from mechanism.ledger.key_history import keys_after
from mechanism.ledger.log_keys import log_keys
from mechanism.ledger.merkle import leaf_hash, tree_root, verify_consistency, verify_inclusion
from mechanism.ledger.note import Checkpoint, SigningKey
from tests import ledger_samples as samples

KEY = SigningKey.generate("example.com/fedpeer")


def append(database: Database, recorded: list[Entry]) -> list[AppendedEntry]:
    with database.begin() as connection:
        return Ledger(SqlLedgerStore(connection)).append(recorded)


def note(i: int, text_: str = "") -> Entry:
    return entries.failure("task", 1, f"p{i:04d}", f"s{i}", text_)


def record_task(database: Database, rounds: int = 2, people: int = 4) -> list[Entry]:
    agreed, everything = samples.terms(rounds=rounds, capacity=people), []
    for step in samples.transactions(agreed, samples.names(people)):
        append(database, step)
        everything += step
    return everything


def read_all(database: Database) -> list[bytes]:
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        return list(store.entries(0, store.size()))


def test_entries_come_back_in_order_whatever_the_batches_were(database: Database) -> None:
    sent = [note(i, "x" * (i * 37 % 3000)) for i in range(1100)]
    sent[700] = note(700, "y" * 65_000)
    for start, end in ((0, 1), (1, 2), (2, 300), (300, 1100)):
        append(database, sent[start:end])
    assert read_all(database) == [entry.data for entry in sent]
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        for first, count in ((0, 1), (1, 1), (299, 3), (555, 300), (1099, 10), (1100, 5)):
            assert list(store.entries(first, count)) == [e.data for e in sent[first : first + count]]


def test_tiles_give_the_root_and_the_proofs_of_the_plain_tree(database: Database) -> None:
    sent = [note(i) for i in range(700)]
    for start, end in ((0, 5), (5, 256), (256, 257), (257, 700)):
        append(database, sent[start:end])
    leaves = [leaf_hash(entry.data) for entry in sent]
    with database.read() as connection:
        ledger = Ledger(SqlLedgerStore(connection))
        for size in (0, 1, 5, 255, 256, 257, 512, 699, 700):
            assert ledger.root(size) == tree_root(leaves[:size])
        for index, size in ((0, 1), (0, 700), (255, 256), (256, 700), (699, 700), (100, 300)):
            proof = ledger.inclusion_proof(index, size)
            verify_inclusion(index, size, leaves[index], proof, ledger.root(size))
        for old, new in ((1, 700), (256, 700), (255, 257), (700, 700)):
            proof = ledger.consistency_proof(old, new)
            verify_consistency(old, new, ledger.root(old), ledger.root(new), proof)
        with pytest.raises(ProofError, match="700 entries"):
            ledger.root(701)


def test_the_same_id_and_body_is_the_same_answer_and_another_body_a_conflict(database: Database) -> None:
    first = append(database, [note(1), note(2)])
    again = append(database, [note(2), note(3), note(3), note(1)])
    assert [r.index for r in first] == [0, 1]
    assert [(r.index, r.new) for r in again] == [(1, False), (2, True), (2, False), (0, False)]
    with pytest.raises(EntryConflictError, match="already names entry 1"):
        append(database, [note(9), note(2, "other")])
    assert len(read_all(database)) == 3


def test_a_settled_task_leaves_nothing_in_escrow_and_equal_sums(database: Database) -> None:
    everything = record_task(database)
    with database.read() as connection:
        balances = SqlLedgerStore(connection).all_balances()
    assert balances["escrow:task"].holds == 0
    assert sum(b.debits_posted for b in balances.values()) == sum(b.credits_posted for b in balances.values())
    assert all(b.debits_pending == b.credits_pending == 0 for b in balances.values())
    paid = sum(int(str(e.body["paid_micro"])) for e in everything if e.kind == "payment")
    assert paid > 0
    assert sum(b.holds for name, b in balances.items() if name.startswith("payable:")) == paid


def test_recording_a_settlement_again_pays_nothing_more(database: Database) -> None:
    everything = record_task(database)
    before = read_all(database)
    with database.read() as connection:
        balances = SqlLedgerStore(connection).all_balances()
    again = append(database, everything)
    assert not any(r.new for r in again)
    assert read_all(database) == before
    with database.read() as connection:
        assert SqlLedgerStore(connection).all_balances() == balances


def entry(name: str, *transfers: Post | Reserve | Resolve) -> Entry:
    return Entry(name, "failure", {}, transfers)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([Post("payable:a", "treasury", 1)], "overdrawn"),
        ([Resolve("task/9", 1)], "no reservation"),
        ([Reserve("task/1", "treasury", "escrow:task", 5), Resolve("task/1", 6)], "holds 5"),
        (
            [Reserve("task/1", "treasury", "escrow:task", 5), Resolve("task/1", 1), Resolve("task/1", 1)],
            "resolved already",
        ),
        ([Reserve("task/1", "treasury", "escrow:task", 5)] * 2, "made before"),
        ([Reserve("task/1", "treasury", "escrow:task", 5), Post("escrow:task", "payable:a", 1)], "overdrawn"),
    ],
)
def test_a_posting_that_the_accounts_forbid_changes_nothing(
    database: Database, moves: list[Post | Reserve | Resolve], message: str
) -> None:
    with pytest.raises(PostingError, match=message):
        append(database, [entry(f"e{i}", move) for i, move in enumerate(moves)])
    assert read_all(database) == []
    with database.read() as connection:
        assert SqlLedgerStore(connection).all_balances() == {}


FORBIDDEN = {
    "an edited balance": "UPDATE ledger_accounts SET credits_posted = credits_posted + 1 WHERE name = 'treasury'",
    "a deleted account": "DELETE FROM ledger_accounts WHERE name = 'rounding'",
    "a second resolve": (
        "INSERT INTO ledger_transfers VALUES (900, 0, 'resolve', 'treasury', 'escrow:task', 1, 'task/1', 2)"
    ),
    "a resolve of nothing": (
        "INSERT INTO ledger_transfers VALUES (900, 0, 'resolve', 'treasury', 'escrow:x', 1, 'x/1', 2)"
    ),
    "a resolve beyond what is held": (
        "INSERT INTO ledger_transfers VALUES (900, 0, 'resolve', 'treasury', 'escrow:task', 9, 'task/1', 2)"
    ),
    "an overdraft": (
        "INSERT INTO ledger_transfers VALUES (900, 0, 'post', 'escrow:task', 'payable:p000', 1, NULL, 0)"
    ),
    "a negative amount": (
        "INSERT INTO ledger_transfers VALUES (900, 0, 'post', 'treasury', 'payable:p000', -1, NULL, 0)"
    ),
    "a removed transfer": "DELETE FROM ledger_transfers",
    "an edited transfer": "UPDATE ledger_transfers SET micro = micro + 1",
    "a removed entry": "DELETE FROM ledger_bundles",
    "a freed id": "DELETE FROM ledger_ids",
    "an edited head": "UPDATE ledger_checkpoints SET note = 'x'",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_database_itself_refuses(database: Database, what: str) -> None:
    record_task(database)
    SignedLog(database, KEY).sign_head()
    with database.read() as connection:
        before = SqlLedgerStore(connection).all_balances()
    with pytest.raises(ConstraintViolated), database.begin() as connection:
        connection.exec_driver_sql(FORBIDDEN[what])
    with database.read() as connection:
        assert SqlLedgerStore(connection).all_balances() == before


def test_an_exception_in_the_transaction_takes_everything_back(database: Database) -> None:
    with contextlib.suppress(RuntimeError), database.begin() as connection:
        Ledger(SqlLedgerStore(connection)).append(samples.opening(samples.terms(), samples.names(3)))
        raise RuntimeError("a crash")
    assert read_all(database) == []
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        assert store.read_tiles([(0, 0)]) == {}
        assert store.all_balances() == {}


def test_heads_are_signed_once_a_size_and_extend_each_other(database: Database) -> None:
    log = SignedLog(database, KEY)
    empty = log.sign_head()
    assert log.sign_head() == empty
    append(database, [note(i) for i in range(3)])
    three = log.sign_head()
    append(database, [note(i) for i in range(300)])
    assert len({empty, three, log.sign_head()}) == 3
    with database.read() as connection:
        sizes = [size for size, _ in SqlLedgerStore(connection).checkpoints()]
    assert sizes == [0, 3, 300]


def test_a_receipt_verifies_for_every_entry_and_for_nothing_else(database: Database) -> None:
    append(database, [note(i) for i in range(5)])
    log = SignedLog(database, KEY)
    for index in range(5):
        receipt = log.receipt(index)
        assert receipt.verify(log.verification_key, note(index).data).size == 5
        with pytest.raises(ProofError):
            replace(receipt, entry=b"").verify(log.verification_key, note(index + 1).data)


def test_another_key_signs_nothing(database: Database) -> None:
    append(database, [note(1)])
    SignedLog(database, KEY).sign_head()
    append(database, [note(2)])
    with pytest.raises(HeadRefused, match="log's own signing key"):
        SignedLog(database, SigningKey.generate("example.com/fedpeer")).sign_head()


def test_a_tree_that_lost_what_was_signed_is_not_signed_again(database: Database) -> None:
    append(database, [note(1), note(2)])
    log = SignedLog(database, KEY)
    log.sign_head()
    with database.begin() as connection:
        connection.execute(text("UPDATE ledger_log SET size = 1"))
    with pytest.raises(HeadRefused, match="does not extend"):
        log.sign_head()
    with database.begin() as connection:
        connection.execute(text("UPDATE ledger_log SET size = 2"))
        connection.execute(
            text("UPDATE ledger_tiles SET hashes = :h"), {"h": leaf_hash(b"a") + leaf_hash(b"b")}
        )
    append(database, [note(3)])
    with pytest.raises(HeadRefused, match="nothing was signed"):
        log.sign_head()


def test_the_migrated_schema_is_the_declared_one(database: Database) -> None:
    with database.read() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), METADATA)
    assert differences == []


def test_a_schema_of_another_version_is_refused(database: Database) -> None:
    database.check_schema()
    with database.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UnknownSchema, match="newer fedpeer"):
        database.check_schema()
    with pytest.raises(UnknownSchema, match="newer fedpeer"):
        migrate(database)


def test_a_balance_of_an_unused_account_is_zero(database: Database) -> None:
    with database.read() as connection:
        assert Ledger(SqlLedgerStore(connection)).balance("payable:nobody") == Balance()


@pytest.mark.parametrize(
    "move",
    [Post("treasury", "payable:p", -1), Post("treasury", "savings", 1), Post("treasury", "payable:p", 2**53)],
)
def test_a_transfer_that_could_not_be_read_again_is_not_written(database: Database, move: Post) -> None:
    with pytest.raises(EntryError):
        append(database, [entry("e", move)])
    assert read_all(database) == []


def test_an_id_with_a_backslash_is_stored_as_it_is(database: Database) -> None:
    sent = [entry("a\\b"), entry("c\\t1"), entry("\\N")]
    append(database, sent)
    with database.read() as connection:
        assert SqlLedgerStore(connection).find(["a\\b", "c\\t1", "\\N"]) == {"a\\b": 0, "c\\t1": 1, "\\N": 2}


def test_the_key_history_is_kept_with_the_entries_that_make_it(database: Database) -> None:
    keys = [samples.private_key(name).public_key() for name in samples.names(3)]
    made = [entries.enrolment(name, key) for name, key in zip(samples.names(3), keys, strict=True)]
    append(database, [note(1), made[0], note(2)])
    append(database, [made[1]])
    append(
        database, [made[0], entries.revocation("p000", keys[0], "gone"), made[2]]
    )  # the first stands already
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        rows, (count, digest) = list(store.keys()), store.key_history()
        assert [row[:2] for row in rows] == [(0, 1), (1, 3), (2, 4), (3, 5)]
        assert (count, digest) == (4, rows[-1][2])
        assert [row[3] for row in rows] == [next(store.entries(row[1], 1)) for row in rows]
        assert digest == Ledger(store).keys() == keys_after(map(Entry.parse, store.entries(0, 10)))
        assert list(store.keys(2, 1)) == rows[2:3]


def test_the_logs_key_changes_in_one_transaction_and_the_old_process_follows(database: Database) -> None:
    append(database, [note(1)])
    following = SigningKey.generate(KEY.name)
    keys = {str(key.verification_key): key for key in (KEY, following)}
    log, other = SignedLog(database, KEY, keys.get), SignedLog(database, KEY, keys.get)
    log.sign_head()
    other.sign_head()
    assert log.change_key(following) == 1
    head, key, changes = log.published()
    for signer in (KEY, following):
        assert Checkpoint.open(head, signer.verification_key).size == 2
    assert key == str(following.verification_key)
    append(database, [note(2)])
    assert Checkpoint.open(other.sign_head(), following.verification_key).size == 3
    assert other.receipt(2).verify(following.verification_key).size == 3
    assert log_keys(KEY.verification_key, following.verification_key, changes).at(2) == KEY.verification_key
    with database.read() as connection:
        assert SqlLedgerStore(connection).first_key() == str(KEY.verification_key)
    with pytest.raises(HeadRefused, match="own signing key"):
        SignedLog(database, KEY).sign_head()
    with pytest.raises(FieldError):
        log.change_key(SigningKey.generate("another.log"))
