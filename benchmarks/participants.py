"""What one participant costs the coordinator where a task has 1,000 of them, 10,000 and 100,000, without sockets.

python -m benchmarks.participants [--sizes 1000 10000 100000] [--rounds 3] [--likeness 1000 4000 16000]

Measurements are real ones of digits models, drawn again and again; every fiftieth participant sends a copy of its
neighbour's model. They go through the coordinator's own transactions: enrolments, claims, models, the assessments of
the evidence, verdicts, draws, payments, the end; with a database and a signed log, which is verified whole at the end
as the public does, signatures of all statements included. CPU time of one process a size, peak of its memory. Left out:
what is done with files and weights (uploads, forward passes, likeness, means), which hangs on the model.

`--likeness` measures the one part that is not linear, likeness of all pairs, on vectors as digits models leave them.
"""

import argparse
import hashlib
import json
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.aggregation import Merged
from coordinator.clock import SystemClock
from coordinator.commits import Transactions
from coordinator.identity import Enrolled
from coordinator.metrics import Metrics
from coordinator.opening import PreparedTask
from coordinator.scoring import Quality
from coordinator.storage.identities import ParticipantRow
from coordinator.storage.schema import migrate
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import Transaction
from fedpeer.audit.sources import open_source
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog
from fedpeer.evidence import EvidenceTask, ShadowEvidence
from fedpeer.evidence.comparing import Common, Rows, likeness, perhaps_linked
from fedpeer.learning.arithmetic import one_blas_thread
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import initial_weights
from fedpeer.protocol.certificates import public_key_pem
from mechanism.evidence import EvidenceModel, Measurement, assess
from mechanism.ledger.note import SigningKey
from mechanism.ledger.verify import verify_ledger
from mechanism.peers import Draw, draw_head, draw_share, round_seed, seed_commitment
from mechanism.settlement import MICRO, task_budget_micro
from mechanism.statements import ClaimOpening, ClaimStatement, ModelOpening, ModelStatement, sign_statement
from mechanism.terms import Terms
from tests import ledger_samples as samples
from tests.fedpeer.evidence.population import RECIPE, UNIFORM, honest_models, submission

KEY = SigningKey("bench", 1, bytes(32))

#: Numbers of participants of which links are known.
SIZES = (300, 1_000, 4_000, 10_000, 16_000, 100_000)

#: Steps of participants that are committed together, as the service does.
GROUP = 64

#: Honest models that are measured, and then drawn again and again.
MEASURED = 40

#: Every so many-th participant sends what the one before it sends.
COPIES = 50


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--likeness", type=int, nargs="*", default=[1_000, 4_000, 16_000])
    parser.add_argument(
        "--measured", type=Path, help="measurements of an earlier run; written where they are not"
    )
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(played(given.child, given.rounds, pickle.loads(given.measured.read_bytes()))))
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = given.measured or Path(folder) / "measured"
        if not kept.exists():
            kept.write_bytes(pickle.dumps(measured()))
        if given.sizes:
            compare(given.sizes, given.rounds, kept)
        if given.likeness:
            measure_likeness(given.likeness, pickle.loads(kept.read_bytes()))


@dataclass(frozen=True)
class Measured:
    """What a round of digits gave.

    Attributes:
        model: of the evidence.
        figures: of its honest submissions, each scored.
        left: what of their updates and outputs is compared, stacked.
        common: r of mixes with one another.
        link: how far beyond the usual a likeness is a link, millionths, by the number of submissions.
    """

    model: EvidenceModel
    figures: tuple[Measurement, ...]
    left: tuple[Rows, Rows]
    common: Common
    link: dict[int, int]


def measured() -> Measured:
    """A real round: its shadows, and honest participants of evenly spaced degrees."""
    splits = load_splits("digits", validation=600, test=100, seed=3)
    start = initial_weights(RECIPE.model, seed=1)
    evidence = ShadowEvidence(EvidenceTask.of_images(RECIPE, splits.validation, UNIFORM), seed=5)
    ensemble = evidence.prepare(start, 1)
    degrees = [Fraction(k, 2 * MEASURED) for k in range(MEASURED)]
    table, claimed = evidence.measurements(ensemble), {}
    for k, (degree, weights) in enumerate(honest_models(splits, start, degrees, 7)):
        claimed[f"p{k:03d}"] = degree
        table.measure(submission(f"p{k:03d}", weights, degree, k + 1))
    found = table.assess()
    records: Any = found.record["measurements"]
    scored = {a.participant_id for a in found.assessments if a.scored}
    figures = [
        replace(Measurement.from_record(r), twins=(), group="", outside=0)
        for r in records
        if r["participant_id"] in scored
    ]
    left = [each.left for each in table._seen.values()]
    updates, outputs = (np.array(part) for part in zip(*left, strict=True))
    model: Any = found.record["model"]
    comparison = ensemble.ensemble.comparison
    link = {size: comparison.map(size).link for size in SIZES}
    return Measured(
        EvidenceModel.from_record(model), tuple(figures), (updates, outputs), comparison.common, link
    )


