"""The baselines: known values, axioms, and reproducibility."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanism.baselines import (
    Coalitions,
    CorrelatedAgreement,
    DeterminantMutualInformation,
    SharedPredictions,
    TruncatedMonteCarlo,
)
from mechanism.baselines.determinant_mutual_information import determinant
from mechanism.errors import FieldError

pytestmark = pytest.mark.arithmetic

RNG = np.random.default_rng


def gloves(coalition):
    """One left glove (0), two right ones (1, 2): a pair is worth 1. Shapley: 2/3, 1/6, 1/6."""
    return float(0 in coalition and bool(coalition & {1, 2}))


def concave(coalition):
    return math.sqrt(sum(k + 1 for k in coalition))


def exact(size, value):
    """The mean of marginal values over all orders."""
    scores = np.zeros(size)
    for order in itertools.permutations(range(size)):
        for place, k in enumerate(order):
            scores[k] += value(frozenset(order[: place + 1])) - value(frozenset(order[:place]))
    return scores / math.factorial(size)


def test_the_glove_game_has_its_textbook_values():
    scores = TruncatedMonteCarlo(orders=2000, tolerance=0.0).scores(Coalitions(3, gloves), RNG(0))
    assert exact(3, gloves) == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert scores == pytest.approx([2 / 3, 1 / 6, 1 / 6], abs=0.04)


@settings(max_examples=30)
@given(values=st.lists(st.floats(-5, 5), min_size=16, max_size=16))
def test_shapley_values_are_efficient(values):
    table = {frozenset(k for k in range(4) if mask >> k & 1): v for mask, v in enumerate(values)}
    scores = TruncatedMonteCarlo(orders=5, tolerance=0.0).scores(Coalitions(4, table.__getitem__), RNG(0))
    assert scores.sum() == pytest.approx(values[15] - values[0], abs=1e-12)


def test_sampling_comes_close_to_the_exact_value_with_fewer_evaluations():
    scores = TruncatedMonteCarlo(orders=400, tolerance=0.0).scores(Coalitions(6, concave), RNG(1))
    assert scores == pytest.approx(exact(6, concave), rel=0.1)
    evaluated = set()

    def counted(coalition):
        evaluated.add(coalition)
        return concave(coalition)

    TruncatedMonteCarlo(orders=30, tolerance=2.0).scores(Coalitions(10, counted), RNG(1))
    assert len(evaluated) < 30 * 10


def reports(rng, participants=5, inputs=600, labels=3, noise=0.2):
    truth = rng.integers(0, labels, inputs)
    answers = np.tile(truth, (participants, 1))
    wrong = rng.random(answers.shape) < noise
    answers[wrong] = rng.integers(0, labels, int(wrong.sum()))
    return answers


@pytest.mark.parametrize("rule", [CorrelatedAgreement(), DeterminantMutualInformation()])
def test_informative_reports_score_above_uninformative_ones(rule):
    answers = reports(RNG(3))
    answers[3] = 1  # says one label always
    answers[4] = RNG(4).integers(0, 3, answers.shape[1])  # says anything
    scores = rule.scores(SharedPredictions(answers, 3), RNG(0))
    assert scores[:3].min() > 3 * max(abs(scores[3]), abs(scores[4]))
    assert scores[3] == pytest.approx(0, abs=1e-12)


def test_relabelling_a_report_leaves_determinant_mutual_information_as_it_is():
    answers = reports(RNG(5))
    renamed = answers.copy()
    renamed[0] = np.array([2, 0, 1])[renamed[0]]
    one, other = (
        DeterminantMutualInformation().scores(SharedPredictions(a, 3), RNG(0)) for a in (answers, renamed)
    )
    assert other == pytest.approx(one, abs=1e-15)


@settings(max_examples=50)
@given(entries=st.lists(st.integers(-50, 50), min_size=16, max_size=16))
def test_integer_determinants_are_exact(entries):
    matrix = np.array(entries).reshape(4, 4)
    assert determinant(matrix) == round(np.linalg.det(matrix))


def test_shapley_values_repeat_to_the_bit_and_score_everyone():
    rule = TruncatedMonteCarlo(20)
    one, other = (rule.scores(Coalitions(7, concave), RNG(9)) for _ in range(2))
    assert one.tobytes() == other.tobytes()
    assert one.shape == (7,)
    assert rule.name


@pytest.mark.parametrize("rule", [CorrelatedAgreement(), DeterminantMutualInformation()])
def test_prediction_rules_repeat_to_the_bit(rule):
    one, other = (rule.scores(SharedPredictions(reports(RNG(1)), 3), RNG(9)) for _ in range(2))
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "call",
    [
        lambda: Coalitions(0, concave),
        lambda: TruncatedMonteCarlo().scores(Coalitions(3, lambda c: float("nan")), RNG(0)),
        lambda: TruncatedMonteCarlo(orders=0),
        lambda: TruncatedMonteCarlo(tolerance=-1.0),
        lambda: SharedPredictions(np.zeros((1, 5), dtype=int), 2),
        lambda: SharedPredictions(np.full((2, 5), 7), 2),
        lambda: SharedPredictions(np.zeros((2, 5)), 2),
        lambda: CorrelatedAgreement().scores(SharedPredictions(np.zeros((2, 1), dtype=int), 2), RNG(0)),
        lambda: DeterminantMutualInformation().scores(
            SharedPredictions(np.zeros((2, 3), dtype=int), 2), RNG(0)
        ),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(FieldError):
        call()
