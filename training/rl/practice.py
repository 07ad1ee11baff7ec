"""Practice: a policy acts in simulation, and whole episodes with all that led to them come back."""

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sim import vec_env
from training.evaluate import episode_noise
from training.rl.clock import Stopwatch
from training.rl.experience import Episode
from training.rl.help import Helper
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.types import DenoiseTrace, EnvStep, Observation
from vla.policies.vla import VLAPolicy


def practise(
    policy: VLAPolicy, task: PluginConfig, *, episodes: int, seed: int, version: int,
    environments: int = 32, helper: Helper | None = None, clock: Stopwatch | None = None,
) -> list[Episode]:  # fmt: skip
    """Return episodes 0 to `episodes` - 1 of `seed`, sampled stochastically.

    The result does not depend on how many environments run side by side. What a policy without
    memory could have decided on, every control step, is looked at and kept.

    Args:
        policy: In evaluation mode.
        task: Configuration of the task.
        episodes: How many.
        seed: Of episodes and of the policy's noise.
        version: Kept with the episodes.
        environments: How many run side by side.
        helper: Says where somebody else acts, for as many environments as run; nobody if None.
        clock: Told of the seconds that inference, simulation and pictures took.
    """
    clock = clock or Stopwatch()
    width, execute = min(environments, episodes), policy.config.execute
    beat = execute if policy.remembers else 1
    env = vec_env.make(configs.type_name(task), width, robot=policy.robot, task_config=task)
    done: dict[int, Episode] = {}
    with contextlib.closing(env):
        obs, state = env.reset(seed), policy.initial_state(width)
        running = [_Running(e, seed, version) for e in range(width)]
        plan = np.zeros((width, execute, len(policy.robot.channels)), np.float32)
        taken, helped = np.zeros(width, np.int64), np.zeros(width, np.bool_)
        while len(done) < episodes:
            due = np.flatnonzero(taken == 0)
            if len(due):
                decision = np.array([len(running[row].decisions) for row in due])
                number = np.array([running[row].number for row in due])
                if helper:
                    helped[due] = helper.helped(_rows(obs, due), due, number, decision)
                noise = episode_noise(seed, number, decision, policy.noise_shape)
                # All are due at once where there is a memory to carry on.
                past = state if policy.remembers else policy.initial_state(len(due))
                with clock.on("infer"):
                    chunk, trace, state = policy.sample(_rows(obs, due), past, noise)
                plan[due] = _numpy(chunk.values)[:, :execute]
                for i, row in enumerate(due):
                    running[row].decide_(i, trace, bool(helped[row]))
            for row, one in enumerate(running):
                one.see_(obs, row)
            now = plan[np.arange(width)[:, None], taken[:, None] + np.arange(beat)]
            with clock.on("step"):
                step = env.step_chunk(now, helped)
            taken = (taken + beat) % execute
            for row, one in enumerate(running):
                one.arrive_(step, row)
                if step.terminated[row] or step.truncated[row]:
                    if one.number < episodes:
                        done[one.number] = one.episode(step, row, execute)
                    running[row], taken[row] = _Running(one.number + width, seed, version), 0
            obs = step.obs
        clock.add_("render", env.render_s)
    return [done[k] for k in range(episodes)]


class _Running:
    """An episode that is not over."""

    def __init__(self, number: int, seed: int, version: int) -> None:
        self.number, self.seed, self.version = number, seed, version
        self.task = ""
        self.moments: list[dict[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self.executed: list[int] = []
        self.actions: list[np.ndarray] = []
        self.after: list[tuple[float, float]] = []

    def decide_(self, i: int, trace: DenoiseTrace, helped: bool) -> None:
        """Keep row i of what was decided at the moment to be seen next, and whether somebody else
        acts.
        """
        self.decisions.append({
            "at": len(self.moments),
            "helped": np.bool_(helped),
            "latents": _numpy(trace.latents[i]).copy(),
            "log_prob": _numpy(trace.log_prob[i]).copy(),
        })  # fmt: skip

    def see_(self, obs: Observation, row: int) -> None:
        """Keep what was seen."""
        self.task = obs.task[row]
        self.moments.append(_moment(obs, row))

    def arrive_(self, step: EnvStep, row: int) -> None:
        """Keep what was done, and what came of it."""
        self.actions.append(step.info["actions"][row].copy())
        self.executed.append(int(step.info["steps"][row]))
        self.after.append((float(step.info["progress"][row]), float(step.reward[row])))

    def episode(self, step: EnvStep, row: int, execute: int) -> Episode:
        """Return the episode, which ended with `step`."""
        moments = [*self.moments, _moment(step.final_obs, row)]
        kept = {name: np.stack([m[name] for m in moments]) for name in moments[0]}
        kept |= {name: np.stack([d[name] for d in self.decisions]) for name in self.decisions[0]}
        progress, reward = np.array(self.after, np.float32).T
        begin = kept["at"]
        return Episode(
            **kept, step=np.cumsum([0, *self.executed]), actions=self._planned(begin, execute),
            progress=np.append(np.float32(0), progress), reward=np.add.reduceat(reward, begin),
            terminated=bool(step.terminated[row]), success=bool(step.info["success"][row]),
            task=self.task, number=self.number, seed=self.seed, version=self.version,
        )  # fmt: skip

    def _planned(self, begin: np.ndarray, execute: int) -> np.ndarray:
        """Return the actions of each decision f32 [t, x, u]; the last repeated where it ended."""
        done = np.concatenate(self.actions)
        if len(done) == len(begin) * execute:
            return done.reshape(len(begin), execute, -1)
        wanted = begin[:, None] + np.arange(execute)  # one action per moment
        return done[np.minimum(wanted, len(done) - 1)]


def _rows(obs: Observation, rows: np.ndarray) -> Observation:
    parts = {k: np.asarray(getattr(obs, k))[rows] for k in _PARTS}
    return replace(obs, **parts, task=tuple(obs.task[row] for row in rows))


_PARTS = ("images", "image_ok", "proprio", "time_s")


def _moment(obs: Observation, row: int) -> dict[str, Any]:
    # The environment fills the same buffers again at the next step.
    return {
        "images": _numpy(obs.images)[row].copy(),
        "proprio": _numpy(obs.proprio)[row].copy(),
        "time_s": np.float64(_numpy(obs.time_s)[row]),
    }


def _numpy(values: object) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
