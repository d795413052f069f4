"""What a run of the experiments is asked for."""

from dataclasses import dataclass
from decimal import Decimal

from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.datasets import dataset_names
from fedpeer.learning.models import FOR_DATASET
from mechanism.terms import Recipe

#: Participants of every federation, as in the paper's experiments.
PARTICIPANTS = 10

#: Samples that a participant trains on in a round. The paper says 500 or 600. Digits has 1,037 samples to
#: draw from, about 104 of a label: with 100 a share of 0.9 still needs no repeats.
SAMPLES, SAMPLES_DIGITS = 500, 100

#: The paper's appendix: Adam with rate 0.01, batches of 256. Batches of 32 for the small rounds of digits,
#: which else would be a single step an epoch.
LEARNING_RATE = Decimal("0.01")
BATCH, BATCH_DIGITS = 256, 32

#: Local epochs of the main runs, and of those that show what one epoch alone gives.
EPOCHS, EPOCHS_ONCE = 5, 1

#: Test samples on which accuracy is taken: a standard error of half a point at an accuracy of 0.88.
TEST_SAMPLES = 4_000

#: Default rounds and seeds, in full and with --quick.
ROUNDS, ROUNDS_QUICK = 20, 5
SEEDS, SEEDS_QUICK = 3, 2


@dataclass(frozen=True)
class Settings:
    """One data set's experiments.

    Attributes:
        dataset: a name of `fedpeer.learning.datasets.dataset_names()`.
        rounds: T >= 1 of every federation.
        seeds: repetitions >= 1, with the seeds 0 ... seeds - 1.
        quick: fewer probes and repetitions where a figure has some of its own.

    Raises:
        ExperimentError: a value out of its range.
    """

    dataset: str
    rounds: int = ROUNDS
    seeds: int = SEEDS
    quick: bool = False

    def __post_init__(self) -> None:
        if self.dataset not in dataset_names():
            raise ExperimentError(
                f"there is no data set {self.dataset!r}; expected one of {', '.join(dataset_names())}"
            )
        if self.rounds < 1:
            raise ExperimentError(f"--rounds is {self.rounds}; expected at least 1")
        if self.seeds < 1:
            raise ExperimentError(f"--seeds is {self.seeds}; expected at least 1")

    @property
    def classes(self) -> int:
        return 20 if self.dataset == "cifar100-coarse" else 10

    @property
    def samples(self) -> int:
        return SAMPLES_DIGITS if self.dataset == "digits" else SAMPLES

    def recipe(self, epochs: int = EPOCHS) -> Recipe:
        """The recipe that every participant of this data set follows."""
        return Recipe(
            model=FOR_DATASET[self.dataset],
            epochs=epochs,
            batch_size=BATCH_DIGITS if self.dataset == "digits" else BATCH,
            optimizer="adam",
            learning_rate=LEARNING_RATE,
            samples=self.samples,
        )
