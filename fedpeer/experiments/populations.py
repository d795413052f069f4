"""Who takes part: the label mixes of a federation, by each of the paper's two parameters.

    shares     participant k has the share s_k of its majority label, the rest along a long tail
    classes    participant k has c_k labels, its first one and those that follow it, evenly

The first label of participant k is k * I / N, so over ten participants and ten labels both give every label the
same total: the federation as a whole is balanced and only the skew inside each participant differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from fedpeer.experiments.settings import PARTICIPANTS
from fedpeer.learning.partition import (
    LabelMix,
    majority_minority,
    number_of_classes,
    toward_reference,
    uniform_reference,
)


@dataclass(frozen=True)
class Partition:
    """One of the two ways to skew labels, with the levels that the figures show.

    Attributes:
        name: "share" or "classes".
        symbol: how legends call the level.
        levels: from the least to the most skewed.
        default: the level of everyone else where two peers are compared.
    """

    name: str
    symbol: str
    levels: tuple[Fraction, ...]
    default: Fraction

    @property
    def peers(self) -> tuple[Fraction, Fraction]:
        """The levels of the two participants that are compared."""
        return self.levels[0], self.levels[-1]

    def mix(self, participant: int, level: Fraction, classes: int, samples: int) -> LabelMix:
        """The labels of one participant at `level`."""
        reference, first = uniform_reference(classes), first_label(participant, classes)
        if self.name == "share":
            return majority_minority(reference, samples, majority=first, share=level)
        labels = [(first + j) % classes for j in range(int(level * classes / 10))]
        return number_of_classes(reference, samples, labels=labels)

    def label(self, level: Fraction, classes: int, samples: int) -> str:
        """The level as the paper writes it, with the exact degree beside it."""
        degree = float(self.mix(0, level, classes, samples).degree)
        shown = f"{float(level):g}" if self.name == "share" else f"{int(level * classes / 10)}"
        return f"{self.symbol} {shown} ($\\delta$ = {degree:.2f})"


#: The paper's: its delta is the share of the majority label, and 0.1 is its iid.
SHARES = Partition(
    "share", "share", (Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)), default=Fraction(1, 2)
)
#: Labels held, of ten (of twenty where there are twenty: twice as many). Two of ten is as far from the
#: reference as a share of 0.9 with an even rest: 0.8.
CLASSES = Partition("classes", "classes", (Fraction(10), Fraction(5), Fraction(2)), default=Fraction(5))
PARTITIONS = {partition.name: partition for partition in (SHARES, CLASSES)}


def first_label(participant: int, classes: int) -> int:
    """The label that a participant has most of."""
    return participant * classes // PARTICIPANTS % classes


def at_degrees(
    partition: Partition, degrees: Sequence[Fraction], classes: int, samples: int
) -> list[LabelMix]:
    """Participant k at exactly degrees[k]; see `at_degree`."""
    return [at_degree(partition, k, degree, classes, samples) for k, degree in enumerate(degrees)]


def at_degree(
    partition: Partition, participant: int, degree: Fraction, classes: int, samples: int
) -> LabelMix:
    """One participant at a degree, to within half a sample.

    Shares: the majority-minority mix of that degree. Classes: as many whole labels as reach at least the degree,
    then a thin rest over all labels that takes it to the degree itself.
    """
    reference, first = uniform_reference(classes), first_label(participant, classes)
    if partition.name == "share":
        return majority_minority(reference, samples, majority=first, degree=degree)
    held = max(1, int((1 - degree) * classes))
    labels = [(first + j) % classes for j in range(held)]
    whole = number_of_classes(reference, samples, labels=labels)
    return toward_reference(whole, min(degree, whole.degree))
