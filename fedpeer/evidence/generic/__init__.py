"""Evidence for any workload and any strata, from losses a sample and updates alone.

planning    which shadow models are trained, in two disjoint halves of D_c
observing   features of a model, of each stratum, as integers
telling     from long vectors, such as an update, to shares of the strata: ridge regressions
fitting     from shadows to the map of `mechanism.degree_map` and its interval
screening   tests that a model passes at a stated rate, calibrated on the shadows
measuring   a start's ensemble, and what it says of a model
"""

from fedpeer.evidence.generic.measuring import Ensemble, EvidenceTask, Measured, prepare_ensemble

__all__ = ["Ensemble", "EvidenceTask", "Measured", "prepare_ensemble"]
