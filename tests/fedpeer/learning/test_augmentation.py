"""Light augmentation."""

import pytest
import torch

from fedpeer.learning.augmentation import lightly_augmented


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_images_are_moved_by_a_pixel_at_most_each_by_itself() -> None:
    images = torch.zeros(200, 2, 5, 7)
    images[:, :, 2, 3] = 1.0
    moved = lightly_augmented(images, draws())
    assert isinstance(moved, torch.Tensor)
    assert moved.shape == images.shape
    places = {tuple(place) for place in moved[:, 0].nonzero()[:, 1:].tolist()}
    assert places == {(2 + down, 3 + right) for down in (-1, 0, 1) for right in (-1, 0, 1)}
    assert torch.equal(moved[:, 0], moved[:, 1]), "channels move together"
    assert float(moved.sum()) == 400.0


def test_edges_are_repeated() -> None:
    images = torch.ones(50, 1, 3, 3)
    assert torch.equal(lightly_augmented(images, draws()), images)  # type: ignore[arg-type]


def test_other_numbers_get_noise_of_a_twentieth_of_their_deviation_and_whole_ones_stay() -> None:
    table = torch.randn(4000, 2, generator=draws(1)) * torch.tensor([1.0, 10.0])
    tokens = torch.arange(4000)
    made = lightly_augmented({"table": table, "tokens": tokens}, draws())
    assert isinstance(made, dict)
    assert torch.equal(made["tokens"], tokens)
    noise = (made["table"] - table).std(dim=0)
    assert noise.tolist() == pytest.approx([0.05, 0.5], rel=0.05)


def test_the_same_draws_give_the_same() -> None:
    table = torch.randn(20, 3)
    assert torch.equal(lightly_augmented(table, draws()), lightly_augmented(table, draws()))  # type: ignore[arg-type]
    assert not torch.equal(lightly_augmented(table, draws()), lightly_augmented(table, draws(2)))  # type: ignore[arg-type]
