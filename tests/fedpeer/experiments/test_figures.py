"""What the figures say of numbers whose answer is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.experiments.figures.accuracy import AccuracyFigure
from fedpeer.experiments.figures.figure import Finding, answer
from fedpeer.experiments.figures.gap import GapFigure, spread_cells, spread_degrees
from fedpeer.experiments.figures.gradients import GradientFigure
from fedpeer.experiments.figures.incentive import ARMS, IncentiveFigure
from fedpeer.experiments.figures.verified import VerifiedFigure
from fedpeer.experiments.plots import LINES, FigurePage
from fedpeer.experiments.populations import SHARES
from fedpeer.experiments.settings import EPOCHS, EPOCHS_ONCE, PARTICIPANTS, Settings

pytestmark = pytest.mark.arithmetic

SETTINGS = Settings("digits", rounds=2, seeds=3)


def _page(folder: Path) -> FigurePage:
    return FigurePage(folder, "figure")


def _curve(last: float) -> dict[str, Any]:
    rows = [{"round": r, "accuracy": last * r / 2, "loss": 1.0} for r in (1, 2)]
    return {"global": rows, "local": []}


@pytest.mark.parametrize(("accuracies", "ordered"), [((0.9, 0.8, 0.7), 3), ((0.9, 0.7, 0.8), 0)])
def test_the_order_of_accuracies_is_counted_over_seeds(
    tmp_path: Path, accuracies: tuple[float, ...], ordered: int
) -> None:
    figure = AccuracyFigure(1, "accuracy", "", SHARES, (EPOCHS_ONCE,))
    results = {
        cell.key: _curve(accuracy + seed / 100)
        for level, accuracy in zip(SHARES.levels, accuracies, strict=True)
        for seed, cell in figure._level_cells(SETTINGS, level, EPOCHS_ONCE).items()
    }
    (finding,) = figure.draw(SETTINGS, results, _page(tmp_path))
    assert finding.holds is (ordered == 3)
    assert finding.numbers["ordered_seeds"] == ordered
    assert finding.numbers["accuracy_share_0.1_epochs_1"] == pytest.approx(0.91)


def test_what_is_finished_is_drawn_and_seeds_that_lack_a_level_are_not_compared(tmp_path: Path) -> None:
    figure = AccuracyFigure(1, "accuracy", "", SHARES, (EPOCHS, EPOCHS_ONCE))
    results = {}
    for seed, (level, accuracy) in enumerate(zip(SHARES.levels, (0.9, 0.8, 0.7), strict=True)):
        # Every level has a seed of its own, so no seed has all three.
        results[figure._level_cells(SETTINGS, level, EPOCHS)[seed].key] = _curve(accuracy)
    (finding,) = figure.draw(SETTINGS, results, _page(tmp_path))
    assert finding.holds is None
    assert finding.found.startswith("5 local epochs")


def test_peers_differ_in_their_losses(tmp_path: Path) -> None:
    figure = AccuracyFigure(1, "accuracy", "", SHARES, (EPOCHS_ONCE,))
    local = [
        {"round": r, "participant": k, "accuracy": 0.9 - 0.4 * k, "loss": 1.0 + (k if r == 1 else -k)}
        for r in (1, 2)
        for k in (0, 1)
    ]
    results = {
        cell.key: {"global": [], "local": local}
        for cell in figure._peer_cells(SETTINGS, EPOCHS_ONCE).values()
    }
    (finding,) = figure.draw(SETTINGS, results, _page(tmp_path))
    # Above in one round and below in the other, by the same.
    assert finding.numbers["separated_share_epochs_1"] == 0.5
    assert finding.numbers["mean_gap_epochs_1"] == pytest.approx(0)
    assert finding.holds is False


def _spread(loss: Any) -> dict[str, Any]:
    degrees = spread_degrees(SETTINGS)
    local = [
        {"round": 2, "participant": k, "accuracy": 0.5, "loss": float(loss(degrees[k]))}
        for k in range(PARTICIPANTS)
    ]
    return {"global": [], "local": local}


def test_a_fit_recovers_how_the_gap_grows(tmp_path: Path) -> None:
    # Losses of 1 + 3 * delta^2: the gap is 3 * |delta^2 - delta'^2|, so never above 3 * (delta^2 + delta'^2).
    results = {
        cell.key: _spread(lambda d: 1 + 3 * d**2)
        for epochs in (EPOCHS, EPOCHS_ONCE)
        for cell in spread_cells(SETTINGS, epochs).values()
    }
    five, one = GapFigure().draw(SETTINGS, results, _page(tmp_path))
    assert five.numbers["ordered_share_epochs_5"] == 1
    assert 0 < five.numbers["phi_epochs_5"] <= 3
    assert five.holds is True
    assert one.numbers["rank_correlation_epochs_1"] > 0.5


def test_gaps_that_fall_with_the_degrees_have_no_fit_and_that_is_said(tmp_path: Path) -> None:
    results = {
        cell.key: _spread(lambda d: np.exp(-20 * d))
        for epochs in (EPOCHS, EPOCHS_ONCE)
        for cell in spread_cells(SETTINGS, epochs).values()
    }
    five, _ = GapFigure().draw(SETTINGS, results, _page(tmp_path))
    assert "no line with a rising slope fits" in five.found
    assert five.numbers["ordered_share_epochs_5"] == 0


@pytest.mark.parametrize(
    ("finals", "holds"), [((0.9, 0.8, 0.7), True), ((0.8, 0.8, 0.8), None), ((0.7, 0.8, 0.9), False)]
)
def test_the_incentive_helps_only_where_the_interval_is_above_zero(
    tmp_path: Path, finals: tuple[float, ...], holds: bool | None
) -> None:
    figure = IncentiveFigure()
    jitter = {
        "equilibrium": (0.0, 0.01, 0.0),
        "sample count": (0.0, 0.0, 0.01),
        "no payment": (0.01, 0.0, 0.0),
    }
    results = {
        cell.key: _curve(final + jitter[arm][seed])
        for arm, final in zip(ARMS, finals, strict=True)
        for seed, cell in figure._arm(SETTINGS, arm).items()
    }
    none, samples = figure.draw(SETTINGS, results, _page(tmp_path))
    assert (none.holds, samples.holds) == (holds, holds)
    assert none.numbers["gain_over_no_payment"] == pytest.approx(finals[0] - finals[2])
    assert none.numbers["gain_over_no_payment_low"] < finals[0] - finals[2]


def test_verified_degrees_are_compared_with_the_true_ones(tmp_path: Path) -> None:
    figure = VerifiedFigure()
    rows = [
        {
            "round": 1,
            "participant": k,
            "degree": k / 10,
            "verified": None if k == 9 else k / 10 + 0.05,
            "lower": None if k == 9 else k / 10 - (0.1 if k else -0.01),
            "upper": None if k == 9 else k / 10 + 0.1,
            "refuted": k == 1,
            "failed": ["novelty"] if k == 9 else [],
        }
        for k in range(10)
    ]
    results = {cell.key: {"degrees": rows} for cell in figure.cells(SETTINGS)[:1]}
    (finding,) = figure.draw(SETTINGS, results, _page(tmp_path))
    assert finding.numbers["mean_error"] == pytest.approx(0.05)
    assert finding.numbers["rank_correlation"] == pytest.approx(1)
    assert finding.numbers["coverage"] == pytest.approx(8 / 9)
    assert finding.numbers["refuted"] == 1
    assert "10 honest submissions, 9 of them scored" in finding.found


@pytest.mark.parametrize(("largest", "holds"), [(9.0, True), (48.0, False)])
def test_the_largest_norm_decides_over_the_papers_range(tmp_path: Path, largest: float, holds: bool) -> None:
    figure = GradientFigure()
    norms = [
        {
            "round": r,
            "participant": k,
            "first": 2.0,
            "largest": largest,
            "single": 3.0,
            "single_largest": 60.0,
        }
        for r in (1, 2)
        for k in (2, 7)
    ]
    smoothness = [
        {"round": r, "smoothness": 50.0, "secant": None if r == 1 else 8.0, "likelihood": 90.0}
        for r in (1, 2)
    ]
    results = {figure.cells(SETTINGS)[0].key: {"norms": norms, "smoothness": smoothness}}
    gradient, smooth = figure.draw(SETTINGS, results, _page(tmp_path))
    assert gradient.holds is holds
    assert gradient.numbers["phi"] == pytest.approx(300 * largest**2)
    assert gradient.numbers["upsilon"] == pytest.approx(200 * largest**2)
    assert smooth.holds is True


def test_a_finding_leaves_out_numbers_that_could_not_be_had() -> None:
    finding = Finding("claim", "found", None, {"known": 1.0, "unknown": float("nan")})
    assert finding.record()["numbers"] == {"known": 1.0}


def test_lines_differ_in_grey() -> None:
    def lightness(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
        return 116 * luminance ** (1 / 3) - 16

    values = [lightness(line.colour) for line in LINES]
    assert (np.diff(values) >= 10).all()
    assert len({line.dash for line in LINES}) == len({line.marker for line in LINES}) == len(LINES)


def test_a_first_look_denies_nothing() -> None:
    assert [answer(holds, quick=True) for holds in (True, False, None)] == [
        "holds",
        "too few seeds to tell",
        "measured",
    ]
    assert [answer(holds, quick=False) for holds in (True, False, None)] == [
        "holds",
        "does not hold",
        "measured",
    ]
