"""Equilibria: known answers in closed form, certificates, and what cannot be certified."""

import numpy as np
import pytest

from mechanism import equilibrium as module
from mechanism.best_response import PeerRule, best_response
from mechanism.certificate import Status
from mechanism.cost import CallableCost, LinearCost, PowerCost
from mechanism.effort import CallableEffort, ExponentialEffort, StackedEffort, TabulatedEffort
from mechanism.equilibrium import equilibrium, solve
from mechanism.errors import FieldError
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.payment import Linear, Log, Log1p
from mechanism.verify import verify
from tests.mechanism.games import BOUND, PAYMENTS, random_game, symmetric_game, utilities_on_grid, utility_at

pytestmark = pytest.mark.arithmetic

LOW, RATIO = np.exp(-1), 2 / 3
#: Full effort is an equilibrium up to here: u' <= 0 at the lower end against itself.
FULL_UNTIL = 2 * LOW / (2 * LOW**2 + RATIO)
#: No effort is an equilibrium from here on: the smaller root 1/c - sqrt(1/c^2 - 1 - r) has reached 1.
NONE_FROM = 2 / (2 + RATIO)
#: Up to here 2 d^2 - 2 d/c + r = 0 has a root, so some symmetric effort sustains itself.
SOME_UNTIL = 1 / np.sqrt(2 * RATIO)


def interior(c):
    return (1 / c - np.sqrt(1 / c**2 - 2 * RATIO)) / 2


def test_a_cost_of_one_half_has_full_effort_as_its_only_equilibrium():
    solution = solve(symmetric_game(0.5))
    assert solution.unique
    assert solution.least.degree == pytest.approx(LOW, abs=1e-12)
    assert round(float(solution.least.degree[0]), 4) == 0.3679


def test_a_cost_of_four_fifths_has_two_equilibria():
    solution = solve(symmetric_game(0.80))
    assert not solution.unique
    assert solution.least.degree == pytest.approx(interior(0.8), abs=1e-10)
    assert round(float(solution.least.degree[0]), 4) == 0.3856
    assert solution.greatest.degree == pytest.approx(1.0, abs=0)


@pytest.mark.parametrize("step", [-1e-3, 1e-3])
def test_the_thresholds_of_the_symmetric_game_are_the_closed_forms(step):
    full = solve(symmetric_game(FULL_UNTIL + step)).least.degree
    assert (np.abs(full - LOW).max() < 1e-9) == (step < 0)
    if step > 0:
        assert full == pytest.approx(interior(FULL_UNTIL + step), abs=1e-9)
    none = solve(symmetric_game(NONE_FROM + step)).greatest.degree
    assert (none.min() > 1 - 1e-9) == (step > 0)
    some = solve(symmetric_game(SOME_UNTIL + step)).least.degree
    assert (some.max() < 0.99) == (step < 0)
    if step < 0:
        assert some == pytest.approx(interior(SOME_UNTIL + step), abs=1e-8)


@pytest.mark.parametrize(("payment", "Q"), PAYMENTS)
@pytest.mark.parametrize("rule", list(PeerRule))
@pytest.mark.parametrize("exponent", [None, 0.6, 1.5, 2.0, 3.0])
def test_both_ends_are_certified_and_no_grid_finds_a_better_deviation(payment, Q, rule, exponent):
    rng = np.random.default_rng(3)
    cost = PowerCost(rng.uniform(0.2, 1, 12), exponent) if exponent else LinearCost(rng.uniform(0.2, 1, 12))
    game = random_game(1, 12, payment, Q, rule=rule, cost=cost)
    solution = solve(game)
    for end in solution:
        assert end.certified
        assert end.certificate.status is Status.PROVED
        assert end.certificate.max_regret < 1e-9
        now = utility_at(game, end.degree)
        assert end.utility == pytest.approx(now, abs=1e-11)
        gain = utilities_on_grid(game, end.degree, 2001)[1].max(axis=1) - now
        assert gain.max() <= end.certificate.max_regret
        assert verify(game, end.degree).max_regret < 1e-9
        assert game.effort.degree(end.effort) == pytest.approx(end.degree, abs=1e-12)
    assert (solution.least.degree <= solution.greatest.degree + 1e-9).all()


@pytest.mark.parametrize(("seed", "size"), [(13, 13), (11, 11)])
def test_who_answers_its_peers_by_more_than_they_move_is_located_too(seed, size):
    """Moved by the same, one of them would go further than that; all of them together come closer."""
    solution = solve(random_game(seed, size, Log1p(), 500.0, rule=PeerRule.MEAN))
    assert solution.unique
    for end in solution:
        assert end.certified
        assert end.within <= 1e-8


@pytest.mark.parametrize(("payment", "Q"), PAYMENTS)
@pytest.mark.parametrize("side", ["least", "greatest"])
def test_the_fast_iteration_finds_what_certified_best_responses_find(payment, Q, side):
    for seed in range(2):
        game = random_game(seed, 15, payment, Q)
        fast = equilibrium(game, side)
        slow = module._bracketed(game, side, 1e-12)
        assert fast.degree == pytest.approx(slow.degree, abs=1e-9)
        assert fast.payment == pytest.approx(slow.payment, abs=1e-9)


