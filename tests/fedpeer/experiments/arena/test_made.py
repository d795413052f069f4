"""How often made-up samples are found."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedpeer.cli.arena import arena
from fedpeer.cli.errors import CommandError
from fedpeer.evidence.tricks import Held
from fedpeer.experiments.accuracy.tasks import TASKS
from fedpeer.experiments.accuracy.trial import drawn
from fedpeer.experiments.arena.made import DEGREES, MAKINGS, made_cell, made_cells
from fedpeer.experiments.cells import CellStore, Took
from fedpeer.learning.strata import reference_over


@pytest.fixture(scope="module")
def held() -> tuple[Held, Held]:
    """Collected samples of a skewed mix, and public ones."""
    parts, generator = TASKS["digits"].parts(0), np.random.default_rng(0)
    reference = reference_over(parts.validation_codes, parts.strata)
    rows = drawn(parts.pool_codes, [60, *[10] * 9], generator)
    own = Held(parts.pool.select(rows), parts.pool_codes[rows], reference)
    return own, Held(parts.validation, parts.validation_codes, reference)


@pytest.mark.parametrize("name", MAKINGS)
def test_what_is_opened_has_as_many_samples_and_the_mix_that_it_pretends(
    name: str, held: tuple[Held, Held]
) -> None:
    own, public = held
    opened = MAKINGS[name](own, public, np.random.default_rng(1))
    assert len(opened) == len(own.samples)
    assert np.asarray(opened.inputs).dtype == np.asarray(own.samples.inputs).dtype
    counts = np.bincount(opened.targets, minlength=10)
    if name.startswith(("honest", "label", "parts")):
        assert counts.max() > 45
    else:
        assert set(counts) == {15}


def test_the_command_counts_what_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finished cells, so that nothing is compared."""
    store = CellStore(tmp_path / "cells")
    for seed, cell in enumerate(made_cells(["digits"], range(2))):
        opened = [
            {"degree": str(degree), "making": name, "found": told, "distinct": 0.5, "near": 0.25}
            for degree in DEGREES
            for name, told in (("honest", False), ("repeat", bool(seed)), ("moved", True))
        ]
        store.put(cell, {"opened": opened}, Took(1.0, 1.0), "cpu")
    arena(made=True, task=["digits"], seeds=2, out=tmp_path)
    assert "1 of 2" in capsys.readouterr().out
    found = json.loads((tmp_path / "made.json").read_text())["digits"]
    assert found.keys() == {"honest", "repeat", "moved"}
    assert [found[name]["1/4"]["found"] for name in found] == [0, 1, 2]
    low, high = found["repeat"]["1/4"]["ci"]
    assert 0 < low < 0.5 < high < 1


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--task fly: no such task of --made; expected one of digits"):
        arena(made=True, task=["fly"], out=tmp_path)


@pytest.mark.slow
def test_a_seed_is_compared() -> None:
    opened = made_cell({"task": "digits", "seed": 0}, "cpu")["opened"]
    assert {x["making"] for x in opened} == set(MAKINGS)
    assert all(x["found"] for x in opened if x["making"] in ("repeat", "augment-0.2", "parts"))
    assert sum(x["found"] for x in opened if x["making"] == "honest") <= 5
