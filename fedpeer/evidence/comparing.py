"""What samples two models have in common: their likeness, and what it is of other samples and of the same.

The likeness of two models is a mean of two cosines: of the directions of their updates, and of what they give on a
probe of D_c (outputs where there are any, else losses), either beyond what their mixes explain
(`fedpeer.evidence.likeness`), and weighted by the inverse of its variance among pairs of shadows of different halves.

What a mix explains is known from the samples of D_c alone, so that two participants have its error in common, and the
more, the more their samples are of the same few strata: with mixes p and q, r = sum_i p_i q_i. Two tables say how much,
and what the same samples add:

    apart(r)   likeness of models of other samples: of shadows of different halves of D_c, whose samples are apart, by
               maps without either; isotonic regression on r
    same(r)    likeness of models of the same samples: of anchors (`fedpeer.evidence.planning`), each first with its
               third; the same

Where fewer than `_KNOWN` pairs of shadows lie within half a step of r, as few have the same few strata, apart(r) is at
least what anchors show. The map is fitted on the shadows of one half, and the anchors of the other half, whose samples
lie in two disjoint quarters, are held against it as participants are: each first or third with each second, by the
same regression. That is too much, since half of the shadows tell a pull worse than all, but not too little.

A quarter may have fewer distinct samples m than the recipe asks of a participant, n; then a participant's own samples
show less in it, and what both have in common more. The error of a map of both halves is half as large, and so is its
square's share: the odds l / (1 - l) of other samples' likeness are taken times max(1, n / (2 m)). Of the same samples'
likeness t, beside a of other samples, a/2 is left of what is common, (t - a) min(1, m/n) of the samples' own, and 1 - t
of what training adds.

Where terms let recipes vary, who varies them the same way moves the same way, on whichever samples. What each variation
adds to what is left of the sound shadows is read from them by least squares, and these directions are taken off all.

Shadows of a skewed mix have fewer distinct samples than participants, too. Of a pair with c = sqrt(m_i m_j) / n of the
recipe's samples a likeness c apart(r) is expected, and it counts c^2.

Pairs of like few strata vary more: as s(r) times the usual, an isotonic regression of what they have beyond that, up
or down, on r, over its mean, and 1 at least. Two models are linked where their likeness is beyond apart(r) by more than
s(r) times a limit: the conformal quantile of what pairs of shadows of different halves have beyond what is expected,
over s(r), at rate / (N - 1) among N submissions, so that at most `rate` of honest participants are linked with any
other (union bound). Models of one mix have all of the map's error in common, whatever r is, and honest participants
that make the same effort have one mix; so the limit is at least that of the tenth of the pairs whose mixes are the most
alike, by sum_i sqrt(p_i q_i). These are too few for a quantile: they are taken to be distributed as all pairs are, but
for their mean and deviation. What is logged has limit (s(r) - 1) in apart(r). On the way from apart(r) to same(r) the
likeness tells the part of the samples that they have in common (`mechanism.evidence`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

from fedpeer.evidence.likeness import Pull, fit_pull, mix_of, pull_of
from fedpeer.evidence.observing import LOG_FLOOR, Observation
from fedpeer.evidence.regression import micro
from fedpeer.evidence.screening import RATE, limit_at
from fedpeer.evidence.sketch import Array, directions, without
from fedpeer.evidence.vector_maps import Halves
from fedpeer.learning.partition import even_rows
from fedpeer.learning.strata import Codes
from mechanism.evidence import ONE_MODEL, LikenessMap
from mechanism.settlement import MICRO

#: Samples of D_c on which outputs, and aggregates, are compared. Differences are paired, so few distinguish them.
PROBE_SAMPLES = 256

#: Models whose likeness with as many others is computed at once: 4 MiB of likenesses.
TILE = 1024

#: More than what the integers of `mechanism.evidence` are off by: a likeness and r are rounded to a millionth, and a
#: table rises by less than one in a step.
_INTEGERS = 1e-4

#: Where the tables stand.
STEPS = np.linspace(0, 1, 11)

#: Fewest pairs of shadows from which a likeness at a step is known: their mean is off by a fifth of their deviation.
_KNOWN = 25

#: Pairs of the most alike mixes, of which a link has a limit, too: this part.
_LIKE = 0.1

#: What is left of one model's update, and of its outputs; of the lengths whose squares weigh their cosines.
Left = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Probe:
    """Samples of D_c, `codes` their strata; `classifier` where outputs are log-probabilities."""

    rows: npt.NDArray[np.int64]
    codes: Codes
    classifier: bool

    def __call__(self, seen: Observation) -> Array:
        """What a model gives, without what all samples of a stratum have in common; flat."""
        found = seen.outputs[self.rows].astype(np.float64)
        if self.classifier:
            found = np.maximum(found, LOG_FLOOR)
            found = found - found.mean(axis=1, keepdims=True)
        for stratum in np.unique(self.codes):
            found[self.codes == stratum] -= found[self.codes == stratum].mean(axis=0)
        return found.ravel()


@dataclass(frozen=True, eq=False)
class Anchor:
    """Shadows of one mix: the first and second of other samples, the first and the third, if there is one, of the same.

    Attributes:
        mix: over the strata, (S,).
        half: of D_c, in which all of their samples lie.
        distinct: of the first's samples, or the second's where these are fewer.
        seen: the two or three, in order.
    """

    mix: Array
    half: int
    distinct: int
    seen: tuple[Observation, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Of the models of one start.

    Attributes:
        update, output: what a mix does to either; shares: the weights of their cosines.
        apart, same: likeness at `STEPS` of r; of models of other samples, and of the same.
        varies: s at `STEPS`.
        moved: where variations of the recipe move either, (k, B) each.
        spread: what pairs of shadows of different halves have beyond what is expected, over s(r), ascending;
            spread_of_like: the same values, moved and stretched to mean and deviation of the pairs of the most alike
            mixes.
    """

    probe: Probe
    update: Pull
    output: Pull
    shares: tuple[float, float]
    moved: tuple[Array, Array]
    apart: Array
    same: Array
    varies: Array
    spread: Array
    spread_of_like: Array

    def left(self, seen: Observation, shares: Array) -> Left:
        """What is left of one model; `shares` of the strata as estimated, (S,)."""
        mix = mix_of(shares)
        update, output = (
            directions(without(pull.left(vector, mix), list(moved)))
            for pull, vector, moved in zip(
                (self.update, self.output), (_direction(seen), self.probe(seen)), self.moved, strict=True
            )
        )
        of_update, of_output = np.sqrt(self.shares)
        return (of_update * update).astype(np.float32), (of_output * output).astype(np.float32)

    def map(self, submissions: int) -> LikenessMap:
        """What likenesses among so many say, in integers."""
        rate = RATE / max(submissions - 1, 1)
        link = max(limit_at(self.spread, rate), limit_at(self.spread_of_like, rate))
        beyond = self.apart + link * (self.varies - 1)
        apart, same = (tuple(micro(value) for value in table.tolist()) for table in (beyond, self.same))
        return LikenessMap(apart, same, max(micro(link), 1))


