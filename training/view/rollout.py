"""A policy's episodes in simulation as entities: what it saw, decided, did and remembered.

They are the episodes of `vla eval` with the same seed, side by side; a critic watches if one is
given. What is measured of success is measured there.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from reward_models.scorer import Scorer
from sim import vec_env
from training import slot_map
from training.evaluate import Player
from training.view import drawing, layout
from training.view.episodes import place
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.protocols import ArmPolicy
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Array, Frames, Observation, PolicyState
from vla.policies.vla import VLAPolicy

WORDS = ("progress", "done_prob", "confidence")
"""What a critic says, by the names of the columns that `vla label` writes."""


class Overheard:
    """A policy whose latest chunk can be read; satisfies `vla.contracts.protocols.ArmPolicy`."""

    def __init__(self, policy: ArmPolicy) -> None:
        self.policy = policy
        self.robot: RobotSpec = policy.robot
        self.execute, self.noise_shape, self.prefix = (
            policy.execute, policy.noise_shape, policy.prefix,
        )  # fmt: skip
        self.chunk = np.empty(0, np.float32)
        """f32 [b, k, u]."""

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        return self.policy.initial_state(batch)

    def act(
        self, obs: Observation, state: PolicyState, noise: Array, prefix: Any = None
    ) -> tuple[ActionChunk, PolicyState]:
        """Decide as the policy does."""
        chunk, after = self.policy.act(obs, state, noise, prefix)
        self.chunk = _numpy(chunk.values).copy()
        return chunk, after


@dataclass(kw_only=True, eq=False)
class Rollout:
    """One episode of T control steps and D decisions, as it goes on."""

    number: int
    """Among those of the seed."""
    task: str
    """Instruction."""
    images: list[np.ndarray] = field(default_factory=list)
    """What was seen at every control step and at the end, T + 1 times u8 [v, h, w, 3]."""
    state: list[np.ndarray] = field(default_factory=list)
    """Measured channel positions, T + 1 times f32 [s]."""
    decided: list[np.ndarray] = field(default_factory=list)
    """Position targets of the policy, T times f32 [u]."""
    executed: list[np.ndarray] = field(default_factory=list)
    """What the arm was told, T times f32 [u]."""
    at: list[int] = field(default_factory=list)
    """Control step of each decision."""
    chunk: list[np.ndarray] = field(default_factory=list)
    """What each decision was, D times f32 [k, u]."""
    read: list[PolicyState] = field(default_factory=list)
    """The memory that each decision read: one row, D times."""
    wrote: list[np.ndarray] = field(default_factory=list)
    """The entry that each decision added to it, D times f32 [n, d]."""
    over: bool = False
    """Whether it has ended."""
    success: bool = False
    """How."""


def play(policy: ArmPolicy, task: PluginConfig, *, episodes: int, seed: int) -> list[Rollout]:
    """Return episodes 0 to `episodes` - 1 of a seed."""
    heard = Overheard(policy)
    env = vec_env.make(configs.type_name(task), episodes, robot=policy.robot, task_config=task)
    with contextlib.closing(env):
        player, obs = Player(heard, episodes, seed), env.reset(seed)
        rows = [Rollout(number=k, task=obs.task[k]) for k in range(episodes)]
        for row in rows:
            _see_(row, obs)
        step, actions = 0, np.empty(0)
        while not all(row.over for row in rows):
            due = step % policy.execute
            if due == 0:
                before = player.state
                actions = player.decide(obs, np.arange(episodes))
                for row in rows:
                    _decide_(row, step, heard.chunk, before, player.state)
            now = actions[:, due : due + 1]
            result = env.step_chunk(now, idle=np.array([row.over for row in rows]))
            for row in rows:
                _arrive_(row, now, result)
            obs, step = result.obs, step + 1
    return rows


def _see_(row: Rollout, obs: Observation) -> None:
    row.images.append(np.asarray(obs.images[row.number]).copy())
    row.state.append(np.asarray(obs.proprio[row.number]).copy())


def _decide_(
    row: Rollout, step: int, chunk: np.ndarray, before: PolicyState, after: PolicyState
) -> None:
    if row.over:
        return
    e, parts = row.number, ("tokens", "slot_time", "slot_count")
    # Copies: some policies write a memory in place. The first decision empties what it is given.
    kept = {name: _numpy(getattr(before, name))[e].copy() * (step > 0) for name in parts}
    row.at.append(step)
    row.chunk.append(chunk[e])
    row.read.append(PolicyState(**{name: value[None] for name, value in kept.items()}))
    if after.tokens.shape[1]:  # a baseline has no slots
        row.wrote.append(_numpy(after.tokens)[e, -1].copy())


def _arrive_(row: Rollout, now: np.ndarray, result: Any) -> None:
    if row.over:
        return
    e = row.number
    row.decided.append(now[e, 0].copy())
    row.executed.append(np.asarray(result.info["actions"])[e, 0].copy())
    _see_(row, result.final_obs)
    row.over = bool(result.terminated[e] | result.truncated[e])
    row.success = row.over and bool(result.info["success"][e])


# --- what is made of it ----------------------------------------------------------------------


def likeness(row: Rollout) -> np.ndarray:
    """Return how like each slot is to what a decision sees: cosine, f64 [d, l]; NaN if empty."""
    found = []
    for state, wrote in zip(row.read, row.wrote, strict=True):
        slots = np.asarray(state.tokens[0], np.float64).reshape(len(state.slot_count[0]), -1)
        size = np.linalg.norm(slots, axis=1) * np.linalg.norm(wrote)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosine = slots @ np.asarray(wrote, np.float64).ravel() / size
        found.append(np.where(np.asarray(state.slot_count[0]) > 0, cosine, np.nan))
    return np.stack(found)


def judged(row: Rollout, scorer: Scorer, robot: RobotSpec) -> dict[str, np.ndarray]:
    """Return what a critic says at each decision and at the end, knowing nothing of what follows.

    Raises:
        ValueError: it looks through a camera that the arm does not have.
    """
    known = [camera.name for camera in robot.cameras]
    missing = [name for name in scorer.critic.cameras if name not in known]
    if missing:
        raise ValueError(
            f"the critic looks through {', '.join(missing)}; {robot.name} has {', '.join(known)}"
        )
    views = [known.index(name) for name in scorer.critic.cameras]
    at = moments(row)
    images = np.stack([row.images[t][views] for t in at])
    truth = np.zeros((len(at), 2), np.float32)  # of the control "oracle", which knows nothing here
    said = scorer.score(
        Frames(
            images=images, image_ok=np.ones(images.shape[:2], np.bool_),
            time_s=at / robot.control_hz, row=np.zeros(len(at), np.int64),
            end_s=np.full(len(at), at[-1] / robot.control_hz), truth=truth,
        ),
        (row.task,),
    )  # fmt: skip
    values = (said.value, said.done_prob, said.confidence)
    return {name: np.asarray(value) for name, value in zip(WORDS, values, strict=True)}


def moments(row: Rollout) -> np.ndarray:
    """Return the control steps of the decisions, and the last one, i64 [d + 1]."""
    return np.array([*row.at, len(row.decided)])


def show(
    stream: Any, rows: Sequence[Rollout], policy: ArmPolicy, scorer: Scorer | None = None
) -> None:
    """Put episodes into a recording, each under its own name, and a layout with a tab for each."""
    robot = policy.robot
    cameras = [camera.name for camera in robot.cameras]
    tabs = []
    for row in rows:
        at = place(row.number)
        _seen(stream, at, row, robot)
        _done(stream, at, row, robot)
        memory = any(np.any(np.asarray(state.slot_count) > 0) for state in row.read)
        if memory:
            _memory(stream, at, row, policy)
        if scorer:
            times = _times(moments(row), robot)
            for name, values in judged(row, scorer, robot).items():
                drawing.scalars(stream, f"{at}/critic/{name}", times, values, (name,))
        outcome = "success" if row.success else "failure"
        tabs.append(layout.episode(
            at, f"episode {row.number}: {outcome}", cameras, critic=scorer is not None,
            memory=memory, chunk=True,
        ))  # fmt: skip
    layout.send(stream, tabs)


def _seen(stream: Any, at: str, row: Rollout, robot: RobotSpec) -> None:
    times = _times(np.arange(len(row.images)), robot)
    outcome = "success" if row.success else "failure"
    drawing.text(stream, f"{at}/task", f"{row.task}\n\n{outcome}")
    drawing.scalars(stream, f"{at}/state", times, np.stack(row.state), robot.names)
    images = np.stack(row.images)
    for view, camera in enumerate(robot.cameras):
        drawing.pictures(stream, f"{at}/camera/{camera.name}", times, images[:, view])


def _done(stream: Any, at: str, row: Rollout, robot: RobotSpec) -> None:
    times = _times(np.arange(len(row.decided)), robot)
    for name in ("decided", "executed"):
        own = [f"{channel}, {name}" for channel in robot.names]
        drawing.scalars(stream, f"{at}/action/{name}", times, np.stack(getattr(row, name)), own)
    times, chunks = _times(np.array(row.at), robot), np.stack(row.chunk)
    drawing.tables(stream, f"{at}/chunk/values", times, list(chunks), ("step", "channel"))
    low, high = np.array(robot.low), np.array(robot.high)
    drawing.lines(stream, f"{at}/chunk/line", times, (chunks - low) / (high - low), robot.names)


def _memory(stream: Any, at: str, row: Rollout, policy: ArmPolicy) -> None:
    times = _times(np.array(row.at), policy.robot)
    count = np.concatenate([np.asarray(state.slot_count) for state in row.read])
    time_s = np.concatenate([np.asarray(state.slot_time) for state in row.read])
    time_s = np.where(count > 0, time_s / policy.robot.control_hz, np.nan)
    slots = [f"slot {k}" for k in range(count.shape[1])]
    for name, values in (
        ("slot_count", count), ("slot_time", time_s), ("similarity", likeness(row)),
    ):  # fmt: skip
        drawing.scalars(stream, f"{at}/memory/{name}", times, values, slots)
    if isinstance(policy, VLAPolicy) and slot_map.has_slots(policy):
        tokens = torch.from_numpy(np.stack(row.wrote))
        share, _ = slot_map.mixed(policy, tokens, np.array(row.at))
        drawing.tables(stream, f"{at}/memory/share", times, list(share), ("slot", "decision"))


def _times(steps: np.ndarray, robot: RobotSpec) -> drawing.Times:
    return {"time": steps / robot.control_hz, "step": steps}


def _numpy(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else value.detach().cpu().numpy()
