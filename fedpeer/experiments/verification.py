"""Verified degrees of a real federation: the service's own evidence code on the models of each round.

Every participant claims its true degree, so what is measured is the evidence alone; the payments are those of
the default rule on the degrees that it verified.

Source: docs/mechanism.md, section on claims and evidence.
"""

from fractions import Fraction
from typing import Any

from fedpeer.evidence import EvidenceTask, ShadowEvidence
from fedpeer.experiments.data import splits
from fedpeer.experiments.federation import recipe_of, rounds
from fedpeer.learning.models import weights_digest
from fedpeer.learning.partition import uniform_reference
from fedpeer.protocol.submission import Submission
from mechanism.degree import noniid_degree
from mechanism.settlement import MICRO


def verified_cell(parameters: dict[str, Any], device: str) -> dict[str, Any]:
    """Verified degree of each participant in the probed rounds.

    Returns:
        "degrees": rows of round, participant, degree, verified, lower, upper (None where not scored), refuted,
            failed (the screens that it did not pass).
    """
    parts = splits(parameters["dataset"], parameters["seed"])
    recipe = recipe_of(parameters)
    reference = uniform_reference(parts.validation.classes)
    degrees = [noniid_degree(mix, reference) for mix in parameters["counts"]]
    evidence = ShadowEvidence(
        EvidenceTask.of_images(recipe, parts.validation, reference),
        parameters["seed"],
        shadows=parameters["shadows"],
    )
    rows = []
    last = max(parameters["probed"])
    for r in rounds(parts, recipe, parameters["counts"], last, parameters["seed"], device):
        if r.number not in parameters["probed"]:
            continue
        found = evidence.assess(
            evidence.prepare(r.start, r.number),
            [
                Submission(
                    participant_id=f"participant-{k:02d}",
                    model=model,
                    model_sha256=bytes.fromhex(weights_digest(model)),
                    samples=len(r.samples[k]),
                    claimed_degree=degrees[k],
                    order=k,
                )
                for k, model in enumerate(r.local)
            ],
        )
        for k, assessment in enumerate(found.assessments):
            rows.append(
                {
                    "round": r.number,
                    "participant": k,
                    "degree": float(degrees[k]),
                    "verified": _degree(assessment.verified_micro),
                    "lower": _degree(assessment.lower_micro),
                    "upper": _degree(assessment.upper_micro),
                    "refuted": assessment.refuted,
                    "failed": [v.screen for v in assessment.verdicts if not v.passed],
                }
            )
    return {"degrees": rows}


def _degree(value: int | None) -> float | None:
    return None if value is None else float(Fraction(value, MICRO))
