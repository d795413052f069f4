"""The paper's architectures as workloads."""

from fedpeer.learning.models import architecture
from fedpeer.learning.workloads.torch import TorchWorkload


class CnnWorkload(TorchWorkload):
    """An architecture of `fedpeer.learning.models` on images of shape (n, channels, height, width), float32.

    Raises:
        ModelError: no such architecture.
    """

    def __init__(self, name: str) -> None:
        form = architecture(name)
        super().__init__(form.module, classes=form.classes)
