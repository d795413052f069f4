from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.cli.errors import CommandError
from fedpeer.demo.population import MAX_PARTICIPANTS, MIN_PARTICIPANTS, Strategy, population
from mechanism.terms import IDENTIFIER

pytestmark = pytest.mark.arithmetic

sizes = st.integers(MIN_PARTICIPANTS, MAX_PARTICIPANTS)


@given(sizes)
def test_everyone_has_an_id_of_their_own_and_the_ids_are_valid(participants: int) -> None:
    members = population(participants, 10)
    assert len({m.id for m in members}) == len(members) == participants
    assert all(IDENTIFIER.fullmatch(m.id) for m in members)


@given(sizes)
def test_each_dishonest_one_has_an_honest_twin_with_equally_good_data_and_the_same_cost(
    participants: int,
) -> None:
    by_id = {m.id: m for m in population(participants, 10)}
    dishonest = [m for m in by_id.values() if m.strategy is not Strategy.HONEST]
    assert [m.strategy for m in dishonest] == [Strategy.OVER_CLAIM, Strategy.FREE_RIDE]
    for member in dishonest:
        twin = by_id[member.twin or ""]
        assert twin.strategy is Strategy.HONEST
        assert (twin.start_degree, twin.cost) == (member.start_degree, member.cost)


@given(sizes)
def test_degrees_run_from_balanced_to_eight_tenths(participants: int) -> None:
    starts = [m.start_degree for m in population(participants, 10) if m.strategy is Strategy.HONEST]
    assert (starts[0], starts[-1]) == (0, Fraction(8, 10))
    assert all(0 <= start <= Fraction(9, 10) for start in starts)


@pytest.mark.parametrize("participants", [-1, 0, 2, MIN_PARTICIPANTS - 1, MAX_PARTICIPANTS + 1])
def test_too_few_for_a_quorum_and_too_many_are_refused(participants: int) -> None:
    with pytest.raises(CommandError, match="a quorum"):
        population(participants, 10)
