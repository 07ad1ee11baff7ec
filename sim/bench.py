"""`vla bench sim`: our environments against a bare loop and Gymnasium's vector env, in one run.

All contenders run the same models, actions, substeps, cameras and image size without shadows, and
draw every frame, but chunks are drawn once. They take turns; medians over turns are compared.
SyncVectorEnv keeps MuJoCo's multisampling and triangles, or is tuned like ours.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import mujoco
import numpy as np
from rich.console import Console
from rich.table import Table

from sim import vec_env
from sim.render import gl_context
from sim.scene import Scene, compile_scene
from sim.world import MujocoWorld

BARE_BAR = 0.85
SYNC_BAR = 3.0
SWING_RAD = 0.15
CHUNK = 8
CHUNKED, SYNC, SYNC_TUNED = (
    f"VecEnv, chunks of {CHUNK}",
    "SyncVectorEnv, no shadows",
    "SyncVectorEnv, tuned",
)


def main(argv: list[str]) -> int:
    """Measure and print one table.

    Raises:
        ValueError: a name is unknown or a number out of range.
    """
    parser = argparse.ArgumentParser(prog="vla bench sim", description=__doc__)
    parser.add_argument("--task", default="reach", help="task to run (default reach)")
    parser.add_argument("--envs", type=int, default=8, help="environments (default 8)")
    parser.add_argument(
        "--steps", type=int, default=40, help=f"control steps a turn, a multiple of {CHUNK}"
    )
    parser.add_argument("--turns", type=int, default=7, help="turns per contender (default 7)")
    args = parser.parse_args(argv)
    for name in ("envs", "steps", "turns"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name}: got {getattr(args, name)}, expected at least 1")
    if args.steps % CHUNK:
        raise ValueError(f"--steps: got {args.steps}, expected a multiple of {CHUNK}")
    rates = measure(args.task, args.envs, args.steps, args.turns)
    _print(Console(highlight=False), args.task, args.envs, rates)
    return 0


def measure(task: str, num_envs: int, steps: int, turns: int) -> dict[str, list[float]]:
    """Return control steps per second of each contender in each turn, all environments together."""
    scene = compile_scene(vec_env.load_task(task), vec_env.load_robot(None))
    ours, chunked = vec_env.make(task, num_envs), vec_env.make(task, num_envs)
    shared = vec_env.make(task, num_envs, workers=min(2, num_envs))
    sync, tuned = (_sync_env(scene, num_envs, tuned=tuned) for tuned in (False, True))
    for env in (ours, chunked, shared):
        env.reset(0)
    for env in (sync, tuned):
        env.reset(seed=0)
    contenders: dict[str, tuple[int, Callable[[np.ndarray], object]]] = {
        "bare": (1, Bare(scene, num_envs).step),
        "VecEnv": (1, ours.step),
        "VecEnv, 2 workers": (1, shared.step),
        CHUNKED: (CHUNK, chunked.step_chunk),
        SYNC: (1, sync.step),
        SYNC_TUNED: (1, tuned.step),
    }
    swing = _swing(scene, num_envs, steps)
    chunks = swing.reshape(-1, CHUNK, *swing.shape[1:]).swapaxes(1, 2)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, (length, step) in contenders.items():
            start_s = time.perf_counter()
            for action in swing if length == 1 else chunks:
                step(action)
            if turn:  # the first turn warms up
                rates[name].append(num_envs * steps / (time.perf_counter() - start_s))
    for env in (sync, tuned, shared):
        env.close()
    return rates


def _sync_env(scene: Scene, num_envs: int, *, tuned: bool) -> gymnasium.vector.SyncVectorEnv:
    return gymnasium.vector.SyncVectorEnv(
        [lambda: OwnRendererEnv(scene, tuned=tuned) for _ in range(num_envs)],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )


def _swing(scene: Scene, num_envs: int, steps: int) -> np.ndarray:
    """Return actions that swing every joint about home, each environment in its own phase."""
    time_step, lane = np.arange(steps)[:, None, None], np.arange(num_envs)[None, :, None]
    wave = SWING_RAD * np.sin(2.0 * np.pi * (time_step / steps + lane / num_envs))
    return (np.array(scene.robot.home) + wave).astype(np.float32)


class Bare:
    """The floor under every environment: `mj_step` and drawing, no rules, no copies."""

    def __init__(self, scene: Scene, num_envs: int) -> None:
        """Make `num_envs` models in the state that the environments begin in."""
        self._scene = scene
        self._worlds = [MujocoWorld(scene) for _ in range(num_envs)]
        for index, world in enumerate(self._worlds):
            world.reset(0, index)
        self._context = gl_context()
        self._context.make_current()
        _, height, width, _ = scene.image_shape
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._mjr = mujoco.MjrContext(scene.model, mujoco.mjtFontScale.mjFONTSCALE_50.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._mjr)
        self._drawn = mujoco.MjvScene(scene.model, maxgeom=200)
        for flag in ("SHADOW", "REFLECTION", "HAZE", "SKYBOX"):
            self._drawn.flags[int(getattr(mujoco.mjtRndFlag, f"mjRND_{flag}"))] = 0
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._cameras = [_fixed_camera(scene, c.name) for c in scene.robot.cameras]
        self._images = np.empty((num_envs, *scene.image_shape), np.uint8)

    def step(self, action: np.ndarray) -> None:
        """Step and draw every model."""
        self._context.make_current()
        for world, targets, images in zip(self._worlds, action, self._images, strict=True):
            model, data = world.model, world.data
            data.ctrl[world.actuators] = targets
            mujoco.mj_step(model, data, nstep=self._scene.substeps)
            for camera, image in zip(self._cameras, images, strict=True):
                mujoco.mjv_updateScene(
                    model,
                    data,
                    self._option,
                    self._perturb,
                    camera,
                    mujoco.mjtCatBit.mjCAT_ALL.value,
                    self._drawn,
                )
                mujoco.mjr_render(self._rect, self._drawn, self._mjr)
                mujoco.mjr_readPixels(image, None, self._rect, self._mjr)


class OwnRendererEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """What one writes with Gymnasium and MuJoCo's own renderer: one renderer per environment."""

    def __init__(self, scene: Scene, *, tuned: bool) -> None:
        """Make an environment with the rules and physics of ours.

        Args:
            scene: The scene.
            tuned: Whether multisampling is off and triangles are few, as in ours; MuJoCo's
                default quality otherwise. Shadows are off in both.
        """
        self._world = MujocoWorld(scene)
        if not tuned:
            quality, default = self._world.model.vis.quality, mujoco.MjSpec().visual.quality
            for name in ("offsamples", "numslices", "numstacks", "numquads"):
                setattr(quality, name, getattr(default, name))
        views, height, width, _ = scene.image_shape
        self._renderer = mujoco.Renderer(self._world.model, height, width)
        self._renderer.scene.flags[int(mujoco.mjtRndFlag.mjRND_SHADOW)] = 0
        low, high = np.array(scene.robot.low), np.array(scene.robot.high)
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float64)
        image = gymnasium.spaces.Box(0, 255, (views, height, width, 3), np.uint8)
        joints = gymnasium.spaces.Box(-np.inf, np.inf, low.shape, np.float32)
        self.observation_space: Any = gymnasium.spaces.Dict({"pixels": image, "agent_pos": joints})
        self._index = -1

    def reset(self, **_: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start the next episode."""
        self._index += 1
        self._world.reset(0, self._index)
        return self._observe(), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Apply one action for one control step."""
        reward, terminated, truncated = self._world.step(action)
        return self._observe(), reward, terminated, truncated, {}

    def close(self) -> None:
        """Free the renderer."""
        self._renderer.close()

    def _observe(self) -> dict[str, np.ndarray]:
        images = []
        for camera in self._world.robot.cameras:
            self._renderer.update_scene(self._world.data, camera.name)
            images.append(self._renderer.render())
        return {"pixels": np.stack(images), "agent_pos": self._world.proprio}


def _fixed_camera(scene: Scene, name: str) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FIXED.value
    camera.fixedcamid = scene.model.camera(name).id
    return camera


def _print(console: Console, task: str, num_envs: int, rates: dict[str, list[float]]) -> None:
    medians = {name: float(np.median(values)) for name, values in rates.items()}
    table = Table("contender", "control steps/s", "range", "/ bare", "/ Sync", "/ Sync tuned")
    for name, median in medians.items():
        table.add_row(
            name,
            f"{median:.0f}",
            f"{min(rates[name]):.0f}-{max(rates[name]):.0f}",
            f"{median / medians['bare']:.2f}",
            f"{median / medians[SYNC]:.2f}",
            f"{median / medians[SYNC_TUNED]:.2f}",
        )
    console.print(f"{task}: {num_envs} environments, every camera drawn in every control step")
    console.print(table)
    bare, sync = (medians["VecEnv"] / medians[name] for name in ("bare", SYNC))
    console.print(
        f"VecEnv / bare {bare:.2f} (bar {BARE_BAR}: {'met' if bare >= BARE_BAR else 'missed'}), "
        f"VecEnv / SyncVectorEnv {sync:.2f} "
        f"(bar {SYNC_BAR}: {'met' if sync >= SYNC_BAR else 'missed'})"
    )
