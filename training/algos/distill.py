"""One-step distillation of the head: the student maps noise to a chunk in one denoising step.

The teacher's denoising chain is deterministic: a chunk is a function of its noise, and the student
learns this function by regression (Luhman and Luhman 2021, arXiv 2101.02388). Only the head learns.
The student's noise and prefixes are those of the policy, so it is used like any other policy.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sim import vec_env
from training.core.config import DistillConfig, Teacher
from training.core.loop import Weights
from training.core.optimizer import Optimizer
from training.data import batches, sampler
from training.evaluation.evaluate import Evaluation, evaluate
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.types import EpisodeBatch, Prefix
from vla.nn.context import repeat_context
from vla.policies.vla import VLAPolicy


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of one-step distillation."""

    teacher_steps: int = 10
    """Denoising steps of the teacher."""
    batch_size: int = 64
    """Decisions per update; for a policy with memory a quarter as many episodes with four
    decisions each."""
    num_noise_samples: int = 8
    """Noise samples per encoded decision; encoding images costs more than the head."""

    def __post_init__(self) -> None:
        validate_min(self, teacher_steps=2, batch_size=4, num_noise_samples=1)

    def start(self, train: Any, data: Any) -> "Distillation":
        """Load the teacher and the observations.

        Raises:
            ValueError: one of them is damaged, they do not fit together, or the run is no run of
                distillation.
        """
        if not (isinstance(train, DistillConfig) and isinstance(data, Teacher)):
            raise ValueError("algo distill learns from a policy: use `vla train distill`")
        return Distillation(self, train, data)


class Distillation:
    """Learner of distillation; satisfies `training.core.loop.Learner`."""

    def __init__(self, config: Config, train: DistillConfig, teacher: Teacher) -> None:
        self.config, self.train = config, train
        policy, self.origin = checkpoint.load_vla(teacher.policy, "distillation")
        self.teacher = policy.with_steps(config.teacher_steps).to(train.device).eval()
        self.module = student(policy).to(train.device)
        self.frames_only = not policy.remembers
        self.store = batches.load_for_policy(policy, teacher.dataset, train.seed)
        self.rng = np.random.default_rng(train.seed)
        count = len(self.store.frames if self.frames_only else self.store.seq_episode)
        size = config.batch_size if self.frames_only else config.batch_size // STATES_PER_EPISODE
        self.stream = sampler.SequenceStream(np.arange(count), size, train.seed)

    def collect(self) -> EpisodeBatch:
        """Return the next observations."""
        indices, size = self.stream.next(), self.teacher.config.chunk_size
        if self.frames_only:
            return batches.frame_batch(self.store, indices, size)
        uniform = np.ones(len(self.store.frames), np.float32)
        return batches.episode_batch(
            self.store, indices, size, STATES_PER_EPISODE, uniform, self.rng
        )

    def update(
        self, data: EpisodeBatch, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Make one update on the squared error between student's and teacher's chunks."""
        self.module.eval()  # bit-identical conditioning to the teacher's
        with torch.no_grad():
            context = repeat_context(self.teacher.contexts(data), self.config.num_noise_samples)
            actions = self.teacher.normalizer.action(torch.as_tensor(data.actions).to(context[0]))
            actions = actions.repeat_interleave(self.config.num_noise_samples, 0)
            noise = torch.randn(actions.shape, generator=generator).to(actions.device)
            prefix = None
            if self.teacher.max_prefix_len:  # as in training the head
                mask = self.teacher.head.draw_prefix_mask(len(actions), generator).float()
                prefix = Prefix(values=actions, mask=mask)
            target = self.teacher.head.sample(context, noise[:, None], False, prefix)[0][:, -1]
        predicted = self.module.head.sample(context, noise[:, None], False, prefix)[0][:, -1]
        loss = (predicted - target).square().mean()
        step = optimizer.step(loss)
        return {"loss": float(loss.detach()), **step, "samples": float(len(data.loss_index))}

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Evaluation:
        """Return the success rate of weights in simulation."""
        averaged = copy.deepcopy(self.module)
        averaged.load_state_dict(weights)
        task = configs.from_json(None, self.origin.task, "task", vec_env.TASKS)
        return evaluate(averaged.eval(), task, episodes=episodes, seed=seed)

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write a policy checkpoint."""
        origin = checkpoint.provenance(self.origin.task, self.origin.instructions, step)
        checkpoint.save(self.module, origin, folder, weights, also)

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless the checkpoint is complete."""
        checkpoint.load(folder)

    def state(self) -> dict[str, Any]:
        """Return the position of the stream of data."""
        return {"rng": self.rng.bit_generator.state, "stream": self.stream.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue the stream of data."""
        self.rng.bit_generator.state = state["rng"]
        self.stream.restore(state["stream"])


STATES_PER_EPISODE = 4
"""Decisions per episode that carry a loss, for a policy with memory."""


def student(policy: VLAPolicy) -> VLAPolicy:
    """Return a policy that predicts the clean chunk in one denoising step.

    It starts from the teacher's weights; only its head is trainable.
    """
    head = replace(
        policy.config.head, num_inference_steps=1, ft_denoising_steps=0, prediction_type="sample"
    )  # type: ignore[call-arg]
    config = replace(policy.config, head=head)
    result = config.build(policy.robot, policy.statistics, policy.text.tokenizer)
    weights = {k: v for k, v in policy.state_dict().items() if not k.startswith("head.late.")}
    result.load_state_dict(weights)
    result.requires_grad_(False)
    result.head.requires_grad_(True)
    return result
