"""Data sets, partitions, architectures and local training: the learning side that both ends may share."""
