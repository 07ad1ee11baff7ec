"""A scene for simulators that build it from an arm and simple shapes (PhysX), and its states.

The arm is imported from its MJCF; every other body becomes a box, a sphere or a cylinder. Scenes
that need more raise a ValueError.
"""

from typing import Any, Dict, List

import numpy as np
from _engine import free_to_root, joint_targets, root_to_free

SHAPES = ("box", "sphere", "cylinder")
_SLAB_M = 0.01
"""Thickness of a plane."""


def arm(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the part that is the arm.

    Raises:
        ValueError: another part has joints.
    """
    jointed = [part for part in options["parts"] if part["kind"] == "articulation"]
    if len(jointed) != 1:
        raise ValueError(
            "scene: got joints in {}, expected them in the arm alone: this simulator gets "
            "one articulation; choose a task without a drawer, or another backend".format(
                " and ".join(part["name"] for part in jointed)
            )
        )
    return jointed[0]


def bodies(options: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return all bodies but the arm, as shapes.

    Each has `name`, `kind` ("free", "mark" or "fixed"), `shape`, `size` as MuJoCo has it, `rgba`,
    `friction`, `mass`, `touches`, `pos` and `quat` (wxyz) in the world, `geom` (its id), and
    `qpos` and `dof` (addresses) or `mark` (index) where it moves.

    Raises:
        ValueError: a body is of several geoms, or of an unsupported shape.
    """
    shapes = []
    joints = {joint["body"]: joint for joint in options["joints"]}
    for part in options["parts"]:
        if part["kind"] == "articulation":
            continue
        if len(part["geoms"]) != 1:
            raise ValueError(
                "body {!r}: got {} geoms, expected one: this simulator takes simple shapes".format(
                    part["name"], len(part["geoms"])
                )
            )
        body = _shape(options, part["geoms"][0])
        if np.any(body["pos"]) or abs(body["quat"][0]) < 1.0 - 1e-6:
            raise ValueError(
                "body {!r}: its geom is not at its origin; move it there".format(part["name"])
            )
        body.update(name=part["name"], kind=part["kind"], mass=part["mass"])
        body.update(pos=part["pos"], quat=part["quat"])
        if part["kind"] == "free":
            body.update(qpos=joints[part["name"]]["qpos"], dof=joints[part["name"]]["dof"])
        if part["kind"] == "mark":
            body["mark"] = options["mocap"].index(part["name"])
        shapes.append(body)
    for i, geom in enumerate(options["geoms"]):
        if geom["body"] == "world":
            body = _shape(options, i)
            body.update(name=geom["name"], kind="fixed", mass=1.0)
            shapes.append(body)
    return shapes


def _shape(options: Dict[str, Any], i: int) -> Dict[str, Any]:
    geom = options["geoms"][i]
    shape, size, pos = geom["type"], list(geom["size"]), list(geom["pos"])
    if shape == "plane":
        shape, size = "box", [size[0], size[1], _SLAB_M / 2]
        pos[2] -= _SLAB_M / 2
    if shape not in SHAPES:
        raise ValueError(
            "geom {!r}: got a {}, expected one of {}".format(geom["name"], shape, SHAPES)
        )
    return {
        "geom": i,
        "shape": shape,
        "size": size,
        "pos": pos,
        "quat": geom["quat"],
        "rgba": geom["rgba"],
        "friction": geom["friction"][0],
        "touches": geom["touches"],
    }


def volume_m3(body: Dict[str, Any]) -> float:
    """Return the volume of a shape."""
    size = body["size"]
    if body["shape"] == "box":
        return float(8.0 * size[0] * size[1] * size[2])
    if body["shape"] == "sphere":
        return float(4.0 / 3.0 * np.pi * size[0] ** 3)
    return float(2.0 * np.pi * size[0] ** 2 * size[1])


class WorldStates:
    """State of all worlds: joints in the simulator's order, other bodies as 13 numbers each.

    Written worlds are marked `dirty` until the simulator has their state. Quaternions are wxyz,
    poses are in the frame of their world.
    """

    def __init__(self, options: Dict[str, Any], joints: List[str]) -> None:
        """Allocate the states of a scene's worlds; `joints` are names in the simulator's order.

        Raises:
            ValueError: the simulator has other joints than the scene.
        """
        by_name = {j["name"]: j for j in options["joints"] if j["type"] != "free"}
        unmatched = sorted(set(by_name) ^ set(joints))
        if unmatched:
            raise ValueError(
                f"joints {unmatched} are in the scene or in the import, expected in both"
            )
        e = options["worlds"]
        self._options = options
        self.joints = [by_name[name] for name in joints]
        self.bodies = bodies(options)
        self.position = np.zeros((e, len(joints)))
        self.velocity = np.zeros((e, len(joints)))
        self.target = np.zeros((e, len(joints)))
        self.root = np.zeros((e, len(self.bodies), 13))
        for k, body in enumerate(self.bodies):
            self.root[:, k, :3], self.root[:, k, 3:7] = body["pos"], body["quat"]
        self.movable = [k for k, body in enumerate(self.bodies) if body["kind"] != "fixed"]
        self.dirty = np.zeros(e, bool)

    def write(self, rows: np.ndarray, arrays: Dict[str, np.ndarray]) -> None:
        """Set rows from arrays in MuJoCo's layout."""
        qpos, qvel = arrays["qpos"], arrays["qvel"]
        for k, joint in enumerate(self.joints):
            self.position[rows, k] = qpos[rows, joint["qpos"]]
            self.velocity[rows, k] = qvel[rows, joint["dof"]]
        for k, body in enumerate(self.bodies):
            if body["kind"] == "free":
                a, d = body["qpos"], body["dof"]
                self.root[rows, k] = free_to_root(qpos[rows, a : a + 7], qvel[rows, d : d + 6])
            elif body["kind"] == "mark":
                self.root[rows, k, :3] = arrays["mocap_pos"][rows, body["mark"]]
                self.root[rows, k, 3:7] = arrays["mocap_quat"][rows, body["mark"]]
        self.dirty[rows] = True

    def set_targets(self, ctrl: np.ndarray) -> None:
        """Set joint targets from those of the actuators (e, nu)."""
        targets = joint_targets(self._options, ctrl)
        for k, joint in enumerate(self.joints):
            if joint["name"] in targets:
                self.target[:, k] = targets[joint["name"]]

    def update(
        self, active: np.ndarray, position: np.ndarray, velocity: np.ndarray, root: np.ndarray
    ) -> None:
        """Set active worlds to the result of physics, and mark the others to be restored."""
        self.position[active], self.velocity[active] = position[active], velocity[active]
        self.root[active] = root[active]
        self.dirty |= ~active

    def read_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Write the state of all worlds to arrays in MuJoCo's layout."""
        for k, joint in enumerate(self.joints):
            qpos[:, joint["qpos"]] = self.position[:, k]
            qvel[:, joint["dof"]] = self.velocity[:, k]
        for k, body in enumerate(self.bodies):
            if body["kind"] == "free":
                a, d = body["qpos"], body["dof"]
                qpos[:, a : a + 7], qvel[:, d : d + 6] = root_to_free(self.root[:, k])
