"""DP-SGD: gradients clipped sample by sample and noise on their sum, by Opacus (the extra `privacy`).

Batches are drawn anew in each step, each sample by itself (Poisson sampling): what the accountant's epsilon rests on.
A batch may be empty; its step is of noise alone.

    steps = PrivateSteps(module, recipe, samples, seed)
    for epoch in range(recipe.epochs):
        for rows in steps.batches():
            steps.step(rows, lambda module: mean_loss(module, rows))
    steps.close()

Who knows the seed takes the noise off again: a participant's comes from its operating system
(`participant.TrainingRound.seed`), a shadow's from its plan.

Source: Abadi et al. 2016, Deep learning with differential privacy, algorithm 1.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from fedpeer.extras import missing
from fedpeer.learning.errors import RecipeError
from mechanism.privacy import epoch_steps
from mechanism.terms import Recipe

#: Separates the generator of batches from that of noise, both of one seed.
_BATCHES, _NOISE = 0, 1


class PrivateSteps:
    """Steps of a module that stands at the round's start and is in training mode.

    Args:
        recipe: with the privacy method "dp-sgd".
        samples: how many there are.
        seed: of batches and noise.
        optimizer: of the module's trainable parameters; None: the recipe's, with its proximal term and weight decay.

    Raises:
        RecipeError: Opacus is not installed, or the module has a layer over which samples are no longer apart, such as
            batch normalisation.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        samples: int,
        seed: int,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        try:
            from opacus import GradSampleModule
            from opacus.optimizers import DPOptimizer
            from opacus.validators import ModuleValidator
        except ImportError as error:
            raise RecipeError(missing(error) or f"Opacus cannot be imported: {error}") from error
        privacy = recipe.privacy
        assert privacy is not None, "the recipe asks for privacy"
        if wrong := ModuleValidator.validate(module, strict=False):
            raise RecipeError(
                f"the module cannot be trained by DP-SGD: {wrong[0]}; use group normalisation in the place of batch "
                'normalisation, say, or the privacy method "update"'
            )
        self._samples, self._steps = samples, epoch_steps(samples, recipe.batch_size)
        self._draws = torch.Generator().manual_seed(_apart(seed, _BATCHES))
        self._module = GradSampleModule(module)
        trained = [p for p in module.parameters() if p.requires_grad]
        self._optimizer = DPOptimizer(
            recipe_optimizer(trained, recipe) if optimizer is None else optimizer,
            noise_multiplier=float(privacy.noise_multiplier),
            max_grad_norm=float(privacy.clip),
            expected_batch_size=samples / self._steps,
            generator=torch.Generator(trained[0].device).manual_seed(_apart(seed, _NOISE)),
        )
        if optimizer is None and (recipe.proximal or recipe.weight_decay):
            # Both are of weights alone, which earlier noise has made private.
            decay = float(recipe.learning_rate * recipe.weight_decay)
            self._optimizer.attach_step_hook(pull(trained, float(recipe.proximal), decay))

    def batches(self) -> Iterator[torch.Tensor]:
        """The batches of an epoch: indices of samples, perhaps none."""
        for _ in range(self._steps):
            yield torch.nonzero(torch.rand(self._samples, generator=self._draws) < 1 / self._steps).flatten()

    def step(self, rows: torch.Tensor, loss: Callable[[nn.Module], torch.Tensor]) -> float:
        """One step on a batch; its loss, 0 of an empty one.

        Args:
            loss: of the module that it is given, the mean over the batch of what each sample loses by itself.
        """
        self._optimizer.zero_grad()
        found = 0.0
        if len(rows):
            value = loss(self._module)
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "Full backward hook", UserWarning
                )  # no input needs a gradient
                value.backward()  # type: ignore[no-untyped-call]  # torch's own stub
            found = float(value.detach())
        else:
            for parameter in self._optimizer.params:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        self._optimizer.step()
        return found

    def close(self) -> None:
        """Takes Opacus's hooks off the module again."""
        self._module.remove_hooks()


def recipe_optimizer(trained: Sequence[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """torch's own optimizer of a recipe, without its proximal term and weight decay.

    Raises:
        RecipeError: an unknown optimizer.
    """
    rate = float(recipe.learning_rate)
    if recipe.optimizer == "adam":
        betas = float(recipe.momentum), float(recipe.beta2)
        return torch.optim.Adam(trained, lr=rate, betas=betas, eps=float(recipe.epsilon))
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=rate, momentum=float(recipe.momentum))
    raise RecipeError(f"there is no optimizer {recipe.optimizer!r}; expected adam or sgd")


def pull(trained: Sequence[nn.Parameter], mu: float, decay: float) -> Callable[..., None]:
    """What an optimizer does before each step, for parameters that stand at the start: mu (w - start) beside the
    gradient, and w shrunk by `decay`, of those that have a gradient."""
    start = [parameter.detach().clone() for parameter in trained]

    def before_step(*_: object) -> None:
        for parameter, at_start in zip(trained, start, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - at_start, alpha=mu)
                parameter.data.mul_(1 - decay)

    return before_step


def _apart(seed: int, purpose: int) -> int:
    """Different seeds of 64 bits for two purposes."""
    return (2 * seed + purpose) % 2**64
