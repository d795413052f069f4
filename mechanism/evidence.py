"""From what was measured of the models of a round to verified degrees and verdicts. Exact, so that it replays.

The coordinator trains shadow models of known degree from the round's start and fits an `EvidenceModel`; of every
submission it takes a `Measurement`. Both are integers and are logged. This module turns them into assessments;
the ledger's verifier calls it again on the logged integers. How they are measured is `fedpeer.evidence`.

`mechanism.degree_map` takes a model's features to its degree v. Its regressors z give the quality, too:

    quality = c_0 + sum_r c_r z_r,  clipped to [0, 1]

about 1 for a model trained on the recipe's number of distinct samples with right targets, about 0 for one that was not.
Coefficients are in billionths; the result is rounded half-even to a millionth once, at its end.

How many distinct samples a model was trained on, over those of the recipe, is 1/y, with y how often it saw each of its
samples, the largest of lines of the same form, not clipped, over the regressors, the straying and the length:

    y = max over lines of (c_0 + sum_r c_r z_r + c_s straying + c_l length),   distinct = 1 / max(1, y)

Without a line everybody has enough.

What samples two models have in common is read from their likeness l, given how far what is not known of their mixes is
the same of both, r, which is measured with it (`fedpeer.evidence.comparing`):

    apart(r), same(r)                                  likeness of models of other samples, and of the same: tables
    linked where l - apart(r) >= link;  o = clip((l - apart(r)) / (same(r) - apart(r)), 0, 1)

Models of one digest, or of a likeness of `ONE_MODEL`, are linked and have o = 1. Models that look alike are a *group*,
which their measurements name with u, what models of such mixes have beyond apart(r) without samples in common: between
two of one group apart(r) + u stands for apart(r), and where u > 0, link (1 - apart(r) - u) / (1 - apart(r)) for link:
the more two models have in common anyhow, the less is left to vary. Of three or more, k, all are linked where

    mean over its pairs of (l - apart(r) - u) >= group_k

if no pair of them shows enough: who hides what samples have in common, such as by noise on the inputs, hides it less in
the mean of many pairs. Those linked through any number of others are a cluster; of each member M = 1 + sum of o over
the other members is how many have one of its samples, in the mean (`mechanism.coverage`).

The limits of the tests are conformal quantiles over the shadows: of honest models at most `rate` fail a test.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from mechanism.affine import NANO, affine, half_even
from mechanism.canonical import Json
from mechanism.degree import rational
from mechanism.degree_map import DegreeMap
from mechanism.errors import FieldError, SettlementError
from mechanism.ranges import integer, integers, keyed, listed, whole
from mechanism.settlement import MICRO, Assessment, Verdict

#: Name of this arithmetic in the log. Any change of a verdict or of a degree's last digit needs a new name.
ARITHMETIC = "strata-and-screens/half-even-micro-v10"

#: Likeness, in millionths, that no two trainings have, whatever their samples: 1 but for rounding.
ONE_MODEL = 999_000

#: Steps of the tables from a likeness.
MAX_STEPS = 100

#: Lines to how often samples are seen.
MAX_LINES = 16

#: Least size of a group, and the largest that has a limit of its own.
LEAST_GROUP, MOST_GROUP = 3, 64

#: Earlier broadcast models, the latest ones, that a submission must not be.
KEPT_BROADCASTS = 8

_DIGEST = re.compile("[0-9a-f]{64}")

#: Of a `Measurement`: integers of the model alone.
_FIGURES = (
    "norm", "alignment", "novelty", "improvement", "echo_distance", "echo_cosine", "straying", "length",
)  # fmt: skip

#: What of a `Measurement` is measured of the model alone: the same for the same model, no matter who sent it.
OF_MODEL_ALONE = ("fault", "features", *_FIGURES, "nearest_broadcast")


@dataclass(frozen=True)
class QualityMap:
    """The line from the regressors of the degree to the quality, or from what else is with them to how often samples
    are seen.

    Attributes:
        weights: c_r, billionths; intercept: c_0, billionths.
    """

    weights: tuple[int, ...]
    intercept: int

    def __post_init__(self) -> None:
        integers("quality.weights", self.weights)
        integer("quality.intercept", self.intercept)

    def __call__(self, z: Sequence[int]) -> int:
        """The value, millionths."""
        return half_even(affine(self.weights, self.intercept, z), NANO)

    def quality_micro(self, z: Sequence[int]) -> int:
        """The quality in [0, 1], millionths."""
        return min(max(self(z), 0), MICRO)

    def record(self) -> dict[str, Json]:
        return {"weights": list(self.weights), "intercept": self.intercept}

    @classmethod
    def from_record(cls, name: str, record: Any) -> "QualityMap":
        """Raises FieldError, about `name`, for a record with other keys or other values than `record` writes."""
        values = keyed(name, record, ["weights", "intercept"])
        return cls(listed(f"{name}.weights", values["weights"]), values["intercept"])


@dataclass(frozen=True)
class Thresholds:
    """Where the tests draw their lines; millionths throughout.

    The first seven are one test together, *trained*: an honest model fails any of them at `rate`. *Overlap*,
    *samples* and *claim* are one test each, at the same rate.

    Attributes:
        norm_low, norm_high: of the update's norm, over the usual of the mix that the model shows.
        alignment: least cosine of the update with where its mix pulls, over the usual.
        novelty: largest deviation of a tensor's share in the change from the usual of the mix, in standard deviations
            of the shadows'.
        improvement: least gain over the start on the strata that the model seems to have been trained on, over the
            usual gain of models of these.
        echo_distance: least distance from a broadcast model, over the usual norm of an update of the mix.
        echo_cosine: largest cosine of the update with a public direction.
        quality_full, quality_none: quality from which the payment is whole, and up to which it is nothing; a
            `quality_full` of 0 or less holds nothing against anybody, as where flawed shadows look like sound ones.
        quality_degree: a model of this estimate or a greater one is more skewed than those that the quality was learnt
            on as flawed; it is not held against it.
        claim_band: a claim lower than the estimate by more than this is refuted.
        harm_full, harm_none: relative increase of the aggregate's loss up to which the payment is whole, and from which
            it is nothing. No test: what is paid for.
        wide: an interval of a greater half-width pays on its upper end.
        rate: of honest models that a test fails, at most.

    Raises:
        FieldError: what is no integer, a band, a width or a rate out of its range, or lines in the wrong order.
    """

    norm_low: int
    norm_high: int
    alignment: int
    novelty: int
    improvement: int
    echo_distance: int
    echo_cosine: int
    quality_full: int
    quality_none: int
    quality_degree: int
    claim_band: int
    harm_full: int
    harm_none: int
    wide: int
    rate: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            integer(f"thresholds.{name}", value)
        whole("thresholds.claim_band", self.claim_band, 0)
        whole("thresholds.wide", self.wide, 0)
        whole("thresholds.rate", self.rate, 0, MICRO)
        for low, high in (
            ("norm_low", "norm_high"), ("quality_none", "quality_full"), ("harm_full", "harm_none"),
        ):  # fmt: skip
            if getattr(self, low) > getattr(self, high):
                raise FieldError(
                    f"thresholds.{low}", getattr(self, low), f"at most {high}, which is {getattr(self, high)}"
                )


@dataclass(frozen=True)
class LikenessMap:
    """What a likeness says of samples in common; see the module's text. Millionths.

    Attributes:
        apart, same: at evenly spaced r from 0 to 1, linear between; 2 to `MAX_STEPS` + 1 each.
        link: likeness beyond `apart` from which two models are linked; above 0.
        group: the same of all pairs of `LEAST_GROUP` models, of one more, and so on, in the mean; of larger ones than
            it has, the last. Each above 0; empty where no group is linked.
    """

    apart: tuple[int, ...]
    same: tuple[int, ...]
    link: int
    group: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("apart", "same"):
            integers(f"likeness.{name}", getattr(self, name))
            if not 2 <= len(getattr(self, name)) <= MAX_STEPS + 1:
                raise FieldError(f"likeness.{name}", getattr(self, name), f"2 to {MAX_STEPS + 1} integers")
        whole("likeness.link", self.link)
        if len(self.group) > MOST_GROUP - LEAST_GROUP + 1:
            raise FieldError("likeness.group", self.group, f"at most {MOST_GROUP - LEAST_GROUP + 1} integers")
        for limit in self.group:
            whole("likeness.group", limit)

    def group_limit(self, size: int) -> int | None:
        """From which mean a group of so many is linked, millionths; None where no group of that size is."""
        if size < LEAST_GROUP or not self.group:
            return None
        return self.group[min(size - LEAST_GROUP, len(self.group) - 1)]

    def usual(self, r: int) -> tuple[int, int]:
        """apart(r) and same(r), rounded half-even; r from 0 to 1, millionths."""
        return _between(self.apart, r), _between(self.same, r)

    def record(self) -> dict[str, Json]:
        return {
            "apart": list(self.apart),
            "same": list(self.same),
            "link": self.link,
            "group": list(self.group),
        }

    @classmethod
    def from_record(cls, record: Any) -> "LikenessMap":
        """Raises FieldError for a record with other keys or other values than `record` writes."""
        values = keyed("likeness", record, [f.name for f in fields(cls)])
        lists = {name: listed(f"likeness.{name}", values[name]) for name in values if name != "link"}
        return cls(**lists, link=values["link"])


def _between(table: Sequence[int], r: int) -> int:
    step, rest = divmod(r * (len(table) - 1), MICRO)
    if step == len(table) - 1:
        return table[-1]
    return table[step] + half_even((table[step + 1] - table[step]) * rest, MICRO)


@dataclass(frozen=True)
class EvidenceModel:
    """Everything that the verdicts of one round rest on besides the submissions.

    Attributes:
        round: r.
        start_sha256: digest of the broadcast model. In a log, of its file: the terms' initial model, then the one of
            the last aggregation.
        validation_sha256: digest of D_c. In a log, the terms' commitment to it.
        shadows_sha256: digest of the shadow set: counts, halves and features of every shadow.
        shadows: sound shadows that were trained for this round; carried: those of earlier rounds that joined the fit.
        degree, quality: maps from features, over the same regressors.
        likeness: what the likeness of two models says.
        distinct: lines to how often a model saw each of its samples; at most `MAX_LINES`, none where none was fitted.
        computed_on: what the shadows' last digits depend on, as texts by name, such as the processor's instruction set
            and the versions of libraries; the same for all shadows of the round.

    Raises:
        FieldError: a round or a number of shadows below 1, a digest that is none, or maps over different regressors.
    """

    round: int
    start_sha256: str
    validation_sha256: str
    shadows_sha256: str
    shadows: int
    carried: int
    degree: DegreeMap
    quality: QualityMap
    thresholds: Thresholds
    likeness: LikenessMap
    distinct: tuple[QualityMap, ...] = ()
    computed_on: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("round", self.round)
        _check_texts("computed_on", self.computed_on)
        whole("shadows", self.shadows)
        whole("carried", self.carried, 0)
        for name in ("start_sha256", "validation_sha256", "shadows_sha256"):
            _check_digest(name, getattr(self, name))
        if len(self.distinct) > MAX_LINES:
            raise FieldError("distinct", f"{len(self.distinct)} lines", f"at most {MAX_LINES}")
        regressors = len(self.degree.weights)
        for name, line, count in (
            ("quality", self.quality, regressors),
            *(("distinct", line, regressors + 2) for line in self.distinct),
        ):
            if len(line.weights) != count:
                raise FieldError(f"{name}.weights", line.weights, f"{count} coefficients")

    def distinct_micro(self, z: Sequence[int], straying: int, length: int) -> int:
        """Distinct samples over those of the recipe, at most 1, millionths."""
        times = max((line((*z, straying, length)) for line in self.distinct), default=MICRO)
        return MICRO if times <= MICRO else half_even(MICRO * MICRO, times)

    def record(self) -> dict[str, Json]:
        return {
            "arithmetic": ARITHMETIC,
            "round": self.round,
            "start_sha256": self.start_sha256,
            "validation_sha256": self.validation_sha256,
            "shadows_sha256": self.shadows_sha256,
            "shadows": self.shadows,
            "carried": self.carried,
            "degree": self.degree.record(),
            "quality": self.quality.record(),
            "thresholds": {f.name: getattr(self.thresholds, f.name) for f in fields(Thresholds)},
            "likeness": self.likeness.record(),
            "distinct": [line.record() for line in self.distinct],
            "computed_on": dict(self.computed_on),
        }

    @classmethod
    def from_record(cls, record: Any) -> "EvidenceModel":
        """Raises FieldError for a record of another arithmetic, with other keys or with values out of their range."""
        values = keyed("evidence.model", record, ["arithmetic", *(f.name for f in fields(cls))])
        if (arithmetic := values.pop("arithmetic")) != ARITHMETIC:
            raise FieldError("evidence.arithmetic", arithmetic, ARITHMETIC)
        limits = keyed("thresholds", values["thresholds"], [f.name for f in fields(Thresholds)])
        values["degree"] = DegreeMap.from_record(values["degree"])
        values["quality"] = QualityMap.from_record("quality", values["quality"])
        values["likeness"] = LikenessMap.from_record(values["likeness"])
        lines = listed("distinct", values["distinct"])
        values["distinct"] = tuple(QualityMap.from_record("distinct", line) for line in lines)
        values["thresholds"] = Thresholds(**limits)
        return cls(**values)


@dataclass(frozen=True)
class Measurement:
    """What was measured of one submission. Figures are integers, millionths; a contract fault leaves them at 0.

    Attributes:
        participant_id, model_sha256, claimed_degree: of the submission.
        order: of its commitment. In a log, the sequence of its model's entry.
        samples: as claimed.
        fault: why the model breaks the contract, or came too late; empty where it is in order.
        features: rows x_i, one a stratum, millionths.
        norm, alignment, novelty, improvement, echo_distance, echo_cosine: see `Thresholds`.
        straying: how far the update lies from what other models span, squared, over the usual squared length.
        length: of the update, over the usual length of all mixes; `norm` is over that of the mix that the model shows.
        nearest_broadcast: which broadcast model is nearest, such as "round 2".
        twins: of the first who has sent the model: those of its cluster who are the first to have sent another, and are
            more alike than models of other samples are, and all others of its group: id, likeness, and r from 0 to 1.
            Two name each other with the same two numbers.
        group: of the first who has sent the model: the first member of its group in id order; empty without one.
        outside: what models of its group's mixes have beyond `apart` without samples in common; the same for all
            members, 0 without a group.
        harm: relative increase of the aggregate's loss on D_c by this model; None where it is in no aggregate.
        scores: what other rules pay on, decimal strings by rule name.

    Raises:
        FieldError: a value of another type, a number below 0 where there is none, or a digest that is none.
    """

    participant_id: str
    model_sha256: str
    claimed_degree: Fraction
    order: int
    samples: int
    fault: str = ""
    features: tuple[tuple[int, ...], ...] = ()
    norm: int = 0
    alignment: int = 0
    novelty: int = 0
    improvement: int = 0
    echo_distance: int = 0
    echo_cosine: int = 0
    straying: int = 0
    length: int = 0
    nearest_broadcast: str = ""
    twins: tuple[tuple[str, int, int], ...] = ()
    group: str = ""
    outside: int = 0
    harm: int | None = None
    scores: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_digest("model_sha256", self.model_sha256)
        if not all(len(twin) == 3 for twin in self.twins):
            raise FieldError("twins", self.twins, "an id, a likeness and r each")
        texts = (
            self.participant_id, self.fault, self.nearest_broadcast, self.group, *self.scores, *self.scores.values(),
        )  # fmt: skip
        for text in (*texts, *(name for name, *_ in self.twins)):
            if not isinstance(text, str):
                raise FieldError("measurement", text, "names, reasons and scores that are strings")
        whole("order", self.order, 0)
        whole("samples", self.samples, 0)
        for name in _FIGURES:
            integer(name, getattr(self, name))
        integer("outside", self.outside)
        integer("harm", 0 if self.harm is None else self.harm)
        integers("twins", tuple(likeness for _, likeness, _ in self.twins))
        for *_, r in self.twins:
            whole("twins", r, 0, MICRO)
        for row in self.features:
            integers("features", row)

    def record(self) -> dict[str, Json]:
        return {
            **vars(self),
            "claimed_degree": str(self.claimed_degree),
            "features": [list(row) for row in self.features],
            "twins": [list(twin) for twin in self.twins],
            "scores": dict(self.scores),
        }

    @classmethod
    def from_record(cls, record: Any) -> "Measurement":
        """Raises FieldError for a record with other keys or other values than `record` writes."""
        values = keyed("measurement", record, _MEASURED)
        claimed = rational("claimed_degree", values["claimed_degree"])
        if str(claimed) != values["claimed_degree"]:
            raise FieldError(
                "claimed_degree", values["claimed_degree"], f"{str(claimed)!r}, its one notation"
            )
        values["claimed_degree"] = claimed
        values["features"] = tuple(listed("features", row) for row in listed("features", values["features"]))
        values["twins"] = tuple(listed("twins", twin) for twin in listed("twins", values["twins"]))
        if not isinstance(values["scores"], dict):
            raise FieldError("scores", values["scores"], "an object")
        return cls(**values)


_MEASURED = frozenset(f.name for f in fields(Measurement))


def assess(
    model: EvidenceModel, measurements: Sequence[Measurement], earlier: Collection[str] = ()
) -> tuple[Assessment, ...]:
    """Verified degrees and verdicts of a round, in participant-id order. Pure and exact.

    Models of equal digest are copies, and one with a broadcast model's digest is an echo, whatever was measured.

    Args:
        earlier: digests of the latest `KEPT_BROADCASTS` models that were sent out before the round's start.

    Raises:
        SettlementError: a participant measured twice.
        FieldError: features that do not fit the model.
    """
    by_id = {m.participant_id: m for m in sorted(measurements, key=lambda m: m.participant_id)}
    if len(by_id) != len(measurements):
        raise SettlementError("a participant is measured twice in one round; expected one submission each")
    sent_out = {model.start_sha256, *earlier}
    alone = {name: _screen_alone(model.thresholds, m, sent_out) for name, m in by_id.items()}
    # A participant that fails alone is not scored anyway, and models that learnt nothing all look alike.
    passing = {name: m for name, m in by_id.items() if all(v.passed for v in alone[name])}
    overlaps = Overlaps(model, passing)
    return tuple(_assessment(model, m, alone[name], overlaps) for name, m in by_id.items())


class Overlaps:
    """What samples the models of a round have in common, and the clusters that this makes.

    A model that several have sent stands once: what it has in common with another is said by the twins of the first who
    has sent it, and counts for each of them. So m copies of one model take no more room than one of them.

    Args:
        measurements: of those that pass alone, by participant id, in id order.
    """

    def __init__(self, model: EvidenceModel, measurements: Mapping[str, Measurement]) -> None:
        self._model, self._measured = model, measurements
        self._first = first_of(measurements.values())
        self._groups = self._linked_groups()
        self.clusters = self._components()
        #: Who has sent each model of a cluster, in id order, by digest.
        self._models: dict[str, dict[str, list[str]]] = {}
        for name, cluster in self.clusters.items():
            models = self._models.setdefault(cluster, {})
            models.setdefault(measurements[name].model_sha256, []).append(name)
        #: Of each model that was asked for: o summed over those who have sent others, and the largest o, with whose.
        self._others: dict[str, tuple[int, tuple[int, str]]] = {}

    def holders(self, name: str) -> tuple[int, str, int]:
        """How many of its cluster have one of its samples, in the mean, millionths, itself included; the other that has
        most of them, of several the last in id order; and the part that it has. MICRO, "" and 0 without a cluster."""
        if name not in self.clusters:
            return MICRO, "", 0
        digest = self._measured[name].model_sha256
        if digest not in self._others:
            self._others[digest] = self._with_others(digest, self._models[self.clusters[name]])
        total, most = self._others[digest]
        copies = self._models[self.clusters[name]][digest]
        if len(copies) > 1:
            most = max(most, (MICRO, copies[-1] if copies[-1] != name else copies[-2]))
        return total + MICRO * len(copies), most[1], most[0]

    def _with_others(self, digest: str, models: Mapping[str, Sequence[str]]) -> tuple[int, tuple[int, str]]:
        total, most = 0, (0, "")
        twins = {name: figures for name, *figures in self._measured[self._first[digest]].twins}
        for other, senders in models.items():
            if other != digest:
                figures = twins.get(self._first[other])
                part = 0 if figures is None else self.part(self._first[digest], self._first[other], *figures)
                total, most = total + part * len(senders), max(most, (part, senders[-1]))
        return total, most

    def part(self, name: str, other: str, likeness: int, r: int) -> int:
        """o of two members of a cluster with other models, of that likeness and r, millionths."""
        if likeness >= ONE_MODEL:
            return MICRO
        apart, same = self._usual(name, other, r)
        if likeness <= apart:
            return 0
        return MICRO if likeness >= same else half_even(MICRO * (likeness - apart), same - apart)

    def one_group(self, name: str, other: str) -> bool:
        """Whether both name one group."""
        group = self._measured[name].group
        return bool(group) and group == self._measured[other].group

    def _usual(self, name: str, other: str, r: int) -> tuple[int, int]:
        """apart(r), within a group with u, and same(r)."""
        apart, same = self._model.likeness.usual(r)
        return apart + self._measured[name].outside * self.one_group(name, other), same

    def _is_linked(self, name: str, other: str, likeness: int, r: int) -> bool:
        """Whether the two are linked as a pair."""
        apart, base, link = (
            self._model.likeness.usual(r)[0],
            self._usual(name, other, r)[0],
            self._model.likeness.link,
        )
        if likeness >= ONE_MODEL or base <= apart:
            return likeness >= ONE_MODEL or likeness - base >= link
        return base < MICRO and (likeness - base) * (MICRO - apart) >= link * (MICRO - base)

    def _linked_groups(self) -> dict[str, str]:
        """Participant to the name of its group, of the groups whose mean is not below the limit."""
        named: dict[str, list[str]] = {}
        for name in sorted(set(self._first.values())):
            if self._measured[name].group:
                named.setdefault(self._measured[name].group, []).append(name)
        found = {}
        for group, members in named.items():
            limit = self._model.likeness.group_limit(len(members))
            if limit is not None and 2 * self.beyond(members) >= limit * len(members) * (len(members) - 1):
                found.update(dict.fromkeys(members, group))
        return found

    def beyond(self, members: Sequence[str]) -> int:
        """Of a group's pairs, the sum of l - apart(r) - u, millionths; where a pair is not named l and r are 0."""
        total, usual = 0, self._model.likeness.usual
        for k, name in enumerate(members):
            own = self._measured[name]
            twins = {other: likeness - usual(r)[0] for other, likeness, r in own.twins}
            total += sum(twins.get(other, -usual(0)[0]) - own.outside for other in members[:k])
        return total

    def _components(self) -> dict[str, str]:
        """Participant to cluster: the connected components of the links, of two or more, named after their first id."""
        measured = self._measured
        parent = {name: name for name in measured}
        leaders: dict[str, str] = {}

        def root(name: str) -> str:
            while parent[name] != name:
                parent[name] = name = parent[parent[name]]  # halves the way for the next one
            return name

        for name, measurement in measured.items():
            linked = [
                other
                for other, likeness, r in measurement.twins
                if other in parent and self._is_linked(name, other, likeness, r)
            ]
            if name in self._groups:
                linked.append(leaders.setdefault(self._groups[name], name))
            for other in (self._first[measurement.model_sha256], *linked):
                first, second = sorted((root(name), root(other)))
                parent[second] = first
        members: dict[str, list[str]] = {}
        for name in measured:
            members.setdefault(root(name), []).append(name)
        return {name: first for first, group in members.items() if len(group) > 1 for name in group}