def measure_likeness(sizes: Sequence[int], of: Measured) -> None:
    """All pairs: in tiles, and row by row as far as that is bearable; one thread of BLAS."""
    dice = np.random.default_rng(1)
    common = [part.mean(axis=0) for part in of.left]
    for size in sizes:
        left = []
        for _ in range(size):
            # As like as honest models of digits are in the mean, and beyond that each its own.
            parts = []
            for kept, mean in zip(of.left, common, strict=True):
                own = dice.standard_normal(len(mean), dtype=np.float32)
                length = np.sqrt(np.mean(np.square(kept).sum(axis=1)) - np.square(mean).sum())
                parts.append((mean + own * np.float32(length / np.linalg.norm(own))).astype(np.float32))
            left.append((parts[0], parts[1]))
        mixes = dice.dirichlet(np.ones(len(UNIFORM)), size)
        says = replace(of.model.likeness, link=of.link[size])
        pairs = size * (size - 1) // 2
        with one_blas_thread():
            began = time.process_time()
            found = sum(1 for _ in perhaps_linked(left, mixes, of.common, says))
            tiled = time.process_time() - began
            line = f"{size} models: {tiled:.1f} s CPU in tiles, {tiled / pairs * 1e9:.0f} ns a pair, {found} near"
            if size <= 4_000:
                updates, outputs = (np.array(part) for part in zip(*left, strict=True))
                began = time.process_time()
                for k, each in enumerate(left):
                    likeness(each, updates[:k], outputs[:k])
                by_rows = time.process_time() - began
                line += f"; row by row {by_rows:.1f} s"
        print(line)


