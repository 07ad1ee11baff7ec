"""The common part of the adapters of engines: arrays, commands, orders of quaternions.

The specific part is a class, here called a simulator, with

    varies                                 fields of a model that differ between worlds
    draws                                  whether it has cameras
    write(rows, arrays, varied)            set some worlds to the state in rows of the arrays
    step(arrays, substeps, active)         hold position targets
    read_state(qpos, qvel)                 write the state of all worlds to two arrays
    overran() -> bool [e]                  worlds in which buffers overflowed in the last step
    render(rows, images)                   write images of some worlds to rows of an array
    close()

Arrays are in MuJoCo's layout: quaternions wxyz, angular velocities of free bodies in the body
frames.
"""

from typing import Any, Dict, List, Tuple

import numpy as np


class EngineAdapter:
    """An adapter for one simulator."""

    def __init__(self, options: Dict[str, Any], simulator: Any) -> None:
        """Serve a simulator of the scene in `options` (`sim.engines.describe_scene`)."""
        self._options = options
        self._simulator = simulator
        self._arrays: Dict[str, np.ndarray] = {}

    def fields(self) -> Dict[str, Tuple[Tuple[int, ...], str]]:
        """Return name -> (shape, dtype name) of the shared arrays."""
        options = self._options
        e, m = options["worlds"], options["nmocap"]
        fields: Dict[str, Tuple[Tuple[int, ...], str]] = {
            "qpos": ((e, options["nq"]), "float64"),
            "qvel": ((e, options["nv"]), "float64"),
            "ctrl": ((e, options["nu"]), "float64"),
            "mocap_pos": ((e, m, 3), "float64"),
            "mocap_quat": ((e, m, 4), "float64"),
            "rows": ((e,), "int64"),
            "active": ((e,), "bool"),
            "faults": ((e,), "bool"),
        }
        for name in self._simulator.varies:
            fields["varied_" + name] = ((e, *options["varied"][name]), "float64")
        if self._simulator.draws:
            fields["images"] = ((e, *options["image"]), "uint8")
        return fields

    def announce(self) -> Dict[str, Any]:
        """Return the fields of a model that differ between worlds, and whether it renders."""
        return {"varies": sorted(self._simulator.varies), "draws": bool(self._simulator.draws)}

    def bind(self, arrays: Dict[str, np.ndarray]) -> None:
        """Take the shared arrays."""
        self._arrays = arrays

    def call(self, command: str, arguments: Dict[str, Any]) -> None:
        """Write, step or render, and update the state of all worlds in the arrays.

        Raises:
            ValueError: there is no such command.
        """
        arrays = self._arrays
        if command == "write":
            rows = arrays["rows"][: arguments["count"]].copy()
            self._simulator.write(rows, arrays, arguments["varied"])
            arrays["faults"][rows] = False
            self._simulator.read_state(arrays["qpos"], arrays["qvel"])
        elif command == "step":
            self._simulator.step(arrays, arguments["substeps"], arrays["active"].copy())
            self._simulator.read_state(arrays["qpos"], arrays["qvel"])
            whole = np.isfinite(arrays["qpos"]).all(axis=1)
            whole &= np.isfinite(arrays["qvel"]).all(axis=1)
            arrays["faults"][:] |= ~whole | self._simulator.overran()
        elif command == "render":
            self._simulator.render(arrays["rows"][: arguments["count"]].copy(), arrays["images"])
        else:
            raise ValueError(
                "command: got {!r}, expected write, step or render".format(command)  # noqa: UP032
            )

    def close(self) -> None:
        """Close the simulator."""
        self._simulator.close()


def to_xyzw(quat: np.ndarray) -> np.ndarray:
    """Return quaternions (..., 4) in xyzw, the order of Newton and Isaac Gym, from wxyz."""
    return np.concatenate([quat[..., 1:], quat[..., :1]], axis=-1)


def to_wxyz(quat: np.ndarray) -> np.ndarray:
    """Return quaternions (..., 4) in MuJoCo's order from xyzw."""
    return np.concatenate([quat[..., 3:], quat[..., :3]], axis=-1)


def times(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the products of quaternions (..., 4), wxyz."""
    w, v = left[..., :1], left[..., 1:]
    s, u = right[..., :1], right[..., 1:]
    return np.concatenate(
        [w * s - np.sum(v * u, axis=-1, keepdims=True), w * u + s * v + np.cross(v, u)], axis=-1
    )


def turn(quat: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return vectors (..., 3) turned by unit quaternions (..., 4), wxyz."""
    w, v = quat[..., :1], quat[..., 1:]
    across = 2.0 * np.cross(v, vector)
    return vector + w * across + np.cross(v, across)


def turn_back(quat: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return vectors (..., 3) turned by the inverses of unit quaternions (..., 4), wxyz."""
    return turn(quat * np.array([1.0, -1.0, -1.0, -1.0]), vector)


def free_to_root(qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    """Return states of free bodies with all velocities in the world frame.

    Args:
        qpos: (..., 7), position and quaternion, wxyz.
        qvel: (..., 6), velocity in the world's frame, angular velocity in the body's.

    Returns:
        (..., 13): position, quaternion still wxyz, velocity, angular velocity.
    """
    spin = turn(qpos[..., 3:], qvel[..., 3:])
    return np.concatenate([qpos, qvel[..., :3], spin], axis=-1)


def root_to_free(root: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return `qpos` (..., 7) and `qvel` (..., 6): the inverse of `free_to_root`."""
    spin = turn_back(root[..., 3:7], root[..., 10:])
    return root[..., :7], np.concatenate([root[..., 7:10], spin], axis=-1)


def scalar_joints(options: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return the joints of one degree of freedom."""
    return [joint for joint in options["joints"] if joint["type"] != "free"]


def joint_targets(options: Dict[str, Any], ctrl: np.ndarray) -> Dict[str, np.ndarray]:
    """Return name of a driven joint -> position targets (e,).

    A coupled joint has no actuator: its target follows from that of its leader.

    Args:
        options: The scene.
        ctrl: (e, nu), targets of the actuators.
    """
    targets = {a["joint"]: ctrl[:, i] for i, a in enumerate(options["actuators"])}
    for pair in options["coupled"]:
        if pair["leader"] in targets:
            moved = targets[pair["leader"]] - pair["leader_zero"]
            curve = sum(c * moved**k for k, c in enumerate(pair["polynomial"]))
            targets[pair["follower"]] = pair["follower_zero"] + curve
    return targets


def drives(options: Dict[str, Any]) -> Dict[str, Dict[str, float]]:
    """Return name of a joint -> stiffness, damping, force and armature of its drive.

    A coupled joint gets the drive of its leader.
    """
    joints = {joint["name"]: joint for joint in scalar_joints(options)}
    actuators = {a["joint"]: a for a in options["actuators"]}
    for pair in options["coupled"]:
        if pair["leader"] in actuators:
            actuators[pair["follower"]] = actuators[pair["leader"]]
    return {
        name: {
            "stiffness": drive["kp"],
            # The joint's damping is added to that of the drive.
            "damping": drive["kv"] + joints[name]["damping"],
            "force": drive["force"],
            "armature": joints[name]["armature"],
        }
        for name, drive in actuators.items()
    }
