"""A linear layer that sees standardised inputs, and folds back into a plain one."""

import torch
from torch import Tensor, nn

from training.rl.value.state_estimator import Standardizer


class StandardizedLinear(nn.Linear):
    """The same function as a linear layer, with weights for standardised inputs: one step of Adam
    then moves its output by what one expects, however large an input is.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.load_state_dict(layer.state_dict())
        self.register_buffer("mean", torch.zeros(layer.in_features))
        self.register_buffer("std", torch.ones(layer.in_features))

    @torch.no_grad()
    def standardize(self, inputs: Tensor) -> None:
        """Standardise by inputs f32 [n, d] from now on; the function stays what it is."""
        scale = Standardizer(self.in_features).to(inputs.device)
        scale.fit(inputs)
        self.bias += self.weight @ scale.mean
        self.weight *= scale.std
        self.mean.copy_(scale.mean)
        self.std.copy_(scale.std)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return f32 [b, out] of inputs f32 [b, in]."""
        return super().forward((inputs - self.mean) / self.std)

    @staticmethod
    def fold(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a network by name with such layers as plain linear ones."""
        folded = dict(weights)
        names = [n.removesuffix("mean") for n in weights if n.endswith(".mean")]
        for name in [n for n in names if f"{n}weight" in weights]:
            weight = folded[f"{name}weight"] / folded.pop(f"{name}std")
            folded[f"{name}bias"] = folded[f"{name}bias"] - weight @ folded.pop(f"{name}mean")
            folded[f"{name}weight"] = weight
        return folded
