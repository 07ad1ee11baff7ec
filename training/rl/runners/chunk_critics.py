"""An ensemble of Q functions of action chunks, with its target networks and its own Adam."""

import torch
from torch import Tensor

from training.rl.value.ensembles import Ensemble


class ChunkCritics(Ensemble):
    """N networks Q(features, chunk), and `slow`, the target networks that follow them with Polyak
    coefficient `tau`; other arguments as of `Ensemble`.

    A run saves the weights with its module, and the state of `adam` with that of the optimizers
    that a learner names.
    """

    def __init__(
        self, inputs: int, count: int, width: int, seed: int, *, lr: float, tau: float
    ) -> None:
        super().__init__(inputs, count, (width, width), torch.Generator().manual_seed(seed))
        self.adam = torch.optim.Adam(self.parameters(), lr=lr, fused=True)
        self.slow = Ensemble(inputs, count, (width, width))
        self.slow.load_state_dict(self.weights())
        self.tau = tau

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of the networks, without those of the target networks."""
        return dict(self.named_parameters(recurse=False))

    def update(self, features: Tensor, chunk: Tensor, target: Tensor) -> float:
        """Descend the mean squared error of chunks f32 [m, h, u] at features f32 [m, d] to targets
        f32 [m] once; the target networks follow. Return the error before, the mean over networks.
        """
        weights = list(self.weights().values())
        for weight in weights:
            weight.requires_grad_()
        with torch.enable_grad():
            error = (self(features, chunk) - target).square().mean(1)
            error.sum().backward(inputs=weights)
        self.adam.step()
        self.adam.zero_grad()
        for weight, slow in zip(weights, self.slow.parameters(), strict=True):
            slow.lerp_(weight.requires_grad_(requires_grad=False), self.tau)
        return float(error.detach().mean())
