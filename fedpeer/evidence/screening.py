"""Tests that an honest model fails at a stated rate, whatever the workload: their limits come from the shadows.

A score is larger the less a model resembles the shadows. The limit of a test at rate a is the conformal quantile, so
that of models that are exchangeable with n shadows at most a fail it. Where a is smaller than 1 / (n + 1), which no
quantile of n scores can show, the largest tenth of the scores (at least `_TAIL` of them, at most half) is taken to fall
off exponentially: peaks over a threshold. A new score is beyond the threshold, which m of n are, with probability
(m + 1) / (n + 1), and then beyond it by more than x with probability (1 + x / (m e))^-m, e the mean excess of the m:
this counts that e is known from m scores only, which an exponential of mean e does not. With a handful of scores the
latter fails honest models at several times the rate.

*Trained* is one test of the six scores of `SCORES`, each held against what is usual of a model of the same mix, as far
as it shows:

    norm            length of the update, over the usual
    alignment       its cosine with where the mix pulls, without what could be taken from models that were sent
                    out, over the usual of a mix of which the shadows tell as much
    novelty         largest deviation of a tensor's share in the change
    improvement     gain on the strata that the model seems to have been trained on, over what shadows of these gain
    echo_distance   distance from every model that was sent out, over the usual length
    echo_cosine     cosine with the steps between these, less what the participant added to them itself
                    (`fedpeer.evidence.sent`)

What is usual is taken of the shadows of one half of D_c, by ridge regressions on the mix (`fedpeer.evidence.likeness`):
a shadow is held against the other half's, as it shares no sample with them, and any other model against both, of which
the mean counts. Without the mix, a model of one stratum, which few shadows are, has unusual scores, and a limit under
which it passes lets noise pass, too. Each score is put on one scale, its excess over the median in units of the mean
excess, and the largest decides: so the six together fail an honest model at the rate of one.

Who keeps its data from round to round meets a start that has seen them: its update is shorter, and other tensors move.
Some shadows are trained as such participants, too. The limit of "trained" is that of all sums of a shadow's score and
of what it moves one of these by, taken as independent; that of "samples" is moved by what moves it in the median.

*Samples* is the distance from flawed shadows, by a ridge regression from the regressors of the degree; the payment is
nothing at the flawed shadows' median. Of models that seem more skewed than any flawed one it says nothing: a line that
is drawn out so far says anything of them. Nor does it say anything where the line does not separate the shadows that it
has not seen (`significantly_lower`), or its limit refuses no flawed one: of few shadows, or where targets are mostly
noise, it is drawn through chance, and what it gives of participants is off by more than of shadows. There it fails
nobody. *Claim* is one-sided: by how much the estimate exceeds the true degree. The
limits of "trained" and "claim" are those of the third of the degrees where they are the greatest; that of "trained" at
least that of the tenth of the shadows with the fewest strata.

What `mechanism.evidence.Thresholds` has besides is no test but policy: how much an aggregate may suffer, and from which
width an interval pays on its upper end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu

from fedpeer.evidence.fitting import Fitted, ShadowTable
from fedpeer.evidence.likeness import mix_of
from fedpeer.evidence.mix_lines import MixLines, lines_and_rest
from fedpeer.evidence.observing import Observation
from fedpeer.evidence.regression import Line, folds, micro, ridge
from fedpeer.evidence.sketch import BUCKETS, Array, cosine, directions, without
from fedpeer.evidence.vector_maps import Halves
from mechanism.evidence import QualityMap, Thresholds
from mechanism.settlement import MICRO

#: Rate at which each test fails an honest model.
RATE = 0.01

#: Policy: relative increase of the aggregate's loss that costs nothing, and from which nothing is paid. A participant
#: of skewed data harms a little, and its degree has cost it enough.
HARM_FULL, HARM_NONE = 0.5, 1.5

#: Policy: half-width of an interval from which its upper end is paid on: of so wide a one the middle says little.
WIDE = 0.35

_CHECK_FOLDS = 10

#: Fewest scores from which the fall of a tail is read.
_TAIL = 25

#: What "trained" looks at, in the order of `Figures.scores`.
SCORES = ("norm", "alignment", "novelty", "improvement", "echo_distance", "echo_cosine")

#: Smallest number that has a logarithm here.
_TINY = 1e-300

#: A cosine below this is none that a sketch can tell from 0.
_LEAST_COSINE = 1 / float(np.sqrt(BUCKETS))

#: Least usual gain, in units of an untrained model's mean loss, that a gain is divided by.
_LEAST_GAIN = 1e-3

#: Distinct samples, over the recipe's, of a sound shadow that the limit of "samples" is taken of, at least: one that
#: repeats what its half of D_c has too little of behaves as a flawed one does, and no participant is like it.
_DISTINCT = 0.5

#: Shadows with the fewest strata, of which "trained" has a limit, too: this part, and at least so many.
_FEW_STRATA, _LEAST_FEW = 0.1, 10


@dataclass(frozen=True)
class Tail:
    """A score's median among the shadows, and the mean excess over it of those beyond it."""

    median: float
    excess: float

    @classmethod
    def of(cls, scores: Array) -> "Tail":
        median = float(np.median(scores))
        beyond = scores[scores > median] - median
        return cls(median, max(float(beyond.mean()) if len(beyond) else 0.0, 1e-9))

    def scaled(self, scores: Array) -> Array:
        result: Array = (scores - self.median) / self.excess
        return result


