"""Articulations and rigid objects; quaternions wxyz in 2.x and xyzw in 3.x."""

import math
from typing import Any

import numpy as np
import torch

from isaaclab.sim import THIRD, SimulationContext, configuration

_State = configuration("InitialStateCfg", "pos", "rot")
AssetBaseCfg = configuration("AssetBaseCfg", "prim_path", "spawn", "init_state")
RigidObjectCfg = configuration("RigidObjectCfg", "prim_path", "spawn", "init_state")
ArticulationCfg = configuration("ArticulationCfg", "prim_path", "spawn", "init_state", "actuators")
for _kind in (AssetBaseCfg, RigidObjectCfg, ArticulationCfg):
    _kind.InitialStateCfg = _State
_WXYZ = [3, 4, 5, 6]
_FROM = [6, 3, 4, 5] if THIRD else _WXYZ
_TO = [4, 5, 6, 3] if THIRD else _WXYZ


class ProxyArray:
    """What data are in 3.x: not a tensor, but with one."""

    def __init__(self, held: torch.Tensor) -> None:
        self.torch = held


def given(values: Any) -> Any:
    held = torch.from_numpy(np.asarray(values, np.float32))
    return ProxyArray(held) if THIRD else held


def to_wxyz(quat: Any) -> list[float]:
    q = list(map(float, quat))
    if abs(math.sqrt(sum(part**2 for part in q)) - 1.0) > 1e-4:
        raise ValueError(f"quaternion {q} is not of length 1")
    return [q[3], q[0], q[1], q[2]] if THIRD else q


def check_ids(ids: torch.Tensor, values: torch.Tensor) -> list[int]:
    wanted = torch.int32 if THIRD else torch.int64
    if ids.dtype != wanted:
        raise TypeError(f"env_ids: got {ids.dtype}, expected {wanted}")
    if len(set(ids.tolist())) != len(ids) or len(values) != len(ids):
        raise ValueError("env_ids: one comes twice, or there are not as many rows")
    return ids.tolist()


class _Asset:
    def __init__(self, cfg: Any, name: str, origins: np.ndarray) -> None:
        self.cfg, self.name, self.origins = cfg, name, origins
        self.sim = SimulationContext._instance

    def update(self, dt: float) -> None:
        pass

    @property
    def data(self) -> Any:
        return self

    def _root(self, root_pose: torch.Tensor, env_ids: torch.Tensor) -> None:
        for row, pose in zip(check_ids(env_ids, root_pose), root_pose.numpy(), strict=True):
            root = self.sim.stage.root(row, self.name)
            root[:3], root[3:7] = pose[:3] - self.origins[row], to_wxyz(pose[3:])
            self.sim.stage.set_root(row, self.name, root)

    def _speed(self, root_velocity: torch.Tensor, env_ids: torch.Tensor) -> None:
        rows = check_ids(env_ids, root_velocity)
        for row, speed in zip(rows, root_velocity.numpy(), strict=True):
            root = self.sim.stage.root(row, self.name)
            root[7:] = speed
            self.sim.stage.set_root(row, self.name, root)

    if THIRD:

        def write_root_pose_to_sim_index(self, *, root_pose: Any, env_ids: Any = None) -> None:
            self._root(root_pose, env_ids)

        def write_root_velocity_to_sim_index(
            self, *, root_velocity: Any, env_ids: Any = None
        ) -> None:
            self._speed(root_velocity, env_ids)

    else:

        def write_root_pose_to_sim(self, root_pose: Any, env_ids: Any = None) -> None:
            self._root(root_pose, env_ids)

        def write_root_velocity_to_sim(self, root_velocity: Any, env_ids: Any = None) -> None:
            self._speed(root_velocity, env_ids)

    def _roots(self) -> np.ndarray:
        roots = np.stack([self.sim.stage.root(i, self.name) for i in range(self.sim.count)])
        roots[:, :3] += self.origins
        roots[:, _WXYZ] = roots[:, _TO]
        return roots

    @property
    def root_link_pose_w(self) -> Any:
        return given(self._roots()[:, :7])

    @property
    def root_link_vel_w(self) -> Any:
        return given(self._roots()[:, 7:])


