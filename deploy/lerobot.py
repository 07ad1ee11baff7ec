"""LeRobot's DiffusionPolicy beside ours: the same cameras, chunk and denoising steps.

For timing alone, with fresh weights. Its smallest configuration has ten times our parameters, most
of them in a ResNet.
"""

import time

import numpy as np
import torch

from vla.contracts.types import Observation
from vla.policies.vla import VLAPolicy

WIDTHS = (64, 128)
"""Channels of its U-Net: the smallest its configuration allows."""


class Baseline:
    """Decides with LeRobot's policy.

    Args:
        policy: Ours, whose cameras, channels, chunk and steps it takes over.
    """

    def __init__(self, policy: VLAPolicy) -> None:
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
        from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

        robot, config = policy.robot, policy.config
        camera, channels = robot.cameras[0], (len(robot.channels),)
        shape = (3, camera.height_px, camera.width_px)
        views = {
            f"observation.images.{name}": PolicyFeature(type=FeatureType.VISUAL, shape=shape)
            for name in config.cameras
        }
        state = PolicyFeature(type=FeatureType.STATE, shape=channels)
        self.views, self.names = policy.views, list(views)
        made = DiffusionConfig(
            input_features={**views, "observation.state": state},
            output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=channels)},
            n_obs_steps=1, horizon=config.chunk, n_action_steps=config.execute, down_dims=WIDTHS,
            noise_scheduler_type="DDIM", num_inference_steps=policy.noise_shape[0] - 1,
            crop_ratio=1.0, device="cpu", push_to_hub=False,
        )  # fmt: skip
        self.policy = DiffusionPolicy(made).eval()
        self.parameters = sum(p.numel() for p in self.policy.parameters())

    @torch.no_grad()
    def __call__(self, obs: Observation, noise: np.ndarray) -> float:
        """Decide; return the seconds it took, from the same arrays that ours is given."""
        begin = time.perf_counter()
        images = torch.from_numpy(obs.images[:, self.views]).permute(0, 1, 4, 2, 3).float() / 255
        batch = {name: images[:, i] for i, name in enumerate(self.names)}
        batch["observation.state"] = torch.from_numpy(obs.proprio)
        self.policy.reset()  # or it would serve what is left of the last chunk
        self.policy.select_action(batch)
        return time.perf_counter() - begin
