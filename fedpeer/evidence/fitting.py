"""From trained shadows to the round's evidence model: linear maps, prediction interval, thresholds.

The linear maps of `mechanism.evidence` are ridge regressions on standardised features; their penalty is chosen by
leave-one-out. What an update's direction tells (`fedpeer.evidence.updates`) is the last feature of each label. The
degree is the mean of a line and of extremely randomised trees, which see what bends: on digits either alone is off
by 2 to 10 % more. Every step sees of a shadow what the step before said without it, as it does of a participant.

The interval is conformal: its half-width is the (1 - ALPHA) quantile, with the finite-sample correction, of what
cross-validation of all steps is off by, widened by `SHARED` and `TRANSFER`. The thresholds start from what sound
shadows show and leave a margin.

Sources: Geurts, Ernst, Wehenkel 2006, extremely randomized trees; Vovk 2015, cross-conformal predictors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedpeer.evidence.behaviour import (
    CLASS_FEATURES,
    GLOBAL_FEATURES_BEFORE_CHANGES,
    SORTED_FEATURES,
    Behaviour,
    micro,
)
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.likeness import Likeness
from fedpeer.evidence.regression import (
    Indices,
    Line,
    LineAndTrees,
    conformal_quantile,
    folds,
    label_rows,
    ridge,
)
from fedpeer.evidence.shadows import Shadow, ShadowContext
from fedpeer.evidence.sketch import Array, Sketcher, cosine, without
from fedpeer.evidence.updates import UpdateShares, fit_update_shares
from mechanism.canonical import canonical_digest
from mechanism.evidence import DegreeModel, EvidenceModel, Thresholds, regressors
from mechanism.settlement import MICRO

#: Nominal rate of misses of the prediction interval.
ALPHA = 0.1

#: By how much the interval is wider than the shadows' residuals: always, and over the start's accuracy on D_c. Shadows
#: share D_c's samples, so that one tells more of another than of a participant, and the more the more a start has
#: learnt. On digits the 0.9 quantile of participants' errors is 1.0 and 1.14 times the shadows' (15 and 12 fresh
#: starts), and 1.2 and 1.10 times after a round (16 and 12).
SHARED, TRANSFER = 0.07, 0.12

#: Fewest sound shadows: with fewer the interval's quantile is the largest residual, and the maps are guesses.
MIN_SHADOWS = 30

#: Least margin of an update's length, as a difference of logarithms: with Adam honest lengths differ by a tenth.
_LEAST_LENGTH_MARGIN = 0.25

#: Of the least cosine that a shadow has with the others' mean, how much a submission must have: participants' data
#: are further from the shadows' than these are from one another. And the least that is asked: noise has 0.01.
_ALIGNMENT_KEPT, _LEAST_ALIGNMENT = 0.3, 0.03

#: Of the largest estimated share, what a label's share counts as nothing. With 0 an honest participant of one label was
#: refused on digits and flipped signs were not; from 0.3 to 0.8 the two lie 0.3 nats apart or more.
_SHARE_CUT = 0.3

#: Standard deviations of a tensor's change that nobody is refused for. Honest digits reach 6.2, random weights start
#: at 34, and what lies between is found by its length or its cosine.
_LEAST_NOVELTY = 12.0

#: Of the usual length of an update, how far from every broadcast model a submission must lie.
_ECHO_DISTANCE = 0.35

#: Cosines of two updates (without the shadows' mean), and of two models' outputs (without the mean of shadows and of
#: labels), from which they count as one. Honest participants with one label mix reach 0.64 and 0.62 on digits, a
#: model trained twice on the same data 0.65 to 0.83 and 0.81 to 0.92. Outputs alone say nothing: all models that
#: learnt nothing agree. So outputs count where the updates, too, have at least the third cosine.
_TWIN_WEIGHTS, _TWIN_OUTPUTS, _TWIN_LEAST = 0.75, 0.78, 0.4

#: Least and greatest quality from which the payment is whole. Sound shadows lie near 1 and flawed ones near 0, but
#: a sound shadow of one label repeats few samples, too: so a shadow of low quality in twenty is allowed for.
_QUALITY = (0.3, 0.8)

#: How far below the lowest twentieth of the sound shadows' quality the payment is still whole. With 0.1, 1.0 % of the
#: honest were cut on digits after a round, with 0.15 0.7 %.
_QUALITY_MARGIN = 0.15

#: Relative increase of the aggregate's loss that costs nothing, and from which nothing is paid. Among eight, an
#: honest participant of degree 0.8 reaches 0.34, and its degree has cost it enough.
_HARM = (0.5, 1.5)

#: The error band of a claim covers this level of the residuals, and half as much again for what participants differ
#: from shadows; its least and greatest width. A wider one would let a claim pass that is 0.3 too low.
_CLAIM_LEVEL, _CLAIM_MARGIN, _CLAIM_BAND = 0.98, 1.5, (0.15, 0.24)

#: Half-width from which the interval counts as too wide, and its upper end is paid on.
_WIDE = 0.35

_CROSS_FOLDS, _CHECK_FOLDS = 8, 10


@dataclass(frozen=True)
class ShadowEnsemble:
    """What the shadows of one start say.

    Attributes:
        model: maps and thresholds, as logged.
        context: what the shadows were trained from.
        median_norm: of the shadows' updates (sketched).
        mean_update: their mean, sketched.
        mean_outputs: their mean log probabilities on the probe, shape (probes, I).
        spread: per tensor, mean and standard deviation of the logarithm of its change.
        sketcher: for updates.
        updates: from a sketched update to the last class feature.
        update_likeness, output_likeness: of models by their updates and by their outputs, each without the mean.
        residuals: cross-validated errors of the degree, one a sound shadow.
        seconds: that planning, training and fitting took.
    """

    model: EvidenceModel
    context: ShadowContext
    median_norm: float
    mean_update: Array
    mean_outputs: Array
    spread: tuple[Array, Array]
    sketcher: Sketcher
    updates: UpdateShares
    update_likeness: Likeness
    output_likeness: Likeness
    residuals: Array
    seconds: float


@dataclass(frozen=True)
class _Table:
    """Observations of shadows, (S, I, m), (S, g) and (S, B), and their targets, (S, I) and (S,)."""

    class_features: Array
    global_features: Array
    sketches: Array
    shares: Array
    degrees: Array
    reference: tuple[Fraction, ...]

    def rows(self, chosen: Indices) -> "_Table":
        return _Table(
            self.class_features[chosen],
            self.global_features[chosen],
            self.sketches[chosen],
            self.shares[chosen],
            self.degrees[chosen],
            self.reference,
        )

    def z(self, class_features: Array, shares: Array) -> Array:
        """The regressors, computed by the very function that settles; of features with what the updates tell."""
        return (
            np.array(
                [
                    regressors(
                        self.reference,
                        SORTED_FEATURES,
                        np.rint(x * MICRO).astype(np.int64).tolist(),
                        np.rint(p * MICRO).astype(np.int64).tolist(),
                        np.rint(g * MICRO).astype(np.int64).tolist(),
                    )
                    for x, p, g in zip(class_features, shares, self.global_features, strict=True)
                ],
                dtype=np.float64,
            )
            / MICRO
        )


@dataclass(frozen=True)
class _Maps:
    """From what was observed of a model to its degree: updates to shares, features to shares, regressors to degree."""

    updates: UpdateShares
    shares: Line
    degree: LineAndTrees

    def features(self, table: _Table) -> Array:
        """Class features of models that the maps have not seen, shape (n, I, m + 1)."""
        return _with_updates(table.class_features, self.updates(table.sketches))

    def estimates(self, table: _Table) -> Array:
        """Degrees of models that the maps have not seen, not clipped."""
        features = self.features(table)
        return self.degree(table.z(features, _shares(self.shares, features)))


@dataclass(frozen=True)
class Fitted:
    """What the shadows support.

    Attributes:
        model: maps and thresholds, as logged.
        updates: from a sketched update to the last class feature.
        shares: of the labels, as measured of each sound shadow without it, shape (S, I).
        residuals: cross-validated errors of the degree, one a sound shadow.
    """

    model: EvidenceModel
    updates: UpdateShares
    shares: Array
    residuals: Array


def fit_evidence(
    shadows: Sequence[Shadow],
    reference: tuple[Fraction, ...],
    round_: int,
    digests: tuple[str, str],
    start_accuracy: float,
    public: Sequence[Array] = (),
) -> Fitted:
    """The evidence model that the shadows support.

    Args:
        digests: of the start model and of D_c, hexadecimal.
        start_accuracy: of the start model on D_c.
        public: sketched directions that participants could take from earlier broadcasts.

    Raises:
        EvidenceError: too few sound shadows.
    """
    sound, flawed = [s for s in shadows if s.sound], [s for s in shadows if not s.sound]
    if len(sound) < MIN_SHADOWS:
        raise EvidenceError(f"{len(sound)} sound shadows; expected at least {MIN_SHADOWS}")
    table = _table(sound, reference)
    maps, features, crossed = _fit(table)
    residuals = _checked(table) - table.degrees
    others = _table(flawed, reference)
    other_features = maps.features(others)
    quality, sound_quality = _fit_quality(
        table.z(features, crossed), others.z(other_features, _shares(maps.shares, other_features))
    )
    columns = features.shape[2]
    share_weights, share_intercept = maps.shares.nano()
    weights, intercept = maps.degree.line.nano()
    quality_weights, quality_intercept = quality.nano()
    model = DegreeModel(
        reference=reference,
        share_own=share_weights[:columns],
        share_mean=share_weights[columns:],
        share_intercept=share_intercept,
        sorted_columns=SORTED_FEATURES,
        weights=weights,
        intercept=intercept,
        forest=maps.degree.forest(),
        quality_weights=quality_weights,
        quality_intercept=quality_intercept,
        half_width=_half_width(residuals, start_accuracy),
    )
    thresholds = _thresholds(sound, crossed, residuals, sound_quality, public)
    digest = _shadows_digest([*sound, *flawed], np.concatenate([features, other_features]))
    return Fitted(
        EvidenceModel(round_, *digests, digest, model, thresholds), maps.updates, crossed, residuals
    )


def _table(shadows: Sequence[Shadow], reference: tuple[Fraction, ...]) -> _Table:
    return _Table(
        np.array([s.behaviour.class_features for s in shadows], dtype=np.float64) / MICRO,
        np.array([s.behaviour.global_features for s in shadows], dtype=np.float64) / MICRO,
        np.array([s.sketch for s in shadows]),
        np.array([s.shares for s in shadows]),
        np.array([s.degree for s in shadows]),
        reference,
    )


def _fit(table: _Table) -> tuple[_Maps, Array, Array]:
    """All steps; the class features of the table's own shadows, and their shares, each without that shadow."""
    updates, update_shares = fit_update_shares(table.sketches, table.shares)
    features = _with_updates(table.class_features, update_shares)
    crossed = _crossed_shares(features, table.shares)
    z = table.z(features, crossed)
    degree = LineAndTrees.fit(z, table.degrees)
    return _Maps(updates, _fit_shares(features, table.shares), degree), features, crossed


