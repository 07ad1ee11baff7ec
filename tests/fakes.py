"""Small policies, observations and batches for tests; sizes are read from what is built."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.fake_episodes import fake_robot
from vla.contracts.specs import RobotSpec
from vla.contracts.types import EpisodeBatch, Observation
from vla.nn.context import Context
from vla.nn.normalize import NormalizationStatistics
from vla.nn.text import train_tokenizer
from vla.policies import vla

PX = 32
TASKS = ("press the red button", "press the blue button")
STATISTICS = NormalizationStatistics(
    state_mean=(0.1, -0.2), state_std=(0.5, 0.3), action_low=(-1.0, -0.5), action_high=(1.0, 0.5)
)


def liven_(module: nn.Module, seed: int = 0, by: float = 0.1) -> None:
    """Move weights and running statistics off their initial values, zeros among them."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point() and not name.startswith("normalizer."):
                noise = torch.from_numpy(rng.standard_normal(tuple(value.shape), np.float32))
                value.add_(by * (noise.abs() if name.endswith("running_var") else noise))


def fake_policy(
    config: vla.Config | None = None, robot: RobotSpec | None = None, seed: int = 0
) -> vla.VLAPolicy:
    """Return a small policy in evaluation mode, a function of its arguments alone."""
    config = config or vla.Config()
    config = replace(config, backbone=replace(config.backbone, image_px=PX))
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # noqa: TID251  initial weights come from the global generator
        policy = config.build(robot or fake_robot(PX), STATISTICS, train_tokenizer(TASKS))
    liven_(policy, seed)
    return policy.eval()


def fake_observation(
    rng: np.random.Generator, batch: int, time_s: float | list[float] = 0.0
) -> Observation:
    """Return a numpy observation of random pixels for `fake_robot`."""
    return Observation(
        images=rng.integers(0, 256, (batch, 2, PX, PX, 3), np.uint8),
        image_ok=np.ones((batch, 2), bool),
        proprio=rng.standard_normal((batch, 2), np.float32),
        task=tuple(TASKS[i % 2] for i in range(batch)),
        time_s=np.broadcast_to(np.asarray(time_s, np.float64), batch).copy(),
    )


def rows(obs: Observation, index: list[int]) -> Observation:
    """Return some rows of an observation."""
    return Observation(
        images=obs.images[index], image_ok=obs.image_ok[index], proprio=obs.proprio[index],
        task=tuple(obs.task[i] for i in index), time_s=obs.time_s[index],
    )  # fmt: skip


def fake_noise(rng: np.random.Generator, policy: vla.VLAPolicy, batch: int) -> np.ndarray:
    """Return standard normal noise for `act`."""
    return rng.standard_normal((batch, *policy.noise_shape), np.float32)


def fake_rollout(
    rng: np.random.Generator, batch: int, decisions: int, period_s: float = 0.8
) -> Iterator[Observation]:
    """Yield the observations of one episode per row, decided every `period_s`."""
    for t in range(decisions):
        yield fake_observation(rng, batch, t * period_s)


def as_batch(
    observations: list[Observation], lengths: list[int], query: list[int], chunk: int,
    rng: np.random.Generator, hz: float = 10.0,
) -> EpisodeBatch:  # fmt: skip
    """Return what training makes of the first `lengths[b]` observations of each row b."""
    frames = [(b, t) for b, length in enumerate(lengths) for t in range(length)]
    pick: dict[str, Any] = {
        "images": [observations[t].images[b] for b, t in frames],
        "proprio": [observations[t].proprio[b] for b, t in frames],
        "step_index": [np.float32(observations[t].time_s[b] * hz) for b, t in frames],
        "episode_index": [b for b, _ in frames],
        "decision": [t for _, t in frames],
        "loss_index": query,
        "actions": rng.standard_normal((len(query), chunk, 2), np.float32),
        "action_is_pad": np.zeros((len(query), chunk), bool),
        "weight": np.ones(len(query), np.float32),
    }
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in pick.items()}
    return EpisodeBatch(task=observations[0].task, **tensors)


def fake_context(
    rng: np.random.Generator, batch: int, sizes: tuple[int, int, int], tokens: int = 5
) -> Context:
    """Return a random condition for heads of those widths."""
    pooled, token, memory = sizes

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, np.float32))

    return Context(normal(batch, pooled), normal(batch, tokens, token), normal(batch, memory))
