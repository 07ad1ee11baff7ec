"""Simulation context and configurations of what is spawned."""

import dataclasses
import os
from typing import Any

from stage_of_mujoco import Stage

from isaaclab.app import check_running

check_running()
THIRD = os.environ.get("MNEME_STAND_IN_LAB") == "3"


def configuration(name: str, *fields: str) -> type:
    """Return a class that takes these fields and no others, all by name."""
    made = [(field, Any, dataclasses.field(default=None)) for field in fields]
    return dataclasses.make_dataclass(name, made, kw_only=True)


SimulationCfg = configuration("SimulationCfg", "dt", "device", "gravity")
_RIGID = ("kinematic_enabled", "disable_gravity")
if THIRD:
    PhysxRigidBodyPropertiesCfg = configuration("PhysxRigidBodyPropertiesCfg", *_RIGID)
    CollisionBaseCfg = configuration("CollisionBaseCfg", "collision_enabled")
else:
    RigidBodyPropertiesCfg = configuration("RigidBodyPropertiesCfg", *_RIGID)
    CollisionPropertiesCfg = configuration("CollisionPropertiesCfg", "collision_enabled")
ArticulationRootPropertiesCfg = configuration(
    "ArticulationRootPropertiesCfg", "enabled_self_collisions", "fix_root_link"
)
MassPropertiesCfg = configuration("MassPropertiesCfg", "mass")
PreviewSurfaceCfg = configuration("PreviewSurfaceCfg", "diffuse_color")
RigidBodyMaterialCfg = configuration("RigidBodyMaterialCfg", "static_friction", "dynamic_friction")
DomeLightCfg = configuration("DomeLightCfg", "intensity")
_FILE = ("asset_path", "self_collision", "rigid_props", "articulation_props")
MjcfFileCfg = configuration("MjcfFileCfg", *_FILE, *(() if THIRD else ("fix_base",)))
_SHAPE = ("collision_props", "visual_material", "physics_material", "rigid_props", "mass_props")
CuboidCfg = configuration("CuboidCfg", "size", *_SHAPE)
SphereCfg = configuration("SphereCfg", "radius", *_SHAPE)
CylinderCfg = configuration("CylinderCfg", "radius", "height", *_SHAPE)
PinholeCameraCfg = configuration(
    "PinholeCameraCfg", "focal_length", "horizontal_aperture", "clipping_range"
)


class SimulationContext:
    _instance: "SimulationContext | None" = None

    def __init__(self, cfg: Any = None) -> None:
        if SimulationContext._instance is not None:
            raise RuntimeError("SimulationContext: a process holds one")
        SimulationContext._instance = self
        self.cfg = cfg
        self.stage = Stage(cfg.dt, cfg.gravity)
        self.count = 0
        self.fresh = 0

    def reset(self, soft: bool = False) -> None:
        self.stage.compile(self.count)

    def forward(self) -> None:
        self.fresh = 0

    def step(self, render: bool = True) -> None:
        self.stage.step()
        self.fresh = 0

    def render(self, mode: Any = None) -> None:
        self.fresh += 1

    @classmethod
    def clear_instance(cls) -> None:
        cls._instance = None


class _Attribute:
    def __init__(self, path: str) -> None:
        self.path = path

    def Set(self, value: Any) -> bool:  # noqa: N802
        _, _, env, body, *rest = self.path[1:].split("/")
        if rest != ["geometry", "material", "Shader"]:
            raise RuntimeError(f"no shader at {self.path}")
        context = SimulationContext._instance
        context.stage.paint(int(env[len("env_") :]), body, tuple(value))
        return True


class _Prim:
    def __init__(self, path: str) -> None:
        self.path = path

    def GetAttribute(self, name: str) -> _Attribute:  # noqa: N802
        assert name == "inputs:diffuseColor"
        return _Attribute(self.path)


class _UsdStage:
    def GetPrimAtPath(self, path: str) -> _Prim:  # noqa: N802
        return _Prim(path)


def get_current_stage() -> _UsdStage:
    return _UsdStage()
