"""A policy's episodes in simulation as entities: observations, decisions, actions and memory.

The episodes are those of `vla eval` with the same seed; predictions of a reward model are optional.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from reward_models.core.scorer import Scorer
from sim import vec_env
from sim.rollout import Played, rollout
from training.evaluation import slot_map
from training.evaluation.evaluate import Player
from training.rl.rollout.reward_source import camera_indices
from training.view import drawing, layout
from training.view.episodes import place
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.protocols import ArmPolicy
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Array, Frames, Observation, PolicyState
from vla.policies.vla import VLAPolicy
from vla.utils.arrays import to_numpy

SLOTS = "slot_count"
"""State tensor that identifies a slot memory, which is shown slot by slot."""
PREDICTIONS = ("progress", "done_prob", "confidence")
"""Predictions of a reward model, named as the columns of `vla label`."""


class RecordedPolicy:
    """A policy that records its decisions; satisfies `vla.contracts.protocols.ArmPolicy`."""

    def __init__(self, policy: ArmPolicy, rows: Sequence["Rollout"]) -> None:
        self.policy, self.rows = policy, rows
        self.robot: RobotSpec = policy.robot
        self.n_action_steps, self.noise_shape, self.max_prefix_len, self.remembers = (
            policy.n_action_steps, policy.noise_shape, policy.max_prefix_len, policy.remembers,
        )  # fmt: skip

    def initial_state(self, batch: int) -> PolicyState:
        """Return the initial state of `batch` arms."""
        return self.policy.initial_state(batch)

    def act(
        self, obs: Observation, state: PolicyState, noise: Array, prefix: Any = None
    ) -> tuple[ActionChunk, PolicyState]:
        """Decide as the policy does and record the decision."""
        chunk, after = self.policy.act(obs, state, noise, prefix)
        values = to_numpy(chunk.values).copy()
        for row in self.rows:
            row.record_decision(values, state, after)
        return chunk, after


@dataclass(kw_only=True, eq=False)
class Rollout:
    """Record of one episode of T control steps and D decisions."""

    number: int
    task: str
    images: list[np.ndarray] = field(default_factory=list)
    """Images of every control step and of the end, T + 1 times u8 [v, h, w, 3]."""
    state: list[np.ndarray] = field(default_factory=list)
    """Measured channel positions, T + 1 times f32 [s]."""
    decided: list[np.ndarray] = field(default_factory=list)
    """Position targets of the policy, T times f32 [u]."""
    executed: list[np.ndarray] = field(default_factory=list)
    """Executed position targets, T times f32 [u]."""
    at: list[int] = field(default_factory=list)
    """Control step of each decision."""
    chunk: list[np.ndarray] = field(default_factory=list)
    """Action chunk of each decision, D times f32 [k, u]."""
    read: list[PolicyState] = field(default_factory=list)
    """State that each decision read: one row, D times."""
    wrote: list[np.ndarray] = field(default_factory=list)
    """Slot that each decision wrote, D times f32 [n, d]; empty without slots."""
    over: bool = False
    success: bool = False

    def record_observation(self, obs: Observation) -> None:
        """Append images and state of a batch of observations."""
        self.images.append(np.asarray(obs.images[self.number]).copy())
        self.state.append(np.asarray(obs.proprio[self.number]).copy())

    def record_decision(self, chunk: np.ndarray, before: PolicyState, after: PolicyState) -> None:
        """Append a decision of a batch, unless the episode has ended."""
        if self.over:
            return
        step, e = len(self.decided), self.number
        self.at.append(step)
        self.chunk.append(chunk[e])
        # Copies: some policies write a memory in place. The first decision resets its input.
        self.read.append(before.map(lambda value: to_numpy(value)[e : e + 1].copy() * (step > 0)))
        if SLOTS in after.tensors:
            self.wrote.append(to_numpy(after["slot_tokens"])[e, -1].copy())

    def record_step(self, played: Played) -> None:
        """Append a control step of a batch, unless the episode has ended."""
        e, step = self.number, played.step
        if not played.running[e]:
            return
        self.decided.append(played.actions[e, 0].copy())
        self.executed.append(np.asarray(step.info["actions"])[e, 0].copy())
        self.record_observation(step.final_obs)
        for outcome in played.ended:
            if outcome.number == e:
                self.over, self.success = True, outcome.success


def play(policy: ArmPolicy, task: PluginConfig, *, episodes: int, seed: int) -> list[Rollout]:
    """Return episodes 0 to `episodes` - 1 of a seed."""
    env = vec_env.make(configs.type_name(task), episodes, robot=policy.robot, task_config=task)
    with contextlib.closing(env):
        obs = env.reset(seed)
        rows = [Rollout(number=k, task=obs.task[k]) for k in range(episodes)]
        for row in rows:
            row.record_observation(obs)
        player = Player(RecordedPolicy(policy, rows), episodes, seed)
        for played in rollout(env, obs, player.step_actions, episodes):
            for row in rows:
                row.record_step(played)
    return rows


def slot_similarity(row: Rollout) -> np.ndarray:
    """Return the cosine of each slot and the decision's tokens, f64 [d, l]; NaN if empty."""
    rows = []
    for state, wrote in zip(row.read, row.wrote, strict=True):
        count = state[SLOTS][0]
        slots = np.asarray(state["slot_tokens"][0], np.float64).reshape(len(count), -1)
        size = np.linalg.norm(slots, axis=1) * np.linalg.norm(wrote)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosine = slots @ np.asarray(wrote, np.float64).ravel() / size
        rows.append(np.where(count > 0, cosine, np.nan))
    return np.stack(rows)