def likeness(one: Left, updates: Rows, outputs: Rows) -> npt.NDArray[np.float64]:
    """Of one model with others, whose updates and outputs are stacked: at most 1, and 1 of a copy."""
    return np.asarray(updates @ one[0] + outputs @ one[1], dtype=np.float64)


def perhaps_linked(left: Sequence[Left], mixes: Array, says: LikenessMap) -> Iterator[tuple[int, int]]:
    """Every pair that `mechanism.evidence.Overlaps` links, and those so near that rounding might; (k, j), j < k.

    All pairs are looked at, in tiles of `TILE` by `TILE`: a product of matrices takes a fifth of the time that as many
    products of vectors take, and one tile is in memory at a time.

    Args:
        mixes: of the same models, as distributions, (n, S).
    """
    steps, apart = np.linspace(0, 1, len(says.apart)), np.array(says.apart) / MICRO
    link, one = says.link / MICRO, ONE_MODEL / MICRO
    for first in range(0, len(left), TILE):
        updates, outputs = _stacked(left[first : first + TILE])
        # Of sums of so many products of two vectors that are no longer than 1, in whatever order they are summed.
        rounding = (updates.shape[1] + outputs.shape[1]) * float(np.finfo(np.float32).eps) + _INTEGERS
        for second in range(0, first + 1, TILE):
            others = _stacked(left[second : second + TILE])
            alike = updates @ others[0].T + outputs @ others[1].T
            rows, columns = np.nonzero(alike >= min(apart.min() + link, one) - rounding)
            r = (mixes[first + rows] * mixes[second + columns]).sum(axis=1)
            limit = np.minimum(np.interp(r, steps, apart) + link, one)
            near = alike[rows, columns] >= limit - rounding
            for k, j in zip((first + rows[near]).tolist(), (second + columns[near]).tolist(), strict=True):
                if j < k:
                    yield k, j


