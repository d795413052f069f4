"""What a cluster of m linked models costs: `python -m benchmarks.clusters [--sizes 1000 5000]`.

Models of the size of digits', each trained by itself on the same samples, so that no two are one: the CPU seconds that
comparing all of them takes, the bytes that the round's evidence has for them, and the CPU seconds of judging it, which
every auditor does again. And the same of one model that m have sent.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np

from fedpeer.evidence.comparing import likeness
from fedpeer.evidence.regression import micro
from mechanism.canonical import canonical_bytes
from mechanism.evidence import EvidenceModel, Measurement, assess
from tests import ledger_samples as samples

#: Numbers that are compared of a digits model: of its update and of its outputs.
NUMBERS = 8_704

#: Models whose vectors are in memory at a time.
KEPT = 500


def members(size: int, copies: bool) -> tuple[EvidenceModel, list[Measurement], float]:
    """A cluster, and how long it took to say how alike all are."""
    terms = samples.terms()
    names = [f"p{i:05d}" for i in range(size)]
    record: Any = samples.evidence(terms, 1, names[:2])
    base = Measurement.from_record(record["measurements"][0])
    twins: list[list[tuple[str, int, int]]] = [[] for _ in names]
    began = time.process_time()
    if not copies:
        dice = np.random.default_rng(1)
        nothing = np.zeros((1, 1), np.float32)
        left = dice.normal(size=(KEPT, NUMBERS)).astype(np.float32) / np.float32(np.sqrt(NUMBERS))
        for k in range(size):
            for j in range(k):
                alike = float(
                    likeness((left[k % KEPT], left[k % KEPT, :1]), left[j % KEPT][None], nothing)[0]
                )
                said = 800_000 + abs(micro(alike)) % 100_000
                twins[k].append((names[j], said, 500_000))
                twins[j].append((names[k], said, 500_000))
    seconds = time.process_time() - began
    found = [
        replace(
            base,
            participant_id=name,
            model_sha256=base.model_sha256 if copies else f"{place:064x}",
            order=place,
            twins=tuple(twins[place]),
        )
        for place, name in enumerate(names)
    ]
    return EvidenceModel.from_record(record["model"]), found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 5_000])
    for size in parser.parse_args().sizes:
        for copies in (True, False):
            model, found, compared = members(size, copies)
            stored = sum(len(canonical_bytes(each.record())) for each in found)
            began = time.process_time()
            judged = assess(model, found)
            seconds = time.process_time() - began
            assert len({each.cluster for each in judged}) == 1, "they are one cluster"
            print(
                f"{size} {'copies of one model' if copies else 'models of the same samples'}: compared in "
                f"{compared:.1f} s, evidence of {stored / 1e6:.1f} MB, judged in {seconds:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