def limit_at(scores: Array, rate: float) -> float:
    """What an exchangeable score exceeds at `rate`; see the module's text."""
    ordered = np.sort(scores)
    rank = int(np.ceil((1 - rate) * (len(ordered) + 1)))
    if rank <= len(ordered):
        return float(ordered[rank - 1])
    over = int(min(max(_TAIL / len(ordered), 0.1), 0.5) * len(ordered))
    if not over:
        return float(ordered[-1])
    threshold = float(ordered[-over - 1])
    beyond = (over + 1) / (len(ordered) + 1)
    total = float(ordered[-over:].sum()) - over * threshold
    return max(float(ordered[-1]), threshold + total * (float((beyond / rate) ** (1 / over)) - 1))


def significantly_lower(lower: Array, higher: Array) -> bool:
    """Whether a score that is to be lower of one group than of another is: by the rank sum test, at `RATE`.

    Of two groups that are exchangeable it says so at `RATE` at most, whatever the scores' distribution. What is learnt
    from two groups that it cannot tell apart is chance, and is held against nobody.

    Args:
        lower, higher: of shadows that the score has not seen, (m,) and (n,).

    Source: Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than the
    Other", Annals of Mathematical Statistics 18 (1), 1947.
    """
    return bool(mannwhitneyu(lower, higher, alternative="less").pvalue <= RATE)


@dataclass(frozen=True, eq=False)
class ByMix:
    """What is usual of a model of a mix: a mean, and what the mix adds to it.

    Attributes:
        mean: (B,); pull: of what is left.
        rest: standard deviation of what shadows have beyond both, each without itself, (B,).
    """

    mean: Array
    pull: MixLines
    rest: Array

    def __call__(self, mix: Array) -> Array:
        said: Array = self.mean + self.pull(mix)
        return said

    @classmethod
    def of(cls, values: Array, mixes: Array) -> "ByMix":
        """Args: values: (n, B)."""
        mean = values.mean(axis=0)
        pull, rest = lines_and_rest(values - mean, mixes)
        return cls(mean, pull, rest.std(axis=0))