class RigidObject(_Asset):
    pass


class Articulation(_Asset):
    def __init__(self, cfg: Any, name: str, origins: np.ndarray) -> None:
        super().__init__(cfg, name, origins)
        stage, spawn = self.sim.stage, cfg.spawn
        if not spawn.articulation_props.fix_root_link:
            raise RuntimeError("the arm is not fixed: it falls")
        stage.arm_file, stage.arm_bits = spawn.asset_path, 1
        stage.arm_weightless = spawn.rigid_props.disable_gravity
        drive = cfg.actuators["all"]
        # Not the order of the file: whoever relies on it is wrong.
        self.joint_names = stage.joint_names(spawn.asset_path)[::-1]
        self.body_names = stage.body_names(spawn.asset_path)
        stage.drives = {
            name: {"stiffness": drive.stiffness[name], "damping": drive.damping[name],
                   "force": drive.effort_limit_sim[name], "armature": drive.armature[name]}
            for name in drive.joint_names_expr
        }  # fmt: skip
        self.pending: torch.Tensor | None = None

    def _aim(self, target: torch.Tensor) -> None:
        if target.shape != (self.sim.count, len(self.joint_names)):
            raise ValueError(f"target: got shape {tuple(target.shape)}")
        self.pending = target.clone()

    def write_data_to_sim(self) -> None:
        if self.pending is not None:
            for row, targets in enumerate(self.pending.tolist()):
                for name, target in zip(self.joint_names, targets, strict=True):
                    self.sim.stage.target(row, name, target)

    def _joints(self, env_ids: Any, position: Any = None, velocity: Any = None) -> None:
        stage = self.sim.stage
        some = position if position is not None else velocity
        for i, row in enumerate(check_ids(env_ids, some)):
            for k, name in enumerate(self.joint_names):
                at, speed = stage.joint(row, name)
                at = at if position is None else float(position[i, k])
                speed = speed if velocity is None else float(velocity[i, k])
                stage.set_joint(row, name, at, speed)

    if THIRD:

        def set_joint_position_target_index(
            self, *, target: Any, joint_ids: Any = None, env_ids: Any = None
        ) -> None:
            self._aim(target)

        def write_joint_position_to_sim_index(
            self, *, position: Any, joint_ids: Any = None, env_ids: Any = None
        ) -> None:
            self._joints(env_ids, position=position)

        def write_joint_velocity_to_sim_index(
            self, *, velocity: Any, joint_ids: Any = None, env_ids: Any = None
        ) -> None:
            self._joints(env_ids, velocity=velocity)

    else:

        def set_joint_position_target(
            self, target: Any, joint_ids: Any = None, env_ids: Any = None
        ) -> None:
            self._aim(target)

        def write_joint_state_to_sim(
            self, position: Any, velocity: Any, joint_ids: Any = None, env_ids: Any = None
        ) -> None:
            self._joints(env_ids, position, velocity)

    def _read(self, which: int) -> Any:
        stage = self.sim.stage
        return given([[stage.joint(row, name)[which] for name in self.joint_names]
                      for row in range(self.sim.count)])  # fmt: skip

    @property
    def joint_pos(self) -> Any:
        return self._read(0)

    @property
    def joint_vel(self) -> Any:
        return self._read(1)

    @property
    def body_link_pose_w(self) -> Any:
        roots = np.stack([[self.sim.stage.root(row, name) for name in self.body_names]
                          for row in range(self.sim.count)])  # fmt: skip
        roots[..., :3] += self.origins[:, None]
        roots[..., _WXYZ] = roots[..., _TO]
        return given(roots[..., :7])
