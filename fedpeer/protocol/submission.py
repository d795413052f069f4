"""A model that a participant submitted, as it is scored and averaged."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from fedpeer.protocol.model_file import Weights, open_model


@dataclass(frozen=True)
class Submission:
    """One model of a closed round, with what its sender claimed.

    Attributes:
        participant_id: whose.
        model: its weights, or the safetensors file that has them; a file is loaded when needed and freed again.
        model_sha256: digest of the file.
        samples: training samples as claimed; the weight in the aggregate, up to the recipe's.
        claimed_degree: in [0, 1].
        order: of its commitment within the task.
        fault: why it is not to be scored whatever it holds, such as "it came after the deadline".
    """

    participant_id: str
    model: Weights | Path
    model_sha256: bytes
    samples: int
    claimed_degree: Fraction
    order: int
    fault: str = ""

    def weights(self) -> Weights:
        """Raises ModelFileError for a file that is none."""
        return open_model(self.model).weights() if isinstance(self.model, Path) else self.model
