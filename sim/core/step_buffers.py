"""What the backends' VecEnvs share: arrays of results, checks of arguments, and the `EnvStep`."""

import numpy as np

from sim.core.privileged_state import PrivilegedState
from sim.core.scene import Scene
from vla.contracts.referents import KINDS
from vla.contracts.specs import EnvSpec
from vla.contracts.types import Array, EnvStep, Observation

LONGEST_CHUNK = 256
"""Largest number of actions of one step."""
INFO = ("success", "progress", "steps", "episode")
"""Arrays that `EnvStep.info` holds besides the actions."""
GOALS = ("goal", "achieved")
"""What it also holds for our tasks; suites have no such arrays."""
RESULTS = ("reward", "terminated", "truncated", *INFO)
"""All arrays of one number per environment."""

Buffers = dict[str, np.ndarray]
Layout = dict[str, tuple[tuple[int, ...], str]]


def layout(scene: Scene, num_envs: int) -> Layout:
    """Return name -> (shape, dtype) of the arrays through which environments report.

    Names that begin with "final_", "goal" and "achieved" are valid in rows whose episode ended in
    the last step; "privileged_state" and "referents" are written on demand.
    """
    names = PrivilegedState(scene).names
    observation: Layout = {
        "images": ((num_envs, *scene.image_shape), "uint8"),
        "proprio": ((num_envs, len(scene.robot.channels)), "float32"),
        "instruction": ((num_envs,), "int32"),
        "time_s": ((num_envs,), "float64"),
    }
    return {
        **observation,
        **{f"final_{name}": field for name, field in observation.items()},
        "reward": ((num_envs,), "float32"),
        "terminated": ((num_envs,), "bool"),
        "truncated": ((num_envs,), "bool"),
        "success": ((num_envs,), "bool"),
        "progress": ((num_envs,), "float32"),
        "steps": ((num_envs,), "int32"),
        "episode": ((num_envs,), "int64"),
        "goal": ((num_envs,), "int32"),
        "achieved": ((num_envs,), "int32"),
        "actions": ((num_envs, LONGEST_CHUNK, len(scene.robot.channels)), "float32"),
        "privileged_state": ((num_envs, len(names)), "float32"),
        "referents": ((num_envs, len(scene.robot.cameras), len(KINDS), 2), "float32"),
    }


def allocate(fields: Layout) -> Buffers:
    """Return zeroed arrays for a layout."""
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in fields.items()}


def env_spec(scene: Scene, task: str) -> EnvSpec:
    """Return the specification of a scene's environments; `task` is the task's name."""
    return EnvSpec(
        task=task,
        robot=scene.robot,
        instructions=scene.task.instructions,
        max_episode_steps=scene.task.max_episode_steps,
    )


def check_num_envs(num_envs: int) -> None:
    """Raise ValueError if there is no environment."""
    if num_envs < 1:
        raise ValueError(f"num_envs: got {num_envs}, expected at least 1")


def check_workers(workers: int, num_envs: int) -> None:
    """Raise ValueError unless `workers` processes can share the environments."""
    check_num_envs(num_envs)
    if not 1 <= workers <= num_envs:
        raise ValueError(
            f"workers: got {workers}, expected 1 to {num_envs}, the number of environments"
        )


def check_seed(seed: int) -> None:
    """Raise ValueError if a seed is below 0."""
    if seed < 0:
        raise ValueError(f"seed: got {seed}, expected 0 or more")


def check_started(started: np.ndarray, what: str = "privileged_state") -> None:
    """Raise ValueError if no row has begun, bool [e]: there is nothing to tell."""
    if not started.any():
        raise ValueError(f"{what} before reset: call reset(seed) first")