@dataclass(frozen=True, eq=False)
class Usual:
    """What is usual among the shadows of one half of D_c.

    Attributes:
        length: logarithm of the updates' lengths.
        direction: of the update.
        changes: each tensor's share in the change; deviation: of what the mix does not explain.
        gains: of each stratum, of shadows by the squares of its shares in them, (S,).
    """

    length: ByMix
    direction: MixLines
    changes: ByMix
    deviation: Array
    gains: Array

    @classmethod
    def of(cls, shadows: Sequence[Observation], estimated: Array, shares: Array) -> "Usual":
        """Args: estimated: shares of the strata as estimated of each without it; shares: as they are, (n, S)."""
        mixes = mix_of(estimated)
        updates = np.array([each.vectors["update"] for each in shadows])
        lengths = np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), _TINY)
        changes = ByMix.of(np.array([each.changes for each in shadows]), mixes)
        # A tensor whose share hardly varies, for its size, is judged as if it varied by a tenth of what the others do.
        varies = changes.rest / np.maximum(changes.mean, _TINY)
        least = 0.1 * float(np.median(varies)) * changes.mean
        weights = shares**2
        gains = (weights * np.array([each.gains for each in shadows])).sum(axis=0)
        return cls(
            ByMix.of(np.log(lengths), mixes),
            lines_and_rest(directions(updates), mixes)[0],
            changes,
            np.maximum(np.maximum(changes.rest, least), 1e-9),
            np.maximum(gains / np.maximum(weights.sum(axis=0), 1e-12), _LEAST_GAIN),
        )

    def novelty(self, seen: Observation, mix: Array) -> float:
        """The largest deviation of a tensor's share in the change, in standard deviations."""
        return float(np.abs((seen.changes - self.changes(mix)) / self.deviation).max())

    def improvement(self, seen: Observation, mix: Array) -> float:
        """Gain over what is usual on the strata of the mix, by the squares of their shares: small ones are mostly
        errors. A stratum that loses counts as one that gains nothing: of an error in the shares others lose much.
        """
        weights = mix**2
        return float(np.maximum(seen.gains, 0) @ weights / max(float(self.gains @ weights), _TINY))


def cosine_with_pull(
    usual: Sequence[Usual], seen: Observation, mix: Array, others: Sequence[Array]
) -> tuple[float, float]:
    """Logarithm of the update's cosine with where the mix pulls, without what could be taken from `others`; and what
    the shadows do not tell of such a mix (`MixLines.unknown`).
    """
    own, *pulls = without(
        np.array([seen.vectors["update"], *(each.direction(mix) for each in usual)]), others
    )
    found = float(np.mean([cosine(own, pull) for pull in pulls]))
    unknown = float(np.mean([each.direction.unknown(mix) for each in usual]))
    return float(np.log(max(found, _LEAST_COSINE))), unknown


@dataclass(frozen=True)
class Figures:
    """What "trained" and "echo" look at, as `mechanism.evidence.Thresholds` has it, in units.

    Attributes:
        nearest: the number of the public direction that the model is nearest to; -1 for the start.
    """

    norm: float
    alignment: float
    novelty: float
    improvement: float
    echo_distance: float
    echo_cosine: float
    nearest: int

    @classmethod
    def of(
        cls,
        usual: Sequence[Usual],
        usual_cosine: Line,
        seen: Observation,
        shares: Array,
        public: Sequence[Array],
        others: Sequence[Array] | None = None,
    ) -> "Figures":
        """Of one model.

        Args:
            usual: what it is held against.
            usual_cosine: from what is unknown of a mix to the logarithm of the cosine with its pull.
            shares: of the strata, as estimated.
            public: directions from the start to earlier models that were sent out.
            others: these without the model's own part in them; as they are where left out.
        """
        others = public if others is None else others
        update, mix = seen.vectors["update"], mix_of(shares)
        scale = float(np.exp(np.mean([each.length(mix) for each in usual])))
        log_cosine, unknown = cosine_with_pull(usual, seen, mix, others)
        distances = [float(np.linalg.norm(update)), *(float(np.linalg.norm(update - d)) for d in public)]
        nearest = int(np.argmin(distances))
        return cls(
            norm=distances[0] / scale,
            alignment=float(np.exp(log_cosine - usual_cosine(np.array([unknown])))),
            novelty=float(np.mean([each.novelty(seen, mix) for each in usual])),
            improvement=float(np.mean([each.improvement(seen, mix) for each in usual])),
            echo_distance=distances[nearest] / scale,
            echo_cosine=max((abs(cosine(update, d)) for d in others), default=0.0),
            nearest=nearest - 1,
        )

    def scores(self) -> Array:
        """Larger the less it resembles the shadows; in the order of `SCORES`."""
        return np.array(
            [
                abs(np.log(max(self.norm, _TINY))),
                -np.log(max(self.alignment, _TINY)),
                self.novelty,
                -self.improvement,
                -np.log(max(self.echo_distance, _TINY)),
                self.echo_cosine,
            ]
        )