@pytest.mark.parametrize("side", ["least", "greatest"])
def test_a_clipped_payment_is_the_same_summed_over_the_peers_and_by_prefixes(monkeypatch, side):
    game = random_game(3, 150, Log(), 420.0)
    ends = []
    for summed in (0, game.size):
        monkeypatch.setattr("mechanism.extremal_iteration.SUMMED", summed)
        ends.append(equilibrium(game, side))
    by_prefixes, summed = ends
    assert by_prefixes.certified
    assert summed.certified
    assert by_prefixes.degree == pytest.approx(summed.degree, abs=1e-9)
    assert by_prefixes.payment == pytest.approx(summed.payment, abs=1e-9)
    assert verify(game, by_prefixes.degree).max_regret < 1e-9


@pytest.mark.parametrize("ratio", [1e-3, 0.02, 5.0])
@pytest.mark.parametrize("payment", [Log(), Linear()])
def test_small_and_large_ratios_of_the_bound_are_solved_too(ratio, payment):
    bound = GapBound(300, 300 * ratio)
    rng = np.random.default_rng(2)
    cost = LinearCost(rng.uniform(0.5, 6.0, 30))
    game = random_game(4, 30, payment, 3000.0 * (1 + ratio), bound, cost=cost)
    for end in solve(game):
        assert end.certified
        gain = utilities_on_grid(game, end.degree, 4001)[1].max(axis=1) - utility_at(game, end.degree)
        assert gain.max() <= end.certificate.max_regret
        assert verify(game, end.degree).seen.max() <= 1e-9 * max(1.0, float(end.payment.max()))


def test_a_large_population_is_the_same_solved_in_pieces(monkeypatch):
    game = random_game(5, 3000)
    whole = solve(game)
    monkeypatch.setattr("mechanism.mean_field.CACHED", 512)
    monkeypatch.setattr("mechanism.extremal_iteration.CACHED", 512)
    monkeypatch.setattr("mechanism.regret.SEARCHED", 512)
    parts = solve(game)
    for a, b in zip(whole, parts, strict=True):
        assert a.degree == pytest.approx(b.degree, abs=1e-11)
        assert b.certified


def test_everyone_prefers_the_least_equilibrium():
    solution = solve(symmetric_game(0.8))
    assert (solution.least.utility > solution.greatest.utility).all()


def test_when_costs_are_too_high_nobody_makes_an_effort():
    solution = solve(symmetric_game(5.0))
    assert solution.unique
    assert solution.least.effort.max() == 0
    assert solution.least.cost.max() == 0


def test_a_participants_own_answer_is_the_symmetric_equilibrium():
    mine = best_response(payment=Log(), Q=2000, bound=BOUND, effort=ExponentialEffort(), cost=LinearCost(0.8))
    assert solve(symmetric_game(0.8)).least.degree == pytest.approx(mine.degree, abs=1e-10)


class Saturating:
    """f(x) = x^3 / (1 + x^3): its relative curvature reaches 4, so peers' efforts can repel."""

    def value(self, x):
        x = np.asarray(x, dtype=float)
        return x**3 / (1 + x**3)

    def first(self, x):
        x = np.asarray(x, dtype=float)
        return 3 * x**2 / (1 + x**3) ** 2

    def second(self, x):
        x = np.asarray(x, dtype=float)
        return (6 * x - 12 * x**4) / (1 + x**3) ** 3


class RootOfOnePlus:
    """f(x) = sqrt(1 + x) - 1, inside the condition but undeclared."""

    def value(self, x):
        return np.sqrt(1 + np.asarray(x, dtype=float)) - 1

    def first(self, x):
        return 0.5 / np.sqrt(1 + np.asarray(x, dtype=float))

    def second(self, x):
        return -0.25 * (1 + np.asarray(x, dtype=float)) ** -1.5


def test_a_payment_outside_the_condition_never_gets_a_silent_answer():
    game = random_game(6, 8, Saturating(), 800.0)
    assert not game.curvature.holds
    assert "exceeds 2" in str(game.curvature)
    for side in ("least", "greatest"):
        answer = equilibrium(game, side)
        assert not answer.certified
        assert answer.certificate.status in (Status.CONDITIONAL, Status.NONE)
        assert "exceeds 2" in answer.certificate.basis
        now = utility_at(game, answer.degree)
        gain = utilities_on_grid(game, answer.degree, 2001)[1].max(axis=1) - now
        assert gain.max() <= answer.certificate.max_regret


