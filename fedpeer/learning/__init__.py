"""Data sets, partitions, architectures and local training: what both the learner and the participants do.

Arrays in, arrays out: data and weights are NumPy arrays at this package's edges; torch stays inside
`fedpeer.learning.models`, `fedpeer.learning.training` and those that train with it.
"""
