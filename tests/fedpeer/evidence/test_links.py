"""Of all pairs of a round, which are looked at as linked: none that the exact arithmetic links is lost."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.evidence import comparing
from fedpeer.evidence.comparing import Left, likeness, perhaps_linked
from fedpeer.evidence.likeness import mix_of
from fedpeer.evidence.regression import micro
from mechanism.evidence import ONE_MODEL, EvidenceModel, LikenessMap, Measurement, Overlaps
from mechanism.settlement import MICRO
from tests import ledger_samples as samples

TERMS = samples.terms()

#: Numbers of an update and of outputs.
UPDATE, OUTPUT = 40, 9


def models(dice: np.random.Generator, count: int, closeness: float) -> tuple[list[Left], list[int]]:
    """What is left of so many models, some near one of the others and some a copy; and whose copy each is."""
    left: list[Left] = []
    of = []
    for place in range(count):
        kind = dice.random()
        source = int(dice.integers(place)) if place and kind < 0.6 else place
        if source != place and kind < 0.2:
            left.append(left[source])
            of.append(of[source])
            continue
        vector = dice.normal(size=UPDATE + OUTPUT)
        if source != place:
            vector = closeness * np.concatenate(left[source]) * np.linalg.norm(vector) + vector
        update, output = vector[:UPDATE], vector[UPDATE:]
        scaled = [np.sqrt(0.5) * part / np.linalg.norm(part) for part in (update, output)]
        left.append((scaled[0].astype(np.float32), scaled[1].astype(np.float32)))
        of.append(place)
    return left, of


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 40),
    closeness=st.floats(0, 40),
    apart=st.lists(st.integers(-50_000, MICRO), min_size=2, max_size=12).map(sorted),
    link=st.integers(1, 300_000),
    tile=st.integers(1, 45),
)
def test_no_pair_that_is_linked_and_no_copy_is_lost(
    seed: int, count: int, closeness: float, apart: list[int], link: int, tile: int
) -> None:
    dice = np.random.default_rng(seed)
    left, of = models(dice, count, closeness)
    says = LikenessMap(tuple(apart), tuple(apart), link)
    model = EvidenceModel(
        1, "aa" * 32, "bb" * 32, "cc" * 32, 100, 0, samples.degree_map(TERMS.reference), samples.quality_map(),
        samples.LIMITS, says,
    )  # fmt: skip
    shown = [Fraction(int(dice.integers(0, 500_001)), MICRO) for _ in range(count)]
    measured = {
        f"p{place:03d}": Measurement(
            f"p{place:03d}", f"{place:064x}", Fraction(0), place, 1, features=samples.features(each)
        )
        for place, each in enumerate(shown)
    }
    overlaps, names = Overlaps(model, measured), list(measured)
    mixes = mix_of(np.array([model.degree.shares(measured[name].features) for name in names]) / MICRO)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparing, "TILE", tile)
        found = list(perhaps_linked(left, mixes, says))
    assert len(set(found)) == len(found)
    assert all(j < k for k, j in found)
    for k in range(count):
        for j in range(k):
            alike = micro(float(likeness(left[k], left[j][0][None], left[j][1][None])[0]))
            if alike >= ONE_MODEL or alike - overlaps.usual(names[k], names[j])[0] >= link:
                assert (k, j) in found
            if of[k] == of[j]:
                assert (k, j) in found
            if (k, j) in found:  # and few beside
                assert alike >= min(ONE_MODEL, overlaps.usual(names[k], names[j])[0] + link) - 1_000
