"""Other ways to score contributions, under one small protocol, to compare the mechanism with.

    TruncatedMonteCarlo                                 Shapley values, from the value of coalitions of models
    CorrelatedAgreement, DeterminantMutualInformation   from predictions on shared inputs, without labels

Pure and deterministic given a seeded generator: the same call gives the same scores to the bit.
"""

from mechanism.baselines.correlated_agreement import CorrelatedAgreement
from mechanism.baselines.determinant_mutual_information import DeterminantMutualInformation
from mechanism.baselines.protocol import Baseline, Coalitions, SharedPredictions
from mechanism.baselines.truncated_monte_carlo import TruncatedMonteCarlo

__all__ = [
    "Baseline",
    "Coalitions",
    "CorrelatedAgreement",
    "DeterminantMutualInformation",
    "SharedPredictions",
    "TruncatedMonteCarlo",
]
