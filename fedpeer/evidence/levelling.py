"""Whether balanced behaviour is that of balanced data, from tricked shadows.

Skewed data whose rare strata are filled up, by repeating, weighting or making up samples, are trained to behave as
balanced data do, and are read as balanced. But behind what is filled up are fewer samples than there seem to be, and
their model is not quite one of balanced data: its strata are learnt worse than their shares say, and it strays further.
What separates the two is a line

    t = c_0 + sum_r c_r z_r + c_s straying + c_l length

over the regressors z of the degree, by ridge regression: 1 of tricked shadows (`fedpeer.evidence.tricks`), whose data
are skewed, and 0 of sound ones that are no anchors: these have a quarter of D_c, and repeat much of it. Shadows of
earlier rounds join, each less the mean of the sound ones of its start.

It is logged as one more line to how often a model saw each of its samples (`mechanism.evidence`), so that it moves the
weight w = min(1, 1 / (y c))^3, c the terms' `whole_from`:

    y = (1 + (t - limit) / scale) / c

with twice what lies between the medians of sound and of tricked shadows as the scale, and the least limit at which
sound shadows, each estimated by a line that has not seen it, keep `KEPT` of their weight in the mean, and so does the
half of them that is nearest to the reference, which tricked ones are most like. So who follows the recipe loses 1 -
`KEPT` in expectation, as far as it is like sound shadows. Where lines do not separate
tricked shadows that they have not seen from sound ones (`screening.significantly_lower`), the scale is chance, and
there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedpeer.evidence.regression import Indices, Line, folds, ridge
from fedpeer.evidence.screening import significantly_lower
from fedpeer.evidence.sketch import Array
from fedpeer.evidence.straying import LEAST_SOUND
from mechanism.coverage import POWER

#: Fewest tricked shadows from which anything is learnt.
LEAST_TRICKED = 10

_CHECK_FOLDS = 10

#: Weight that sound shadows keep in the mean. A trick gains a tenth of what a round pays (docs/threat-model.md): little
#: has to be taken off many of them, and nobody honest is to lose much.
KEPT, _SCALE = 0.99, 2.0

#: Candidates of the limit, from the median of the sound shadows to the largest of them.
_LIMITS = 400


@dataclass(frozen=True, eq=False)
class Levels:
    """Sound shadows that are no anchors, and tricked ones, of one start.

    Attributes:
        sound, tricked: regressors of the degree, straying and length, (n, R + 2) and (m, R + 2).
        degrees: of the sound ones, (n,).
    """

    sound: Array
    tricked: Array
    degrees: Array

    def rows(self, sound: Indices, tricked: Indices) -> "Levels":
        return Levels(self.sound[sound], self.tricked[tricked], self.degrees[sound])

    def centred(self, centre: Array) -> "Levels":
        return Levels(self.sound - centre, self.tricked - centre, self.degrees)


def fit_level(own: Levels, carried: Sequence[Levels], whole_from: Fraction) -> tuple[Line, ...]:
    """The line from regressors, straying and length to y; none where too few shadows are there, or tell nothing.

    Args:
        own: of this round; carried: of earlier ones, by this round's maps.
        whole_from: c of the weight (`mechanism.coverage`).
    """
    if len(own.sound) < LEAST_SOUND or len(own.tricked) < LEAST_TRICKED:
        return ()
    centre = own.sound.mean(axis=0)
    own = own.centred(centre)
    others = [each.centred(each.sound.mean(axis=0)) for each in carried]
    sound, tricked = np.empty(len(own.sound)), np.empty(len(own.tricked))
    both = (folds(np.arange(len(each)), _CHECK_FOLDS) for each in (sound, tricked))
    for (rest, fold), (kept, left) in zip(*both, strict=True):
        line = _line([own.rows(rest, kept), *others])
        sound[fold], tricked[left] = line(own.sound[fold]), line(own.tricked[left])
    low = float(np.median(sound))
    scale = _SCALE * (float(np.median(tricked)) - low)
    if scale <= 0 or not significantly_lower(sound, tricked):
        return ()
    nearest = np.argsort(own.degrees, kind="stable")[: len(sound) // 2]

    def least_kept(limit: float) -> float:
        weight = (1 + np.maximum(sound - limit, 0) / scale) ** -float(POWER)
        return float(min(weight.mean(), weight[nearest].mean()))

    limit = next(x for x in np.linspace(low, sound.max(), _LIMITS).tolist() if least_kept(x) >= KEPT)
    line, divisor = _line([own, *others]), float(whole_from) * scale
    constant = line.intercept - float(centre @ line.coefficients) - limit + scale
    return (Line(line.coefficients / divisor, constant / divisor),)


def _line(every: Sequence[Levels]) -> Line:
    sound, tricked = (
        np.concatenate([getattr(each, name) for each in every]) for name in ("sound", "tricked")
    )
    return ridge(
        np.concatenate([sound, tricked]), np.concatenate([np.zeros(len(sound)), np.ones(len(tricked))])
    )
