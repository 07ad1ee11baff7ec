"""The vision-language model as an actor: another form, the same network, actions as tokens.

It drives an arm, but is no plug-in of `vla.policies`: it has no diffusion chain, so no noise to
take and no likelihood along a chain to give, and its weights are those of the model it is lent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla.contracts.config import check_least
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Array, Observation, PolicyState
from vla.nn.vlm import Prompt, Slot, Vlm, plain


@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """What it sees and how finely it acts."""

    chunk: int = 4
    """Actions predicted per decision."""
    cameras: tuple[str, ...] = ("front", "wrist")
    """Cameras it looks through; a subset of the robot's."""
    bins: int = 256
    """Steps between a channel's limits: one token each."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, chunk=1, bins=2)


class VlmActor:
    """Satisfies `vla.contracts.protocols.Policy`; it has no memory and takes no noise.

    Every channel of every action is one token out of `bins` rarest ones, as in RT-2 and OpenVLA;
    all are read in one forward pass (OpenVLA-OFT's parallel decoding), the likeliest one counts.
    """

    noise_shape = (1, 1, 1)
    """Shape of one row of `noise`; whatever it holds makes no difference."""

    def __init__(self, config: ActorConfig, robot: RobotSpec, model: Vlm) -> None:
        """Lend a model to an arm.

        Raises:
            ValueError: a camera the robot does not have, or more bins than tokens.
        """
        known = tuple(camera.name for camera in robot.cameras)
        if not config.cameras or not set(config.cameras) <= set(known):
            raise ValueError(f"cameras: {robot.name} has cameras {known}, got {config.cameras}")
        self.config, self.robot, self.vlm = config, robot, model
        self._views = [known.index(name) for name in config.cameras]
        self._low, self._high = torch.tensor(robot.low), torch.tensor(robot.high)
        choices = model.rarest_tokens(config.bins)
        leads = ["Actions: ", *[" "] * (config.chunk * len(robot.channels) - 1)]
        self._form = tuple(Slot(lead, choices) for lead in leads)

    def initial_state(self, batch: int) -> PolicyState:
        """Return one slot per arm, always empty."""
        return PolicyState(
            tokens=torch.zeros(batch, 1, 1, 1), slot_time=torch.zeros(batch, 1),
            slot_count=torch.zeros(batch, 1),
        )  # fmt: skip

    @torch.no_grad()
    def act(
        self, obs: Observation, state: PolicyState, noise: Array
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; actions lie within the robot's limits whatever the model says."""
        values = self.values_of(self.logits(obs).argmax(-1))
        return ActionChunk(values=values, start_s=torch.as_tensor(obs.time_s)), state

    def logits(self, obs: Observation) -> Tensor:
        """Return the logits of every bin of every channel, f32 [b, k, u, bins]."""
        images, proprio = np.asarray(obs.images), torch.as_tensor(obs.proprio).cpu()
        prompts = [
            self._prompt(images[row], proprio[row], task) for row, task in enumerate(obs.task)
        ]
        answers = torch.stack(self.vlm.fill(prompts, self._form), 1).cpu()
        return answers.unflatten(1, (self.config.chunk, len(self.robot.channels)))

    def loss(self, obs: Observation, actions: Array) -> Tensor:
        """Return the mean cross-entropy of actions [b, k, u] in physical units, in nats."""
        target = self.bins_of(torch.as_tensor(actions))
        return F.cross_entropy(self.logits(obs).flatten(0, 2), target.flatten())

    def bins_of(self, values: Tensor) -> Tensor:
        """Return the bin i64 of each value [..., u], those beyond the limits in the last one."""
        share = (values - self._low) / (self._high - self._low)
        return (share * self.config.bins).floor().long().clamp(0, self.config.bins - 1)

    def values_of(self, bins: Tensor) -> Tensor:
        """Return the middle of each bin [..., u], f32 in physical units."""
        share = (bins + 0.5) / self.config.bins
        return self._low + share * (self._high - self._low)

    def _prompt(self, images: np.ndarray, proprio: Tensor, task: str) -> Prompt:
        share = (proprio - self._low) / (self._high - self._low)
        percent = " ".join(str(round(100 * float(value))) for value in share)
        seen: Sequence[str | np.ndarray] = [images[view] for view in self._views]
        return [
            f"Task: {plain(task)}\n", *seen,
            f"\nJoints, in percent of their range: {percent}\n"
            f"Next {self.config.chunk} actions of {len(proprio)} joints?",
        ]  # fmt: skip
