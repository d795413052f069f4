"""The ledger's speed, each figure beside a baseline in the same run.

    python -m benchmarks.ledger append [--entries 100000]     appending against bare inserts of the same bytes
    python -m benchmarks.ledger verify [--entries 1000000]    verifying whole rounds of a hundred, with 3 peers each and
                                                              with all; the tree against hashlib; one proof; a round's
                                                              evidence against hashlib

`append` measures PostgreSQL too where FEDPEER_TEST_POSTGRESQL names a server.
"""

import argparse
import gc
import hashlib
import os
import random
import resource
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.storage.schema import migrate
from fedpeer.audit.proofs import receipt
from fedpeer.audit.sources import open_source
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from mechanism.canonical import canonical_bytes, parse_canonical
from mechanism.degree_map import DegreeMap, regressor_count
from mechanism.evidence import EvidenceModel, Measurement, QualityMap, assess
from mechanism.ledger import entries
from mechanism.ledger.appending import Ledger
from mechanism.ledger.entry import Entry
from mechanism.ledger.key_history import keys_after
from mechanism.ledger.merkle import leaf_hash
from mechanism.ledger.note import SigningKey
from mechanism.ledger.openings import Openings
from mechanism.ledger.tiles import GrowingTree
from mechanism.ledger.verify import verify_ledger
from mechanism.peers import Draw, Meetings, draw_head, draw_share, round_seed, seed_commitment
from mechanism.settlement import MICRO, task_budget_micro
from mechanism.statements import ClaimOpening, ClaimStatement, ModelOpening, ModelStatement
from mechanism.terms import Terms
from mechanism.trees import Forest, Tree

BATCH = 1_000
#: Participants of a task.
PEOPLE = 100
KEY = SigningKey("bench", 1, bytes(32))
REPEATS = 5


#: Seconds by which work is timed; `--cpu` takes the processor's, which a busy machine disturbs less.
clock: Callable[[], float] = time.perf_counter


def main() -> None:
    global clock
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["append", "verify"])
    parser.add_argument("--entries", type=int)
    parser.add_argument("--cpu", action="store_true", help="count this process's CPU time, not the wall's")
    given = parser.parse_args()
    clock = time.process_time if given.cpu else time.perf_counter
    if given.what == "append":
        measure_append(given.entries or 100_000)
    else:
        measure_verify(given.entries or 1_000_000)


# Appending


def measure_append(count: int) -> None:
    made = [note(i) for i in range(count)]
    data = [entry.data for entry in made]
    gc.freeze()  # the benchmark's own input is no garbage to look through again and again
    print(f"{count} entries of {sum(map(len, data)) // count} bytes in batches of {BATCH}, entries a second:")
    with tempfile.TemporaryDirectory() as folder:
        compare(
            "SQLite, WAL, synchronous=FULL",
            {"bare executemany": lambda: bare_sqlite(Path(folder), data)},
            lambda: append(f"sqlite:///{fresh(Path(folder))}", made),
            count,
        )
    server = os.environ.get("FEDPEER_TEST_POSTGRESQL")
    if server:
        from tests.backends import scratch_url

        def appended() -> float:
            with scratch_url("postgresql", Path()) as url:
                return append(url, made)

        compare(
            "PostgreSQL",
            {
                "bare COPY": lambda: bare_postgresql(server, data, copy=True),
                "bare executemany": lambda: bare_postgresql(server, data, copy=False),
            },
            appended,
            count,
        )


def compare(
    name: str, baselines: dict[str, Callable[[], float]], ours: Callable[[], float], count: int
) -> None:
    """Alternates, so that a busy moment of the machine meets both; medians."""
    runs: dict[str, list[float]] = {label: [] for label in (*baselines, "ledger")}
    for _ in range(REPEATS):
        for label, baseline in baselines.items():
            runs[label].append(baseline())
        runs["ledger"].append(ours())
    rates = {label: count / statistics.median(times) for label, times in runs.items()}
    for label in baselines:
        print(
            f"  {name:32} {label:18} {rates[label]:>10,.0f}   ledger {rates['ledger']:>10,.0f}"
            f"   ratio {rates['ledger'] / rates[label]:.2f}"
        )


