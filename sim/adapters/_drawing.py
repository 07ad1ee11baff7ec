"""Fast images of a MuJoCo model from several cameras: no shadows, no reflections.

A simulator's viewer takes ten times as long without a graphics card.
"""

from typing import Any

import mujoco
import numpy as np

UNDRAWN = 5
"""A group of geoms that MuJoCo does not draw by default."""


class Drawing:
    """Draws one model; the context is opened with the first image and closed with `close`.

    Args:
        model: An `MjModel`; its rendering quality is lowered in place.
        views: One per image: the name of a camera, or (lookat, distance, azimuth, elevation)
            of one that stands free, in metres and degrees.
        size: Height and width in pixels.
        groups: Groups of geoms to draw; MuJoCo's default if None.
        hidden: For each view the names of bodies that it never sees, left out for speed.
    """

    def __init__(self, model, views, size, groups=None, hidden=()):
        model.vis.quality.shadowsize = 0
        model.vis.quality.offsamples = 0
        self._model, self._size, self._renderer = model, size, None
        self._views = [_camera(view) for view in views]
        self._option = mujoco.MjvOption()
        if groups is not None:
            self._option.geomgroup[:] = np.isin(np.arange(mujoco.mjNGROUP), groups)
        body = model.geom_bodyid
        self._hidden = [
            np.isin(body, [model.body(name).id for name in names])
            for names in hidden or [()] * len(views)
        ]

    def draw(self, data):
        """Return images of `data`, u8 [v, h, w, 3]."""
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self._model, *self._size)
        images = []
        for view, hidden in zip(self._views, self._hidden):
            groups = self._model.geom_group[hidden]
            self._model.geom_group[hidden] = UNDRAWN
            self._renderer.update_scene(data, view, self._option)
            self._model.geom_group[hidden] = groups
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._renderer.scene.flags[flag.value] = 0
            images.append(self._renderer.render().copy())
        return np.stack(images)

    def close(self):
        """Free the context; calling it twice does no harm."""
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None


class DrawnWorld:
    """What the `World`s share that a `Drawing` shows: `_drawing`, `_env`, two images of 96 x 96."""

    image_shape = (2, 96, 96, 3)
    has_expert = False
    _drawing: Any
    _env: Any

    def close(self):
        """Close renderer and simulator; calling it twice does no harm."""
        self._drawing.close()
        env, self._env = self._env, None
        if env is not None:
            env.close()


def _camera(view):
    if isinstance(view, str):
        return view
    camera = mujoco.MjvCamera()
    camera.lookat[:], camera.distance, camera.azimuth, camera.elevation = view
    return camera