def first_of(measurements: Iterable[Measurement]) -> dict[str, str]:
    """The first in id order of those who have sent each model, by its digest."""
    found: dict[str, str] = {}
    for m in measurements:
        found[m.model_sha256] = min(m.participant_id, found.get(m.model_sha256, m.participant_id))
    return found


def _assessment(
    model: EvidenceModel,
    measurement: Measurement,
    verdicts: list[Verdict],
    overlaps: Overlaps,
) -> Assessment:
    limits, name = model.thresholds, measurement.participant_id
    common = {
        "participant_id": measurement.participant_id,
        "model_sha256": bytes.fromhex(measurement.model_sha256),
        "claimed_degree": measurement.claimed_degree,
        "cluster": overlaps.clusters.get(name),
        "scores": dict(measurement.scores),
    }
    # Features of another form are refused whatever the verdict.
    z = () if measurement.fault else model.degree.regressors(measurement.features)
    if not all(v.passed for v in verdicts):
        # What lies outside the shadows' ensemble is not scored: there the estimate means nothing.
        return Assessment(**common, verified_micro=None, verdicts=tuple(verdicts))  # type: ignore[arg-type]
    estimate, quality = model.degree.degree_of(z), model.quality.quality_micro(z)
    half = model.degree.half_width
    lower, upper = max(estimate - half, 0), min(estimate + half, MICRO)
    verified = upper if half > limits.wide else estimate
    of_quality = MICRO
    if estimate < limits.quality_degree:
        of_quality = _taper(quality, limits.quality_none, limits.quality_full)
    harm = measurement.harm or 0
    of_harm = _taper(-harm, -limits.harm_none, -limits.harm_full)
    claimed = measurement.claimed_degree.numerator * MICRO
    refuted = claimed < (estimate - limits.claim_band) * measurement.claimed_degree.denominator
    holders, nearest, shared = overlaps.holders(name)
    distinct = model.distinct_micro(z, measurement.straying, measurement.length)
    verdicts += [
        _overlapping(limits, holders, nearest, shared),
        _samples(quality, distinct, limits, of_quality),
        _contribution(harm, limits, of_harm),
        _claim(measurement.claimed_degree, estimate, lower, upper, limits, refuted, verified > estimate),
    ]
    return Assessment(
        **common,  # type: ignore[arg-type]  # the keys are Assessment's own
        verified_micro=verified,
        lower_micro=lower,
        upper_micro=upper,
        multiplier_ppm=of_quality * of_harm // MICRO,
        refuted=refuted,
        holders_micro=holders,
        distinct_micro=distinct,
        verdicts=tuple(verdicts),
    )