def _with_updates(class_features: Array, update_shares: Array) -> Array:
    """Class features with what the update tells of each label as the last, in whole millionths as logged."""
    return np.concatenate([class_features, np.rint(update_shares * MICRO)[:, :, None] / MICRO], axis=2)


def _fit_shares(class_features: Array, shares: Array) -> Line:
    return ridge(label_rows(class_features), shares.ravel())


def _shares(line: Line, class_features: Array) -> Array:
    count, labels, _ = class_features.shape
    return line(label_rows(class_features)).reshape(count, labels)


def _crossed_shares(class_features: Array, shares: Array) -> Array:
    """Each shadow's shares as predicted by the other folds."""
    crossed = np.empty_like(shares)
    for rest, fold in folds(len(shares), _CROSS_FOLDS):
        crossed[fold] = _shares(_fit_shares(class_features[rest], shares[rest]), class_features[fold])
    return crossed


def _checked(table: _Table) -> Array:
    """Each shadow's degree as predicted by both steps fitted without its fold."""
    estimates = np.empty_like(table.degrees)
    for rest, fold in folds(len(estimates), _CHECK_FOLDS):
        maps, _, _ = _fit(table.rows(rest))
        estimates[fold] = maps.estimates(table.rows(fold))
    clipped: Array = np.clip(estimates, 0, 1 - float(min(table.reference)))
    return clipped


