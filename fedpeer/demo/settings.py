"""What the demo asks for, by data set: recipe, sample sizes and the economics."""

from dataclasses import dataclass
from decimal import Decimal

#: Peers a round: with five, instead of the paper's one, what the draw gives is soon near to what is expected.
PEERS = 5

#: Small, unlike what `fedpeer calibrate` proposes: a false claim is refuted and not paid at all, and an honest one of
#: balanced labels is often measured a little too high.
CLAIM_PENALTY = Decimal(1)

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
        phi, upsilon, scale, Q, stake_micro: what `fedpeer calibrate` measures and proposes for this task at seed 0
            with --costs 0.4 0.85 --starts 0.3 0.8 --degree 0.3 --budget 50: effort pays for who improves a unit of
            degree for at most 0.85 credits, and balanced data earn about two credits a round.
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
    phi: Decimal
    upsilon: Decimal
    scale: Decimal
    Q: Decimal
    stake_micro: int


DATASETS = {
    "digits": DatasetSettings(
        model="digits-cnn",
        classes=10,
        samples=150,
        epochs=8,
        batch_size=32,
        learning_rate=Decimal("0.003"),
        validation=400,
        test=360,
        shadows=80,
        phi=Decimal("7.885"),
        upsilon=Decimal("1.315"),
        scale=Decimal("0.5400"),
        Q=Decimal("62.29"),
        stake_micro=621_367,
    ),
    "fashion-mnist": DatasetSettings(
        model="fashion-mnist-cnn",
        classes=10,
        samples=500,
        epochs=5,
        batch_size=64,
        learning_rate=Decimal("0.001"),
        validation=2000,
        test=2000,
        shadows=50,
        phi=Decimal("5.972"),
        upsilon=Decimal("1.844"),
        scale=Decimal("0.7617"),
        Q=Decimal("28.41"),
        stake_micro=603_793,
    ),
}
