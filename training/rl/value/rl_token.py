"""A bottleneck of a policy's features that a small actor and critic can learn from.

After the RL token (Physical Intelligence 2026): a token is trained to reconstruct the embeddings of
the frozen backbone, and then never again.
"""

import math
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from training.rl.value.state_estimator import BATCH, Standardizer

TOKEN_SIZE = 64


class RLToken(nn.Module):
    """Autoencoder of standardised features f32 [n, d] with a token f32 [n, k] in between."""

    def __init__(self, features: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.inputs = Standardizer(features)
        self.encoder = nn.Sequential(nn.Linear(features, 512), nn.SiLU(), nn.Linear(512, size))
        self.decoder = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 512), nn.SiLU(), nn.Linear(512, features)
        )
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
        self.requires_grad_(requires_grad=False)

    def fit(self, features: Tensor, state: Tensor, steps: int, generator: torch.Generator) -> None:
        """Learn to reconstruct features f32 [n, d]."""
        self.inputs.fit(features)
        x, weights = self.inputs(features), list(self.parameters())
        for weight in weights:
            weight.requires_grad_()
        adam = torch.optim.AdamW(weights, lr=1e-3, weight_decay=1e-4, fused=True)
        with torch.enable_grad():
            for step in range(steps):
                adam.param_groups[0]["lr"] = 1e-5 + 5e-4 * (1 + math.cos(math.pi * step / steps))
                rows = torch.randint(len(x), (BATCH,), generator=generator)
                adam.zero_grad()
                (self.decoder(self.encoder(x[rows])) - x[rows]).square().mean().backward()
                adam.step()
        adam.zero_grad()
        self.requires_grad_(requires_grad=False)

    def error(self, features: Tensor, state: Tensor) -> Tensor:
        """Return the root mean square error of the reconstruction, in standard deviations."""
        x = self.inputs(features)
        return (self.decoder(self.encoder(x)) - x).square().mean().sqrt()

    def save(self, path: Path) -> None:
        """Write the weights as safetensors."""
        safetensors.torch.save_file({n: t.contiguous() for n, t in self.state_dict().items()}, path)

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """Return the token f32 [n, k]."""
        return self.encoder(self.inputs(features))
