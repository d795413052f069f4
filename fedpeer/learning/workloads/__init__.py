"""Workloads: how a task's model is built, trained and judged, whatever it is.

protocol    what a workload is
torch       any torch module with a loss: frozen base, tied weights, normalisation of any kind, bfloat16
cnns        the paper's architectures by name
sklearn     scikit-learn's linear models and multi-layer perceptrons
baseline    the mean, or the shares of the classes: what needs no learning
loading     "package.module:factory", in a process of its own, with a digest of its files
"""

from fedpeer.learning.workloads.protocol import Judged, Workload

__all__ = ["Judged", "Workload"]
