"""Exports a scene for a simulator in another interpreter: MJCF files and a description."""

import copy
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from sim.core.scene import Scene, build_scene
from sim.core.world import coupled_joints
from sim.engines.engine import VARIED

_TYPES = {
    int(mujoco.mjtJoint.mjJNT_FREE): "free",
    int(mujoco.mjtJoint.mjJNT_HINGE): "hinge",
    int(mujoco.mjtJoint.mjJNT_SLIDE): "slide",
}
_SHAPES = {
    int(mujoco.mjtGeom.mjGEOM_PLANE): "plane",
    int(mujoco.mjtGeom.mjGEOM_SPHERE): "sphere",
    int(mujoco.mjtGeom.mjGEOM_CAPSULE): "capsule",
    int(mujoco.mjtGeom.mjGEOM_CYLINDER): "cylinder",
    int(mujoco.mjtGeom.mjGEOM_BOX): "box",
    int(mujoco.mjtGeom.mjGEOM_MESH): "mesh",
}
UNLIMITED_N = 1e6
"""Force of an actuator without a limit."""


def describe_scene(scene: Scene, num_worlds: int, folder: Path) -> dict[str, Any]:
    """Write a scene's files into a folder and return its description as JSON.

    Joints, actuators, bodies and cameras stand in the order of the compiled model; its parts are
    what the world holds: each an articulation, a free body, a mark moved by hand or something
    fixed. `file` of a part is MJCF of it alone, without actuators, cameras and constraints.

    Raises:
        ValueError: the scene has a joint or actuator of an unsupported kind.
    """
    model = scene.model
    root = ET.fromstring(build_scene(scene.robot, scene.task).to_xml())
    _whole(root)
    path = folder / "scene.xml"
    path.write_text(ET.tostring(root, encoding="unicode"))
    return {
        "worlds": num_worlds,
        "mjcf": str(path),
        "timestep_s": float(model.opt.timestep),
        "gravity": model.opt.gravity.tolist(),
        "nq": model.nq,
        "nv": model.nv,
        "nu": model.nu,
        "nmocap": model.nmocap,
        "joints": [_joint(model, i) for i in range(model.njnt)],
        "actuators": [_actuator(model, i) for i in range(model.nu)],
        "coupled": _coupled(model),
        "bodies": [_body(model, i) for i in range(model.nbody)],
        "geoms": [_geom(model, i) for i in range(model.ngeom)],
        "mocap": [model.body(i).name for i in np.flatnonzero(model.body_mocapid >= 0)],
        "cameras": [_camera(scene, spec.name) for spec in scene.robot.cameras],
        "image": list(scene.image_shape),
        "light_dir": model.light_dir[0].tolist() if model.nlight else [0.0, 0.0, -1.0],
        "varied": {name: list(getattr(model, name).shape) for name in VARIED},
        "parts": [_part(model, i, root, folder) for i in range(1, model.nbody)
                  if model.body_parentid[i] == 0],
    }  # fmt: skip


def _whole(root: ET.Element) -> None:
    """Write out what other programs misread.

    MuJoCo omits trailing numbers that are the default, which others take for zeros, and writes a
    class of defaults without a name, which it does not read again.
    """
    for outer in root.findall("default"):
        for nameless in [child for child in outer if child.tag == "default"]:
            if not nameless.get("class"):
                outer.remove(nameless)
                outer.extend(list(nameless))
    for element in root.iter():
        for name, default in (("solref", (0.02, 1.0)), ("friction", (1.0, 0.005, 0.0001))):
            values = element.get(name, "").split()
            if values:
                rest = [str(value) for value in default[len(values) :]]
                element.set(name, " ".join(values + rest))


def _joint(model: mujoco.MjModel, i: int) -> dict[str, Any]:
    joint = model.joint(i)
    kind = _TYPES.get(int(joint.type[0]))
    if kind is None or not joint.name:
        raise ValueError(
            f"joint {i} ({joint.name!r}): expected a hinge, slide or free joint with a name"
        )
    return {
        "name": joint.name,
        "type": kind,
        "body": model.body(int(joint.bodyid[0])).name,
        "qpos": int(joint.qposadr[0]),
        "dof": int(joint.dofadr[0]),
        "zero": float(model.qpos0[joint.qposadr[0]]),
        "damping": float(np.ravel(joint.damping)[0]),
        "armature": float(np.ravel(joint.armature)[0]),
    }


