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
    ExactShapley,
    GtgShapley,
    LeaveOneOut,
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


def test_the_glove_game_has_its_textbook_values():
    assert ExactShapley().scores(Coalitions(3, gloves), RNG(0)) == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert LeaveOneOut().scores(Coalitions(3, gloves), RNG(0)).tolist() == [1.0, 0.0, 0.0]


@settings(max_examples=30)
@given(values=st.lists(st.floats(-5, 5), min_size=16, max_size=16))
def test_shapley_is_the_mean_over_all_orders_and_is_efficient(values):
    table = {frozenset(k for k in range(4) if mask >> k & 1): v for mask, v in enumerate(values)}
    scores = ExactShapley().scores(Coalitions(4, table.__getitem__), RNG(0))
    expected = np.zeros(4)
    for order in itertools.permutations(range(4)):
        before = frozenset()
        for k in order:
            expected[k] += (table[before | {k}] - table[before]) / 24
            before |= {k}
    assert scores == pytest.approx(expected, abs=1e-12)
    assert scores.sum() == pytest.approx(values[15] - values[0], abs=1e-12)


def test_sampling_comes_close_to_the_exact_value_with_fewer_evaluations():
    exact = ExactShapley().scores(Coalitions(10, concave), RNG(0))
    for rule in (
        TruncatedMonteCarlo(orders=400, tolerance=0.0),
        GtgShapley(tolerance=0.0, convergence=0.005),
    ):
        source = Coalitions(10, concave)
        scores = rule.scores(source, RNG(1))
        assert scores == pytest.approx(exact, rel=0.1)
        assert scores.sum() == pytest.approx(concave(range(10)), rel=1e-9)
    truncated = Coalitions(10, concave)
    TruncatedMonteCarlo(orders=30, tolerance=2.0).scores(truncated, RNG(1))
    assert truncated.evaluations < 30 * 10


def test_gtg_scores_a_worthless_round_zero_after_two_evaluations():
    source = Coalitions(6, lambda coalition: 0.001 * len(coalition))
    assert GtgShapley(round_tolerance=0.1).scores(source, RNG(0)).tolist() == [0.0] * 6
    assert source.evaluations == 2


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


@pytest.mark.parametrize(
    "rule", [LeaveOneOut(), ExactShapley(), TruncatedMonteCarlo(20), GtgShapley(3), ]
)  # fmt: skip
def test_coalition_rules_repeat_to_the_bit_and_score_everyone(rule):
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
        lambda: ExactShapley().scores(Coalitions(13, concave), RNG(0)),
        lambda: LeaveOneOut().scores(Coalitions(3, lambda c: float("nan")), RNG(0)),
        lambda: TruncatedMonteCarlo(orders=0),
        lambda: GtgShapley(convergence=0),
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
