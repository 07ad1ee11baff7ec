"""Images of many worlds at once: mujoco_warp casts the rays, a shader of ours colours them.

mujoco_warp's own shader knows neither the colour of a light nor one at the camera, so that its
images differ from MuJoCo's; ours follows OpenGL's formula for matt surfaces. No shadows, no
textures.
"""

import dataclasses
from typing import Any

import mujoco
import numpy as np

from sim.core.scene import Scene
from sim.engines import warp_kernels as kernels
from sim.engines.warp_start import mjw, wp
from vla.contracts.types import Array

BYTES_PER_PIXEL = 47
"""A ray's origin and direction, what it hits and which way that faces, and the colour."""
ROOM_BYTES = 2**29
"""What the rays of one pass may take; more worlds are drawn in several passes."""
EVERY_GROUP = wp.spatial_vectorf(*[-1.0] * 6)


def as_rows(array: Any) -> Any:
    """Return a warp array (e, n) of vectors or matrices as the same memory of floats (e, n k)."""
    floats = int(np.prod(array.shape[1:])) * wp.types.type_size(array.dtype)
    rows = wp.array(
        ptr=array.ptr, dtype=float, shape=(array.shape[0], floats), device=array.device, copy=False
    )
    rows.kept = array  # its memory lives as long as either of the two
    return rows


class WarpCamera:
    """Draws some of an engine's worlds; used inside the scope of the engine's device."""

    def __init__(self, scene: Scene, model: Any, data: Any, light_diffuse: Any) -> None:
        """Make room for rays.

        Args:
            scene: Gives cameras and lights.
            model: mujoco_warp's model, with colours of geoms for each world.
            data: mujoco_warp's data of all worlds.
            light_diffuse: Colours of lights, warp array (e, lights) of vec3.

        Raises:
            ValueError: a light of the scene is no directional one.
        """
        nominal = scene.model
        if np.any(nominal.light_type != int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)):
            raise ValueError(
                f"lights: got types {nominal.light_type.tolist()}, expected directional ones only: "
                "mujoco_warp's images know no others; leave lights to the scene"
            )
        self._views, self._height, self._width, _ = scene.image_shape
        pixels = self._pixels = self._views * self._height * self._width
        slots = max(1, min(data.nworld, ROOM_BYTES // (pixels * BYTES_PER_PIXEL)))
        names = [nominal.camera(camera.name).id for camera in scene.robot.cameras]
        self._cameras = wp.array(names, dtype=int)
        half_height = np.tan(np.radians(nominal.cam_fovy[names]) / 2.0)
        self._half_height = wp.array(half_height, dtype=float)
        headlight = nominal.vis.headlight
        ambient = headlight.ambient + nominal.light_ambient.sum(axis=0)
        self._ambient, self._headlight = wp.vec3(*ambient), wp.vec3(*headlight.diffuse)
        self._context = mjw.create_render_context(
            nominal, slots, cam_res=(1, 1), render_rgb=True, render_depth=False, render_seg=False
        )
        shown = {name: getattr(data, name) for name in ("geom_xpos", "geom_xmat")}
        seen = {name: getattr(data, name) for name in ("cam_xpos", "cam_xmat", "light_xdir")}
        paint = {"geom_rgba": model.geom_rgba, "light_diffuse": light_diffuse}
        self._from = {**shown, **seen, **paint}
        self._slot = {
            name: wp.zeros((slots, array.shape[1]), dtype=array.dtype)
            for name, array in self._from.items()
        }
        # What mujoco_warp reads of a world, gathered for the worlds of one pass.
        self._model = dataclasses.replace(model, geom_rgba=self._slot["geom_rgba"])
        self._data = dataclasses.replace(data, **{name: self._slot[name] for name in shown})
        self._slots = slots
        self._origin, self._direction, self._normal = (
            wp.zeros((slots, pixels), dtype=wp.vec3) for _ in range(3)
        )
        self._distance = wp.zeros((slots, pixels), dtype=float)
        self._geom = wp.zeros((slots, pixels), dtype=int)
        self._no_body = wp.full(pixels, -1, dtype=int)

    def draw(self, rows: np.ndarray) -> Array:
        """Return images of some worlds, their kinematics up to date, u8 [n, v, h, w, 3].

        It is new memory: a numpy array over it on a CPU, a torch tensor over it on a GPU.
        """
        out = wp.empty((len(rows), self._pixels, 3), dtype=wp.uint8)
        for start in range(0, len(rows), self._slots):
            part = rows[start : start + self._slots]
            self._draw_pass(part, out[start : start + len(part)])
        wp.synchronize_device()  # torch works on a stream of its own
        images = wp.to_torch(out) if out.device.is_cuda else out.numpy()
        return images.reshape((len(rows), self._views, self._height, self._width, 3))

    def _draw_pass(self, rows: np.ndarray, out: Any) -> None:
        count, slot = len(rows), self._slot
        chosen = wp.array(rows, dtype=int)
        for name, array in self._from.items():
            source, target = as_rows(array), as_rows(slot[name])
            wp.launch(
                kernels.take_rows,
                dim=(count, source.shape[1]),
                inputs=[chosen, source],
                outputs=[target],
            )
        self._data.nworld = count
        mjw.refit_bvh(self._model, self._data, self._context)
        wp.launch(
            kernels.aim_rays,
            dim=(count, self._pixels),
            inputs=[self._cameras, self._half_height, self._width, self._height, slot["cam_xpos"],
                    slot["cam_xmat"]],
            outputs=[self._origin, self._direction],
        )  # fmt: skip
        mjw.rays(
            self._model, self._data, self._origin[:count], self._direction[:count], EVERY_GROUP,
            True, self._no_body, self._distance[:count], self._geom[:count], self._normal[:count],
            self._context,
        )  # fmt: skip
        wp.launch(
            kernels.shade,
            dim=(count, self._pixels),
            inputs=[self._cameras, self._width * self._height, self._geom, self._normal,
                    slot["geom_rgba"], slot["cam_xmat"], slot["light_xdir"], slot["light_diffuse"],
                    self._ambient, self._headlight],
            outputs=[out],
        )  # fmt: skip
