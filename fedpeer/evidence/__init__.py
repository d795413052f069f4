"""What the learner can know of a submitted model from D_c alone, whatever its workload and strata.

generic     shadow models of known degree, features, maps, tests and likeness of one start
sketch      updates squeezed into one short vector each, so that memory does not grow with the model
regression  ridge regressions and trees, in integers
likeness    of two models, beyond what their mixes have in common
influence   what a submission adds to the aggregate: leave-one-out, Shapley
assessing   a round: measure every submission, one at a time, and assess them together
"""

from fedpeer.evidence.assessing import RoundEvidence, ShadowEnsemble, ShadowEvidence
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.generic import EvidenceTask

__all__ = ["EvidenceError", "EvidenceTask", "RoundEvidence", "ShadowEnsemble", "ShadowEvidence"]
