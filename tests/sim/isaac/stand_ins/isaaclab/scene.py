"""A scene of many worlds, from a configuration."""

from typing import Any

import numpy as np
import torch

from isaaclab.assets import (
    Articulation,
    ArticulationCfg,
    RigidObject,
    RigidObjectCfg,
    to_wxyz,
)
from isaaclab.sensors import Camera
from isaaclab.sim import CuboidCfg, SimulationContext, SphereCfg, configuration

_Cfg = configuration("InteractiveSceneCfg", "num_envs", "env_spacing", "replicate_physics")
InteractiveSceneCfg = _Cfg


class InteractiveScene:
    def __init__(self, cfg: Any) -> None:
        self.sim = SimulationContext._instance
        self.sim.count = cfg.num_envs
        along = torch.arange(cfg.num_envs, dtype=torch.float32) * cfg.env_spacing
        self.env_origins = torch.stack([along, -along, torch.zeros_like(along)], dim=1)
        self._held: dict[str, Any] = {}
        bit = 2
        for name, entity in list(vars(cfg).items())[3:]:
            origins = self.env_origins.numpy().astype(np.float64)
            if isinstance(entity, ArticulationCfg):
                self._held[name] = Articulation(entity, name, origins)
            elif hasattr(entity, "data_types"):
                index = sum(isinstance(held, Camera) for held in self._held.values())
                self._held[name] = Camera(entity, index, origins)
            elif hasattr(entity.spawn, "collision_props"):
                self._spawn(name, entity, bit)
                bit *= 2
                self._held[name] = RigidObject(entity, name, origins)

    def _spawn(self, name: str, entity: Any, bit: int) -> None:
        spawn, size = entity.spawn, (0.0, 0.0, 0.0)
        if isinstance(spawn, CuboidCfg):
            shape, size = "box", tuple(part / 2 for part in spawn.size)
        elif isinstance(spawn, SphereCfg):
            shape, size = "sphere", (spawn.radius, 0, 0)
        else:
            shape, size = "cylinder", (spawn.radius, spawn.height / 2, 0)
        rigid = spawn.rigid_props
        moves = isinstance(entity, RigidObjectCfg)
        if moves != (rigid is not None):
            raise RuntimeError("a rigid object needs rigid properties, and nothing else has any")
        self.sim.stage.shapes.append({
            "name": name, "shape": shape, "size": size,
            "mass": spawn.mass_props.mass if moves else 1.0, "fixed": not moves,
            "weightless": bool(moves and rigid.kinematic_enabled),
            "bits": bit if spawn.collision_props.collision_enabled else 0x7FFFFFFF,
            "rgb": spawn.visual_material.diffuse_color,
            "friction": spawn.physics_material.static_friction,
            "pos": entity.init_state.pos, "quat": to_wxyz(entity.init_state.rot),
        })  # fmt: skip

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def write_data_to_sim(self) -> None:
        for held in self._held.values():
            if isinstance(held, Articulation):
                held.write_data_to_sim()

    def update(self, dt: float) -> None:
        pass
