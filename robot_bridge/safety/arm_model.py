"""An arm's model (MJCF) in a pose. This module does not import ROS."""

from pathlib import Path

import mujoco
import numpy as np

from vla.contracts.specs import RobotSpec

ASSETS = Path(__file__).parents[2] / "sim" / "assets"
"""Folder of models that a RobotSpec names without a path."""


class ArmModel:
    """The model of one arm; not thread-safe."""

    def __init__(self, robot: RobotSpec) -> None:
        """Read the model.

        Raises:
            ValueError: it is missing or cannot be read, lacks a channel, or has a joint whose
                position no channel determines.
        """
        self._where = f"robot {robot.name!r} ({robot.mjcf})"
        self._model = _load(robot, self._where)
        self._data = mujoco.MjData(self._model)
        self._joints(robot)

    def _joints(self, robot: RobotSpec) -> None:
        """Find the joints of the channels, and the joints that follow one of them."""
        m = self._model
        channels = []
        for name in robot.names:
            joint = mujoco.mj_name2id(m, mujoco.mjtObj.mjOBJ_JOINT, name)
            if joint < 0:
                raise ValueError(f"{self._where}: no joint named {name!r}, a channel of the arm")
            channels.append(joint)
        self._share = np.zeros((m.njnt, len(channels)))  # motion of a joint per unit of a channel
        self._share[channels, np.arange(len(channels))] = 1.0
        self._address = m.jnt_qposadr[channels]
        followers = {}
        for e in np.flatnonzero(m.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)):
            joint, leader = int(m.eq_obj1id[e]), int(m.eq_obj2id[e])
            if m.eq_active0[e] and joint not in channels and leader in channels:
                followers[joint] = (channels.index(leader), m.eq_data[e, :5].copy())
        for joint in range(m.njnt):
            if joint not in channels and joint not in followers:
                raise ValueError(
                    f"{self._where}: joint {m.joint(joint).name!r} is no channel and no equality "
                    "couples it to one, so nothing says where it is; couple it, or fix it"
                )
        self._follow = [
            (int(m.jnt_qposadr[joint]), k, np.polynomial.Polynomial(polynomial))
            for joint, (k, polynomial) in followers.items()
        ]
        for joint, (k, polynomial) in followers.items():
            at = self._address[k]
            furthest = np.abs(np.array([robot.low[k], robot.high[k]]) - m.qpos0[at]).max()
            powers = np.arange(1, 5)
            self._share[joint, k] = np.sum(
                powers * np.abs(polynomial[1:]) * furthest ** (powers - 1)
            )

    def _set(self, pose: np.ndarray) -> None:
        """Set the model's pose f64 [u]."""
        q, rest = self._data.qpos, self._model.qpos0
        q[self._address] = pose
        for at, k, polynomial in self._follow:
            leader = self._address[k]
            q[at] = rest[at] + polynomial(pose[k] - rest[leader])
        mujoco.mj_kinematics(self._model, self._data)

    def _tool(self) -> int:
        """Return the site between the fingertips."""
        tool: int = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_SITE, "tool")
        if tool < 0:
            raise ValueError(f"{self._where}: no site named 'tool'; add one between the fingertips")
        return tool


def _load(robot: RobotSpec, where: str) -> mujoco.MjModel:
    path = Path(robot.mjcf) if Path(robot.mjcf).is_absolute() else ASSETS / robot.mjcf
    if not path.is_file():
        raise ValueError(
            f"{where}: no model there, which says what collides; give a name under sim/assets or "
            "the absolute path of an MJCF file"
        )
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise ValueError(f"{where}: cannot read it ({' '.join(str(error).split())})") from error
    # As numbers: from MuJoCo 4 on its names are equal to no number of numpy.
    kinds = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    if not np.isin(model.jnt_type, kinds).all():
        raise ValueError(f"{where}: a joint that is neither hinge nor slide; give the arm alone")
    return model