def _actuator(model: mujoco.MjModel, i: int) -> dict[str, Any]:
    actuator = model.actuator(i)
    kp, bias = float(actuator.gainprm[0]), actuator.biasprm
    if int(actuator.trntype[0]) != int(mujoco.mjtTrn.mjTRN_JOINT) or abs(bias[1] + kp) > 1e-9:
        raise ValueError(
            f"actuator {actuator.name!r}: expected a position actuator of a joint; engines are "
            "given position targets"
        )
    low, high = actuator.forcerange
    return {
        "name": actuator.name,
        "joint": model.joint(int(actuator.trnid[0])).name,
        "kp": kp,
        "kv": float(-bias[2]),
        "force": float(min(-low, high)) if actuator.forcelimited[0] else UNLIMITED_N,
    }


def _coupled(model: mujoco.MjModel) -> list[dict[str, Any]]:
    return [
        {
            "follower": model.joint(follower).name,
            "leader": model.joint(leader).name,
            "follower_zero": float(model.qpos0[model.jnt_qposadr[follower]]),
            "leader_zero": float(model.qpos0[model.jnt_qposadr[leader]]),
            "polynomial": polynomial.tolist(),
        }
        for follower, leader, polynomial in coupled_joints(model)
    ]


def _body(model: mujoco.MjModel, i: int) -> dict[str, Any]:
    body = model.body(i)
    return {
        "name": body.name,
        "parent": model.body(int(body.parentid[0])).name,
        "pos": body.pos.tolist(),
        "quat": body.quat.tolist(),
        "joints": int(body.jntnum[0]),
    }


def _geom(model: mujoco.MjModel, i: int) -> dict[str, Any]:
    geom = model.geom(i)
    return {
        "name": geom.name,
        "body": model.body(int(geom.bodyid[0])).name,
        "type": _SHAPES.get(int(geom.type[0]), "other"),
        "size": geom.size.tolist(),
        "pos": geom.pos.tolist(),
        "quat": geom.quat.tolist(),
        "rgba": geom.rgba.tolist(),
        "friction": geom.friction.tolist(),
        "touches": bool(geom.contype[0] or geom.conaffinity[0]),
    }


def _camera(scene: Scene, name: str) -> dict[str, Any]:
    camera = scene.model.camera(name)
    return {
        "name": name,
        "id": int(camera.id),
        "body": scene.model.body(int(camera.bodyid[0])).name,
        "pos": camera.pos.tolist(),
        "quat": camera.quat.tolist(),
        "fovy_deg": float(camera.fovy[0]),
    }


def _part(model: mujoco.MjModel, i: int, root: ET.Element, folder: Path) -> dict[str, Any]:
    body = model.body(i)
    subtree = np.flatnonzero(model.body_rootid == i)
    joints = [j for j in range(model.njnt) if model.jnt_bodyid[j] in subtree]
    kinds = {_TYPES.get(int(model.jnt_type[j])) for j in joints}
    if model.body_mocapid[i] >= 0:
        kind = "mark"
    elif kinds == {"free"}:
        kind = "free"
    else:
        kind = "articulation" if kinds else "fixed"
    path = folder / f"part_{body.name}.xml"
    path.write_text(_alone(root, body.name))
    return {
        "name": body.name,
        "kind": kind,
        "file": str(path),
        "pos": body.pos.tolist(),
        "quat": body.quat.tolist(),
        "mass": float(body.subtreemass[0]),
        "joints": [model.joint(j).name for j in joints],
        "geoms": [g for g in range(model.ngeom) if model.geom_bodyid[g] in subtree],
    }


def _alone(root: ET.Element, name: str) -> str:
    """Return MJCF of one body of the world: importers take one thing at a time."""
    alone = copy.deepcopy(root)
    alone.set("model", name)
    for kind in ("equality", "actuator", "contact", "sensor", "visual", "statistic", "keyframe"):
        for element in alone.findall(kind):
            alone.remove(element)
    world = alone.find("worldbody")
    assert world is not None
    for element in list(world):
        if element.tag != "body" or element.get("name") != name:
            world.remove(element)
    for element in world:
        # Importers put a part where it is placed, not where its file says.
        element.attrib.pop("pos", None)
        element.attrib.pop("quat", None)
        element.attrib.pop("mocap", None)
    for parent in alone.iter():
        for element in list(parent):
            if element.tag in ("camera", "general", "position"):
                parent.remove(element)
    return ET.tostring(alone, encoding="unicode")
