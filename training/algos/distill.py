"""One-step distillation of the head: noise to chunk at once, as the teacher's whole chain does it.

The teacher's chain is deterministic, so a chunk is a function of its noise, and the student learns
that function by regression (Luhman and Luhman 2021, arXiv 2101.02388). All but the head stays as it
is. Scheduled steps, noise and prefixes are the policy's own: a student is a policy like any other.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sim import vec_env
from training.config import DistillConfig, Teacher
from training.data import batches, sampler
from training.evaluate import Evaluation, evaluate
from training.optimiser import Optimiser
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.types import EpisodeBatch
from vla.data import check
from vla.data.store import load_episodes
from vla.nn.context import Context, Settled, widened
from vla.policies.vla import VLAPolicy

Weights = dict[str, Tensor]
"""A state dict."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of one-step distillation."""

    teacher_steps: int = 10
    """Denoising steps of the teacher."""
    batch: int = 64
    """Decisions per update; of a policy that remembers a fourth as many episodes, four decisions
    of each."""
    draws: int = 8
    """Noise draws per encoded decision: vision costs more than the head."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, teacher_steps=2, batch=4, draws=1)

    def start(self, train: Any, data: Any) -> "Distillation":
        """Load the teacher and the observations.

        Raises:
            ValueError: one of them is damaged, or they do not belong together, or the run is not
                one of distillation.
        """
        if not (isinstance(train, DistillConfig) and isinstance(data, Teacher)):
            raise ValueError("algo distill learns from a policy: use `vla train distill`")
        return Distillation(self, train, data)


class Distillation:
    """Satisfies `training.loop.Learner`."""

    def __init__(self, config: Config, train: DistillConfig, teacher: Teacher) -> None:
        self.config, self.train = config, train
        policy, self.origin = checkpoint.load_ours(teacher.policy, "distillation")
        if policy.steering is not None:
            raise ValueError(
                f"{teacher.policy}: a steered policy; distil the one that it was steered from"
            )
        self.teacher = policy.with_steps(config.teacher_steps).to(train.device).eval()
        self.module = student(policy).to(train.device)
        self.windows = not policy.remembers
        side = policy.config.backbone.image_px
        self.store = load_episodes(
            teacher.data, cameras=policy.config.cameras, image_hw=(side, side),
            stride=1 if self.windows else policy.execute, phase_seed=train.seed, phases=1,
            cache_dir=teacher.data.parent / f"{teacher.data.name}-cache",
        )  # fmt: skip
        check.fits_robot(self.store, policy.robot, teacher.data)
        self.rng = np.random.default_rng(train.seed)
        count = len(self.store.frames if self.windows else self.store.seq_episode)
        few = config.batch if self.windows else config.batch // QUERIES
        self.stream = sampler.SequenceStream(np.arange(count), few, train.seed)

    def collect(self) -> EpisodeBatch:
        """Return the next observations."""
        chosen, chunk = self.stream.next(), self.teacher.config.chunk
        if self.windows:
            return batches.window_batch(self.store, chosen, chunk)
        even = np.ones(len(self.store.frames), np.float32)
        return batches.episode_batch(self.store, chosen, chunk, QUERIES, even, self.rng)

    def update(
        self, data: EpisodeBatch, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the squared distance between the student's chunks and the teacher's."""
        self.module.eval()  # what the head is conditioned on is the teacher's to the bit
        with torch.no_grad():
            context = widened(self.teacher.contexts(data), self.config.draws)
            shown = self.teacher.normalizer.action(torch.as_tensor(data.actions).to(context[0]))
            shown = shown.repeat_interleave(self.config.draws, 0)
            noise = torch.randn(shown.shape, generator=generator, device=shown.device)
            settled = self._settle(shown, generator)
            target = self.teacher.head.sample(context, noise[:, None], False, settled)[0][:, -1]
        found = self._chunk(context, noise, settled)
        loss = (found - target).square().mean()
        figures = optimiser.step_(loss)
        return {"loss": float(loss.detach()), **figures, "samples": float(len(data.query))}

    def _chunk(self, context: Context, noise: Tensor, settled: Settled | None) -> Tensor:
        return self.module.head.sample(context, noise[:, None], False, settled)[0][:, -1]

    def _settle(self, shown: Tensor, generator: torch.Generator) -> Settled | None:
        """Return what is settled of demonstrated chunks f32 [m, k, u], as in training the head."""
        if not self.teacher.prefix:
            return None
        return Settled(shown, self.teacher.head.draw_prefix(len(shown), generator).float(), False)

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Evaluation:
        """Return the success of weights in simulation."""
        averaged = copy.deepcopy(self.module)
        averaged.load_state_dict(weights)
        task = configs.from_json(None, self.origin.task, "task", vec_env.TASKS)
        return evaluate(averaged.eval(), task, episodes=episodes, seed=seed)

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write a policy checkpoint."""
        origin = checkpoint.provenance(self.origin.task, self.origin.instructions, step)
        checkpoint.save(self.module, origin, folder, weights, also)

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless the checkpoint is whole."""
        checkpoint.load(folder)

    def state(self) -> dict[str, Any]:
        """Return where the stream of data is."""
        return {"rng": self.rng.bit_generator.state, "stream": self.stream.state()}

    def restore_(self, state: dict[str, Any]) -> None:
        """Continue the stream of data."""
        self.rng.bit_generator.state = state["rng"]
        self.stream.restore_(state["stream"])


QUERIES = 4
"""Decisions of an episode that are learned from, where a policy remembers."""


def student(policy: VLAPolicy) -> VLAPolicy:
    """Return a policy that denoises in one step and says the clean chunk, to begin with by the
    teacher's network; nothing but its head learns.
    """
    head = replace(policy.config.head, steps=1, tuned=0, prediction="sample")  # type: ignore[call-arg]
    config = replace(policy.config, head=head)
    made = config.build(policy.robot, policy.statistics, policy.text.tokenizer)
    weights = {k: v for k, v in policy.state_dict().items() if not k.startswith("head.late.")}
    made.load_state_dict(weights)
    made.requires_grad_(False)
    made.head.requires_grad_(True)
    return made
