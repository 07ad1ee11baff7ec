"""Renders any number of environments through one off-screen OpenGL context per process.

MuJoCo's defaults (shadow maps, multisampling) cost two orders of magnitude on a CPU; here both are
off. An environment that looks the same as in its last frame is not rendered again.
"""

import atexit
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from sim.core.scene import Scene
from sim.core.world import MujocoWorld

MAX_GEOMS = 500
MODEL_APPEARANCE = ("geom_rgba", "site_rgba", "cam_pos", "cam_quat", "light_dir", "light_diffuse")
"""Fields of a model that differ between the episodes of a scene and show in images."""


class Renderer:
    """Renders worlds of one scene; keep one per process and scene (`shared_renderer`)."""

    def __init__(self, scene: Scene) -> None:
        """Prepare drawing of `scene`.

        Raises:
            ValueError: no OpenGL context can be made; the message says what to install.
        """
        self._views, self._height, self._width, _ = scene.image_shape
        self._gl = gl_context()
        self._gl.make_current()
        model = scene.model
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50.value)
        self._scene = mujoco.MjvScene(model, maxgeom=MAX_GEOMS)
        for flag in ("SHADOW", "REFLECTION", "HAZE", "SKYBOX", "FOG"):
            self._scene.flags[int(getattr(mujoco.mjtRndFlag, f"mjRND_{flag}"))] = 0
        self._option = mujoco.MjvOption()
        self._perturb = mujoco.MjvPerturb()
        self._cameras = []
        for spec in scene.robot.cameras:
            camera = mujoco.MjvCamera()
            camera.type = mujoco.mjtCamera.mjCAMERA_FIXED.value
            camera.fixedcamid = model.camera(spec.name).id
            self._cameras.append(camera)
        self._rect = mujoco.MjrRect(0, 0, self._width, self._height)
        self._pixels = np.empty((self._height, self._width, 3), np.uint8)

    def draw(self, worlds: Sequence[MujocoWorld], images: Sequence[np.ndarray]) -> None:
        """Draw each world as it stands into its array of images.

        Args:
            worlds: Worlds of this renderer's scene, their kinematics up to date.
            images: One array per world, uint8, shape (views, height, width, 3); written to.
        """
        self._gl.make_current()
        # Scenes share one OpenGL context: another's buffer may be bound.
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        for world, image in zip(worlds, images, strict=True):
            model, data = world.model, world.data
            mujoco.mj_camlight(model, data)
            for view, camera in enumerate(self._cameras):
                # For each view again: the headlight moves with the camera.
                mujoco.mjv_updateScene(
                    model,
                    data,
                    self._option,
                    self._perturb,
                    camera,
                    mujoco.mjtCatBit.mjCAT_ALL.value,
                    self._scene,
                )
                mujoco.mjr_render(self._rect, self._scene, self._context)
                mujoco.mjr_readPixels(self._pixels, None, self._rect, self._context)
                image[view] = self._pixels[::-1]  # OpenGL counts rows from the bottom


class Camera:
    """The images of one environment, rendered only when something visible changed."""

    def __init__(self, renderer: Renderer, world: MujocoWorld) -> None:
        self.renderer = renderer
        self.world = world
        self.images = np.zeros(world.scene.image_shape, np.uint8)
        self._seen = b""

    def needs_render(self) -> bool:
        """Return whether the world looks different from the last call."""
        seen = appearance(self.world)
        stale = seen != self._seen
        self._seen = seen
        return stale

    def render(self) -> np.ndarray:
        """Return the current images, uint8 (views, height, width, 3); overwritten by the next."""
        update_images([self])
        return self.images


def update_images(cameras: Sequence[Camera]) -> None:
    """Render the changed images of cameras that share a renderer."""
    stale = [camera for camera in cameras if camera.needs_render()]
    if stale:
        stale[0].renderer.draw([c.world for c in stale], [c.images for c in stale])


def appearance(world: MujocoWorld) -> bytes:
    """Return the bytes of everything in a world that its images depend on."""
    model, data = world.model, world.data
    shapes = (data.geom_xpos, data.geom_xmat, data.site_xpos, data.site_xmat)
    looks = (getattr(model, name) for name in MODEL_APPEARANCE)
    return b"".join(part.tobytes() for part in (*shapes, *looks))


@functools.lru_cache(maxsize=1)
def gl_context() -> mujoco.GLContext:
    """Return this process's off-screen OpenGL context, made at the first call.

    Raises:
        ValueError: there is none; the message says what to install.
    """
    try:
        context = _new_context()
        context.make_current()
    except Exception as error:  # the GL backends raise types of their own, none of them public
        raise ValueError(
            f"no off-screen OpenGL ({type(error).__name__}: {error}); install EGL (Debian, Ubuntu: "
            "apt-get install -y libegl1 libegl-mesa0 libgl1-mesa-dri) and set MUJOCO_GL=egl"
        ) from error
    # At the end of the process PyOpenGL is gone before the context's own destructor runs.
    atexit.register(context.free)
    return context


def _new_context() -> Any:
    # Software rendering: threads gain nothing on small images and steal cores from learning.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    if os.environ.get("MUJOCO_GL") not in (None, "egl") or sys.platform != "linux":
        return mujoco.GLContext(64, 64)
    # MuJoCo's own choice on Linux is a window system; servers and containers have EGL at most.
    egl = importlib.import_module("mujoco.egl")
    # Its destructor needs the attribute even where its constructor failed before it was set.
    return type("Context", (egl.GLContext,), {"_context": None})(64, 64)


@functools.lru_cache(maxsize=8)
def shared_renderer(scene: Scene) -> Renderer:
    """Return this process's renderer of a scene."""
    return Renderer(scene)