def predict(row: Rollout, scorer: Scorer, robot: RobotSpec) -> dict[str, np.ndarray]:
    """Return the causal predictions of a reward model at each decision and at the end.

    Raises:
        ValueError: the reward model needs a camera that the robot does not have.
    """
    views = camera_indices(scorer, robot, "the reward model")
    at = moments(row)
    images = np.stack([row.images[t][views] for t in at])
    truth = np.zeros((len(at), 2), np.float32)  # read by the baseline "oracle" only; unknown here
    progress = scorer.score(
        Frames(
            images=images, image_ok=np.ones(images.shape[:2], np.bool_),
            time_s=at / robot.control_hz, episode_index=np.zeros(len(at), np.int64),
            end_s=np.full(len(at), at[-1] / robot.control_hz), truth=truth,
        ),
        (row.task,),
    )  # fmt: skip
    values = (progress.value, progress.done_prob, progress.confidence)
    return {name: np.asarray(value) for name, value in zip(PREDICTIONS, values, strict=True)}


def moments(row: Rollout) -> np.ndarray:
    """Return the control steps of the decisions, and the last one, i64 [d + 1]."""
    return np.array([*row.at, len(row.decided)])


def show(
    stream: Any, rows: Sequence[Rollout], policy: ArmPolicy, scorer: Scorer | None = None
) -> None:
    """Log episodes under separate entities, and a layout with a tab for each."""
    robot = policy.robot
    cameras = [camera.name for camera in robot.cameras]
    tabs = []
    for row in rows:
        at = place(row.number)
        _log_observations(stream, at, row, robot)
        _log_actions(stream, at, row, robot)
        memory = _log_memory(stream, at, row, policy)
        if scorer:
            times = _times(moments(row), robot)
            for name, values in predict(row, scorer, robot).items():
                drawing.scalars(stream, f"{at}/reward_model/{name}", times, values, (name,))
        outcome = "success" if row.success else "failure"
        tabs.append(layout.episode(
            at, f"episode {row.number}: {outcome}", cameras, reward_model=scorer is not None,
            memory=memory, chunk=True,
        ))  # fmt: skip
    layout.send(stream, tabs)


def _log_observations(stream: Any, at: str, row: Rollout, robot: RobotSpec) -> None:
    times = _times(np.arange(len(row.images)), robot)
    outcome = "success" if row.success else "failure"
    drawing.text(stream, f"{at}/task", f"{row.task}\n\n{outcome}")
    drawing.scalars(stream, f"{at}/state", times, np.stack(row.state), robot.names)
    images = np.stack(row.images)
    for view, camera in enumerate(robot.cameras):
        drawing.images(stream, f"{at}/camera/{camera.name}", times, images[:, view])


def _log_actions(stream: Any, at: str, row: Rollout, robot: RobotSpec) -> None:
    times = _times(np.arange(len(row.decided)), robot)
    for name in ("decided", "executed"):
        names = [f"{channel}, {name}" for channel in robot.names]
        drawing.scalars(stream, f"{at}/action/{name}", times, np.stack(getattr(row, name)), names)
    times, chunks = _times(np.array(row.at), robot), np.stack(row.chunk)
    drawing.tensors(stream, f"{at}/chunk/values", times, list(chunks), ("step", "channel"))
    low, high = np.array(robot.low), np.array(robot.high)
    drawing.lines(stream, f"{at}/chunk/line", times, (chunks - low) / (high - low), robot.names)


def _log_memory(stream: Any, at: str, row: Rollout, policy: ArmPolicy) -> tuple[str, ...]:
    """Log the state that each decision read; return the names of the curves."""
    times = _times(np.array(row.at), policy.robot)
    state = PolicyState.concatenate(row.read)
    if not any(value.any() for value in state.tensors.values()):
        return ()
    if SLOTS in state.tensors:
        _log_slots(stream, at, row, policy, state)
        return tuple(layout.SLOTS)
    for name, value in state.tensors.items():
        size = np.sqrt(np.square(value).reshape(*value.shape[:2], -1).mean(2))
        entries = [f"{name} {k}" for k in range(size.shape[1])]
        drawing.scalars(stream, f"{at}/memory/{name}", times, size, entries)
    return tuple(state.tensors)


def _log_slots(stream: Any, at: str, row: Rollout, policy: ArmPolicy, state: PolicyState) -> None:
    times, count = _times(np.array(row.at), policy.robot), state[SLOTS]
    time_s = np.where(count > 0, state["slot_time"] / policy.robot.control_hz, np.nan)
    slots = [f"slot {k}" for k in range(count.shape[1])]
    for name, values in (
        (SLOTS, count), ("slot_time", time_s), ("similarity", slot_similarity(row)),
    ):  # fmt: skip
        drawing.scalars(stream, f"{at}/memory/{name}", times, values, slots)
    if isinstance(policy, VLAPolicy) and slot_map.has_slots(policy):
        tokens = torch.from_numpy(np.stack(row.wrote))
        share, _ = slot_map.slot_weights(policy, tokens, np.array(row.at))
        drawing.tensors(stream, f"{at}/memory/share", times, list(share), ("slot", "decision"))


def _times(steps: np.ndarray, robot: RobotSpec) -> drawing.Times:
    return {"time": steps / robot.control_hz, "step": steps}
