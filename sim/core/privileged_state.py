"""Numbers that simulation knows of n worlds beside the images, by name: for training alone.

They depend on the scene's compiled model and on `Worlds`, so one text serves every simulator. The
clock is not among them: `Observation.time_s` has it.
"""

import mujoco
import numpy as np
from jaxtyping import Float32

from sim.core.scene import Scene
from sim.core.task import HasGoals
from sim.core.worlds import Worlds
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

VELOCITY_SCALE = 0.2
"""Factor of velocities, which brings them near the size of positions."""
_FREE = int(mujoco.mjtJoint.mjJNT_FREE)
_BALL = int(mujoco.mjtJoint.mjJNT_BALL)
_QPOS, _QVEL = {_FREE: 7, _BALL: 4}, {_FREE: 6, _BALL: 3}
"""Numbers of a joint of a kind; of others 1."""


class PrivilegedState:
    """Reads the privileged state of worlds of one scene.

    Objects are bodies with a free joint, then mocap bodies. Parts are bodies with another joint
    that does not belong to the arm, such as a drawer. `contact/GEOM` counts bodies of the arm that
    touch a geom: the first of each free object, all of each part. `goal/...` are what a task with
    several goals says about that of the episode. Lengths are metres, angles radians, velocities
    `VELOCITY_SCALE` times m/s and rad/s. Names that begin with "object" are of what images show.
    """

    def __init__(self, scene: Scene) -> None:
        """Find what there is in a scene's model; nothing is computed before `read`."""
        model, robot = scene.model, scene.robot
        self._of_goal: HasGoals | None = scene.task if isinstance(scene.task, HasGoals) else None
        free = model.jnt_bodyid[model.jnt_type == _FREE].tolist()
        self._objects = [*free, *np.flatnonzero(model.body_mocapid >= 0).tolist()]
        joints = _part_joints(model, robot)
        self._joint_qpos = model.jnt_qposadr[joints]
        self._parts = np.unique(model.jnt_bodyid[joints]).tolist()
        self._geoms = [
            *(name for body in free for name in _geoms_of(model, body)[:1]),
            *(name for body in self._parts for name in _geoms_of(model, body)),
        ]
        objects = [model.body(i).name for i in self._objects]
        parts = [model.body(i).name for i in self._parts]
        self.names: tuple[str, ...] = (
            *_joint_names(model, "qpos", _QPOS),
            *_joint_names(model, "qvel", _QVEL),
            *(f"ctrl/{name}" for name in robot.names),
            *_xyz("tool"),
            *_xyz(*(f"object/{name}" for name in objects)),
            *_xyz(*(f"object_to_tool/{name}" for name in objects)),
            *_xyz(*(f"object_to_object/{objects[0]}/{name}" for name in objects[1:])),
            *(f"object/{_joint_name(model, joint)}/pos" for joint in joints),
            *_xyz(*(f"object/{name}" for name in parts)),
            *_xyz(*(f"object_to_tool/{name}" for name in parts)),
            *(f"contact/{name}" for name in self._geoms),
            *(f"goal/{name}" for name in (self._of_goal.goal_state_names if self._of_goal else ())),
        )
        """What each number is, P names."""

    def read(self, worlds: Worlds) -> Float32[Array, "n p"]:
        """Return the present state of n worlds, in the order of `names`."""
        fields, tool_m = worlds.fields, worlds.tool_m
        objects_m, parts_m = fields.xpos[:, self._objects], fields.xpos[:, self._parts]
        columns = [
            fields.qpos,
            VELOCITY_SCALE * fields.qvel,
            fields.ctrl[:, worlds.actuators],
            tool_m,
            objects_m,
            objects_m - tool_m[:, None],
            objects_m[:, :1] - objects_m[:, 1:],
            fields.qpos[:, self._joint_qpos],
            parts_m,
            parts_m - tool_m[:, None],
            *(worlds.touching(name)[:, None] for name in self._geoms),
        ]
        if self._of_goal is not None:
            columns.append(self._of_goal.goal_state(worlds))
        flat = [values.reshape(len(tool_m), -1) for values in columns]
        return np.concatenate(flat, axis=1, dtype=np.float32)


def _part_joints(model: mujoco.MjModel, robot: RobotSpec) -> list[int]:
    """Return the ids of the hinges and slides that do not belong to the arm."""
    channels = [model.joint(name).id for name in robot.names]
    root = model.body_rootid[model.jnt_bodyid]
    single = (model.jnt_type != _FREE) & (model.jnt_type != _BALL)
    return np.flatnonzero(single & ~np.isin(root, root[channels])).tolist()


def _geoms_of(model: mujoco.MjModel, body: int) -> list[str]:
    """Return the names of a body's geoms, in the model's order; those without one are left out."""
    names = (model.geom(i).name for i in np.flatnonzero(model.geom_bodyid == body))
    return [name for name in names if name]


def _joint_name(model: mujoco.MjModel, joint: int) -> str:
    return model.joint(joint).name or f"joint{joint}"


def _joint_names(model: mujoco.MjModel, prefix: str, sizes: dict[int, int]) -> list[str]:
    """Return a name for each number of all joints; `sizes` are those of joints with several."""
    names = []
    for joint, kind in enumerate(model.jnt_type.tolist()):
        name, size = f"{prefix}/{_joint_name(model, joint)}", sizes.get(kind, 1)
        names += [name] if size == 1 else [f"{name}/{i}" for i in range(size)]
    return names


def _xyz(*names: str) -> list[str]:
    return [f"{name}/{axis}" for name in names for axis in "xyz"]
