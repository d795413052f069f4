"""From logged integers to assessments: exact, replayable, and the truth is the best claim."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.affine import NANO
from mechanism.canonical import canonical_bytes
from mechanism.degree_map import EXCESS_LEVELS, MAX_COLUMNS, DegreeMap, regressors
from mechanism.errors import FieldError, SettlementError
from mechanism.evidence import (
    ARITHMETIC,
    KEPT_BROADCASTS,
    LEAST_GROUP,
    MOST_GROUP,
    OF_MODEL_ALONE,
    ONE_MODEL,
    EvidenceModel,
    LikenessMap,
    Measurement,
    Overlaps,
    QualityMap,
    Thresholds,
    assess,
)
from mechanism.peers import Draw
from mechanism.settlement import MICRO, Assessment, settle_round
from mechanism.trees import Forest, Tree
from tests.mechanism.test_settlement import TERMS

REFERENCE = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))

#: Three features, the first of them sorted into z: 3 sorted, 3 shares, 1 distance, 7 sums of excess, 3 means, 3
#: deviations. The tree says 0, so that the degree is half of what the line says: the distance and a tenth of the
#: third feature's mean, `extra` below, which alone decides the quality.
LENGTH, DISTANCE, EXTRA = 20, 6, 16


def only_at(place: int, value: int) -> tuple[int, ...]:
    return tuple(value if i == place else 0 for i in range(LENGTH))


MODEL = DegreeMap(
    reference=REFERENCE,
    share_own=(NANO, 0, 0),
    share_mean=(0, NANO // 2, 0),
    share_intercept=0,
    sorted_columns=(0,),
    weights=tuple(map(sum, zip(only_at(DISTANCE, 2 * NANO), only_at(EXTRA, NANO // 5), strict=True))),
    intercept=0,
    forest=Forest((Tree((-1,), (0,), (0,)),), LENGTH),
    half_width=100_000,
)
QUALITY = QualityMap(only_at(EXTRA, -NANO), NANO)
LIMITS = Thresholds(
    norm_low=800_000, norm_high=1_250_000, alignment=50_000, novelty=6_000_000, improvement=-500_000,
    echo_distance=350_000, echo_cosine=600_000, quality_full=600_000, quality_none=300_000, quality_degree=700_000,
    claim_band=150_000, harm_full=300_000, harm_none=1_000_000, wide=350_000, rate=20_000,
)  # fmt: skip
LIKENESS = LikenessMap((200_000, 350_000, 500_000), (900_000, 950_000), 250_000, (120_000, 100_000, 80_000))
EVIDENCE = EvidenceModel(2, "aa" * 32, "bb" * 32, "cc" * 32, 50, 100, MODEL, QUALITY, LIMITS, LIKENESS)


def measured(
    name: str, shares: tuple[float, ...] = (0.5, 0.3, 0.2), extra: int = 0, **changes: object
) -> Measurement:
    return replace(
        Measurement(
            participant_id=name,
            model_sha256=name[0].encode().hex() * 32,
            claimed_degree=Fraction(0),
            order=ord(name[0]),
            samples=100,
            features=tuple((round(s * MICRO), 0, extra) for s in shares),
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


#: How far what is not known of the mixes of two is the same, where it does not matter: there models of other samples
#: have a likeness of 0.314, and of the same 0.919.
R = 380_000


def alike(r: int = R, **likeness: int) -> tuple[tuple[str, int, int], ...]:
    """Twins at one r."""
    return tuple((name, value, r) for name, value in likeness.items())


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
def test_the_integer_maps_are_the_rational_ones_rounded_once(values: list[int], extra: int) -> None:
    rows = [(x, 7 * x % 1000, extra + i) for i, x in enumerate(values)]
    mean = Fraction(sum(row[1] for row in rows), 3)
    shares = [round(Fraction(row[0]) + mean / 2) for row in rows]
    assert MODEL.shares(rows) == tuple(shares)
    z = MODEL.regressors(rows)
    assert z[:3] == tuple(sorted(values))
    assert z[3:6] == tuple(sorted(round(p - q * MICRO) for p, q in zip(shares, REFERENCE, strict=True)))
    assert 0 <= z[DISTANCE] <= MICRO
    assert z[14:17] == (round(Fraction(sum(values), 3)), round(mean), extra + 1)
    expected = round(Fraction(z[DISTANCE]) + Fraction(extra + 1, 10))
    assert MODEL.degree_micro(rows) == min(max(expected, 0), round(Fraction(5, 6) * MICRO - Fraction(1, 3)))


def test_shares_of_nothing_have_no_distance() -> None:
    z = regressors(REFERENCE, (), [(0,)] * 3, (-1, 0, -2))
    assert z[:3] == (-500_001, -333_333, -166_669)
    assert z[3:] == (0, *[0] * len(EXCESS_LEVELS), 0, 0)


@given(st.lists(st.integers(-MICRO, MICRO), min_size=3, max_size=3))
def test_what_shares_have_above_multiples_of_the_reference_is_summed(shares: list[int]) -> None:
    excess = regressors(REFERENCE, (), [(0,)] * 3, shares)[4:-2]
    assert excess == tuple(
        round(sum(max(p - level * q * MICRO, Fraction(0)) for p, q in zip(shares, REFERENCE, strict=True)))
        for level in EXCESS_LEVELS
    )


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
    whole = only(measured("a", extra=300_000, harm=200_000))
    half = only(measured("a", extra=550_000))
    less = only(measured("a", extra=550_000, harm=650_000))
    nothing = only(measured("a", extra=900_000))
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


def test_those_linked_through_others_are_a_cluster_and_all_of_them_are_paid() -> None:
    a = measured("a", echo_distance=0, twins=alike(b=MICRO))
    b = measured("b", twins=alike(a=MICRO, c=800_000))
    c = measured("c", twins=alike(b=800_000, d=760_000))
    d = measured("d", twins=alike(c=760_000))
    e = measured("e", twins=alike(d=500_000))
    found = {x.participant_id: x for x in assess(EVIDENCE, [e, d, c, b, a])}
    assert [found[n].scored for n in "abcde"] == [False, True, True, True, True]
    assert [found[n].cluster for n in "abcde"] == [None, "b", "b", "b", None]
    assert failed(found["b"]) == failed(found["c"]) == failed(found["d"]) == ["overlap"]
    common = {
        pair: Fraction(likeness - 314_000, 919_000 - 314_000)
        for pair, likeness in (("bc", 800_000), ("cd", 760_000))
    }
    assert found["b"].holders_micro == MICRO + round(MICRO * common["bc"])
    assert found["c"].holders_micro == MICRO + round(MICRO * common["bc"]) + round(MICRO * common["cd"])
    assert (found["a"].holders_micro, found["e"].holders_micro) == (MICRO, MICRO)


def test_records_come_back_equal_through_canonical_bytes() -> None:
    model = EvidenceModel.from_record(json.loads(canonical_bytes(EVIDENCE.record())))
    assert model == EVIDENCE
    measurement = measured(
        "a", twins=(("b", 1, 2),), group="a", outside=-3, claimed_degree=Fraction(1, 7), scores={"dmi": "0.5"}
    )
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
    for rows in ((), ((1, 2, 3),) * 2, ((1, 2, 3),) * 4, ((1, 2),) * 3, ((1, 2, 3), (1, 2, 3), (1, 2, 3, 4))):
        for norm in (MICRO, 0):  # whether it is scored or not
            with pytest.raises(FieldError, match="3 rows of 3 integers"):
                assess(EVIDENCE, [measured("a", features=rows, norm=norm)])
    with pytest.raises(FieldError, match="20, as the evidence model has"):
        MODEL.degree_of((1, 2))


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


#: Each screen's figure, the threshold that it is held against, and the last value that passes.
EDGES = [
    ("echo_distance", LIMITS.echo_distance, -1, "echo"),
    ("echo_cosine", LIMITS.echo_cosine, +1, "echo"),
    ("norm", LIMITS.norm_low, -1, "trained"),
    ("norm", LIMITS.norm_high, +1, "trained"),
    ("alignment", LIMITS.alignment, -1, "trained"),
    ("novelty", LIMITS.novelty, +1, "trained"),
    ("improvement", LIMITS.improvement, -1, "trained"),
]


@pytest.mark.parametrize(("figure", "limit", "beyond", "screen"), EDGES)
def test_a_figure_passes_up_to_its_threshold_and_not_a_millionth_beyond(
    figure: str, limit: int, beyond: int, screen: str
) -> None:
    assert failed(only(measured("a", **{figure: limit}))) == []
    found = only(measured("a", **{figure: limit + beyond}))
    assert failed(found) == [screen]
    assert found.verified_micro is None
    verdict = next(v for v in found.verdicts if not v.passed)
    name = {"echo_distance": "distance", "echo_cosine": "cosine"}.get(figure, figure)
    assert Fraction(verdict.figures[name]) * MICRO == limit + beyond
    assert verdict.figures[name] in verdict.explanation


def test_every_fault_of_training_is_named_and_no_other() -> None:
    faults = {"norm": 0, "alignment": 0, "novelty": 7_000_000, "improvement": -600_000}
    words = {"norm": "length", "alignment": "pulls", "novelty": "deviations", "improvement": "gains"}
    everything = only(measured("a", **faults)).verdicts[-1].explanation
    assert all(word in everything for word in words.values())
    for name, value in faults.items():
        explanation = only(measured("a", **{name: value})).verdicts[-1].explanation
        assert [word for word in words.values() if word in explanation] == [words[name]]


def test_verdicts_come_in_the_order_applied_and_all_of_them_where_a_model_is_scored() -> None:
    scored = only(measured("a"))
    assert [v.screen for v in scored.verdicts] == [
        "contract", "echo", "trained", "overlap", "samples", "contribution", "claim",
    ]  # fmt: skip
    assert all(v.passed for v in scored.verdicts)
    assert [v.screen for v in only(measured("a", norm=0)).verdicts] == ["contract", "echo", "trained"]
    late = only(measured("a", fault="it came late"))
    assert [(v.screen, v.passed) for v in late.verdicts] == [("contract", False)]
    assert "it came late" in late.verdicts[0].explanation
    assert late.verdicts[0].figures == {}


def test_an_assessment_carries_what_the_submission_said() -> None:
    given = {"claimed_degree": Fraction(2, 7), "scores": {"dmi": "0.5"}}
    for changes in ({}, {"norm": 0}, {"fault": "late"}):
        found = only(measured("a", **given, **changes))
        assert (found.participant_id, found.model_sha256) == ("a", b"a" * 32)
        assert (found.claimed_degree, found.scores, found.cluster) == (Fraction(2, 7), {"dmi": "0.5"}, None)


@pytest.mark.parametrize(
    ("quality", "kept"),
    [
        (299_999, 0),
        (300_000, 0),
        (300_001, 3),
        (450_000, 500_000),
        (599_999, 999_996),
        (600_000, MICRO),
        (600_001, MICRO),
    ],
)
def test_the_payment_tapers_with_the_quality_between_two_levels(quality: int, kept: int) -> None:
    found = only(measured("a", extra=MICRO - quality))
    assert found.multiplier_ppm == kept
    verdict = next(v for v in found.verdicts if v.screen == "samples")
    assert verdict.passed == (kept == MICRO)
    assert Fraction(verdict.figures["quality"]) * MICRO == quality
    assert Fraction(verdict.figures["kept"]) * MICRO == kept


def test_where_flawed_shadows_look_like_sound_ones_no_quality_is_held_against_anybody() -> None:
    limits = replace(EVIDENCE.thresholds, quality_full=0, quality_none=-1)
    (found,) = assess(replace(EVIDENCE, thresholds=limits), [measured("a", extra=MICRO)])
    verdict = next(v for v in found.verdicts if v.screen == "samples")
    assert found.multiplier_ppm == MICRO
    assert verdict.passed
    assert verdict.figures["quality"] == "0"
    assert "look like others here: neither is held against any model" in verdict.explanation
    assert "right targets" not in verdict.explanation


@pytest.mark.parametrize(("above", "kept"), [(1, 500_000), (0, MICRO)])
def test_what_seems_more_skewed_than_what_is_flawed_keeps_all(above: int, kept: int) -> None:
    one = measured("a", (1.0, 0.0, 0.0), extra=550_000)
    verified = only(one).verified_micro
    assert verified is not None
    limits = replace(EVIDENCE.thresholds, quality_degree=verified + above)
    (found,) = assess(replace(EVIDENCE, thresholds=limits), [one])
    assert (found.verified_micro, found.multiplier_ppm) == (verified, kept)


@pytest.mark.parametrize(
    ("harm", "kept"),
    [(None, MICRO), (-5, MICRO), (300_000, MICRO), (300_001, 999_998), (650_000, 500_000), (MICRO, 0), (MICRO + 1, 0)],
)  # fmt: skip
def test_the_payment_tapers_with_the_harm_between_two_levels(harm: int | None, kept: int) -> None:
    found = only(measured("a", harm=harm))
    assert found.multiplier_ppm == kept
    verdict = next(v for v in found.verdicts if v.screen == "contribution")
    assert verdict.passed == (kept == MICRO)
    assert Fraction(verdict.figures["harm"]) * MICRO == (harm or 0)
    assert Fraction(verdict.figures["kept"]) * MICRO == kept


@pytest.mark.parametrize(("claimed", "refuted"), [(350_000, False), (349_999, True)])
def test_a_claim_may_be_as_much_too_low_as_the_band_is_wide(claimed: int, refuted: bool) -> None:
    found = only(measured("a", (1.0, 0.0, 0.0), claimed_degree=Fraction(claimed, MICRO)))
    assert found.refuted == refuted
    claim = found.verdicts[-1]
    assert claim.passed != refuted
    assert claim.figures == {
        "claimed": str(float(claimed / MICRO)), "verified": "0.5", "lower": "0.4", "upper": "0.6", "band": "0.15",
    }  # fmt: skip


def test_the_interval_stays_within_the_whole_and_pays_its_upper_end_only_beyond_the_limit() -> None:
    def found(half: int, share: float) -> Assessment:
        wide = replace(EVIDENCE, degree=replace(MODEL, half_width=half))
        return assess(wide, [measured("a", (share, (1 - share) * 2 / 3, (1 - share) / 3))])[0]

    assert found(LIMITS.wide, 1.0).verified_micro == 500_000
    assert found(LIMITS.wide + 1, 1.0).verified_micro == 500_000 + LIMITS.wide + 1
    assert (found(600_000, 1.0).lower_micro, found(600_000, 1.0).upper_micro) == (0, MICRO)
    assert found(600_000, 1.0).verified_micro == MICRO


def test_models_are_linked_from_the_limit_beyond_what_their_mixes_explain() -> None:
    """Where more of what is not known of both mixes is the same, it takes a greater likeness, whatever the shares."""
    single, elsewhere = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    for r, apart in ((0, 200_000), (R, 314_000), (500_000, 350_000), (MICRO, 500_000)):
        for other in (single, elsewhere):
            for d, cluster in ((0, "a"), (-1, None)):
                a = measured("a", single, twins=alike(r, b=apart + LIKENESS.link + d))
                assert assess(EVIDENCE, [a, measured("b", other)])[1].cluster == cluster


def test_what_two_have_in_common_is_told_between_other_samples_and_the_same() -> None:
    def common(likeness: int, **changes: Any) -> int:
        a, b = (measured(n, twins=((o, likeness, R),)) for n, o in ("ab", "ba"))
        found = assess(replace(EVIDENCE, likeness=replace(LIKENESS, link=1, **changes)), [a, b])
        return found[0].holders_micro - MICRO

    assert [common(x) for x in (314_000, 315_000, 616_500, 919_000, 2 * MICRO)] == [
        0, round(Fraction(MICRO * 1000, 605_000)), 500_000, MICRO, MICRO,
    ]  # fmt: skip
    # Where the same samples look no more alike than others, whoever is linked has all in common.
    assert common(314_001, same=(0, 0)) == MICRO


def test_members_of_a_cluster_that_are_less_alike_than_others_have_nothing_in_common() -> None:
    a = measured("a", twins=alike(b=800_000, c=100_000))
    b = measured("b", twins=alike(a=800_000, c=800_000))
    c = measured("c", twins=alike(a=100_000, b=800_000))
    found = assess(EVIDENCE, [a, b, c])
    assert {x.cluster for x in found} == {"a"}
    part = round(Fraction(MICRO * (800_000 - 314_000), 919_000 - 314_000))
    assert [x.holders_micro - MICRO for x in found] == [part, 2 * part, part]


def test_a_participant_learns_with_whom_it_has_how_much_in_common() -> None:
    a = measured("a", twins=alike(b=800_000, c=900_000))
    b = measured("b", twins=alike(a=800_000))
    c = measured("c", twins=alike(a=900_000))
    first, second, third = assess(EVIDENCE, [a, b, c])
    assert [x.scored for x in (first, second, third)] == [True, True, True]
    assert [x.cluster for x in (first, second, third)] == ["a", "a", "a"]
    verdict, other = (next(v for v in x.verdicts if v.screen == "overlap") for x in (first, second))
    assert verdict.figures == {"holders": "2.771901", "nearest": "c", "common": "0.968595"}
    assert other.figures == {"holders": "1.803306", "nearest": "a", "common": "0.803306"}
    assert "had by 2.771901 participants" in verdict.explanation
    assert "most by c, which has 0.968595 of them" in verdict.explanation
    alone = only(measured("a")).verdicts[3]
    assert (alone.passed, alone.figures) == (True, {})
    assert "No other model" in alone.explanation


def test_models_of_one_digest_are_copies_whatever_was_measured() -> None:
    a, b = measured("a"), measured("b", model_sha256=measured("a").model_sha256)
    c = measured("c", twins=alike(a=MICRO))
    found = assess(EVIDENCE, [c, a, b, measured("d")])
    assert [x.cluster for x in found] == ["a", "a", "a", None]
    assert [x.scored for x in found] == [True] * 4
    assert [failed(x) for x in found] == [["overlap"]] * 3 + [[]]
    # What is not said of a pair is nothing; what is said of a model is said of all who have sent it.
    assert [x.holders_micro for x in found] == [2 * MICRO, 2 * MICRO, 3 * MICRO, MICRO]


def test_a_model_counts_for_each_who_has_sent_it_and_is_compared_once() -> None:
    def sent(name: str, model: str, **twins: int) -> Measurement:
        return measured(name, model_sha256=model * 32, twins=alike(**twins))

    found = assess(EVIDENCE, [
        sent("a", "a1", d=800_000, f=500_000), sent("b", "a1"), sent("c", "a1"),
        sent("d", "d1", a=800_000, f=900_000), sent("e", "d1"),
        sent("f", "f1", a=500_000, d=900_000),
    ])  # fmt: skip
    ad, af, df = (round(Fraction(MICRO * (x - 314_000), 605_000)) for x in (800_000, 500_000, 900_000))
    assert {x.cluster for x in found} == {"a"}
    of_a, of_d = 3 * MICRO + 2 * ad + af, 2 * MICRO + 3 * ad + df
    assert [x.holders_micro for x in found] == [of_a] * 3 + [of_d] * 2 + [MICRO + 3 * af + 2 * df]
    nearest = [next(v for v in x.verdicts if v.screen == "overlap").figures["nearest"] for x in found]
    assert nearest == ["c", "c", "b", "e", "d", "e"]


def group_of(
    names: str, pairs: Mapping[str, tuple[int, int]], outside: int = 0, group: str = ""
) -> dict[str, Measurement]:
    """Members of a group, by name.

    Args:
        pairs: likeness and r of members, such as "ab".
        group: its name; their first's where it is empty.
    """
    twins: dict[str, list[tuple[str, int, int]]] = {name: [] for name in names}
    for (one, other), figures in pairs.items():
        twins[one].append((other, *figures))
        twins[other].append((one, *figures))
    named = {"group": group or min(names), "outside": outside}
    return {name: measured(name, twins=tuple(twins[name]), **named) for name in names}


def pairs_of(names: str) -> list[str]:
    return ["".join(pair) for pair in combinations(names, 2)]


def clusters(measurements: Iterable[Measurement], model: EvidenceModel = EVIDENCE) -> dict[str, str]:
    """Who is of a cluster, and which."""
    found = assess(model, list(measurements))
    return {a.participant_id: a.cluster for a in found if a.cluster is not None}


@given(
    size=st.integers(3, 7),
    limits=st.lists(st.integers(1, 200_000), min_size=1, max_size=4).map(tuple),
    outside=st.integers(-100_000, 100_000),
    data=st.data(),
)
def test_a_group_is_linked_from_its_limit_and_not_a_millionth_below(
    size: int, limits: tuple[int, ...], outside: int, data: st.DataObject
) -> None:
    """Sizes beyond the limits take the last one. No pair is linked by itself."""
    names = "abcdefg"[:size]
    says = replace(LIKENESS, group=limits, link=10 * MICRO)
    limit = limits[size - 3] if size - 3 < len(limits) else limits[-1]
    off = {pair: data.draw(st.integers(-50_000, 50_000)) for pair in pairs_of(names)}
    off["ab"] -= sum(off.values())  # to the sum of exactly the limits
    r_of = {pair: data.draw(st.integers(0, MICRO)) for pair in off}
    for d, linked in ((0, names), (-1, "")):
        off["ab"] += d
        pairs = {pair: (says.usual(r)[0] + outside + limit + off[pair], r) for pair, r in r_of.items()}
        if max(likeness for likeness, _ in pairs.values()) < ONE_MODEL:
            of = group_of(names, pairs, outside).values()
            assert clusters(of, replace(EVIDENCE, likeness=says)) == dict.fromkeys(linked, "a")


def test_two_and_those_without_a_limit_are_no_group() -> None:
    pair = {"ab": (314_000 + LIKENESS.link - 1, R)}
    assert not clusters(group_of("ab", pair).values())
    three = group_of("abc", dict.fromkeys(pairs_of("abc"), (500_000, R))).values()
    assert clusters(three) == dict.fromkeys("abc", "a")
    assert not clusters(three, replace(EVIDENCE, likeness=replace(LIKENESS, group=())))
    assert [LIKENESS.group_limit(size) for size in (0, 2, 3, 4, 5, 6, 10**6)] == [
        None, None, 120_000, 100_000, 80_000, 80_000, 80_000,
    ]  # fmt: skip
    assert replace(LIKENESS, group=()).group_limit(3) is None


def test_a_pair_of_a_group_that_nobody_names_counts_as_not_alike_where_no_mix_is_in_common() -> None:
    """Then 0.2 is missing to what models of other samples have, and u is taken off as of every pair."""
    sum_of_two = 3 * 120_000 + 200_000 + 3 * 10_000
    for d, linked in ((0, "abc"), (-1, "")):
        pairs = {"ab": (314_000 + sum_of_two // 2, R), "bc": (314_000 + sum_of_two // 2 + d, R)}
        of = group_of("abc", pairs, outside=10_000)
        says = replace(LIKENESS, link=MICRO)
        assert clusters(of.values(), replace(EVIDENCE, likeness=says)) == dict.fromkeys(linked, "a")


def test_a_group_that_loses_a_member_is_judged_by_those_who_are_left() -> None:
    """Of four models three are alike. All four are below their limit, and the three are not below theirs."""
    pairs = {pair: (314_000 + 150_000 * ("d" not in pair), R) for pair in pairs_of("abcd")}
    of = group_of("abcd", pairs)
    assert not clusters(of.values())
    assert clusters({**of, "d": replace(of["d"], norm=0)}.values()) == dict.fromkeys("abc", "a")
    # The name stays with those who are left, whose cluster has another one, and two of them are no group.
    pairs = dict.fromkeys(pairs_of("abcd"), (314_000 + 150_000, R))
    of = group_of("abcd", pairs)
    assert clusters({**of, "a": replace(of["a"], norm=0)}.values()) == dict.fromkeys("bcd", "b")
    three = group_of("abc", {pair: pairs[pair] for pair in pairs_of("abc")})
    assert not clusters({**three, "a": replace(three["a"], norm=0)}.values())


def test_links_of_pairs_and_groups_join_one_cluster_and_groups_stay_groups() -> None:
    """c of the first group is linked with d of the second, and e has sent its model again, as x."""
    pairs = dict.fromkeys(pairs_of("abc") + pairs_of("def"), (464_000, R))
    pairs["cd"] = (314_000 + LIKENESS.link, R)
    of = group_of("abcdef", pairs)
    of |= {n: replace(of[n], group="d", outside=-50_000) for n in "def"}
    of["x"] = measured("x", model_sha256=of["e"].model_sha256)
    assert clusters(of.values()) == dict.fromkeys("abcdefx", "a")
    without = {n: replace(m, group="", outside=0) for n, m in of.items()}
    assert clusters(without.values()) == {"c": "c", "d": "c", "e": "e", "x": "e"}
    part = {pair: Fraction(d, 919_000 - 314_000 + u) for pair, d, u in (
        ("ab", 150_000, 0), ("cd", LIKENESS.link, 0), ("de", 200_000, 50_000),
    )}  # fmt: skip
    own, link, other = (round(MICRO * part[pair]) for pair in ("ab", "cd", "de"))
    holders = {a.participant_id: a.holders_micro - MICRO for a in assess(EVIDENCE, list(of.values()))}
    assert [holders[n] for n in "abc"] == [2 * own, 2 * own, 2 * own + link]
    assert [holders[n] for n in "def"] == [link + 3 * other, 2 * other + MICRO, 3 * other]
    assert holders["x"] == holders["e"]


def test_what_is_outside_moves_what_members_of_a_linked_group_have_in_common() -> None:
    def common(likeness: int, outside: int, others: int = 900_000, **changes: Any) -> list[int]:
        pairs = {"ab": (likeness, R), "ac": (others, R), "bc": (others, R)}
        model = replace(EVIDENCE, likeness=replace(LIKENESS, **changes))
        of = group_of("abc", pairs, outside).values()
        assert clusters(of, model) == dict.fromkeys("abc", "a")
        return [a.holders_micro - MICRO for a in assess(model, list(of))]

    def part(likeness: int, outside: int) -> int:
        return round(Fraction(MICRO * (likeness - 314_000 - outside), 919_000 - 314_000 - outside))

    for outside in (-100_000, 0, 1, 100_000):
        own, other = part(600_000, outside), part(900_000, outside)
        assert common(600_000, outside) == [own + other, own + other, 2 * other]
        for likeness, expected in ((314_000 + outside, 0), (919_000, MICRO), (ONE_MODEL, MICRO)):
            assert common(likeness, outside)[0] == expected + other
    # Where what is outside is more than what the same samples show, who is above it has all in common.
    for likeness, expected in ((914_000, 0), (914_001, MICRO)):
        found = common(likeness, 600_000, 950_000, group=(1,), same=(400_000, 400_000), link=MICRO)
        assert found == [expected + MICRO, expected + MICRO, 2 * MICRO]


def test_what_is_outside_is_taken_off_pairs_of_one_group_and_off_no_others() -> None:
    three = group_of("abc", dict.fromkeys(pairs_of("abc"), (800_000, R)), outside=400_000)
    assert not clusters(three.values())
    for outside in (-50_000, 0, 1, 50_000, 400_000):
        left = Fraction(min(MICRO - 314_000 - outside, MICRO - 314_000), MICRO - 314_000)
        limit = 314_000 + outside + ceil(LIKENESS.link * left)
        for d, linked in ((0, "ab"), (-1, "")):
            of = group_of("ab", {"ab": (limit + d, R)}, outside).values()
            assert clusters(of) == dict.fromkeys(linked, "a")
    of = group_of("ab", {"ab": (ONE_MODEL - 1, R)}, outside=MICRO - 314_000).values()
    assert not clusters(of), "nothing is left of their own"
    pair = {"ab": (314_000 + LIKENESS.link, R)}
    apart = {n: replace(m, group=n) for n, m in group_of("ab", pair, outside=50_000).items()}
    assert clusters(apart.values()) == dict.fromkeys("ab", "a")


def test_who_has_sent_a_model_again_is_no_member_of_its_group_and_pays_with_it() -> None:
    of = group_of("abc", dict.fromkeys(pairs_of("abc"), (464_000, R)))
    again = measured("x", model_sha256=of["a"].model_sha256, group="a", outside=900_000)
    found = {a.participant_id: a for a in assess(EVIDENCE, [again, *of.values()])}
    own = round(Fraction(MICRO * 150_000, 605_000))
    assert {a.cluster for a in found.values()} == {"a"}
    assert [found[n].holders_micro - MICRO for n in "abcx"] == [
        MICRO + 2 * own, 3 * own, 3 * own, MICRO + 2 * own,
    ]  # fmt: skip


def test_the_distinct_samples_are_told_by_a_line_and_are_enough_without_one() -> None:
    assert only(measured("a", extra=400_000)).distinct_micro == MICRO
    by_extra = QualityMap((*only_at(EXTRA, NANO), 0, 0), NANO)
    line = replace(EVIDENCE, distinct=(by_extra,))
    for extra, distinct in ((0, MICRO), (200_000, 833_333), (150_000, 869_565), (-MICRO, MICRO)):
        found = assess(line, [measured("a", extra=extra)])[0]
        assert found.distinct_micro == distinct
        assert Fraction(found.verdicts[4].figures["distinct"]) == Fraction(distinct, MICRO)
        assert ("of the distinct samples" in found.verdicts[4].explanation) == (distinct < MICRO)
    assert EvidenceModel.from_record(json.loads(canonical_bytes(line.record()))) == line


def test_of_several_lines_the_one_by_which_samples_are_seen_most_often_counts() -> None:
    nothing = (0,) * len(EVIDENCE.degree.weights)
    by_straying, by_length = (QualityMap((*nothing, *own), 0) for own in ((NANO, 0), (0, NANO)))
    line = replace(EVIDENCE, distinct=(by_straying, by_length))
    for straying, length, distinct in (
        (1_250_000, MICRO, 800_000),
        (MICRO, 1_200_000, 833_333),
        (0, 900_000, MICRO),
    ):
        assert assess(line, [measured("a", straying=straying, length=length)])[0].distinct_micro == distinct
    with pytest.raises(FieldError, match="17 lines'; expected at most 16"):
        replace(EVIDENCE, distinct=(by_length,) * 17)


def test_a_copy_of_what_fails_alone_is_of_no_cluster() -> None:
    a, b = measured("a", norm=0), measured("b", norm=0, model_sha256=measured("a").model_sha256)
    assert [(x.cluster, failed(x)) for x in assess(EVIDENCE, [a, b])] == [(None, ["trained"])] * 2


def test_a_model_with_the_digest_of_one_that_was_sent_out_is_an_echo() -> None:
    start, older = measured("s", model_sha256=EVIDENCE.start_sha256), measured("o")
    assert failed(only(start)) == ["echo"]
    assert failed(only(older)) == []
    assert failed(assess(EVIDENCE, [older], ["dd" * 32, older.model_sha256])[0]) == ["echo"]


def test_a_twin_that_is_not_there_makes_no_cluster() -> None:
    assert only(measured("a", twins=alike(gone=MICRO))).cluster is None


def test_the_degree_is_the_mean_of_line_and_trees_within_its_range() -> None:
    tall = replace(MODEL, forest=Forest((Tree((-1,), (400_000,), (0,)),), LENGTH), intercept=NANO // 10)
    found = assess(replace(EVIDENCE, degree=tall), [measured("a", (1.0, 0.0, 0.0))])[0]
    # The line says 2 * 0.5 + 0.1 and the tree 0.4.
    assert found.verified_micro == 750_000
    low = replace(MODEL, intercept=-9 * NANO)
    assert assess(replace(EVIDENCE, degree=low), [measured("a")])[0].verified_micro == 0
    high = replace(MODEL, intercept=9 * NANO)
    assert assess(replace(EVIDENCE, degree=high), [measured("a")])[0].verified_micro == 833_333


def test_shares_have_an_intercept_and_the_labels_mean() -> None:
    shifted = replace(MODEL, share_own=(NANO, NANO // 4, 0), share_intercept=NANO // 5)
    rows = [(100_000, 40_000, 1), (200_000, 80_000, 1), (300_000, 30_000, 1)]
    # Own 1 and 1/4, the mean of the second column half of 50,000, and 0.2.
    assert shifted.shares(rows) == (335_000, 445_000, 532_500)
    with pytest.raises(FieldError) as refused:
        shifted.shares(rows[:2])
    assert "3 rows of 3 integers" in str(refused.value)


def test_the_distance_is_that_of_the_positive_shares_in_proportion() -> None:
    z = regressors(REFERENCE, (1, 0), [(1, 30), (3, 20), (2, 10)], (300_000, -5, 100_000))
    assert z[:6] == (10, 20, 30, 1, 2, 3)
    assert z[6:9] == (-333_338, -200_000, -66_667)
    # Shares 3/4, 0, 1/4 beside 1/2, 1/3, 1/6.
    assert z[9] == round((Fraction(1, 4) + Fraction(1, 3) + Fraction(1, 12)) / 2 * MICRO)
    assert z[-4:] == (2, 20, 0, 8)  # means; deviations of 0.82 and 8.2, rounded down


def test_coefficients_that_do_not_fit_one_another_are_refused() -> None:
    with pytest.raises(FieldError) as refused:
        replace(EVIDENCE, quality=QualityMap((0,) * 19, 0))
    assert refused.value.field == "quality.weights"
    assert "20 coefficients" in str(refused.value)
    with pytest.raises(FieldError) as refused:
        replace(MODEL, forest=Forest((Tree((-1,), (0,), (0,)),), 19))
    assert refused.value.field == "weights"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.update(arithmetic="v0"),
        lambda r: r.pop("arithmetic"),
        lambda r: r["degree"].update(reference=["1/0"]),
        lambda r: r["degree"].update(reference=["x"]),
        lambda r: r["degree"].update(more=1),
        lambda r: r["degree"].pop("weights"),
        lambda r: r.update(degree=[]),
        lambda r: r.update(degree=None),
        lambda r: r["thresholds"].pop("wide"),
        lambda r: r["thresholds"].update(more=1),
        lambda r: r.update(thresholds=[]),
        lambda r: r["degree"].update(forest=3),
        lambda r: r["degree"].update(weights=3),
        lambda r: r["degree"].update(weights=[1]),
        lambda r: r["degree"].update(weights=["1"] * LENGTH),
        lambda r: r["degree"].update(weights=[True] * LENGTH),
        lambda r: r["degree"].update(reference=["1/2", "1/2", "1/6"]),
        lambda r: r["degree"].update(reference=["1" * 5000, "0", "0"]),
        lambda r: r["degree"].update(reference=["1"]),
        lambda r: r["degree"].update(sorted_columns=[3]),
        lambda r: r["degree"].update(sorted_columns=[-1]),
        lambda r: r["degree"].update(sorted_columns=[False]),
        lambda r: r["degree"].update(half_width=-1),
        lambda r: r["degree"].update(half_width=True),
        lambda r: r["degree"].update(intercept="0"),
        lambda r: r["degree"].update(forest=[]),
        lambda r: r["degree"].update(forest=[[[-1], [0]]]),
        lambda r: r["degree"].update(forest=[[[-1], ["0"], [0]]]),
        lambda r: r["degree"].update(forest=[[[-1], [0], [False]]]),
        lambda r: r["degree"].update(forest=[[[-2], [0], [0]]]),
        lambda r: r["degree"].update(forest=[[[LENGTH, -1, -1], [0, 0, 0], [2, 0, 0]]]),
        lambda r: r["quality"].update(weights=[1]),
        lambda r: r["quality"].update(weights=[None] * LENGTH),
        lambda r: r["quality"].update(more=1),
        lambda r: r["quality"].pop("intercept"),
        lambda r: r["quality"].update(intercept=True),
        lambda r: r.update(quality=[]),
        lambda r: r["likeness"].update(apart=["1", 1]),
        lambda r: r["likeness"].update(apart=[1]),
        lambda r: r["likeness"].update(same=[1] * 102),
        lambda r: r["likeness"].update(same=1),
        lambda r: r["likeness"].update(link=0),
        lambda r: r["likeness"].pop("link"),
        lambda r: r["likeness"].update(group=[1, 0]),
        lambda r: r["likeness"].update(group=[True]),
        lambda r: r["likeness"].update(group=["1"]),
        lambda r: r["likeness"].update(group=[None]),
        lambda r: r["likeness"].update(group=1),
        lambda r: r["likeness"].update(group=[1] * (MOST_GROUP - LEAST_GROUP + 2)),
        lambda r: r["likeness"].pop("group"),
        lambda r: r.pop("likeness"),
        lambda r: r.update(distinct=None),
        lambda r: r.update(distinct=[{"weights": [1], "intercept": 0}]),
        lambda r: r.pop("distinct"),
        lambda r: r["thresholds"].update(norm_low=True),
        lambda r: r["thresholds"].update(claim_band=-1),
        lambda r: r["thresholds"].update(wide=-1),
        lambda r: r["thresholds"].update(rate=MICRO + 1),
        lambda r: r["thresholds"].update(rate=-1),
        lambda r: r["thresholds"].update(norm_low=1_250_001),
        lambda r: r["thresholds"].update(quality_none=600_001),
        lambda r: r["thresholds"].update(harm_full=1_000_001),
        lambda r: r.update(round=True),
        lambda r: r.update(round=0),
        lambda r: r.update(more=1),
        lambda r: r.update(start_sha256="AA" * 32),
        lambda r: r.update(validation_sha256=None),
        lambda r: r.update(shadows_sha256="cc" * 31),
        lambda r: r.pop("start_sha256"),
        lambda r: r.pop("validation_sha256"),
        lambda r: r.pop("shadows_sha256"),
        lambda r: r.update(shadows=0),
        lambda r: r.update(shadows=True),
        lambda r: r.update(carried=-1),
        lambda r: r.pop("computed_on"),
        lambda r: r.update(computed_on={"cpu": 1}),
        lambda r: r.update(computed_on={"cpu": ""}),
        lambda r: r.update(computed_on={"": "x"}),
        lambda r: r.update(computed_on={"cpu": "x" * 201}),
        lambda r: r.update(computed_on={str(n): "x" for n in range(17)}),
        lambda r: r.pop("carried"),
    ],
)
def test_a_record_of_another_form_is_refused_as_a_field(spoil: Callable[[Any], None]) -> None:
    record = json.loads(canonical_bytes(EVIDENCE.record()))
    spoil(record)
    with pytest.raises(FieldError):
        EvidenceModel.from_record(record)


def test_a_field_out_of_its_range_keeps_its_name_in_the_refusal() -> None:
    record = json.loads(canonical_bytes(EVIDENCE.record()))
    record["degree"]["weights"][3] = True
    with pytest.raises(FieldError) as refused:
        EvidenceModel.from_record(record)
    assert refused.value.field == "weights[3]"


def test_what_would_keep_a_verifier_busy_is_refused() -> None:
    with pytest.raises(FieldError, match=r"101 coefficients.*at most 100"):
        replace(MODEL, share_own=(0,) * (MAX_COLUMNS + 1), share_mean=(0,) * (MAX_COLUMNS + 1))
    with pytest.raises(FieldError, match="columns below 3, each once"):
        replace(MODEL, sorted_columns=(0, 0))
    with pytest.raises(FieldError, match="at most 262144"):
        Forest((MODEL.forest.trees[0],) * (2**18 + 1), LENGTH)
    names = [f"p{i:04d}" for i in range(2000)]
    long = {
        name: measured("a", participant_id=name, model_sha256=f"{i:064x}") for i, name in enumerate(names)
    }
    # Each joins the group of the next lower id, from the highest down: a chain for who follows it to its root.
    long[names[-1]] = replace(long[names[-1]], twins=tuple((name, MICRO, 0) for name in reversed(names[:-1])))
    assert Overlaps(EVIDENCE, long).clusters == dict.fromkeys(names, "p0000")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.update(claimed_degree="1/0"),
        lambda r: r.update(claimed_degree="x"),
        lambda r: r.update(claimed_degree=None),
        lambda r: r.update(features=[3]),
        lambda r: r.update(features=3),
        lambda r: r.update(features=[["1", 0, 0]] * 3),
        lambda r: r.update(features=[[1, 0, False]] * 3),
        lambda r: r.update(twins=[["b", 1, 2, 3]]),
        lambda r: r.update(twins=[["b", 1]]),
        lambda r: r.update(twins=[["b"]]),
        lambda r: r.update(twins=[["b", "1", 2]]),
        lambda r: r.update(twins=[["b", True, 2]]),
        lambda r: r.update(twins=[["b", 1, "2"]]),
        lambda r: r.update(twins=[["b", 1, True]]),
        lambda r: r.update(twins=[["b", 1, None]]),
        lambda r: r.update(twins=[["b", 1, -1]]),
        lambda r: r.update(twins=[["b", 1, MICRO + 1]]),
        lambda r: r.update(twins=[[1, 1, 1]]),
        lambda r: r.update(twins=["abc"]),
        lambda r: r.update(twins=[7]),
        lambda r: r.update(group=None),
        lambda r: r.update(group=1),
        lambda r: r.update(outside=None),
        lambda r: r.update(outside=False),
        lambda r: r.update(outside="0"),
        lambda r: r.pop("group"),
        lambda r: r.pop("outside"),
        lambda r: r.update(norm=True),
        lambda r: r.update(echo_cosine="0"),
        lambda r: r.update(harm=False),
        lambda r: r.update(harm="0"),
        lambda r: r.update(order=True),
        lambda r: r.update(samples=-1),
        lambda r: r.update(fault=None),
        lambda r: r.update(nearest_broadcast=5),
        lambda r: r.update(scores=[]),
        lambda r: r.update(scores={"dmi": 1}),
        lambda r: r.update(model_sha256="zz" * 32),
        lambda r: r.update(participant_id=7),
        lambda r: r.pop("norm"),
        lambda r: r.update(more=1),
        lambda r: r.pop("order"),
        lambda r: r.pop("twins"),
    ],
)
def test_a_measurement_of_another_form_is_refused_as_a_field(spoil: Callable[[Any], None]) -> None:
    record = json.loads(canonical_bytes(measured("a").record()))
    spoil(record)
    with pytest.raises(FieldError):
        Measurement.from_record(record)


@pytest.mark.parametrize(
    ("micro", "text"),
    [
        (0, "0"),
        (1, "0.000001"),
        (-1, "-0.000001"),
        (1_500_000, "1.5"),
        (-2_000_000, "-2"),
        (10_000_000, "10"),
    ],
)
def test_figures_are_decimals_without_a_superfluous_digit(micro: int, text: str) -> None:
    limits = replace(LIMITS, improvement=-(10**9))
    found = assess(replace(EVIDENCE, thresholds=limits), [measured("a", improvement=micro)])[0]
    assert found.verdicts[2].figures["improvement"] == text


def test_the_arithmetic_has_the_name_and_the_levels_that_ledgers_know_it_by() -> None:
    assert ARITHMETIC == "strata-and-screens/half-even-micro-v10"
    assert [*map(str, EXCESS_LEVELS)] == ["0", "1/2", "1", "3/2", "2", "3", "5"]
    assert NANO == 10**9
    assert KEPT_BROADCASTS == 8
    of_the_submission = {
        "participant_id", "model_sha256", "claimed_degree", "order", "samples", "twins", "group",
        "outside", "harm", "scores",
    }  # fmt: skip
    assert {f.name for f in fields(Measurement)} - of_the_submission == {*OF_MODEL_ALONE}
    assert EVIDENCE.record()["arithmetic"] == ARITHMETIC


def test_what_fails_a_test_says_how_many_honest_models_do() -> None:
    for changes, screen in (
        ({"echo_distance": 0}, "echo"),
        ({"echo_cosine": MICRO}, "echo"),
        ({"norm": 0}, "trained"),
        ({"extra": 550_000}, "samples"),
        ({"shares": (1.0, 0.0, 0.0)}, "claim"),
    ):
        failing = next(v for v in only(measured("a", **changes)).verdicts if not v.passed)  # type: ignore[arg-type]
        assert failing.screen == screen
        assert "At most 0.02 of honest models fail this test." in failing.explanation
    copy = assess(EVIDENCE, [measured("a"), measured("b", twins=alike(a=MICRO))])[1].verdicts[3]
    assert copy.explanation.endswith("paid once. At most 0.02 of honest participants are linked to another.")
    harmful = next(v for v in only(measured("a", harm=MICRO)).verdicts if not v.passed)
    assert "honest" not in harmful.explanation, "what harms is no test of honesty"


def test_evidence_that_is_too_wide_says_what_is_paid_on() -> None:
    wide = replace(EVIDENCE, degree=replace(MODEL, half_width=400_000))
    for claimed, begins in (
        (Fraction(1, 2), "The claimed degree is not lower"),
        (Fraction(0), "The claimed degree of 0"),
    ):
        claim = assess(wide, [measured("a", (1.0, 0.0, 0.0), claimed_degree=claimed)])[0].verdicts[-1]
        assert claim.explanation.startswith(begins)
        assert claim.explanation.endswith(" The evidence is too wide to pay on 0.5; 0.9 is paid on.")
    assert "too wide" not in only(measured("a")).verdicts[-1].explanation


def test_what_was_not_measured_stands_as_nothing_in_the_record() -> None:
    assert Measurement("a", "00" * 32, Fraction(1, 3), 4, 5, fault="late").record() == {
        "participant_id": "a", "model_sha256": "00" * 32, "claimed_degree": "1/3", "order": 4, "samples": 5,
        "fault": "late", "features": [], "norm": 0, "alignment": 0, "novelty": 0, "improvement": 0,
        "echo_distance": 0, "echo_cosine": 0, "straying": 0, "length": 0, "nearest_broadcast": "", "twins": [],
        "group": "", "outside": 0, "harm": None, "scores": {},
    }  # fmt: skip
    assert Measurement("a", "00" * 32, Fraction(0), 0, 0).fault == ""