def _screen_alone(limits: Thresholds, m: Measurement, sent_out: Collection[str]) -> list[Verdict]:
    """The screens that look at one submission only and that decide whether it is scored."""
    if m.fault:
        return [Verdict("contract", False, f"The model was not scored: {m.fault}.", {})]
    ordered = Verdict(
        "contract",
        True,
        "The model has the task's tensors, all of its numbers are finite, and it came in time.",
    )
    return [ordered, _echo(limits, m, sent_out), _trained(limits, m)]


def _echo(limits: Thresholds, m: Measurement, sent_out: Collection[str]) -> Verdict:
    figures = {"distance": _decimal(m.echo_distance), "cosine": _decimal(m.echo_cosine)}
    if m.model_sha256 in sent_out or m.echo_distance < limits.echo_distance:
        return Verdict(
            "echo",
            False,
            f"The model is the broadcast model of {m.nearest_broadcast} again, or nearly: its distance is "
            f"{_decimal(m.echo_distance)} of what training changes; expected at least "
            f"{_decimal(limits.echo_distance)}. Train on your own data and submit the result. {_error_rate(limits)}",
            figures,
        )
    if m.echo_cosine > limits.echo_cosine:
        return Verdict(
            "echo",
            False,
            "The update repeats a step between models that the coordinator itself has sent: their cosine is "
            f"{_decimal(m.echo_cosine)}; expected at most {_decimal(limits.echo_cosine)}. {_error_rate(limits)}",
            figures,
        )
    return Verdict("echo", True, "The model is no copy of one that the coordinator has sent.", figures)


