"""What of a round is merged."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from coordinator.scoring import Scored, merged_parts
from fedpeer.protocol.submission import Submission
from mechanism.settlement import MICRO, Assessment


def test_samples_that_several_have_count_once_in_the_mean(tmp_path: Path) -> None:
    def submitted(name: str, samples: int) -> Submission:
        return Submission(name, tmp_path / name, bytes(32), samples, Fraction(0), 1)

    def judged(name: str, holders: int, degree: int | None = 0) -> Assessment:
        return replace(Assessment(name, bytes(32), Fraction(0), degree), holders_micro=holders)

    found = merged_parts(
        Scored((judged("a", 2 * MICRO), judged("b", 2 * MICRO), judged("c", MICRO), judged("d", MICRO, None),
                judged("e", 1_500_000), judged("f", 9 * MICRO))),
        [submitted(*each) for each in (("a", 200), ("b", 900), ("c", 50), ("d", 200), ("e", 200), ("f", 3))],
        200,
    )  # fmt: skip
    assert {name: samples for name, (_, samples) in found.items()} == {
        "a": 100,
        "b": 100,
        "c": 50,
        "e": 150,
        "f": 1,
    }