def note(i: int) -> Entry:
    return entries.failure(
        f"task-{i // 3000:05d}",
        i // 1000 % 3 + 1,
        f"hospital-{i % 1000:04d}",
        f"submission-{i}",
        "out of memory",
    )


def fresh(folder: Path) -> Path:
    path = folder / "bench.db"
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return path


def bare_sqlite(folder: Path, data: Sequence[bytes]) -> float:
    connection = sqlite3.connect(fresh(folder), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (place INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    begun = clock()
    for start in range(0, len(data), BATCH):
        connection.execute("BEGIN IMMEDIATE")
        rows = enumerate(data[start : start + BATCH], start)
        connection.executemany("INSERT INTO bare VALUES (?, ?)", rows)
        connection.execute("COMMIT")
    taken = clock() - begun
    connection.close()
    return taken


def bare_postgresql(server: str, data: Sequence[bytes], *, copy: bool) -> float:
    import psycopg

    with psycopg.connect(server.replace("postgresql+psycopg", "postgresql")) as connection:
        connection.execute("DROP TABLE IF EXISTS bare")
        connection.execute("CREATE TABLE bare (place BIGINT PRIMARY KEY, data BYTEA NOT NULL)")
        connection.commit()
        begun = clock()
        for start in range(0, len(data), BATCH):
            rows = list(enumerate(data[start : start + BATCH], start))
            with connection.cursor() as cursor:
                if copy:
                    with cursor.copy("COPY bare (place, data) FROM STDIN") as stream:
                        for row in rows:
                            stream.write_row(row)
                else:
                    cursor.executemany("INSERT INTO bare VALUES (%s, %s)", rows)
            connection.commit()
        taken = clock() - begun
        connection.execute("DROP TABLE bare")
    return taken


def append(url: str, made: Sequence[Entry]) -> float:
    """Canonical bytes, leaves, tree, ids, rows, commit."""
    database = Database(url)
    migrate(database)
    taken = 0.0
    for start in range(0, len(made), BATCH):
        # As in the service, a batch is new, without bytes computed before, and gone after its transaction.
        batch = [replace(entry) for entry in made[start : start + BATCH]]
        begun = clock()
        with database.begin() as connection:
            Ledger(SqlLedgerStore(connection)).append(batch)
        taken += clock() - begun
    database.close()
    return taken


# Verifying


def measure_verify(count: int) -> None:
    for peers in (3, PEOPLE - 1):
        measure_ledger(count, peers)
    for strata in (10, 2_000):
        measure_evidence(strata)
    key = ec.generate_private_key(ec.SECP256R1())
    signature = key.sign(b"x", ec.ECDSA(hashes.SHA256()))
    one = (
        timed(
            lambda: [key.public_key().verify(signature, b"x", ec.ECDSA(hashes.SHA256())) for _ in range(500)]
        )
        / 500
    )
    print(f"  a statement's signature: {one * 1e6:.0f} us")


def measure_ledger(count: int, peers: int) -> None:
    """A ledger of rounds of a hundred, by the rule `verified`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        made, openings = build(f"sqlite:///{path}", count, peers)
        print(
            f"{peers} peers each: {made} entries, {path.stat().st_size / 1e6:.0f} MB, "
            f"in {made // BATCH} signed heads or so"
        )
        before = peak_mb()
        taken = 0.0
        for given in (None, openings):
            with ExitStack() as resources:
                source = open_source(str(path), resources)
                begun = clock()
                report = verify_ledger(source, KEY.verification_key, openings=given, check_statements=False)
                seconds = clock() - begun
            assert report.verified, report.problems[:3]
            if given is None:
                print(
                    f"  as the public, without signatures of statements: {seconds / made * 1e6:.1f} us an entry"
                )
            taken = seconds
        print(f"  {report.counts}; peak memory before {before:.0f} MB, after {peak_mb():.0f} MB")
        with ExitStack() as resources:
            source = open_source(str(path), resources)
            data = list(source.entries())
        hashed = timed(hash_each, data)
        tree = timed(grown, data)
        print(
            f"  verified whole, as an auditor, but statements' signatures: {taken:.1f} s, "
            f"{taken / made * 1e6:.1f} us an entry, {taken / hashed:.1f} times hashlib; "
            f"a million in {taken / hashed / 2:.0f} s where hashlib takes 0.5 s"
        )
        print(f"  hashlib entry by entry {hashed:7.2f} s   tree {tree:7.2f} s   ratio {tree / hashed:.2f}")
        del data
        with ExitStack() as resources:
            source = open_source(str(path), resources)
            chance = random.Random(1)
            times = [timed(receipt, source, chance.randrange(made)) for _ in range(200)]
        print(
            f"  inclusion proof: median {statistics.median(times) * 1e3:.2f} ms, worst {max(times) * 1e3:.2f} ms"
        )


def measure_evidence(strata: int, models: int = 20, columns: int = 12) -> None:
    """From the record of a round's evidence to its verdicts."""
    from tests.ledger_samples import LIKENESS, LIMITS, names

    chance = random.Random(0)
    count = regressor_count(strata, columns, 3)

    def some(length: int) -> tuple[int, ...]:
        return tuple(chance.randrange(-MICRO, 2 * MICRO) for _ in range(length))

    degree = DegreeMap(
        reference=(Fraction(1, strata),) * strata,
        share_own=some(columns),
        share_mean=some(columns),
        share_intercept=0,
        sorted_columns=(0, 1, 2),
        weights=some(count),
        intercept=0,
        forest=Forest((Tree((-1,), (0,), (0,)),) * 64, count),
        half_width=MICRO // 20,
    )
    quality = QualityMap(some(count), 0)
    model = EvidenceModel(1, "aa" * 32, "bb" * 32, "cc" * 32, 100, 0, degree, quality, LIMITS, LIKENESS)
    measured = [
        Measurement(
            name,
            f"{place:064x}",
            Fraction(1, 3),
            place,
            1,
            features=tuple(some(columns) for _ in range(strata)),
            norm=MICRO,
            alignment=MICRO,
            echo_distance=MICRO,
        )
        for place, name in enumerate(names(models))
    ]
    data = canonical_bytes({"model": model.record(), "measurements": [m.record() for m in measured]})

    def assessed() -> None:
        record = parse_canonical(data)
        read = [Measurement.from_record(one) for one in record["measurements"]]
        assert all(a.scored for a in assess(EvidenceModel.from_record(record["model"]), read))

    taken, hashed = timed(assessed), timed(hash_each, [data])
    print(
        f"  evidence of {models} models over {strata} strata: {len(data) / 1e6:.1f} MB, {taken / models * 1e3:.1f} ms "
        f"a model, {taken / hashed:.0f} times hashlib"
    )


def timed(work: Callable[..., object], *given: object) -> float:
    begun = clock()
    work(*given)
    return clock() - begun


def hash_each(data: Sequence[bytes]) -> None:
    for item in data:
        hashlib.sha256(item).digest()


def grown(data: Sequence[bytes]) -> bytes:
    tree = GrowingTree()
    for start in range(0, len(data), 256):
        tree.extend([leaf_hash(item) for item in data[start : start + 256]])
    return tree.root()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def build(url: str, count: int, peers: int) -> tuple[int, Openings]:
    """A ledger of whole tasks of 100 participants and 40 rounds, at least `count` entries, and what they commit to."""
    database = Database(url)
    migrate(database)
    log = SignedLog(database, KEY)
    pending: list[Entry] = []
    openings: dict[str, Any] = {}
    made = 0
    for task in range(count):
        for entry in whole_task(f"task-{task:05d}", peers, enrol=task == 0):
            pending.append(entry)
            if entry.opening is not None:
                openings[entry.id] = entry.opening
            if len(pending) == BATCH:
                made += write(database, log, pending)
                pending = []
        if made + len(pending) >= count:
            break
    made += write(database, log, pending)
    database.close()
    return made, Openings(None, openings)


def write(database: Database, log: SignedLog, batch: list[Entry]) -> int:
    with database.begin() as connection:
        Ledger(SqlLedgerStore(connection)).append(batch)
    log.sign_head()
    return len(batch)


def whole_task(
    task_id: str, peers: int, *, enrol: bool, people: int = PEOPLE, rounds: int = 40
) -> Iterator[Entry]:
    """Signatures of statements are not real here; they are not part of what is measured."""
    from tests.ledger_samples import (
        NONCE,
        at,
        evidence,
        features,
        judgement,
        names,
        private_key,
        terms,
    )

    agreed: Terms = terms(task_id, rounds, people)
    secret = hashlib.sha256(task_id.encode()).digest()
    agreed = replace(agreed, seed_commitment=seed_commitment(secret, rounds), budget_micro=0)
    agreed = replace(agreed, rule=replace(agreed.rule, peers=peers), budget_micro=task_budget_micro(agreed))
    digest = agreed.digest
    who = names(people)
    signature = bytes(71)
    enrolments = [entries.enrolment(name, private_key(name).public_key()) for name in who]
    keys = keys_after(enrolments)
    if enrol:
        yield from enrolments
    yield from entries.terms_entries(agreed)
    yield entries.transition(task_id, 0, "OPEN", at(0))
    yield entries.transition(task_id, 0, "EFFORT", at(0))
    chance = random.Random(task_id)
    degrees = {name: Fraction(chance.randrange(MICRO // 2), MICRO) for name in who}
    secrets = {name: hashlib.sha256(f"{task_id}{name}".encode()).digest() for name in who}
    for name in who:
        opening = ClaimOpening(Decimal(chance.randrange(1000)).scaleb(-3), degrees[name], bytes(32))
        claimed = ClaimStatement(
            f"c-{name}",
            task_id,
            digest,
            name,
            opening.digest,
            bytes(32),
            draw_head(secrets[name], rounds),
            NONCE,
        )
        yield entries.claim(claimed, signature, opening, keys)
    yield from entries.selection_entries(task_id, who)
    yield entries.transition(task_id, 0, "SELECTED", at(0))
    stakes: dict[str, int] = dict.fromkeys(who, 0)
    meetings, start = Meetings(), agreed.initial_model
    for round_ in range(1, rounds + 1):
        yield entries.transition(task_id, round_, "TRAINING", at(0))
        models = {name: hashlib.sha256(f"{task_id}{round_}{name}".encode()).digest() for name in who}
        shares = {name: draw_share(secrets[name], rounds, round_) for name in who}
        for sequence, name in enumerate(who, people * (round_ - 1) + 1):
            trained = ModelOpening(10, bytes(32))
            statement = ModelStatement(
                f"m-{round_}-{name}", task_id, digest, name, round_, models[name], 64, trained.digest, shares[name],
                NONCE,
            )  # fmt: skip
            yield entries.model(statement, signature, sequence, opening=trained, keys=keys)
        # No two models are measured alike.
        record: Any = evidence(agreed, round_, who)
        record["model"]["start_sha256"] = start.hex()
        for order, measured in enumerate(record["measurements"], people * (round_ - 1) + 1):
            name = measured["participant_id"]
            shown = min(
                max(degrees[name] + Fraction(chance.randrange(-40_000, 40_000), MICRO), 0), Fraction(1, 2)
            )
            measured.update(
                model_sha256=models[name].hex(),
                claimed_degree=str(degrees[name]),
                order=order,
                features=features(Fraction(shown)),
                norm=MICRO + chance.randrange(200_000),
                alignment=MICRO // 2 + chance.randrange(200_000),
                novelty=MICRO + chance.randrange(200_000),
                improvement=chance.randrange(300_000),
                echo_distance=MICRO + chance.randrange(200_000),
                echo_cosine=chance.randrange(200_000),
            )
        model = EvidenceModel.from_record(record["model"])
        measured = parse_canonical(canonical_bytes(record["measurements"]))
        judged = list(assess(model, [Measurement.from_record(one) for one in measured]))
        yield from entries.closing_entries(task_id, round_, at(0), [])
        yield from judgement(agreed, round_, judged, {**record, "measurements": measured})
        yield entries.transition(task_id, round_, "SCORED", at(0))
        draw = Draw(round_seed(secret, rounds, round_), shares)
        settlement, settled = entries.settlement_entries(
            agreed, round_, draw, judged, stakes, keys=keys, meetings=meetings
        )
        meetings.add((line.participant_id, line.peers) for line in settlement.payments)
        start = models[who[0]]
        for line in settlement.payments:
            stakes[line.participant_id] += line.withheld_micro
        yield from settled
        yield entries.aggregation(task_id, round_, models[who[0]], {}, None)
        yield entries.transition(task_id, round_, "SETTLED", at(0))
    yield from entries.ending_entries(task_id, rounds, "CLOSED", [], stakes, at(0))


if __name__ == "__main__":
    main()