def _trained(limits: Thresholds, m: Measurement) -> Verdict:
    figures = {
        "norm": _decimal(m.norm),
        "alignment": _decimal(m.alignment),
        "novelty": _decimal(m.novelty),
        "improvement": _decimal(m.improvement),
    }
    faults = []
    if not limits.norm_low <= m.norm <= limits.norm_high:
        faults.append(
            f"its update has {_decimal(m.norm)} of the usual length, expected {_decimal(limits.norm_low)} to "
            f"{_decimal(limits.norm_high)}"
        )
    if m.alignment < limits.alignment:
        faults.append(
            f"its update goes where its mix pulls {_decimal(m.alignment)} as much as is usual, expected at least "
            f"{_decimal(limits.alignment)}"
        )
    if m.novelty > limits.novelty:
        faults.append(
            f"a tensor's part in the change is {_decimal(m.novelty)} standard deviations from the usual, expected "
            f"at most {_decimal(limits.novelty)}"
        )
    if m.improvement < limits.improvement:
        faults.append(
            f"on the strata that it seems to have been trained on it gains {_decimal(m.improvement)} of the usual, "
            f"expected at least {_decimal(limits.improvement)}"
        )
    if faults:
        return Verdict(
            "trained",
            False,
            f"The model was not trained from the broadcast model by the task's recipe: {'; '.join(faults)}. "
            f"{_error_rate(limits)}",
            figures,
        )
    return Verdict("trained", True, "The model behaves like one trained by the task's recipe.", figures)


