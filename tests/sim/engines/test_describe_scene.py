"""A scene written down for another interpreter is the scene."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.engines.describe_scene import describe_scene
from sim.vec_env import load_robot, load_task


def described(task, folder, robot=None):
    scene = compile_scene(load_task(task), load_robot(robot))
    return scene.model, describe_scene(scene, 3, folder)


@pytest.mark.parametrize(("task", "robot"), [("pick_place", None), ("drawer", "panda")])
def test_the_file_compiles_to_the_same_model(task, robot, tmp_path):
    model, told = described(task, tmp_path, robot)
    again = mujoco.MjModel.from_xml_path(told["mjcf"])
    names = ("qpos0", "body_mass", "body_pos", "geom_size", "geom_friction", "geom_solref",
             "actuator_gainprm", "actuator_biasprm", "jnt_range", "cam_quat")  # fmt: skip
    for name in names:
        np.testing.assert_allclose(getattr(again, name), getattr(model, name), atol=1e-5)


def test_no_number_is_left_out_that_others_take_for_zero(tmp_path):
    _, told = described("pick_place", tmp_path)
    text = Path(told["mjcf"]).read_text()
    assert 'solref="0.01"' not in text
    assert 'solref="0.01 1.0"' in text


def test_parts_are_what_the_world_holds(tmp_path):
    model, told = described("pick_place", tmp_path)
    kinds = {part["name"]: part["kind"] for part in told["parts"]}
    assert kinds == {"base": "articulation", "rim": "mark", "tray": "mark", "cube": "free"}
    arm = mujoco.MjModel.from_xml_path(told["parts"][0]["file"])
    assert [arm.joint(i).name for i in range(arm.njnt)] == [model.joint(i).name for i in range(7)]
    assert (arm.nu, arm.ncam, arm.neq) == (0, 0, 0)
    assert told["coupled"][0]["follower"] == "gripper_mirror"


def test_addresses_are_those_of_the_model(tmp_path):
    model, told = described("pick_place", tmp_path)
    cube = next(joint for joint in told["joints"] if joint["name"] == "cube")
    assert (cube["qpos"], cube["dof"]) == (
        model.joint("cube").qposadr[0], model.joint("cube").dofadr[0]
    )  # fmt: skip
    assert told["actuators"][5] == {"name": "gripper", "joint": "gripper", "kp": 8.0, "kv": 0.4,
                                    "force": pytest.approx(2.94)}  # fmt: skip
    assert told["worlds"] == 3
