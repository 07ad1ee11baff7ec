"""Cameras."""

from typing import Any

import mujoco
import numpy as np
import torch

from isaaclab.app import running
from isaaclab.assets import ProxyArray, to_wxyz
from isaaclab.sim import THIRD, SimulationContext, configuration

_FIELDS = ("prim_path", "data_types", "width", "height", "spawn")
if THIRD:
    CameraCfg = configuration("CameraCfg", *_FIELDS)
else:
    TiledCameraCfg = configuration("TiledCameraCfg", *_FIELDS)


class Camera:
    def __init__(self, cfg: Any, index: int, origins: np.ndarray) -> None:
        if not running[0].get("enable_cameras"):
            raise RuntimeError("a camera was spawned without enable_cameras")
        self.cfg, self.index, self.origins = cfg, index, origins
        self.sim = SimulationContext._instance
        fovx = 2 * np.arctan(cfg.spawn.horizontal_aperture / 2 / cfg.spawn.focal_length)
        fovy = 2 * np.arctan(np.tan(fovx / 2) * cfg.height / cfg.width)
        self.sim.stage.cameras.append(
            {"body": "", "pos": (0, 0, 1), "quat": (1, 0, 0, 0), "fovy": float(np.degrees(fovy))}
        )
        self.poses: list[Any] = []
        self.output: dict[str, Any] = {}

    @property
    def data(self) -> Any:
        return self

    def set_world_poses(
        self, positions: Any = None, orientations: Any = None, env_ids: Any = None,
        convention: str = "ros",
    ) -> None:  # fmt: skip
        if convention != "opengl":
            raise ValueError(f"convention: got {convention}, expected opengl")
        self.poses = [
            (pos - origin, to_wxyz(quat))
            for pos, quat, origin in zip(
                positions.numpy(), orientations.tolist(), self.origins, strict=True
            )
        ]

    def update(self, dt: float, force_recompute: bool = False) -> None:
        stage, cfg = self.sim.stage, self.cfg
        if self.sim.fresh < 2:
            raise RuntimeError("pictures show what was written only after two frames")
        camera = stage.model.camera(f"camera{self.index}").id
        pictures = []
        for row, (pos, quat) in enumerate(self.poses):
            stage.model.cam_pos[camera], stage.model.cam_quat[camera] = pos, quat
            mujoco.mj_camlight(stage.model, stage.data[row])
            pictures.append(stage.picture(row, self.index, cfg.height, cfg.width).copy())
        held = torch.from_numpy(np.stack(pictures))
        self.output = {"rgb": ProxyArray(held) if THIRD else held}