def compare(sizes: Sequence[int], rounds: int, kept: Path) -> None:
    """One process a size; CPU a participant beside that of the first size."""
    first: dict[str, float] = {}
    for size in sizes:
        command = [sys.executable, "-m", "benchmarks.participants", "--child", str(size)]
        command += ["--rounds", str(rounds), "--measured", str(kept)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        each = {stage: seconds / size * 1e6 for stage, seconds in found["seconds"].items()}
        each["all of it"] = sum(each.values())
        first = first or each
        print(
            f"{size} participants, {rounds} rounds, {found['entries']} entries, verified: {found['counts']}"
        )
        for stage, micro in each.items():
            print(f"  {stage:32} {micro:8.0f} us CPU a participant   {micro / first[stage]:.2f}")
        peaks = ", ".join(f"{peak:.0f}" for peak in found["peaks"])
        print(
            f"  MiB at most, up to the end of each round: {peaks}; {found['peaks'][-1] * 1024 / size:.1f} KiB each"
        )


@dataclass
class Stages:
    """CPU seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - began


def played(size: int, rounds: int, of: Measured) -> dict[str, Any]:
    """A whole task of so many."""
    stages, peaks, before = Stages(), [], peak_mib()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as resources:
        url = Path(folder) / "bench.db"
        database = Database(f"sqlite:///{url}")
        migrate(database)
        transactions = Transactions(database, SignedLog(database, KEY), SystemClock(), Metrics())
        resources.callback(transactions.stop)
        resources.callback(database.close)
        task = Played(size, rounds, of, transactions, stages)
        task.begin()
        for number in range(1, rounds + 1):
            task.round(number)
            peaks.append(peak_mib() - before)
        task.end()
        with stages("verify, as the public"):
            report = verify_ledger(open_source(str(url), resources), KEY.verification_key)
        assert report.verified, report.problems[:3]
        assert report.counts.payments == size * rounds
        counts = f"{report.counts.statements} statements, {report.counts.payments} payments"
        return {"seconds": stages.seconds, "peaks": peaks, "entries": report.counts.entries, "counts": counts}


class Played:
    """A task by the coordinator's transactions."""

    def __init__(
        self, size: int, rounds: int, of: Measured, transactions: Transactions, stages: Stages
    ) -> None:
        self.of, self.transactions, self.stages = of, transactions, stages
        self.secret, self.chance = bytes(range(32)), random.Random(size)
        agreed = samples.terms("task", rounds, size)
        agreed = replace(agreed, reference=UNIFORM, seed_commitment=seed_commitment(self.secret, rounds))
        agreed = replace(agreed, rule=replace(agreed.rule, peers=3))
        self.terms: Terms = replace(agreed, budget_micro=task_budget_micro(agreed))
        self.names = [f"p{place:06d}" for place in range(size)]
        self.drawn = {name: self.chance.choice(of.figures) for name in self.names}
        for place in range(COPIES, size, COPIES):
            self.drawn[self.names[place]] = self.drawn[self.names[place - 1]]

    def row(self) -> TaskRow:
        found = self.transactions.look(lambda t: t.market.task("task"))
        assert found is not None
        return found

    def everybody(self, stage: str, step: Callable[[Transaction, str], object]) -> None:
        """A step of each, in groups of one commit."""
        for first in range(0, len(self.names), GROUP):
            group = self.names[first : first + GROUP]
            with self.stages(stage):
                self.transactions.run(lambda t, group=group: [step(t, name) for name in group])  # type: ignore[misc]

    def begin(self) -> None:
        now = time.time()
        keys = {name: samples.private_key(name) for name in self.names}  # each its participant's own work
        rows = {
            name: ParticipantRow(name, public_key_pem(key.public_key()), now, None)
            for name, key in keys.items()
        }
        self.keys = keys

        def enrol(t: Transaction, name: str) -> None:
            t.market.put_participant(rows[name])
            t.enrol(Enrolled(rows[name], b"", 0.0, True))

        self.everybody("enrolments", enrol)
        row = TaskRow.opened(self.terms, bytes(32), {}, now)
        with self.stages("task"):
            self.transactions.run(lambda t: t.open_task(PreparedTask(row, b"", None)))
            self.transactions.run(lambda t: t.begin_effort(self.row()))
        claims = {name: self.claimed(name) for name in self.names}
        row = self.row()
        self.everybody("claims", lambda t, name: t.add_claim(row, *claims[name]))
        with self.stages("task"):
            self.transactions.run(lambda t: t.select(row))

    def claimed(self, name: str) -> tuple[ClaimStatement, bytes, ClaimOpening]:
        opening = ClaimOpening(Decimal("0.5"), self.drawn[name].claimed_degree, samples.salt(name))
        head = draw_head(self.share_secret(name), self.terms.schedule.rounds)
        said = ClaimStatement(
            "claim", "task", self.terms.digest, name, opening.digest, samples.salt(f"counts {name}"), head,
            samples.NONCE,
        )  # fmt: skip
        return said, sign_statement(said, self.keys[name]), opening

    def share_secret(self, name: str) -> bytes:
        return hashlib.sha256(f"share {name}".encode()).digest()

    def sent(self, number: int, name: str) -> tuple[ModelStatement, bytes, ModelOpening]:
        opening = ModelOpening(RECIPE.samples, samples.salt(f"{number} {name}"))
        share = draw_share(self.share_secret(name), self.terms.schedule.rounds, number)
        said = ModelStatement(
            f"model-{number}", "task", self.terms.digest, name, number, self.digest(number, name), 64,
            opening.digest, share, samples.NONCE,
        )  # fmt: skip
        return said, sign_statement(said, self.keys[name]), opening

    def digest(self, number: int, name: str) -> bytes:
        place = int(name[1:])
        if place and place % COPIES == 0:
            name = self.names[place - 1]
        return samples.model_digest("task", number, name)

    def round(self, number: int) -> None:
        row = self.row()
        with self.stages("task"):
            self.transactions.run(lambda t: t.open_round(row, number, 64))
        row = self.row()
        sent = {name: self.sent(number, name) for name in self.names}

        def deliver(t: Transaction, name: str) -> None:
            said, signature, opening = sent[name]
            t.add_model(said, signature, opening, t.model_standing(said), late=False)

        self.everybody("models", deliver)
        with self.stages("closing"):
            self.transactions.run(lambda t: t.close_round(row))
        shares = {name: said.draw_share for name, (said, _, _) in sent.items()}
        sent.clear()
        with self.stages("evidence and settlement"):
            self.settle(number, shares)
        with self.stages("signed heads"):
            self.transactions._log.sign_head()

    def settle(self, number: int, shares: dict[str, bytes]) -> None:
        row = self.row()
        models = {
            m.participant_id: m for m in self.transactions.look(lambda t: t.market.models("task", number))
        }
        model = replace(
            self.of.model,
            round=number,
            start_sha256=row.model.hex(),
            validation_sha256=self.terms.validation_commitment.hex(),
            shadows_sha256=samples.model_digest("shadows", number, "all").hex(),
            carried=0 if number == 1 else self.of.model.shadows,
        )
        found = []
        for place, name in enumerate(self.names):
            kept, twin = models[name], ""
            if place and place % COPIES == 0:
                twin = self.names[place - 1]
            elif (place + 1) % COPIES == 0 and place + 1 < len(self.names):
                twin = self.names[place + 1]
            found.append(
                replace(
                    self.drawn[name],
                    participant_id=name,
                    model_sha256=kept.model_sha256.hex(),
                    order=kept.sequence,
                    samples=kept.samples,
                    twins=((twin, MICRO, 0),) if twin else (),
                )
            )
        judged = assess(model, found)
        record: Any = {"model": model.record(), "measurements": [one.record() for one in found]}
        del found
        draw = Draw(round_seed(self.secret, self.terms.schedule.rounds, number), shares)
        merged = Merged(samples.global_model(self.terms, number))
        self.transactions.run(lambda t: t.settle(row, draw, judged, record, merged, Quality("0.31", "0.9")))

    def end(self) -> None:
        with self.stages("task"):
            self.transactions.run(lambda t: t.close(self.row()))
        with self.stages("signed heads"):
            self.transactions._log.sign_head()


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
