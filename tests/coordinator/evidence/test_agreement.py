"""Scores of agreement reward what two predictors share beyond chance."""

import numpy as np
import pytest

from coordinator.evidence.agreement import (
    PairScore,
    correlated_agreement,
    determinant_information,
    mean_over_peers,
)

GENERATOR = np.random.default_rng(0)
TRUTH = GENERATOR.integers(0, 10, 2000)


def predictor(accuracy: float) -> np.ndarray:
    wrong = GENERATOR.random(len(TRUTH)) > accuracy
    return np.where(wrong, GENERATOR.integers(0, 10, len(TRUTH)), TRUTH)


@pytest.mark.parametrize("score", [correlated_agreement, determinant_information])
def test_better_predictors_score_higher_and_uninformed_ones_near_nothing(score: PairScore) -> None:
    peer = predictor(0.9)
    scores = [score(predictor(accuracy), peer, 10) for accuracy in (0.9, 0.6, 0.3, 0.0)]
    assert scores == sorted(scores, reverse=True)
    constant = score(np.full(len(TRUTH), 3), peer, 10)
    assert constant < 0.25 * scores[0]
    assert score(np.full(len(TRUTH), 3), np.full(len(TRUTH), 3), 10) < 0.25 * scores[0]


def test_the_mean_is_over_all_others() -> None:
    predictions = {"a": predictor(0.9), "b": predictor(0.9), "c": predictor(0.1)}
    means = mean_over_peers(correlated_agreement, predictions, 10)
    pair = {
        (i, j): correlated_agreement(predictions[i], predictions[j], 10)
        for i in "abc"
        for j in "abc"
        if i < j
    }
    assert means["a"] == pytest.approx((pair["a", "b"] + pair["a", "c"]) / 2)
    assert mean_over_peers(correlated_agreement, {"a": TRUTH}, 10) == {"a": 0}
