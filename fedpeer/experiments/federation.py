"""Federated averaging with full participation, as in the paper's experiments.

    w_(r+1) = sum_k (n_k / n) * w_r^k,     w_r^k = train(w_r, fresh samples of participant k)

Each round every participant draws new samples, with the same label counts, without replacement within
the round. Sums are float64 in participant order, so the same seed gives the same bits on one machine.

Source: McMahan et al. 2017 (FedAvg); Pang et al. 2025, section 6 (setup).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeer.experiments.data import generator, pools, splits
from fedpeer.experiments.settings import Settings
from fedpeer.learning.datasets import LabelledData, Splits
from fedpeer.learning.mean import weighted_mean
from fedpeer.learning.models import Weights, initial_weights
from fedpeer.learning.partition import draw
from fedpeer.learning.training import evaluate, train
from mechanism.terms import Recipe

#: Purposes of the random streams, so that no two share one.
_DRAW, _ORDER = 1, 2


@dataclass(frozen=True)
class FederationRound:
    """One round of a federation.

    Attributes:
        number: 1 ... T.
        start: the weights that were sent out.
        samples: what each participant trained on.
        local: the weights that each sent back.
        merged: the weights of the next round's start.
    """

    number: int
    start: Weights
    samples: Sequence[LabelledData]
    local: Sequence[Weights]
    merged: Weights


def rounds(
    parts: Splits,
    recipe: Recipe,
    counts: Sequence[Sequence[int]],
    number: int,
    seed: int,
    device: str = "cpu",
) -> Iterator[FederationRound]:
    """The rounds 1 ... `number` of a federation.

    Args:
        parts: the data.
        counts: label counts of each participant, those of one round.
        seed: decides the first weights, the samples and their order.
    """
    weights: Weights = initial_weights(recipe.model, seed)
    most = max(sum(mix) for mix in counts)
    held = pools(parts.train, len(counts), most, seed)
    for r in range(1, number + 1):
        samples = [
            draw(pool, mix, generator(seed, _DRAW, r, k))
            for k, (pool, mix) in enumerate(zip(held, counts, strict=True))
        ]
        local = [
            train(weights, data, recipe, order_seed(seed, r, k), device=device)
            for k, data in enumerate(samples)
        ]
        merged = weighted_mean(local, [len(data) for data in samples])
        yield FederationRound(r, weights, samples, local, merged)
        weights = merged


def order_seed(seed: int, round_: int, participant: int) -> int:
    """The seed of the order in which a participant sees its samples."""
    return int(generator(seed, _ORDER, round_, participant).integers(2**31))


def federation_parameters(
    settings: Settings,
    counts: Sequence[Sequence[int]],
    epochs: int,
    seed: int,
    *,
    track: Sequence[int] = (),
    every: int = 1,
) -> dict[str, Any]:
    """The parameters of a cell of kind "federation".

    Args:
        track: participants whose own models are evaluated too.
        every: they are evaluated in every such round, and in the last.
    """
    recipe = settings.recipe(epochs)
    return {
        "dataset": settings.dataset,
        "rounds": settings.rounds,
        "counts": [[int(n) for n in mix] for mix in counts],
        "epochs": epochs,
        "batch": recipe.batch_size,
        "rate": str(recipe.learning_rate),
        "seed": seed,
        "track": list(track),
        "every": every,
    }


def recipe_of(parameters: dict[str, Any]) -> Recipe:
    """The recipe of a cell."""
    settings = Settings(parameters["dataset"])
    recipe = settings.recipe(parameters["epochs"])
    if recipe.batch_size != parameters["batch"] or str(recipe.learning_rate) != parameters["rate"]:
        # The settings have changed since the parameters were written, and a result would be misfiled.
        raise ValueError(f"the recipe of {parameters['dataset']} is no longer that of the cell")
    return recipe


def federation_cell(parameters: dict[str, Any], device: str) -> dict[str, Any]:
    """Accuracy and loss of the global model in every round, and of the tracked participants' own.

    Returns:
        "global": rows of round, accuracy (test), loss (test);
        "local": rows of round, participant, accuracy (test), loss (D_c).
    """
    parts = splits(parameters["dataset"], parameters["seed"])
    recipe, last = recipe_of(parameters), parameters["rounds"]
    whole, local = [], []
    for r in rounds(parts, recipe, parameters["counts"], last, parameters["seed"], device):
        merged = evaluate(r.merged, parts.test, recipe.model, device=device)
        whole.append({"round": r.number, "accuracy": merged.accuracy, "loss": merged.loss})
        if r.number % parameters["every"] and r.number != last:
            continue
        for k in parameters["track"]:
            on_test = evaluate(r.local[k], parts.test, recipe.model, device=device)
            on_validation = evaluate(r.local[k], parts.validation, recipe.model, device=device)
            local.append(
                {
                    "round": r.number,
                    "participant": k,
                    "accuracy": on_test.accuracy,
                    "loss": on_validation.loss,
                }
            )
    return {"global": whole, "local": local}
