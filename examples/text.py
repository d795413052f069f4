"""In which section is a package? A head on a frozen sentence encoder (text.toml), or adapters in it (text_lora.toml).

fedpeer simulate examples/text.py:owner
"""

from pathlib import Path

import numpy as np
from sentences import WIDTH, Adapted, texts
from torch import nn

from fedpeer.learning.workloads.torch import TorchWorkload
from participant.adapters.workload import SkewedTask

sources = ["sentences.py"]


def head(sections=12):
    return TorchWorkload(lambda: nn.Linear(WIDTH, sections), classes=sections)


def adapters(rank=4, sections=12):
    return TorchWorkload(lambda: Adapted(rank, sections), classes=sections, travels="trained")


def learner(adapted=False, size=1500):
    """D_c, and what the model is reported on."""
    everything = texts(adapted)
    return everything.select(np.arange(size)), everything.select(np.arange(size, size + 300))


def owner(participant=0, adapted=False, size=1500):
    """What nobody has yet, skewed to one section; effort brings in the others."""
    rest, here = texts(adapted).select(np.arange(size + 300, len(texts(adapted)))), Path(__file__).parent
    return SkewedTask(rest, majority=participant % 12, degree=0.5, folders=[here], seed=participant)


def adapting_owner(participant=0):
    return owner(participant, adapted=True)
