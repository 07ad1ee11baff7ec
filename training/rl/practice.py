"""Practice: a policy acts in simulation, and whole episodes with all that led to them come back."""

import contextlib

import numpy as np
import torch

from sim import vec_env
from training.evaluate import episode_noise
from training.rl.experience import Episode
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.types import DenoiseTrace, EnvStep, Observation
from vla.policies.vla import VLAPolicy


def practise(
    policy: VLAPolicy, task: PluginConfig, *, episodes: int, seed: int, version: int,
    environments: int = 32,
) -> list[Episode]:  # fmt: skip
    """Return episodes 0 to `episodes` - 1 of `seed`, sampled stochastically.

    The result does not depend on how many environments run side by side.

    Args:
        policy: In evaluation mode.
        task: Configuration of the task.
        episodes: How many.
        seed: Of episodes and of the policy's noise.
        version: Kept with the episodes.
        environments: How many run side by side.
    """
    width = min(environments, episodes)
    env = vec_env.make(configs.type_name(task), width, robot=policy.robot, task_config=task)
    done: dict[int, Episode] = {}
    with contextlib.closing(env):
        obs, state = env.reset(seed), policy.initial_state(width)
        running = [_Running(e, seed, version) for e in range(width)]
        while len(done) < episodes:
            decision = np.array([len(one.executed) for one in running])
            number = np.array([one.number for one in running])
            noise = episode_noise(seed, number, decision, policy.noise_shape)
            chunk, trace, state = policy.sample(obs, state, noise)
            actions = _numpy(chunk.values)[:, : policy.config.execute]
            for row, one in enumerate(running):
                one.decide_(obs, row, actions[row], trace)
            step = env.step_chunk(actions)
            for row, one in enumerate(running):
                one.arrive_(step, row)
                if step.terminated[row] or step.truncated[row]:
                    if one.number < episodes:
                        done[one.number] = one.episode(step, row)
                    running[row] = _Running(one.number + width, seed, version)
            obs = step.obs
    return [done[k] for k in range(episodes)]


class _Running:
    """An episode that is not over."""

    def __init__(self, number: int, seed: int, version: int) -> None:
        self.number, self.seed, self.version = number, seed, version
        self.executed: list[int] = []
        self.task = ""
        self.moments: list[dict[str, np.ndarray]] = []
        self.decisions: list[dict[str, np.ndarray]] = []
        self.after: list[tuple[float, float]] = []

    def decide_(self, obs: Observation, row: int, actions: np.ndarray, trace: DenoiseTrace) -> None:
        """Keep what was seen and decided."""
        self.task = obs.task[row]
        self.moments.append(_moment(obs, row))
        self.decisions.append({
            "actions": actions.copy(),
            "latents": _numpy(trace.latents[row]).copy(),
            "log_prob": _numpy(trace.log_prob[row]).copy(),
        })  # fmt: skip

    def arrive_(self, step: EnvStep, row: int) -> None:
        """Keep what came of it."""
        self.executed.append(int(step.info["steps"][row]))
        self.after.append((float(step.info["progress"][row]), float(step.reward[row])))

    def episode(self, step: EnvStep, row: int) -> Episode:
        """Return the episode, which ended with `step`."""
        moments = [*self.moments, _moment(step.final_obs, row)]
        kept = {name: np.stack([m[name] for m in moments]) for name in moments[0]}
        kept |= {name: np.stack([d[name] for d in self.decisions]) for name in self.decisions[0]}
        progress, reward = np.array(self.after, np.float32).T
        return Episode(
            **kept, executed=np.array(self.executed), progress=np.append(np.float32(0), progress),
            reward=reward.copy(), terminated=bool(step.terminated[row]),
            success=bool(step.info["success"][row]), task=self.task, number=self.number,
            seed=self.seed, version=self.version,
        )  # fmt: skip


def _moment(obs: Observation, row: int) -> dict[str, np.ndarray]:
    # The environment fills the same buffers again at the next step.
    return {
        "images": _numpy(obs.images)[row].copy(),
        "proprio": _numpy(obs.proprio)[row].copy(),
        "time_s": np.float64(_numpy(obs.time_s)[row]),
    }


def _numpy(values: object) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