@dataclass(frozen=True, eq=False)
class Screens:
    """The tests of one start.

    Attributes:
        usual: of the shadows of either half; usual_cosine: as `Figures.of` takes it.
        tails: of the scores, in the order of `SCORES`; limit: of the largest on their common scale.
        quality: regressors to 1 for sound and 0 for flawed shadows; least_quality: from which a model passes, 0
            where it tells nothing; flawed_quality: median of the flawed shadows; flawed_degree: what they seem to have
            at most, at `RATE`.
        claim_band: by which an estimate exceeds the true degree at `RATE`.
    """

    usual: tuple[Usual, Usual]
    usual_cosine: Line
    tails: tuple[Tail, ...]
    limit: float
    quality: Line
    least_quality: float
    flawed_quality: float
    flawed_degree: float
    claim_band: float

    def figures(
        self,
        seen: Observation,
        shares: Array,
        public: Sequence[Array] = (),
        others: Sequence[Array] | None = None,
    ) -> Figures:
        """Of one model that is no shadow; `shares` as estimated, (S,)."""
        return Figures.of(self.usual, self.usual_cosine, seen, shares, public, others)

    def limits(self) -> Array:
        """Of the scores, each in its own units."""
        return np.array([tail.median + tail.excess * self.limit for tail in self.tails])

    def quality_map(self) -> QualityMap:
        """The quality in integers."""
        return QualityMap(*self.quality.nano())

    def thresholds(self) -> Thresholds:
        """All limits, as logged."""
        norm, alignment, novelty, improvement, distance, repeat = self.limits().tolist()
        full = min(max(micro(self.least_quality), 0), MICRO)
        return Thresholds(
            # Of the start itself, whose norm and distance are 0, no limit is so wide that it passes.
            norm_low=max(micro(float(np.exp(-norm))), 1),
            norm_high=micro(float(np.exp(norm))),
            alignment=micro(float(np.exp(-alignment))),
            novelty=micro(novelty),
            improvement=micro(-improvement),
            echo_distance=max(micro(float(np.exp(-distance))), 1),
            echo_cosine=micro(repeat),
            quality_full=full,
            quality_none=min(max(micro(self.flawed_quality), 0), full - 1),
            quality_degree=max(micro(self.flawed_degree), 0),
            claim_band=max(micro(self.claim_band), 0),
            harm_full=micro(HARM_FULL),
            harm_none=micro(HARM_NONE),
            wide=micro(WIDE),
            rate=micro(RATE),
        )


def limit_at_worst(scores: Array, degrees: Array) -> float:
    """The limit at `RATE` in the third of all degrees in which it is the greatest; a row of scores each.

    A limit of all shadows together would hold of all degrees together, and those of one end could pay for the others:
    near the reference an estimate can only be too high, and a model of one stratum gains little of what the start
    knows.
    """
    thirds = np.array_split(np.argsort(degrees, kind="stable"), 3)
    return max(limit_at(scores[third].ravel(), RATE) for third in thirds)


def limit_of_few_strata(scores: Array, shares: Array) -> float:
    """The limit at `RATE` of those with the fewest strata; a row of scores each.

    They are few, so that the third of the greatest degrees may hide them, and what is usual of them is known least.
    """
    few = np.argsort(-np.square(shares).sum(axis=1), kind="stable")
    return limit_at(scores[few[: max(_LEAST_FEW, int(_FEW_STRATA * len(few)))]].ravel(), RATE)


def _limit(scores: Array, table: ShadowTable) -> float:
    return max(limit_at_worst(scores, table.degrees), limit_of_few_strata(scores, table.shares))