def first_episodes(num_envs: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, seeds and indices with which `VecEnv.begin` does what `VecEnv.reset` does."""
    check_seed(seed)
    rows = np.arange(num_envs)
    return rows, np.full(num_envs, seed), rows


def checked_start(
    num_envs: int, rows: np.ndarray, seed: np.ndarray, index: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, seeds and indices of `VecEnv.begin` as i64 [n] each.

    Raises:
        ValueError: a number is out of range.
    """
    rows, seed, index = (np.asarray(values, np.int64) for values in (rows, seed, index))
    if np.any((rows < 0) | (rows >= num_envs) | (seed < 0) | (index < 0)):
        raise ValueError(
            f"begin: got rows {rows}, seeds {seed} and indices {index}, expected rows below "
            f"{num_envs} and nothing below 0"
        )
    return rows, seed, index


def checked_actions(
    actions: np.ndarray,
    use_expert: np.ndarray | None,
    frozen: np.ndarray | None,
    *,
    started: np.ndarray,
    channels: int,
) -> np.ndarray:
    """Return the actions of a step of E environments, f32 [e, h, u].

    Raises:
        ValueError: a shape is wrong, a value is not finite, or a row that is not frozen has not
            begun: `started` is bool [e].
    """
    num_envs, got = len(started), np.shape(actions)
    fits = len(got) == 3 and 1 <= got[1] <= LONGEST_CHUNK
    if not fits or got[0] != num_envs or got[2] != channels:
        raise ValueError(
            f"actions: got shape {got}, expected ({num_envs}, h, {channels}) with h from "
            f"1 to {LONGEST_CHUNK}"
        )
    for name, marks in (("use_expert", use_expert), ("frozen", frozen)):
        if marks is not None and np.shape(marks) != got[:1]:
            raise ValueError(f"{name}: got shape {np.shape(marks)}, expected ({num_envs},)")
    if not (started if frozen is None else started | frozen).all():
        raise ValueError("step before reset: call reset(seed) first")
    if not np.isfinite(actions).all():
        raise ValueError("actions: got NaN or infinity, expected finite position targets")
    return np.asarray(actions, np.float32)


def observation(
    buffers: Buffers, images: Array, instructions: np.ndarray, prefix: str = ""
) -> Observation:
    """Return the observation as copies that later steps do not overwrite; `images` are not copied.

    Args:
        buffers: Arrays of `layout`.
        images: Of all rows, u8 [e, v, h, w, 3].
        instructions: Those of the task, object [k].
        prefix: "final_" for observations before the reset.
    """
    return Observation(
        images=images,
        image_ok=np.ones(images.shape[:2], np.bool_),
        proprio=buffers[prefix + "proprio"].copy(),
        task=tuple(instructions[buffers[prefix + "instruction"]]),
        time_s=buffers[prefix + "time_s"].copy(),
    )


def env_step(
    buffers: Buffers,
    images: Array,
    final_images: Array | None,
    instructions: np.ndarray,
    length: int,
) -> EnvStep:
    """Return a step of `length` actions from the arrays; see `observation`.

    Args:
        buffers: Arrays of `layout`.
        images: Of all rows after the step.
        final_images: The same, but before the reset in rows whose episode ended; None if `buffers`
            hold them.
        instructions: Those of the task, object [k].
        length: Number h of requested actions.
    """
    obs = observation(buffers, images, instructions)
    ended = buffers["terminated"] | buffers["truncated"]
    final_obs = obs
    if ended.any():
        for name in ("proprio", "instruction", "time_s"):
            buffers["final_" + name][~ended] = buffers[name][~ended]
        if final_images is None:
            final_images = images.copy()
            final_images[ended] = buffers["final_images"][ended]
        final_obs = observation(buffers, final_images, instructions, "final_")
    return EnvStep(
        obs=obs,
        reward=buffers["reward"].copy(),
        terminated=buffers["terminated"].copy(),
        truncated=buffers["truncated"].copy(),
        final_obs=final_obs,
        info={
            **{k: buffers[k].copy() for k in (*INFO, *GOALS) if k in buffers},
            "actions": buffers["actions"][:, :length].copy(),
        },
    )
