"""What the learner can know of a submitted model from D_c alone.

behaviour   features of a model on D_c, as integers
sketch      updates squeezed into one short vector each, so that memory does not grow with the model
updates     label shares from the direction of an update
likeness    of two models, beyond what their label mixes have in common
shadows     models of known degree, trained from the same start by the task's recipe
fitting     from shadows to the maps and thresholds of `mechanism.evidence`
influence   what a submission adds to the aggregate: leave-one-out, Shapley
assessing   a round: measure every submission, one at a time, and assess them together
"""

from fedpeer.evidence.assessing import RoundEvidence, ShadowEvidence
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.fitting import ShadowEnsemble

__all__ = ["EvidenceError", "RoundEvidence", "ShadowEnsemble", "ShadowEvidence"]