def fit_screens(
    sound: Sequence[Observation],
    fitted: Fitted,
    table: ShadowTable,
    flawed: ShadowTable | None,
    public: Sequence[Array] = (),
    kept: Sequence[tuple[int, Observation]] = (),
    distinct: Array | None = None,
) -> Screens:
    """Tests whose limits the sound shadows give; without flawed ones everything passes "samples".

    Args:
        public: directions from the start to earlier models that were sent out.
        kept: shadows as participants that took part before, each with its place among the sound ones.
        distinct: samples of each sound one, over the recipe's, (n,); enough where left out.
    """
    halves: Halves = table.halves
    usual = (_usual_of_half(sound, fitted, table, 0), _usual_of_half(sound, fitted, table, 1))
    aligned = np.array(
        [
            cosine_with_pull((usual[1 - half],), each, mix_of(row), public)
            for each, row, half in zip(sound, fitted.shares, halves, strict=True)
        ]
    )
    usual_cosine = ridge(aligned[:, 1:], aligned[:, 0])

    def scores(seen: Sequence[Observation], shares: Array, of: Halves) -> Array:
        return np.array(
            [
                Figures.of((usual[1 - half],), usual_cosine, each, row, public).scores()
                for each, row, half in zip(seen, shares, of, strict=True)
            ]
        )

    plain = scores(sound, fitted.shares, halves)
    tails = tuple(Tail.of(column) for column in plain.T)

    def scaled(found: Array) -> Array:
        result: Array = np.max(
            [tail.scaled(column) for tail, column in zip(tails, found.T, strict=True)], axis=0
        )
        return result

    common = scaled(plain)
    band = limit_at_worst(fitted.residuals, table.degrees)
    limit = _limit(common, table)
    quality, held, of_flawed, flawed_degree = _fit_quality(fitted, table, flawed)
    enough = np.ones(len(held), dtype=bool) if distinct is None else distinct >= _DISTINCT
    least_quality = -limit_at(-held[enough if enough.any() else slice(None)], RATE)
    if kept:
        places = np.array([place for place, _ in kept])
        observed = [each for _, each in kept]
        own = table.rows(places).seen_as(observed)
        features = fitted.maps.of_shadows(own)
        shares = fitted.maps.shadow_shares(features)
        moved = scaled(scores(observed, shares, halves[places])) - common[places]
        limit = max(limit, _limit(np.add.outer(common, moved), table))
        least_quality -= max(float(np.median(held[places] - quality(own.z(features, shares)))), 0.0)
    if not (significantly_lower(of_flawed, held) and (of_flawed < least_quality).any()):
        least_quality = 0.0
    return Screens(
        usual,
        usual_cosine,
        tails,
        limit,
        quality,
        max(least_quality, 0.0),
        float(np.median(of_flawed)),
        flawed_degree,
        band,
    )


def _usual_of_half(sound: Sequence[Observation], fitted: Fitted, table: ShadowTable, half: int) -> Usual:
    of = table.halves == half
    return Usual.of(
        [each for each, chosen in zip(sound, of, strict=True) if chosen], fitted.shares[of], table.shares[of]
    )


def _fit_quality(
    fitted: Fitted, table: ShadowTable, flawed: ShadowTable | None
) -> tuple[Line, Array, Array, float]:
    """The quality, what it says of each sound and of each flawed shadow without it, and what the degrees of flawed ones
    seem to be at most.
    """
    z = fitted.z
    if flawed is None:
        return Line(np.zeros(z.shape[1]), 1.0), np.ones(len(z)), np.ones(1), 0.0
    features = fitted.maps.of_shadows(flawed)
    shares = fitted.maps.shadow_shares(features)
    both = np.concatenate([z, flawed.z(features, shares)])
    target = np.concatenate([np.ones(len(z)), np.zeros(len(both) - len(z))])
    held, groups = np.empty(len(both)), table.joined(flawed).groups
    for rest, fold in folds(groups, _CHECK_FOLDS):
        held[fold] = ridge(both[rest], target[rest])(both[fold])
    degree = limit_at(fitted.maps.estimates(flawed), RATE)
    return ridge(both, target), held[: len(z)], held[len(z) :], degree