def _stacked(left: Sequence[Left]) -> tuple[Rows, Rows]:
    updates, outputs = zip(*left, strict=True)
    return np.array(updates), np.array(outputs)


def fit_comparison(
    sound: Sequence[Observation],
    shares: Array,
    halves: Halves,
    codes: Codes,
    anchors: Sequence[Anchor],
    *,
    samples: int,
    classifier: bool,
    seed: int,
    variations: Array | None = None,
    distinct: Array | None = None,
) -> Comparison:
    """What the sound shadows say, and the anchors.

    Args:
        shares: of the strata, as estimated of each without it.
        codes: the stratum of each sample of D_c.
        samples: of the recipe.
        classifier: whether outputs are log-probabilities.
        seed: of the probe.
        variations: of the recipes of the sound shadows (`planning.variations`), (n, k); None: there are none.
        distinct: samples of each, over the recipe's, (n,); enough where left out.
    """
    rows = probe_of(codes, seed)
    probe = Probe(rows, codes[rows], classifier)
    mixes = mix_of(shares)
    pairs, pulls, alike, moves = [], [], [], []
    for vector in (_direction, probe):
        vectors = np.array([vector(each) for each in sound])
        pull, rest = fit_pull(vectors, mixes, halves)
        moved = _moved(rest.alone(), variations)
        pairs.append(np.ravel(rest.alike(moved)))
        pulls.append(pull)
        moves.append(moved)
        alike.append(_anchors_alike(anchors, vector, vectors, mixes, halves, variations))
    precise = 1 / np.maximum([part.var() for part in pairs], 1e-12)
    shares = precise / precise.sum()
    together, r = shares @ pairs, np.ravel(mixes[halves == 0] @ mixes[halves == 1].T)
    apart, same = _tables(anchors, shares[0] * alike[0] + shares[1] * alike[1], samples)
    part = np.ones(len(sound)) if distinct is None else np.minimum(distinct, 1.0)
    own = np.sqrt(np.ravel(np.outer(part[halves == 0], part[halves == 1])))
    of_pairs = _rising(np.column_stack([r, together / own]), own**2)
    if anchors:
        apart = _apart(r, of_pairs, apart)
    beyond = together - own * np.interp(r, STEPS, of_pairs)
    varies = np.maximum(_rising(np.column_stack([r, np.abs(beyond)])) / max(np.abs(beyond).mean(), 1e-12), 1)
    beyond /= np.interp(r, STEPS, varies)
    roots = np.sqrt(mixes)
    affinity = np.ravel(roots[halves == 0] @ roots[halves == 1].T)
    like = np.argsort(-affinity, kind="stable")[: max(int(_LIKE * len(beyond)), _KNOWN)]
    spread = np.sort(beyond)
    stretch = beyond[like].std() / max(float(beyond.std()), 1e-12)
    of_like = beyond[like].mean() + stretch * (spread - beyond.mean())
    weights = float(shares[0]), float(shares[1])
    return Comparison(
        probe, pulls[0], pulls[1], weights, (moves[0], moves[1]), apart, same, varies, spread, of_like
    )


def _apart(r: Array, of_pairs: Array, of_anchors: Array) -> Array:
    """apart at `STEPS`: what pairs show, and at least what anchors do where few pairs are near."""
    near = np.abs(np.subtract.outer(STEPS, r)) <= (STEPS[1] - STEPS[0]) / 2
    few = near.sum(axis=1) < _KNOWN
    table: Array = np.maximum.accumulate(np.where(few, np.maximum(of_pairs, of_anchors), of_pairs))
    return table


