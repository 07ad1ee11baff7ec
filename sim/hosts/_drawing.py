"""Pictures of a MuJoCo model from several cameras, drawn fast: no shadows, no reflections.

What a simulator's own viewer draws takes ten times as long without a screen and a graphics card.
"""

import mujoco
import numpy as np

UNDRAWN = 5
"""A group of geoms that MuJoCo draws only when told to."""


class Drawing:
    """Draws one model; the context is opened with the first picture and closed with `close`.

    Args:
        model: An `MjModel`; its quality of drawing is lowered in place.
        views: One per picture: the name of a camera, or (lookat, distance, azimuth, elevation)
            of one that stands free, in metres and degrees.
        size: Height and width in pixels.
        hidden: For each view the names of bodies that it leaves out, since it never sees them.
    """

    def __init__(self, model, views, size, hidden=()):
        model.vis.quality.shadowsize = 0
        model.vis.quality.offsamples = 0
        self._model, self._size, self._renderer = model, size, None
        self._views = [_camera(view) for view in views]
        body = model.geom_bodyid
        self._hidden = [
            np.isin(body, [model.body(name).id for name in names])
            for names in hidden or [()] * len(views)
        ]

    def draw(self, data):
        """Return pictures of `data` as it stands, u8 [v, h, w, 3]."""
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self._model, *self._size)
        pictures = []
        for view, hidden in zip(self._views, self._hidden):
            groups = self._model.geom_group[hidden]
            self._model.geom_group[hidden] = UNDRAWN
            self._renderer.update_scene(data, view)
            self._model.geom_group[hidden] = groups
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._renderer.scene.flags[flag.value] = 0
            pictures.append(self._renderer.render().copy())
        return np.stack(pictures)

    def close(self):
        """Give the context back; twice does no harm."""
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None


def _camera(view):
    if isinstance(view, str):
        return view
    camera = mujoco.MjvCamera()
    camera.lookat[:], camera.distance, camera.azimuth, camera.elevation = view
    return camera
