"""The parts of a scene for simulators that build it from an arm and simple shapes (PhysX).

The arm is imported from its MJCF; what else lies about becomes a box, a sphere or a cylinder each.
What that cannot express is refused here in one sentence.
"""

from typing import Any, Dict, List

import numpy as np

SHAPES = ("box", "sphere", "cylinder")
_SLAB_M = 0.01
"""How thick a plane becomes."""


def arm(options: Dict[str, Any]) -> Dict[str, Any]:
    """Return the part that is the arm.

    Raises:
        ValueError: something besides the arm has joints.
    """
    jointed = [part for part in options["parts"] if part["kind"] == "articulation"]
    if len(jointed) != 1:
        raise ValueError(
            "scene: got joints in {}, expected them in the arm alone: this simulator is given "
            "one articulation; choose a task without a drawer, or another backend".format(
                " and ".join(part["name"] for part in jointed)
            )
        )
    return jointed[0]


def bodies(options: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return everything but the arm, as shapes.

    Each has `name`, `kind` ("free", "mark" or "fixed"), `shape`, `size` as MuJoCo has it, `rgba`,
    `friction`, `mass`, `touches`, `pos` and `quat` (wxyz) in the world, `geom` (its id), and
    `qpos` and `dof` (addresses) or `mark` (index) where it moves.

    Raises:
        ValueError: a body is of several geoms, or of a shape that is not to be had.
    """
    found = []
    joints = {joint["body"]: joint for joint in options["joints"]}
    for part in options["parts"]:
        if part["kind"] == "articulation":
            continue
        if len(part["geoms"]) != 1:
            raise ValueError(
                "body {!r}: got {} geoms, expected one: this simulator is given simple "
                "shapes".format(part["name"], len(part["geoms"]))
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
        found.append(body)
    for i, geom in enumerate(options["geoms"]):
        if geom["body"] == "world":
            body = _shape(options, i)
            body.update(name=geom["name"], kind="fixed", mass=1.0)
            found.append(body)
    return found


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
