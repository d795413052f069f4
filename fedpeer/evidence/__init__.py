"""What the learner can know of a submitted model from D_c alone, whatever its workload and strata.

planning    which shadow models are trained, in two disjoint halves of D_c
observing   features of a model, of each stratum, as integers
sketch      updates squeezed into one short vector each, so that memory does not grow with the model
vector_maps from long vectors, such as an update, to shares of the strata
regression  ridge regressions and trees, in integers
fitting     from shadows to the map of `mechanism.degree_map` and its interval
screening   tests that a model passes at a stated rate, calibrated on the shadows
likeness    of two models, beyond what their mixes have in common
comparing   what samples two models have in common, from their likeness
sent        earlier models that were sent out, without what one participant added to them
measuring   a start's ensemble, and what it says of a model
evaluating  submissions looked at in pieces, on an executor
influence   what a submission adds to the aggregate: leave-one-out, Shapley
assessing   a round: measure every submission, one at a time, and assess them together
gaps        how far apart participants' models are on D_c: phi and upsilon
"""

from fedpeer.evidence.assessing import RoundEvidence, ShadowEnsemble, ShadowEvidence
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.measuring import EvidenceTask

__all__ = ["EvidenceError", "EvidenceTask", "RoundEvidence", "ShadowEnsemble", "ShadowEvidence"]