def _fit_quality(sound: Array, flawed: Array) -> tuple[Line, Array]:
    """Regressors to 1 (sound) or 0 (flawed), and what sound shadows get when they are held out."""
    z = np.concatenate([sound, flawed])
    target = np.concatenate([np.ones(len(sound)), np.zeros(len(flawed))])
    held = np.empty(len(z))
    for rest, fold in folds(len(z), _CHECK_FOLDS):
        held[fold] = ridge(z[rest], target[rest])(z[fold])
    return ridge(z, target), held[: len(sound)]


def _half_width(residuals: Array, start_accuracy: float) -> int:
    """The conformal half-width, millionths."""
    errors = conformal_quantile(np.abs(residuals), ALPHA)
    return round(errors * (1 + SHARED + TRANSFER * start_accuracy) * MICRO)


def _thresholds(
    sound: Sequence[Shadow], shares: Array, residuals: Array, quality: Array, public: Sequence[Array]
) -> Thresholds:
    """Where the screens draw their lines: beyond what sound shadows show, by a margin."""
    sketches = np.array([s.sketch for s in sound])
    norms = np.linalg.norm(sketches, axis=1)
    deviation = float(np.abs(np.log(norms / np.median(norms))).max())
    own = without(sketches, public)
    total = own.sum(axis=0)
    alignment = min(cosine(u, total - u) for u in own)
    repeats = [abs(cosine(u, d)) for u in sketches for d in public]
    changes = np.array([log_changes(s.behaviour) for s in sound])
    spread = change_spread(changes)
    gains = np.array([improvement(s.behaviour, p) for s, p in zip(sound, shares, strict=True)])
    full = float(np.clip(np.quantile(quality, 0.05) - _QUALITY_MARGIN, *_QUALITY))
    allowed = max(_LEAST_LENGTH_MARGIN, 1.5 * deviation)
    return Thresholds(
        norm_low=micro(float(np.exp(-allowed))),
        norm_high=micro(float(np.exp(allowed))),
        alignment=micro(max(_LEAST_ALIGNMENT, _ALIGNMENT_KEPT * alignment)),
        novelty=micro(max(_LEAST_NOVELTY, 2 * max(novelty(c, spread) for c in changes))),
        improvement=micro(float(gains.min() - gains.std() - 0.05)),
        echo_distance=micro(_ECHO_DISTANCE),
        echo_cosine=micro(min(0.85, max(0.6, max(repeats, default=0.0) + 0.2))),
        twin_weights=micro(_TWIN_WEIGHTS),
        twin_outputs=micro(_TWIN_OUTPUTS),
        twin_least=micro(_TWIN_LEAST),
        quality_full=micro(full),
        quality_none=micro(full / 2),
        harm_full=micro(_HARM[0]),
        harm_none=micro(_HARM[1]),
        claim_band=micro(
            float(np.clip(_CLAIM_MARGIN * np.quantile(np.abs(residuals), _CLAIM_LEVEL), *_CLAIM_BAND))
        ),
        wide=micro(_WIDE),
    )