def _anchors_alike(
    anchors: Sequence[Anchor],
    vector: Callable[[Observation], Array],
    vectors: Array,
    mixes: Array,
    halves: Halves,
    variations: Array | None,
) -> Array:
    """Likeness of all anchors' shadows with one another, in order, by maps of the half that none has samples of.

    Args:
        vectors: of the sound shadows, by `vector`, (n, B).
    """
    if not anchors:
        return np.zeros((0, 0))
    left: list[Array] = [np.zeros(0)] * 2
    for half in (0, 1):
        chosen = halves == half
        pull, rest = pull_of(vectors[chosen], mixes[chosen])
        moved = _moved(rest, None if variations is None else variations[chosen])
        own = [
            (vector(each), anchor.mix) for anchor in anchors if anchor.half != half for each in anchor.seen
        ]
        if own:
            of, mix = (np.array(part) for part in zip(*own, strict=True))
            left[1 - half] = directions(without(pull.left(of, mix), list(moved)))
    places = [anchor.half for anchor in anchors for _ in anchor.seen]
    rows = [iter(part) for part in left]
    found = np.array([next(rows[half]) for half in places])
    result: Array = found @ found.T
    return result


def _moved(left: Array, variations: Array | None) -> Array:
    """What each variation adds to what is left of the shadows, (k, B)."""
    if variations is None or not variations.shape[1]:
        return np.zeros((0, left.shape[1]))
    found: Array = np.linalg.lstsq(variations - variations.mean(axis=0), left, rcond=None)[0]
    return found


def _tables(anchors: Sequence[Anchor], alike: Array, samples: int) -> tuple[Array, Array]:
    """What anchors show of apart, and same; without anchors nothing is linked but what is one model.

    Args:
        alike: likeness of all anchors' shadows with one another, in order.
    """
    if not anchors:
        return np.ones(len(STEPS)), np.ones(len(STEPS))
    places = np.cumsum([0, *(len(anchor.seen) for anchor in anchors)])
    same, apart = [], []
    for one, first in zip(anchors, places, strict=False):
        firsts = [first, first + 2][: len(one.seen) - 1]
        for third in firsts[1:]:
            other_samples = max(float(alike[firsts, first + 1].mean()), 0.0)
            value = _same(float(alike[first, third]), other_samples, min(1.0, one.distinct / samples))
            same.append((one.mix @ one.mix, value))
        for other, place in zip(anchors, places, strict=False):
            if one.half == other.half:
                part = max(1.0, samples / (2 * min(one.distinct, other.distinct)))
                r = one.mix @ other.mix
                apart += [(r, _scaled(alike[own, place + 1], part)) for own in firsts]
    return _rising(np.array(apart)), _rising(np.array(same))


def _same(alike: float, apart: float, part: float) -> float:
    """The likeness of participants on the same samples, from that of an anchor's; see the module's text."""
    common, own, training = apart / 2, max(alike - apart, 0.0) * part, max(1 - alike, 0.0)
    return (common + own) / max(common + own + training, 1e-12)


def _scaled(alike: float, part: float) -> float:
    """The likeness of so many times the odds; as it is where it is none."""
    return part * alike / (1 + (part - 1) * alike) if alike > 0 else alike


def _rising(points: Array, weights: Array | None = None) -> Array:
    """Isotonic regression of (r, value), at `STEPS`."""
    fitted = IsotonicRegression(out_of_bounds="clip").fit(points[:, 0], points[:, 1], weights)
    result: Array = fitted.predict(STEPS)
    return result


def _direction(seen: Observation) -> Array:
    return directions(seen.vectors["update"])


def probe_of(codes: Codes, seed: int) -> npt.NDArray[np.int64]:
    """`PROBE_SAMPLES` samples, or all where there are fewer, with each stratum's share of the whole; ascending."""
    return even_rows(codes, PROBE_SAMPLES, np.random.default_rng(seed))