def _overlapping(limits: Thresholds, holders: int, nearest: str, common: int) -> Verdict:
    if holders == MICRO:
        return Verdict("overlap", True, "No other model of the round shows samples of this one.", {})
    figures = {"holders": _decimal(holders), "nearest": nearest, "common": _decimal(common)}
    return Verdict(
        "overlap",
        False,
        f"A sample of this model is had by {_decimal(holders)} participants of the round in the mean, most by "
        f"{nearest}, which has {_decimal(common)} of them: what several have is paid once. At most "
        f"{_decimal(limits.rate)} of honest participants are linked to another.",
        figures,
    )


def _samples(quality: int, distinct: int, limits: Thresholds, kept: int) -> Verdict:
    figures = {"quality": _decimal(quality), "kept": _decimal(kept), "distinct": _decimal(distinct)}
    if limits.quality_full <= 0:
        shown = ""
        if distinct < MICRO:
            shown = f"The model shows {_decimal(distinct)} of the distinct samples that the recipe asks for. "
        return Verdict(
            "samples",
            True,
            f"{shown}Shadow models of few distinct samples or wrong targets look like others here: neither is held "
            "against any model.",
            figures,
        )
    if kept == MICRO:
        shown = "enough distinct samples"
        if distinct < MICRO:
            shown = f"{_decimal(distinct)} of the distinct samples that the recipe asks for,"
        return Verdict("samples", True, f"The model shows {shown} with right targets.", figures)
    return Verdict(
        "samples",
        False,
        "The model behaves like one trained on few distinct samples or on wrong targets: quality "
        f"{_decimal(quality)}, expected at least {_decimal(limits.quality_full)}; {_decimal(kept)} of the "
        f"payment is kept. {_error_rate(limits)}",
        figures,
    )


