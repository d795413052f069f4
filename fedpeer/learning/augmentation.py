"""Light augmentation, as recipes ask for it or allow it (`mechanism.variation.AUGMENTATIONS`).

Images, real numbers of shape (n, channels, height, width), are moved by -1, 0 or 1 pixel in either direction, each by
itself, with their edges repeated. Other real inputs have normal noise of a twentieth of each number's deviation over
the batch. Whole numbers stay as they are.
"""

import torch

#: Of an input's deviation.
_NOISE = 0.05


def lightly_augmented(
    inputs: torch.Tensor | dict[str, torch.Tensor], draws: torch.Generator
) -> torch.Tensor | dict[str, torch.Tensor]:
    """A batch, or batches by name, augmented by what `draws` gives."""
    if isinstance(inputs, dict):
        return {name: _augmented(part, draws) for name, part in inputs.items()}
    return _augmented(inputs, draws)


def _augmented(inputs: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    if not inputs.is_floating_point():
        return inputs
    if inputs.ndim == 4:
        return _moved(inputs, draws)
    noise = torch.randn(inputs.shape, generator=draws).to(inputs.dtype)
    return inputs + _NOISE * inputs.std(dim=0, correction=0) * noise


def _moved(images: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate")
    down, right = torch.randint(0, 3, (2, count, 1), generator=draws)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    each = torch.arange(count)[:, None, None]
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
