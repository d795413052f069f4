"""What noise costs: the least noise of an epsilon, and one cell from end to end."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from fedpeer.cli.errors import CommandError
from fedpeer.cli.measuring import CellRun
from fedpeer.cli.privacy import measure_privacy
from fedpeer.experiments.accuracy.private import (
    DELTA,
    PrivateResult,
    privacy_for,
    private_cell,
    private_cells,
)
from fedpeer.experiments.accuracy.tasks import TASKS
from mechanism.privacy import gaussians
from participant.accounting import epsilon_of

pytest.importorskip("opacus")


@pytest.mark.parametrize("method", ["dp-sgd", "update"])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_least_noise_of_an_epsilon(method: str, epsilon: float) -> None:
    recipe = TASKS["flights-mlp"].recipe
    made = privacy_for(epsilon, method, recipe)

    def told(multiplier: Decimal) -> float:
        private = replace(made, noise_multiplier=multiplier)
        round_ = gaussians(private, recipe.samples, recipe.batch_size, recipe.epochs)
        return epsilon_of([round_], float(DELTA))

    assert told(made.noise_multiplier) <= epsilon < told(made.noise_multiplier - Decimal("0.001"))


@pytest.mark.arithmetic
@pytest.mark.extended
def test_a_cell_has_both_kinds_of_shadows(tmp_path: Path) -> None:
    noisy, plain = (
        private_cells(["digits-mlp"], [0], epsilons=[epsilon], shadows=12, participants=8)[0]
        for epsilon in (8.0, None)
    )
    result = PrivateResult([(cell, private_cell(cell.parameters, "cpu")) for cell in (noisy, plain)])
    with_noise, without = result.figures().values()
    assert with_noise.own is not None
    assert without.own is None
    assert without.noise_multiplier is None
    assert with_noise.accuracy < without.accuracy
    rows = result.record()["tasks"]
    assert [row["epsilon"] for row in rows] == [8.0, None]
    assert rows[0]["shadows_without"].keys() == rows[0]["shadows_with_noise"].keys()
    result.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_mistakes_are_named() -> None:
    with pytest.raises(CommandError, match="--privacy magic"):
        measure_privacy((), "magic", 1, 12, CellRun(1, True, None))
    with pytest.raises(CommandError, match="--task nothing"):
        measure_privacy(("nothing",), "update", 1, 12, CellRun(1, True, None))
