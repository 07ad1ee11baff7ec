"""What `vla bench sim` holds our environments against: a bare loop, Gymnasium's, MuJoCo's own."""

import functools
import os
from typing import Any

import gymnasium
import mujoco
import numpy as np
from mujoco import rollout

from sim import vec_env
from sim.core.render import gl_context
from sim.core.scene import Scene, compile_scene
from sim.core.world import MujocoWorld


def gymnasium_env(kind: str, task: str, num_envs: int, *, tuned: bool, drawn: bool) -> Any:
    """Return Gymnasium's vector env over `OwnRendererEnv`s.

    Args:
        kind: "Sync" or "Async", which has a process for each.
        task: Name of the task.
        num_envs: How many.
        tuned: See `OwnRendererEnv`.
        drawn: Likewise.
    """
    make = functools.partial(_own_env, task, tuned=tuned, drawn=drawn)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    if kind == "Sync":
        return gymnasium.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    # A fork would take this process's OpenGL context along, and hang.
    os.environ.setdefault("MUJOCO_GL", "egl")
    return gymnasium.vector.AsyncVectorEnv(
        [make] * num_envs, autoreset_mode=mode, context="forkserver"
    )


def _own_env(task: str, *, tuned: bool, drawn: bool) -> "OwnRendererEnv":
    scene = compile_scene(vec_env.load_task(task), vec_env.load_robot(None))
    return OwnRendererEnv(scene, tuned=tuned, drawn=drawn)


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


class Rollout:
    """MuJoCo's own threads over many models: physics alone, no rules, nothing drawn."""

    def __init__(self, scene: Scene, num_envs: int, threads: int) -> None:
        """Make `num_envs` models in the state that the environments begin in."""
        self._substeps = scene.substeps
        self._worlds = [MujocoWorld(scene) for _ in range(num_envs)]
        for index, world in enumerate(self._worlds):
            world.reset(0, index)
        self._pool = rollout.Rollout(nthread=threads)
        self._data = [mujoco.MjData(scene.model) for _ in range(threads)]
        size = mujoco.mj_stateSize(scene.model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
        self._state = np.empty((num_envs, size))
        for row, world in zip(self._state, self._worlds, strict=True):
            mujoco.mj_getState(
                world.model, world.data, row, mujoco.mjtState.mjSTATE_FULLPHYSICS.value
            )

    def play(self, actions: np.ndarray) -> None:
        """Go on with actions (e, h, u) of h control steps."""
        models = [world.model for world in self._worlds]
        control = np.repeat(actions, self._substeps, axis=1).astype(np.float64)
        state, _ = self._pool.rollout(models, self._data, self._state, control)
        self._state = np.ascontiguousarray(state[:, -1])

    def close(self) -> None:
        """End the threads."""
        self._pool.close()


class OwnRendererEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """What one writes with Gymnasium and MuJoCo's own renderer: one renderer per environment."""

    def __init__(self, scene: Scene, *, tuned: bool = True, drawn: bool = True) -> None:
        """Make an environment with the rules and physics of ours.

        Args:
            scene: The scene.
            tuned: Whether multisampling is off and triangles are few, as in ours; MuJoCo's
                default quality otherwise. Shadows are off in both.
            drawn: Whether there are pictures.
        """
        self._world = MujocoWorld(scene)
        self._renderer: mujoco.Renderer | None = None
        views, height, width, _ = scene.image_shape
        self._pixels = (views, height, width, 3) if drawn else (0,)
        if drawn and not tuned:
            quality, default = self._world.model.vis.quality, mujoco.MjSpec().visual.quality
            for name in ("offsamples", "numslices", "numstacks", "numquads"):
                setattr(quality, name, getattr(default, name))
        if drawn:
            self._renderer = mujoco.Renderer(self._world.model, height, width)
            self._renderer.scene.flags[int(mujoco.mjtRndFlag.mjRND_SHADOW)] = 0
        low, high = np.array(scene.robot.low), np.array(scene.robot.high)
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float64)
        image = gymnasium.spaces.Box(0, 255, self._pixels, np.uint8)
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
        if self._renderer is not None:
            self._renderer.close()

    def _observe(self) -> dict[str, np.ndarray]:
        pixels = np.empty(self._pixels, np.uint8)
        if self._renderer is not None:
            for image, camera in zip(pixels, self._world.robot.cameras, strict=True):
                self._renderer.update_scene(self._world.data, camera.name)
                image[:] = self._renderer.render()
        return {"pixels": pixels, "agent_pos": self._world.proprio}


def _fixed_camera(scene: Scene, name: str) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FIXED.value
    camera.fixedcamid = scene.model.camera(name).id
    return camera