def improvement(found: Behaviour, shares: Array) -> float:
    """Mean gain over the start, nats, on the labels that a model seems to have been trained on.

    Shares are estimates: of a model of one label, the nine others have a little, too, and lose much.
    """
    rows = np.array(found.class_features, dtype=np.float64) / MICRO
    gains = -rows[:, CLASS_FEATURES.index("start_own")] - rows[:, CLASS_FEATURES.index("loss")]
    weights = np.maximum(shares - _SHARE_CUT * max(shares.max(), 0.0), 0)
    return float(gains @ weights / max(weights.sum(), 1e-9))


def log_changes(found: Behaviour) -> Array:
    """The logarithm of each tensor's change: the last of the global features."""
    return np.array(found.global_features[GLOBAL_FEATURES_BEFORE_CHANGES:], dtype=np.float64) / MICRO


def change_spread(changes: Array) -> tuple[Array, Array]:
    """Mean and standard deviation per tensor; a tensor that hardly varies counts as varying by a twentieth."""
    return changes.mean(axis=0), np.maximum(changes.std(axis=0), 0.05)


def novelty(changes: Array, spread: tuple[Array, Array]) -> float:
    """The largest deviation of a tensor's change from the shadows', in their standard deviations."""
    return float(np.abs((changes - spread[0]) / spread[1]).max())


def _shadows_digest(shadows: Sequence[Shadow], class_features: Array) -> str:
    """SHA-256 of what was observed of every shadow, and of what it was; class features (S, I, m + 1)."""
    return canonical_digest(
        [
            {
                "shares": [micro(float(p)) for p in s.shares],
                "sound": s.sound,
                "class_features": np.rint(rows * MICRO).astype(np.int64).tolist(),
                "global_features": list(s.behaviour.global_features),
            }
            for s, rows in zip(shadows, class_features, strict=True)
        ]
    ).hex()