def _contribution(harm: int, limits: Thresholds, kept: int) -> Verdict:
    figures = {"harm": _decimal(harm), "kept": _decimal(kept)}
    if kept == MICRO:
        return Verdict("contribution", True, "The aggregate is not much worse with this model.", figures)
    return Verdict(
        "contribution",
        False,
        f"With this model the aggregate's loss is {_decimal(harm)} higher in proportion than without; up to "
        f"{_decimal(limits.harm_full)} costs nothing; {_decimal(kept)} of the payment is kept.",
        figures,
    )


def _claim(
    claimed: Fraction, estimate: int, lower: int, upper: int, limits: Thresholds, refuted: bool, wide: bool
) -> Verdict:
    figures = {
        "claimed": _decimal(half_even(claimed.numerator * MICRO, claimed.denominator)),
        "verified": _decimal(estimate),
        "lower": _decimal(lower),
        "upper": _decimal(upper),
        "band": _decimal(limits.claim_band),
    }
    text = "The claimed degree is not lower than the evidence allows."
    if refuted:
        text = (
            f"The claimed degree of {figures['claimed']} is refuted: the model shows {figures['verified']}, and a "
            f"claim may be lower by at most {figures['band']}. Claim what your counts give. {_error_rate(limits)}"
        )
    if wide:
        text += f" The evidence is too wide to pay on {figures['verified']}; {figures['upper']} is paid on."
    return Verdict("claim", not refuted, text, figures)


def _error_rate(limits: Thresholds) -> str:
    return f"At most {_decimal(limits.rate)} of honest models fail this test."


def _taper(value: int, none: int, full: int) -> int:
    """0 up to `none`, MICRO from `full`, linear between, rounded down."""
    if value >= full:
        return MICRO
    if value <= none:
        return 0
    return (value - none) * MICRO // (full - none)


def _decimal(micro: int) -> str:
    """Millionths as a decimal string with at most six digits after the point, without trailing zeros."""
    whole, rest = divmod(abs(micro), MICRO)
    text = f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)
    return f"-{text}" if micro < 0 else text


def _check_texts(name: str, value: Any) -> None:
    """Up to 16 texts of 1 to 200 characters, under names of such."""
    good = type(value) is dict and len(value) <= 16
    if not good or not all(type(t) is str and 1 <= len(t) <= 200 for pair in value.items() for t in pair):
        raise FieldError(name, value, "at most 16 texts of 1 to 200 characters by names of such")


def _check_digest(field: str, value: Any) -> None:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise FieldError(field, value, "a SHA-256 in lower-case hexadecimal")
