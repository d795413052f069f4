"""A residual network with group normalisation on Fashion-MNIST. resnet.toml has the terms.

fedpeer simulate examples/resnet.py:owner
"""

from pathlib import Path

import torch
from torch import nn

from fedpeer.learning.workloads.torch import TorchWorkload
from participant.adapters.torch import DatasetTask


class ResNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem, self.down = nn.Conv2d(1, width, 3, 2, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.inner, self.last = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(2 * width, 2 * width, 3, 1, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for channels in (width, width, 2 * width))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = torch.relu(self.norms[0](self.stem(x)))
        x = self.down(torch.relu(x + self.norms[1](self.inner(x))))
        x = torch.relu(x + self.norms[2](self.last(x)))
        return self.head(x.mean((2, 3)))


def workload(width=12, classes=10):
    return TorchWorkload(lambda: ResNet(width, classes), classes=classes)


def owner(participant=0):
    """Images of the training part, skewed to one label; effort brings in the others."""
    number = participant % 10
    return DatasetTask(
        "fashion-mnist", majority=number, degree=0.5, folders=[Path(__file__).parent], seed=participant
    )
