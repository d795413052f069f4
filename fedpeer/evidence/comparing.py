"""What samples two models have in common: their likeness, and what it is of other samples and of the same.

The likeness of two models is a mean of two cosines: of the directions of their updates, and of what they give on a
probe of D_c (outputs where there are any, else losses), either beyond what their mixes explain
(`fedpeer.evidence.likeness`), and weighted by the inverse of its variance among pairs of shadows of different halves.

What a mix explains is known from the samples of D_c alone, so that two participants have its error in common, and the
more, the less any shadow is like the mixes that both have. r is how much of it is expected (`Pull.common`), the mean of
both vectors', from 0 to 1. Two tables say what that comes to, and what the same samples add:

    apart(r)   likeness of models of other samples: of shadows of different halves of D_c, whose samples are apart, by
               maps without either; isotonic regression on r
    same(r)    likeness of models of the same samples: of anchors (`fedpeer.evidence.planning`), each first with its
               third; the same

Where fewer than `_KNOWN` pairs of shadows lie within half a step of r, as few have a mix in common, apart(r) is at
least what anchors show. The map is fitted on the shadows of one half, and the anchors of the other half, whose samples
lie in two disjoint quarters, are held against it as participants are: each first or third with each second, by the
same regression.

A quarter may have fewer distinct samples m than the recipe asks of a participant, n; then a participant's own samples
show less in it, and what both have in common more: the odds l / (1 - l) of other samples' likeness are taken times
max(1, n / m). Of the same samples' likeness t, beside a of other samples, a/2 is left of what is common, since the map
of both halves errs half as much, (t - a) min(1, m/n) of the samples' own, and 1 - t of what training adds.

Where terms let recipes vary, who varies them the same way moves the same way, on whichever samples. What each variation
adds to what is left of the sound shadows is read from them by least squares, and these directions are taken off all.

Shadows of a skewed mix have fewer distinct samples than participants, too. Of a pair with c = sqrt(m_i m_j) / n of the
recipe's samples c times the odds of apart(r) are expected, and it counts c^2.

Pairs of a large r vary more: as s(r) times the usual, an isotonic regression of what they have beyond that, up
or down, on r, over its mean, and 1 at least. Two models are linked where their likeness is beyond apart(r) by more than
s(r) times a limit: the conformal quantile of what pairs of shadows of different halves have beyond what is expected,
over s(r), at rate / (2 (N - 1)) among N submissions, so that at most half of `rate` of honest participants are linked
with any other (union bound); the other half is for groups. What is logged has limit (s(r) - 1) in apart(r). On the way
from apart(r) to same(r) the likeness tells the part of the samples that they have in common (`mechanism.evidence`).

Who splits its data into several identities and hides it, such as by noise on the inputs, shows less in each pair than
the limit, and as much in every pair. A *group* of k models is linked for what its pairs have
beyond apart(r) in the mean, less u, what pairs of a member and one outside have: so what a round's models have in
common, whatever their samples, links nobody. What shadows have beyond is taken for the sum of what either has
(deviation rho) and what is the pair's (deviation sigma). Of an honest group of one mix the mean is off by its own of
the first, less those outside, and by the mean of the pairs'; it is linked from

    min(z(p_k) sqrt(e^2 + d^2), z(rate/4) e + z(p_k/2) d),      p_k = rate / (2 (N - 2) C(N - 1, k - 1))
    e = rho sqrt(1 + 1/o),   d = sigma sqrt(1/m + 1/(k o))

with o = N - k outside, m = k (k - 1) / 2 pairs, z the normal quantile. Both bound the rate, the first where groups are
few, the second where what all have in common is most of it; C(N - 1, k - 1) is in how many groups of k somebody may be,
and there are N - 2 sizes. Without anybody outside there is no u, and no group.

`suspected` looks for groups: from each model it adds the one that is most alike with those it has, and keeps the set
that is beyond its limit by most deviations of its mean. So that nobody is of a group for what others have in common,
each member's pairs with the others have z(rate/4) sqrt(e^2 + sigma^2 (1 + (k - 2) b) / (k - 1)) in the mean, b what the
group's pairs have beyond apart(r) + u: pairs of one model with two that are alike are alike themselves.

Before a set is linked, be it a group or by pairs, shadows of the mixes that it shows are trained on samples of either
half of D_c (`fedpeer.evidence.measuring.checked`). Their likeness, with no sample in common, less apart(r) of the set's
pairs in the mean, takes the place of u, less what u is below 0: participants whose samples the start has seen have less
in common than shadows. So no mix that the map does not know, such as one that lacks some strata, is taken for samples
in common.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import lgamma

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import ndtri_exp
from sklearn.isotonic import IsotonicRegression

from fedpeer.evidence.likeness import Pull, fit_pull, mix_of, pull_of
from fedpeer.evidence.observing import LOG_FLOOR, Observation
from fedpeer.evidence.regression import micro
from fedpeer.evidence.screening import RATE, limit_at
from fedpeer.evidence.sketch import Array, directions, without
from fedpeer.evidence.vector_maps import Halves
from fedpeer.learning.partition import even_rows
from fedpeer.learning.strata import Codes
from mechanism.evidence import LEAST_GROUP, MOST_GROUP, ONE_MODEL, LikenessMap
from mechanism.settlement import MICRO

#: Samples of D_c on which outputs, and aggregates, are compared. Differences are paired, so few distinguish them.
PROBE_SAMPLES = 256

#: Models whose likeness with as many others is computed at once: 4 MiB of likenesses.
TILE = 1024

#: More than what the integers of `mechanism.evidence` are off by: a likeness and r are rounded to a millionth, and a
#: table rises by less than one in a step.
_INTEGERS = 1e-4

#: Where the tables stand.
STEPS = np.linspace(0, 1, 21)

#: Fewest pairs of shadows from which a likeness at a step is known: their mean is off by a fifth of their deviation.
_KNOWN = 25

#: r of models of mixes (n, S) with others of (m, S), (n, m).
Common = Callable[[Array, Array], Array]

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
        differences: of the halves of D_c, d of either (`fedpeer.evidence.likeness`).
        spread: what pairs of shadows of different halves have beyond what is expected, over s(r), ascending.
        of_each, of_pairs: rho and sigma, the deviations of what either of a pair adds to that, and of what is left.
    """

    probe: Probe
    update: Pull
    output: Pull
    shares: tuple[float, float]
    moved: tuple[Array, Array]
    differences: tuple[Array, Array]
    apart: Array
    same: Array
    varies: Array
    spread: Array
    of_each: float
    of_pairs: float

    def left(self, seen: Observation, shares: Array, half: int | None = None) -> Left:
        """What is left of one model.

        Args:
            shares: of the strata as estimated, (S,).
            half: of D_c, of a shadow that is in no map; None of any other model.
        """
        mix = mix_of(shares)
        update, output = (
            directions(without(pull.left(vector, mix, away if half == 0 else 0.0), list(moved)))
            for pull, vector, moved, away in zip(
                (self.update, self.output),
                (_direction(seen), self.probe(seen)),
                self.moved,
                self.differences,
                strict=True,
            )
        )
        of_update, of_output = np.sqrt(self.shares)
        return (of_update * update).astype(np.float32), (of_output * output).astype(np.float32)

    def alike(
        self, left: Sequence[Left], halves: Halves, distinct: Array, mixes: npt.NDArray[np.int64]
    ) -> float | None:
        """The mean likeness of shadows that are in no map, those of one half with those of the other, as participants
        have it; None without a pair.

        Args:
            distinct: samples of each, over the recipe's, (n,).
            mixes: the number of each one's mix, (n,): where there are several, pairs of one and the same are left out.
        """
        updates, outputs = _stacked(left)
        found = (updates @ updates.T + outputs @ outputs.T).astype(np.float64)
        own = np.sqrt(np.outer(np.minimum(distinct, 1), np.minimum(distinct, 1)))
        pairs = np.logical_and.outer(halves == 0, halves == 1)
        if mixes.any():
            pairs &= np.not_equal.outer(mixes, mixes)
        return float(_scaled(found, 1 / own)[pairs].mean()) if pairs.any() else None

    def usual(self, mixes: Array) -> float:
        """The mean of apart(r) over all pairs of models of these mixes, (n, S)."""
        pairs = np.triu_indices(len(mixes), 1)
        return float(np.interp(self.common(mixes, mixes)[pairs], STEPS, self.apart).mean())

    def common(self, mixes: Array, others: Array) -> Array:
        """r of models of mixes (n, S) with others of (m, S), from 0 to 1, (n, m)."""
        found = (pull.common(mixes, others) for pull in (self.update, self.output))
        result: Array = np.clip(sum(w * each for w, each in zip(self.shares, found, strict=True)), 0, 1)
        return result

    def map(self, submissions: int) -> LikenessMap:
        """What likenesses among so many say, in integers."""
        link = limit_at(self.spread, RATE / (2 * max(submissions - 1, 1)))
        beyond = self.apart + link * (self.varies - 1)
        apart, same = (tuple(micro(value) for value in table.tolist()) for table in (beyond, self.same))
        sizes = range(LEAST_GROUP, min(submissions - 1, MOST_GROUP) + 1)
        groups = tuple(max(micro(self.group_limit(size, submissions)), 1) for size in sizes)
        return LikenessMap(apart, same, max(micro(link), 1), groups)

    def group_limit(self, size: int, submissions: int) -> float:
        """From which mean a group is linked; see the module's text. There are more submissions than it has."""
        outside, pairs = submissions - size, size * (size - 1) / 2
        log_rate = np.log(RATE / 2) - np.log(submissions - 2) - _log_choose(submissions - 1, size - 1)
        common = self.of_each * float(np.sqrt(1 + 1 / outside))
        of_pairs = self.of_pairs * float(np.sqrt(1 / pairs + 1 / (size * outside)))
        return min(
            _normal_quantile(log_rate) * float(np.hypot(common, of_pairs)),
            _normal_quantile(np.log(RATE / 4)) * common + _normal_quantile(log_rate - np.log(2)) * of_pairs,
        )

    def member_limit(self, size: int, submissions: int, beyond: float) -> float:
        """What pairs of each of a group with the others have in the mean, as above; beyond: b."""
        common = self.of_each * float(np.sqrt(1 + 1 / (submissions - size)))
        alone = self.of_pairs * float(np.sqrt((1 + (size - 2) * min(max(beyond, 0.0), 1.0)) / (size - 1)))
        return _normal_quantile(np.log(RATE / 4)) * float(np.hypot(common, alone))


