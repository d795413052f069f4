"""The arena's rounds as ledgers, which both verifiers recompute to the last millionth of a credit.

    python -m tests.conformance.arena --dataset digits --seeds 6 --participants 6

Every round that the arena settles under `verified`, everyone honest and each attack, becomes a task of one round: with
the arena's terms, evidence and submissions, and what a ledger has besides, names, keys, draws and digests of files. Its
payments must be the arena's, and both verifiers must accept them.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

from fedpeer.evidence.assessing import RoundEvidence, RoundMeasurements
from fedpeer.experiments.arena import ATTACKS
from fedpeer.experiments.arena.attacks import attack_named
from fedpeer.experiments.arena.setting import ArenaSetting
from fedpeer.experiments.arena.stage import Stage, stages
from mechanism.lifecycle import State
from mechanism.peers import seed_commitment
from mechanism.settlement import RoundSettlement, task_budget_micro
from mechanism.terms import Schedule, Terms
from tests import ledger_samples as samples
from tests.conformance.test_conformance import exported, first, given, second
from tests.ledger_histories import History, Log, Shape
from tests.memory_source import MemorySource

#: What a round without an attack is called.
HONEST = "everyone honest"

#: Of a payment: what hangs on the round alone, and not on the stake that is held.
_AMOUNTS = ("gross_micro", "penalty_micro", "fee_micro", "paid_micro")


@dataclass(frozen=True)
class Played:
    """A round that the arena has settled."""

    attack: str
    terms: Terms
    evidence: RoundEvidence
    settlement: RoundSettlement


@contextmanager
def watched() -> Iterator[list[tuple[RoundEvidence, RoundSettlement]]]:
    """Evidence and settlement of each round under `verified` that a stage settles meanwhile."""
    found: list[tuple[RoundEvidence, RoundSettlement]] = []
    last: list[RoundEvidence] = []
    assess, settled = RoundMeasurements.assess, Stage._settled

    def assessed(self: RoundMeasurements, *given: Any, **more: Any) -> RoundEvidence:
        last[:] = [assess(self, *given, **more)]
        return last[0]

    def settle(self: Stage, rule: str, assessments: Any) -> RoundSettlement:
        settlement = settled(self, rule, assessments)
        if rule == "verified":
            found.append((last[0], settlement))
        return settlement

    with (
        mock.patch.object(RoundMeasurements, "assess", assessed),
        mock.patch.object(Stage, "_settled", settle),
    ):
        yield found


def played(setting: ArenaSetting, seed: int) -> Iterator[Played]:
    """All rounds of a seed."""
    with watched() as found:
        for stage in stages(setting, seed):
            yield from (Played("", stage.population.terms, *each) for each in found)
            found.clear()
            for attacker in stage.attackers:
                for name in setting.attacks:
                    attack = attack_named(name)
                    if stage.broadcasts or not attack.needs_history:
                        stage.play(attack.play(stage.position(attacker, name)))
                        yield from (Played(name, stage.population.terms, *each) for each in found)
                        found.clear()


def ledger(round_: Played) -> tuple[History, Mapping[str, str]]:
    """A task of one round that pays as the round was settled; and whose name in it is whose."""
    record: Any = round_.evidence.record
    measured = {item["participant_id"]: item for item in record["measurements"]}
    known = dict(zip(sorted(measured), samples.names(len(measured)), strict=True))
    log = Log()
    for name in known.values():
        log.enrol(name)
    task = History(log, Shape(people=len(known), rounds=1))
    terms = replace(
        round_.terms,
        task_id=task.id,
        schedule=Schedule(1, 3, len(known), 60, 60),
        seed_commitment=seed_commitment(samples.chain_secret(task.id), 1),
        validation_commitment=samples.VALIDATION,
        initial_model=samples.INITIAL_MODEL,
    )
    task.terms = replace(terms, budget_micro=task_budget_micro(terms))
    task.start = task.result = task.terms.initial_model
    task.open()
    task.enter(State.EFFORT)
    for name, new in known.items():
        task.claim(new, degree=Fraction(measured[name]["claimed_degree"]))
    task.select()
    task.train()
    for name in sorted(known, key=lambda name: measured[name]["order"]):
        task.model(known[name], samples=measured[name]["samples"])
    model = {
        **record["model"],
        "round": 1,
        "carried": 0,
        "start_sha256": task.start.hex(),
        "validation_sha256": samples.VALIDATION.hex(),
    }
    made = []
    for name, new in known.items():
        statement, sequence = task.models[1][new]
        twins = [[known[other], *figures] for other, *figures in measured[name]["twins"]]
        group = known.get(measured[name]["group"], "")
        own = {"participant_id": new, "order": sequence, "twins": twins, "group": group}
        made.append({**measured[name], **own, "model_sha256": statement.model_sha256.hex()})
    task.settle({"model": model, "measurements": made})
    task.end()
    return task, known


def faults(round_: Played, path: Path) -> list[str]:
    """In what the ledger at `path` that is written of a round, or a verifier of it, differs from the arena."""
    task, known = ledger(round_)
    bodies = [entry.body for entry in task.log.entries if entry.kind == "payment"]
    paid = {str(body["participant_id"]): tuple(body[name] for name in _AMOUNTS) for body in bodies}
    wanted = {
        known[line.participant_id]: tuple(getattr(line, name) for name in _AMOUNTS)
        for line in round_.settlement.payments
    }
    found = [] if paid == wanted else [f"the ledger pays {paid}, the arena {wanted}"]
    path.unlink(missing_ok=True)
    openings = given(exported(MemorySource(task.log.entries), path), "auditor")
    report, result = first(path, openings=openings), second(path, openings=openings)
    found += [f"the first verifier: {problem}" for problem in report.problems]
    found += [f"the second verifier: {problem}" for problem in result.problems]
    if result.balances != {name: balance.holds for name, balance in report.balances.items()}:
        found.append("the verifiers' balances differ")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--participants", type=int, default=8)
    parser.add_argument("--attackers", type=int, default=4)
    parser.add_argument("--shadows", type=int, default=100)
    asked = parser.parse_args()
    setting = ArenaSetting(
        asked.dataset,
        ("verified",),
        tuple(ATTACKS),
        asked.participants,
        asked.attackers,
        shadows=asked.shadows,
    )
    rounds = payments = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(asked.seeds):
            for round_ in played(setting, seed):
                rounds += 1
                payments += len(round_.settlement.payments)
                for fault in faults(round_, Path(folder) / "ledger.jsonl"):
                    wrong += 1
                    sys.stdout.write(f"seed {seed}, {round_.attack or HONEST}: {fault}\n")
            sys.stdout.write(
                f"{seed + 1} of {asked.seeds} seeds: {rounds} rounds, {payments} payments, {wrong} faults\n"
            )
            sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
