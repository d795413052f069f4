"""The learner's own data, ready to measure on."""

from dataclasses import dataclass

from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import Codes, counts_over


@dataclass(frozen=True, eq=False)
class LearnerData:
    """D_c with its strata, and what is held out.

    Attributes:
        name: of the data set or file, for sentences.
        validation: D_c.
        codes: the stratum of each of its samples; strata: S.
        test: held-out samples to report on; None: D_c is reported on.
        notes: what of the files was left out, or may be meant otherwise, as sentences.
    """

    name: str
    validation: Samples
    codes: Codes
    strata: int
    test: Samples | None = None
    notes: tuple[str, ...] = ()

    def counts(self) -> tuple[int, ...]:
        """Samples of D_c in each stratum."""
        return counts_over(self.codes, self.strata)