def likeness(one: Left, updates: Rows, outputs: Rows) -> npt.NDArray[np.float64]:
    """Of one model with others, whose updates and outputs are stacked: at most 1, and 1 of a copy."""
    return np.asarray(updates @ one[0] + outputs @ one[1], dtype=np.float64)


def perhaps_linked(
    left: Sequence[Left], mixes: Array, common: Common, says: LikenessMap
) -> Iterator[tuple[int, int]]:
    """Every pair that `mechanism.evidence.Overlaps` links, and those so near that rounding might; (k, j), j < k.

    All pairs are looked at, in tiles of `TILE` by `TILE`: a product of matrices takes a fifth of the time that as many
    products of vectors take, and one tile is in memory at a time.

    Args:
        mixes: of the same models, as distributions, (n, S); common: r of some with others.
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
            r = common(mixes[first : first + TILE], mixes[second : second + TILE])
            limit = np.minimum(np.interp(r, steps, apart) + link, one)
            rows, columns = np.nonzero(alike >= limit - rounding)
            for k, j in zip((first + rows).tolist(), (second + columns).tolist(), strict=True):
                if j < k:
                    yield k, j


def suspected(
    left: Sequence[Left],
    mixes: Array,
    near: Sequence[tuple[int, int]],
    comparison: Comparison,
    says: LikenessMap,
) -> list[tuple[list[int], float]]:
    """Sets of models that are linked by what the map says, each its models in order and u; no model is in two.

    Groups come first, the surest before others; then those that links of pairs connect.
    Among more than `TILE` models no group is looked for, and u is 0: all pairs of these are not held at once.

    Args:
        mixes: of the same models, as distributions, (n, S); the map is of as many submissions.
        near: pairs that are linked, as `perhaps_linked` has them.
    """
    found: list[tuple[list[int], float]] = []
    free = np.ones(len(left), dtype=bool)
    across: Array | None = None
    if len(left) <= TILE:
        updates, outputs = _stacked(left)
        alike = (updates @ updates.T + outputs @ outputs.T).astype(np.float64)
        r = comparison.common(mixes, mixes)
        # Within a group what is logged counts, which is less where pairs vary more; with others what is usual of them.
        within = alike - np.interp(r, np.linspace(0, 1, len(says.apart)), np.array(says.apart) / MICRO)
        across = (alike - np.interp(r, STEPS, comparison.apart)) / np.interp(r, STEPS, comparison.varies)
        np.fill_diagonal(within, 0)
        np.fill_diagonal(across, 0)
        limits = [limit / MICRO for limit in says.group]
        while grown := [
            each
            for first in np.flatnonzero(free).tolist()
            for each in _grown(first, free, within, across, limits, comparison.member_limit)
        ]:
            _, members, outside = max(grown, key=lambda each: each[0])
            free[members] = False
            found.append((sorted(members), outside))
    near = [(k, j) for k, j in near if free[k] and free[j]]
    pairs = coo_array((np.ones(len(near)), np.array(near, dtype=np.int64).reshape(-1, 2).T), (len(left),) * 2)
    _, of = connected_components(pairs, directed=False)
    for component in np.flatnonzero(np.bincount(of) > 1):
        members = np.flatnonzero(of == component).tolist()
        found.append((members, 0.0 if across is None else _outside(members, across)))
    return found


def _outside(members: Sequence[int], across: Array) -> float:
    """u of a set: 0 where nobody is outside."""
    inside = np.zeros(len(across), dtype=bool)
    inside[members] = True
    return float(across[np.ix_(inside, ~inside)].mean()) if not inside.all() else 0.0


def _grown(
    first: int,
    free: npt.NDArray[np.bool_],
    within: Array,
    across: Array,
    limits: Sequence[float],
    of_member: Callable[[int, int, float], float],
) -> Iterator[tuple[float, list[int], float]]:
    """Sets that grow from one model by the free one that is most alike with those there are, where they are linked: by
    how many deviations of the mean each is beyond the limit, times sigma, its members, and u."""
    members, candidates, sums = [first], np.where(free, 0.0, -np.inf), within[first].copy()
    outgoing, candidates[first] = across[first].copy(), -np.inf
    most = min(len(limits) + LEAST_GROUP - 1, int(free.sum()), len(within) - 1)
    while len(members) < most:
        chosen = int(np.argmax(sums + candidates))
        members, candidates[chosen] = [*members, chosen], -np.inf
        sums, outgoing = sums + within[chosen], outgoing + across[chosen]
        if (size := len(members)) < LEAST_GROUP:
            continue
        outside = float(outgoing.sum() - outgoing[members].sum()) / (size * (len(within) - size))
        each = sums[members] / (size - 1) - outside
        beyond = float(each.mean())
        more = beyond - limits[size - LEAST_GROUP]
        if more >= 0 and each.min() >= of_member(size, len(within), beyond):
            yield more * float(np.sqrt(size * (size - 1) / 2)), members, outside


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _normal_quantile(log_rate: float) -> float:
    """What a standard normal variable exceeds at a rate, from its logarithm: rates of many groups underflow."""
    return -float(ndtri_exp(log_rate))


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
    pairs, pulls, alike, moves, commons, differences = [], [], [], [], [], []
    for vector in (_direction, probe):
        vectors = np.array([vector(each) for each in sound])
        pull, rest = fit_pull(vectors, mixes, halves)
        moved = _moved(rest.alone(), variations)
        pairs.append(rest.alike(moved))
        commons.append(rest.common())
        differences.append(rest.difference)
        pulls.append(pull)
        moves.append(moved)
        alike.append(_anchors_alike(anchors, vector, vectors, mixes, halves, variations))
    precise = 1 / np.maximum([part.var() for part in pairs], 1e-12)
    shares = precise / precise.sum()

    def mean_of(one: Array, other: Array) -> Array:
        result: Array = shares[0] * one + shares[1] * other
        return result

    together, r = mean_of(*pairs), np.clip(mean_of(*commons), 0, 1)
    of_anchors, r_of_anchors = (mean_of(*each) for each in zip(*alike, strict=True))
    apart, same = _tables(anchors, of_anchors, np.clip(r_of_anchors, 0, 1), samples)
    part = np.ones(len(sound)) if distinct is None else np.minimum(distinct, 1.0)
    own = np.sqrt(np.outer(part[halves == 0], part[halves == 1]))
    of_pairs = _rising(np.column_stack([r.ravel(), _scaled(together, 1 / own).ravel()]), own.ravel() ** 2)
    if anchors:
        apart = _apart(r.ravel(), of_pairs, apart)
    beyond = together - _scaled(np.interp(r, STEPS, of_pairs), own)
    varies = _rising(np.column_stack([r.ravel(), np.abs(beyond).ravel()]))
    varies = np.maximum(varies / max(np.abs(beyond).mean(), 1e-12), 1)
    beyond /= np.interp(r, STEPS, varies)
    weights = float(shares[0]), float(shares[1])
    return Comparison(
        probe,
        pulls[0],
        pulls[1],
        weights,
        (moves[0], moves[1]),
        (differences[0], differences[1]),
        apart,
        same,
        varies,
        np.sort(beyond.ravel()),
        *_deviations(beyond),
    )


def _deviations(beyond: Array) -> tuple[float, float]:
    """rho and sigma of pairs, (n, m): the means over either side estimate what each adds, but for what pairs leave.
    rho is what it is at most, one standard error of its square more than is estimated: of few shadows it may be 0 by
    chance, and every group would be linked.

    Source: Searle, Casella and McCulloch, "Variance Components", 1992, section 4.4: two crossed random factors.
    """
    rows, columns = beyond.shape
    of_rows, of_columns = beyond.mean(axis=1), beyond.mean(axis=0)
    rest = beyond - of_rows[:, None] - of_columns + beyond.mean()
    of_pairs = float(np.square(rest).sum()) / max((rows - 1) * (columns - 1), 1)
    squares, errors = [], []
    for means, others in ((of_rows, columns), (of_columns, rows)):
        if len(means) > 1:
            squares.append(float(means.var(ddof=1)) - of_pairs / others)
            errors.append(float(means.var(ddof=1)) * float(np.sqrt(2 / (len(means) - 1))))
    if not squares:
        return 0.0, float(np.sqrt(of_pairs))
    each = max(float(np.mean(squares)), 0.0) + float(np.linalg.norm(errors)) / len(errors)
    return float(np.sqrt(each)), float(np.sqrt(of_pairs))


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
) -> tuple[Array, Array]:
    """Likeness of all anchors' shadows with one another, in order, by maps of the half that none has samples of; and
    common(p, q) of those of one half, by the same maps.

    Args:
        vectors: of the sound shadows, by `vector`, (n, B).
    """
    if not anchors:
        return np.zeros((0, 0)), np.zeros((0, 0))
    left: list[Array] = [np.zeros(0)] * 2
    places = np.array([anchor.half for anchor in anchors for _ in anchor.seen])
    common = np.zeros((len(places), len(places)))
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
            common[np.ix_(places != half, places != half)] = pull.common(mix, mix)
    rows = [iter(part) for part in left]
    found = np.array([next(rows[half]) for half in places.tolist()])
    return found @ found.T, common


def _moved(left: Array, variations: Array | None) -> Array:
    """What each variation adds to what is left of the shadows, (k, B)."""
    if variations is None or not variations.shape[1]:
        return np.zeros((0, left.shape[1]))
    found: Array = np.linalg.lstsq(variations - variations.mean(axis=0), left, rcond=None)[0]
    return found


def _tables(anchors: Sequence[Anchor], alike: Array, common: Array, samples: int) -> tuple[Array, Array]:
    """What anchors show of apart, and same; without anchors nothing is linked but what is one model.

    Args:
        alike: likeness of all anchors' shadows with one another, in order; common: r of them.
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
            same.append((float(common[first, third]), value))
        for other, place in zip(anchors, places, strict=False):
            if one.half == other.half:
                part = max(1.0, samples / min(one.distinct, other.distinct))
                apart += [(common[own, place + 1], _scaled(alike[own, place + 1], part)) for own in firsts]
    return _rising(np.array(apart)), _rising(np.array(same))


def _same(alike: float, apart: float, part: float) -> float:
    """The likeness of participants on the same samples, from that of an anchor's; see the module's text."""
    common, own, training = apart / 2, max(alike - apart, 0.0) * part, max(1 - alike, 0.0)
    return (common + own) / max(common + own + training, 1e-12)


def _scaled(alike: Array, part: Array | float) -> Array:
    """The likeness of `part` times the odds; where it is none, so many times as far from 0."""
    found: Array = part * alike / np.where(alike > 0, 1 + (part - 1) * alike, 1)
    return found


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