def test_a_users_payment_inside_the_condition_is_answered_conditionally():
    game = random_game(6, 8, RootOfOnePlus(), 800.0)
    for end in solve(game):
        assert end.certificate.status is Status.CONDITIONAL
        assert "checked points" in end.certificate.basis
        assert end.certificate.max_regret < 1e-10

    class Declared(RootOfOnePlus):
        relative_curvature = 0.5

    assert solve(random_game(6, 8, Declared(), 800.0)).least.certificate.status is Status.PROVED


def test_curves_of_every_kind_and_a_cost_of_ones_own_play_together():
    square = CallableCost([0.5, 0.8, 0.6], lambda x: x**2, lambda x: 2 * x, lambda x: 2 + 0 * x)
    effort = StackedEffort(
        [
            ExponentialEffort(0.9, 1.2),
            TabulatedEffort([0, 0.4, 1], [0.8, 0.5, 0.3]),
            CallableEffort(lambda e: 1 - 0.6 * e),
        ]
    )
    game = Game(Log(), 2000, BOUND, effort, square)
    for end in solve(game):
        assert end.certificate.status is Status.CONDITIONAL
        gain = utilities_on_grid(game, end.degree, 2001)[1].max(axis=1) - utility_at(game, end.degree)
        assert gain.max() <= end.certificate.max_regret
        assert game.effort.degree(end.effort) == pytest.approx(end.degree, abs=1e-9)


def test_verify_finds_a_profile_that_is_no_equilibrium():
    game = random_game(7, 40)
    wrong = solve(game).least.degree.copy()
    wrong[3] = game.start[3]
    check = verify(game, wrong)
    gain = utilities_on_grid(game, wrong, 4001)[1].max(axis=1) - utility_at(game, wrong)
    assert check.worst == 3
    assert check.seen[3] > 1e-3
    assert check.max_regret >= gain.max()
    assert check.max_regret == pytest.approx(gain.max(), abs=1e-5)


def test_verify_says_the_same_summed_directly_and_by_interpolation(monkeypatch):
    game = random_game(8, 450)
    profile = np.clip(solve(game).least.degree + 0.01, game.floor, game.start)
    interpolated = verify(game, profile)
    monkeypatch.setattr("mechanism.verify.DIRECT", 10_000)
    direct = verify(game, profile)
    assert interpolated.regret == pytest.approx(direct.regret, abs=1e-10)


def test_the_solvers_parts_are_not_used_to_verify():
    import mechanism.verify

    source = open(mechanism.verify.__file__).read()  # noqa: PTH123, SIM115  the text is what is tested
    for part in (
        "mean_field",
        "extremal_iteration",
        "regret",
        "global_search",
        "equilibrium",
        "clipped",
        "score",
    ):
        assert f"from mechanism.{part} import" not in source


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Game(Log(), 100, BOUND, ExponentialEffort([]), LinearCost(1)), "participants"),
        (lambda: Game(Log(), 100, BOUND, ExponentialEffort([0.5]), LinearCost([1])), "participants"),
        (lambda: Game(Log(), 0, BOUND, ExponentialEffort([0.5, 0.6]), LinearCost(1)), "Q"),
        (lambda: Game(Log(), -3, BOUND, ExponentialEffort([0.5, 0.6]), LinearCost(1)), "Q"),
        (lambda: Game(Log(), float("nan"), BOUND, ExponentialEffort([0.5, 0.6]), LinearCost(1)), "Q"),
        (lambda: Game(Log(), 100, BOUND, ExponentialEffort([0.5, 0.6]), LinearCost([1, 2, 3])), "cost"),
        (lambda: GapBound(0, 1), "phi"),
        (lambda: GapBound(1, -1), "upsilon"),
        (lambda: GapBound(float("nan"), 1), "phi"),
        (lambda: LinearCost([0.5, -1.0]), "cost[1]"),
        (lambda: LinearCost(float("inf")), "cost"),
        (lambda: PowerCost(1.0, 0.0), "cost exponent"),
        (lambda: ExponentialEffort(0.5, [1.0, 0.0]), "rate[1]"),
        (lambda: ExponentialEffort([0.5, float("nan")]), "delta0[1]"),
        (lambda: ExponentialEffort(1.2), "delta0"),
        (lambda: TabulatedEffort([0, 1], [0.4, 0.5]), "degrees"),
        (lambda: TabulatedEffort([0, 0.5], [0.5, 0.4]), "efforts"),
        (lambda: CallableEffort(lambda e: e), "effort curve"),
        (lambda: CallableCost(1.0, lambda x: -x, lambda x: x, lambda x: x), "cost d"),
    ],
)
def test_bad_input_names_the_field_the_value_and_the_range(build, field):
    with pytest.raises(FieldError) as refused:
        build()
    assert isinstance(refused.value, ValueError)
    assert refused.value.field == field
    assert refused.value.expected


def test_a_profile_outside_the_range_is_refused():
    game = random_game(1, 3)
    with pytest.raises(FieldError, match="profile"):
        verify(game, [0.1, 0.2])
    with pytest.raises(FieldError, match=r"profile\[0\]"):
        verify(game, [float("nan"), 0.2, 0.3])
