"""What the demo asks for, by data set: recipe, sample sizes and the economics."""

from dataclasses import dataclass
from decimal import Decimal

#: Economics of the demo's task: the paper's smallest Phi and Upsilon, a Q that pays about two credits a round for
#: good data, and a stake of a quarter credit. The penalty is small: a false claim is refuted and not paid at all, and
#: an honest one of balanced labels is often measured a little too high. With five peers a round, instead of the
#: paper's one, what the draw gives is near to what is expected after few rounds.
Q, PHI, UPSILON = Decimal(2000), Decimal(300), Decimal(200)
PEERS = 5
CLAIM_PENALTY = Decimal(1)
STAKE_MICRO = 250_000

#: Rate of every participant's effort curve, as in the paper: full effort brings the degree to 1/e of its start.
EFFORT_RATE = 1.0

#: Seconds for claims and for each round's models. Nobody waits for them unless a process hangs: a phase ends when
#: all are in.
PHASE_SECONDS = 300


@dataclass(frozen=True)
class DatasetSettings:
    """How one data set is learned in the demo.

    Attributes:
        model: architecture in `fedpeer.learning.models`.
        classes: labels I.
        samples: of one participant in one round.
        epochs, batch_size, learning_rate: the recipe, with Adam.
        validation, test: samples of D_c and of the held-out part.
        shadows: shadow models before each round.
    """

    model: str
    classes: int
    samples: int
    epochs: int
    batch_size: int
    learning_rate: Decimal
    validation: int
    test: int
    shadows: int


DATASETS = {
    "digits": DatasetSettings("digits-cnn", 10, 150, 8, 32, Decimal("0.003"), 400, 360, 80),
    "fashion-mnist": DatasetSettings("fashion-mnist-cnn", 10, 500, 5, 64, Decimal("0.001"), 2000, 2000, 50),
}
