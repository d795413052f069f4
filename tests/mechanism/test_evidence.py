"""From logged integers to assessments: exact, replayable, and the truth is the best claim."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.canonical import canonical_bytes
from mechanism.errors import FieldError, SettlementError
from mechanism.evidence import (
    EXCESS_LEVELS,
    NANO,
    DegreeModel,
    EvidenceModel,
    Measurement,
    Thresholds,
    assess,
    regressors,
)
from mechanism.peers import Draw
from mechanism.settlement import MICRO, Assessment, settle_round
from mechanism.trees import Forest, Tree
from tests.mechanism.test_settlement import TERMS

REFERENCE = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))

#: Two class features, the first of them sorted into z; z = 3 sorted, 3 shares, 1 distance, 7 sums of excess, 1 global.
#: The tree says 0, so that the degree is half of what the line says.
MODEL = DegreeModel(
    reference=REFERENCE,
    share_own=(NANO, 0),
    share_mean=(0, NANO // 2),
    share_intercept=0,
    sorted_columns=(0,),
    weights=(*[0] * 6, 2 * NANO, *[0] * 7, NANO // 5),
    intercept=0,
    forest=Forest((Tree((-1,), (0,), (0,)),), 15),
    quality_weights=(*[0] * 14, -NANO),
    quality_intercept=NANO,
    half_width=100_000,
)
LIMITS = Thresholds(
    norm_low=800_000, norm_high=1_250_000, alignment=50_000, novelty=6_000_000, improvement=-500_000,
    echo_distance=350_000, echo_cosine=600_000, twin_weights=750_000, twin_outputs=780_000, twin_least=400_000,
    quality_full=600_000, quality_none=300_000, harm_full=300_000, harm_none=1_000_000, claim_band=150_000,
    wide=350_000,
)  # fmt: skip
EVIDENCE = EvidenceModel(1, "aa" * 32, "bb" * 32, "cc" * 32, MODEL, LIMITS)


def measured(name: str, shares: tuple[float, ...] = (0.5, 0.3, 0.2), **changes: object) -> Measurement:
    return replace(
        Measurement(
            participant_id=name,
            model_sha256=name[0].encode().hex() * 32,
            claimed_degree=Fraction(0),
            order=ord(name[0]),
            samples=100,
            class_features=tuple((round(s * MICRO), 0) for s in shares),
            global_features=(0,),
            norm=MICRO,
            alignment=500_000,
            novelty=MICRO,
            improvement=300_000,
            echo_distance=MICRO,
            echo_cosine=100_000,
            nearest_broadcast="this round",
            harm=0,
        ),
        **changes,  # type: ignore[arg-type]
    )


def only(measurement: Measurement) -> Assessment:
    return assess(EVIDENCE, [measurement])[0]


def failed(assessment: Assessment) -> list[str]:
    return [v.screen for v in assessment.verdicts if not v.passed]


def test_the_degree_is_the_distance_of_the_shares_from_the_reference_here() -> None:
    found = only(measured("a", (1.0, 0.0, 0.0)))
    assert found.verified_micro == 500_000
    assert (found.lower_micro, found.upper_micro) == (400_000, 600_000)
    assert failed(only(measured("a", claimed_degree=Fraction(1, 30)))) == []


@given(st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3), st.integers(-(10**9), 10**9))
def test_the_integer_maps_are_the_rational_ones_rounded_once(features: list[int], extra: int) -> None:
    rows = [(x, 7 * x % 1000) for x in features]
    mean = Fraction(sum(row[1] for row in rows), 3)
    shares = [round(Fraction(row[0]) + mean / 2) for row in rows]
    assert MODEL.shares(rows) == tuple(shares)
    z = MODEL.regressors(rows, [extra])
    assert z[:3] == tuple(sorted(features))
    assert z[3:6] == tuple(sorted(shares))
    assert 0 <= z[6] <= MICRO
    expected = round(Fraction(z[6]) + Fraction(extra, 10))
    assert MODEL.degree_micro(z) == min(max(expected, 0), round(Fraction(5, 6) * MICRO - Fraction(1, 3)))


def test_shares_of_nothing_have_no_distance() -> None:
    assert regressors(REFERENCE, (), [(0,)] * 3, (-1, 0, -2), ()) == (
        -2,
        -1,
        0,
        *[0] * (1 + len(EXCESS_LEVELS)),
    )


@given(st.lists(st.integers(-MICRO, MICRO), min_size=3, max_size=3))
def test_what_shares_have_above_each_level_is_summed(shares: list[int]) -> None:
    excess = regressors(REFERENCE, (), [(0,)] * 3, shares, (5,))[4:-1]
    assert excess == tuple(sum(p - level for p in shares if p > level) for level in EXCESS_LEVELS)


@pytest.mark.parametrize(
    ("changes", "screen"),
    [
        ({"fault": "its tensors are wrong"}, "contract"),
        ({"echo_distance": 100_000}, "echo"),
        ({"echo_cosine": 900_000}, "echo"),
        ({"norm": 500_000}, "trained"),
        ({"norm": 2_000_000}, "trained"),
        ({"alignment": 10_000}, "trained"),
        ({"novelty": 9_000_000}, "trained"),
        ({"improvement": -900_000}, "trained"),
    ],
)
def test_each_screen_refuses_what_it_is_for_and_says_so(changes: dict[str, object], screen: str) -> None:
    found = only(measured("a", **changes))
    assert not found.scored
    assert failed(found) == [screen]
    explanation = next(v.explanation for v in found.verdicts if not v.passed)
    assert explanation.endswith(".")
    assert len(explanation) > 40


def test_quality_and_harm_taper_the_payment_and_do_not_cut_it() -> None:
    whole = only(measured("a", global_features=(300_000,), harm=200_000))
    half = only(measured("a", global_features=(550_000,)))
    less = only(measured("a", global_features=(550_000,), harm=650_000))
    nothing = only(measured("a", global_features=(900_000,)))
    assert (whole.multiplier_ppm, half.multiplier_ppm, less.multiplier_ppm, nothing.multiplier_ppm) == (
        MICRO, 500_000, 250_000, 0,
    )  # fmt: skip
    assert (failed(whole), failed(half), failed(less)) == ([], ["samples"], ["samples", "contribution"])
    assert nothing.scored


def test_a_claim_is_refuted_below_the_band_only() -> None:
    skewed = (1.0, 0.0, 0.0)
    for claimed, refuted in (("0.5", False), ("0.36", False), ("0.34", True), ("0", True), ("0.83", False)):
        found = only(measured("a", skewed, claimed_degree=Fraction(claimed)))
        assert found.refuted == refuted, claimed
        assert found.verified_micro == 500_000


def test_a_wide_interval_pays_on_its_upper_end() -> None:
    wide = replace(EVIDENCE, degree=replace(MODEL, half_width=400_000))
    assert assess(wide, [measured("a", (1.0, 0.0, 0.0))])[0].verified_micro == 900_000


def test_of_a_cluster_the_earliest_that_passes_alone_is_scored() -> None:
    a = measured("a", echo_distance=0, twins=(("b", MICRO, MICRO),))
    b = measured("b", twins=(("a", MICRO, MICRO), ("c", 800_000, 0)))
    c = measured("c", twins=(("b", 800_000, 0), ("d", 500_000, 800_000)))
    d = measured("d", twins=(("c", 500_000, 800_000),))
    e = measured("e", twins=(("d", 300_000, 900_000),))
    found = {x.participant_id: x for x in assess(EVIDENCE, [e, d, c, b, a])}
    assert [found[n].scored for n in "abcde"] == [False, True, False, False, True]
    assert [found[n].cluster for n in "abcde"] == [None, "b", "b", "b", None]
    assert failed(found["c"]) == failed(found["d"]) == ["duplicate"]


def test_records_come_back_equal_through_canonical_bytes() -> None:
    model = EvidenceModel.from_record(json.loads(canonical_bytes(EVIDENCE.record())))
    assert model == EVIDENCE
    measurement = measured("a", twins=(("b", 1, 2),), claimed_degree=Fraction(1, 7), scores={"dmi": "0.5"})
    assert Measurement.from_record(json.loads(canonical_bytes(measurement.record()))) == measurement


@pytest.mark.parametrize("key", ["degree", "thresholds", "round"])
def test_a_record_that_lacks_something_is_refused(key: str) -> None:
    record = EVIDENCE.record()
    del record[key]
    with pytest.raises(FieldError, match="evidence"):
        EvidenceModel.from_record(record)
    with pytest.raises(FieldError, match="measurement"):
        Measurement.from_record({"participant_id": "a"})


def test_measuring_someone_twice_or_with_other_features_is_refused() -> None:
    with pytest.raises(SettlementError, match="measured twice"):
        assess(EVIDENCE, [measured("a"), measured("a")])
    with pytest.raises(FieldError, match="class_features"):
        assess(EVIDENCE, [measured("a", class_features=((1,),))])
    with pytest.raises(FieldError, match="15, as the evidence model has"):
        assess(EVIDENCE, [measured("a", global_features=(1, 2))])


def test_no_claim_pays_more_than_the_expected_estimate() -> None:
    """Simulated over a grid of claims through evidence and settlement: the truth, the mean estimate, pays most."""
    estimates = np.clip(np.random.default_rng(0).normal(0.3, 0.06, 60), 0, 0.5)
    others = [measured("b"), measured("c", (0.8, 0.1, 0.1))]
    claims = [Fraction(k, 20) for k in range(15)]
    earned = dict.fromkeys(claims, 0)
    draw = Draw(bytes(32), {name: bytes(32) for name in "abc"})
    for estimate in estimates:
        shares = (0.5 + estimate, 1 / 3 - estimate / 2, 1 / 6 - estimate / 2)
        for claim in claims:
            found = assess(EVIDENCE, [measured("a", shares, claimed_degree=claim), *others])
            line = settle_round(TERMS, 1, draw, found, {"a": TERMS.rule.stake_micro}).payments[0]
            earned[claim] += line.paid_micro - line.stake_lost_micro
    best = max(claims, key=lambda claim: earned[claim])
    assert abs(float(best) - estimates.mean()) <= 0.05
    # By calculation: E[(c - v)^2] = (c - E v)^2 + var v, so what a claim costs grows with its distance from E v.
    for claim in claims:
        apart = (float(claim) - estimates.mean()) ** 2 - (float(best) - estimates.mean()) ** 2
        cost = float(TERMS.rule.claim_penalty) * apart * len(estimates) * MICRO
        assert earned[best] - earned[claim] >= cost - 0.01 * MICRO * len(estimates)
