"""Rounds of the market without training: real terms, real peer draws, real settlement, exact amounts.

Nothing that is paid hangs on a model's digest, so every participant has the same; everything else is what a
coordinator does.
"""

import hashlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from fedpeer.experiments.game import BOUND
from fedpeer.learning.partition import uniform_reference
from mechanism.degree import noniid_degree
from mechanism.payment import payment_function
from mechanism.peers import Draw, draw_share, round_seed, seed_commitment
from mechanism.settlement import MICRO, Assessment, settle_round
from mechanism.terms import ModelContract, Recipe, Rule, Schedule, TensorSpec, Terms

#: Terms need a contract and deadlines; no model is sent here, and no clock runs.
_CONTRACT = ModelContract((TensorSpec("output.bias", "F32", (10,)),), Decimal(1), 1_000)


def settlement_parameters(
    alternatives: Sequence[Sequence[Sequence[int]]], *, Q: float, rounds: int, repetitions: int, seed: int
) -> dict[str, Any]:
    """The parameters of a cell of kind "settlement".

    Args:
        alternatives: populations to settle, each the label counts of every participant.
        Q: payment coefficient, of the paper's rule with the log payment.
        rounds: rounds of each task.
        repetitions: tasks of each population, each with a secret of its own.
    """
    return {
        "alternatives": [[[int(n) for n in mix] for mix in counts] for counts in alternatives],
        "q": repr(Q),
        "phi": repr(BOUND.phi),
        "upsilon": repr(BOUND.upsilon),
        "rounds": rounds,
        "repetitions": repetitions,
        "seed": seed,
    }


def settlement_cell(parameters: dict[str, Any], device: str) -> dict[str, Any]:
    """What every participant is paid, micro-credits.

    Returns:
        "paid_micro": by alternative, repetition, round and participant.
    """
    del device  # nothing is trained
    return {
        "paid_micro": [
            [list(_paid(parameters, counts, repetition)) for repetition in range(parameters["repetitions"])]
            for counts in parameters["alternatives"]
        ]
    }


def _paid(parameters: dict[str, Any], counts: list[list[int]], repetition: int) -> Iterator[list[int]]:
    """One task: what each participant is paid, round by round."""
    rounds, reference = parameters["rounds"], uniform_reference(len(counts[0]))
    # The same draws for every alternative, so that they differ by what they pay alone; others in another cell.
    first = parameters["alternatives"][0]
    secret = hashlib.sha256(f"{parameters['seed']}/{repetition}/{first}".encode()).digest()
    terms = _terms(parameters, len(counts), reference, seed_commitment(secret, rounds))
    degrees = [noniid_degree(mix, reference) for mix in counts]
    names = [f"participant-{k:02d}" for k in range(len(counts))]
    chains = {name: hashlib.sha256(secret + name.encode()).digest() for name in names}
    for r in range(1, rounds + 1):
        assessments = [
            Assessment(
                participant_id=name,
                model_sha256=bytes(32),
                claimed_degree=degree,
                # Claims are true here, so the evidence would say the same.
                verified_micro=round(degree * MICRO),
            )
            for name, degree in zip(names, degrees, strict=True)
        ]
        shares = {name: draw_share(chain, rounds, r) for name, chain in chains.items()}
        settled = settle_round(terms, r, Draw(round_seed(secret, rounds, r), shares), assessments)
        yield [payment.paid_micro for payment in settled.payments]


def _terms(parameters: dict[str, Any], participants: int, reference: Any, commitment: bytes) -> Terms:
    return Terms(
        task_id="figures",
        reference=reference,
        Q=Decimal(parameters["q"]),
        phi=Decimal(parameters["phi"]),
        upsilon=Decimal(parameters["upsilon"]),
        payment=payment_function("log"),
        rule=Rule("paper"),
        schedule=Schedule(parameters["rounds"], participants, participants, 1, 1),
        contract=_CONTRACT,
        recipe=Recipe("custom", 1, 1, "sgd", Decimal(1), 1),
        budget_micro=0,
        seed_commitment=commitment,
        validation_commitment=bytes(32),
        initial_model=bytes(32),
    )
