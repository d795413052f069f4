"""What learning refuses.

LearningError(ValueError)
 +- DatasetMissingError   the data are not on the disk and cannot be fetched: says the two ways to get them
 +- DataError        data, counts or sizes that do not fit together
 +- ModelError       an unknown architecture, or weights that are not its own
 +- RecipeError      a training recipe that cannot be carried out
 +- WorkloadError    a workload that cannot be loaded, or that fails
"""


class LearningError(ValueError):
    """Base of every refusal of this package."""


class DatasetMissingError(LearningError):
    """A data set is neither on the disk nor to be had over the network."""


class DataError(LearningError):
    """Images, labels, counts or sizes that do not fit together."""


class ModelError(LearningError):
    """An architecture that is not registered, or weights with a wrong name, shape or type."""


class RecipeError(LearningError):
    """A recipe that names an unknown optimizer or has a number out of range."""


class WorkloadError(LearningError):
    """A workload that cannot be loaded, is none, or fails in a call."""
