"""Scenes: what is wrong with a robot's model is said in one sentence."""

import dataclasses
import operator

import mujoco
import numpy as np
import pytest

from sim.core import scene
from sim.vec_env import load_robot, load_task


@pytest.fixture
def robot():
    return load_robot("so101")


def compile_with(robot):
    return scene.compile_scene(load_task("cue_colour"), robot)


def edited_model(tmp_path, old, new):
    text = (scene.ASSETS / "so101.xml").read_text()
    assert old in text
    path = tmp_path / "mine.xml"
    path.write_text(text.replace(old, new))
    return str(path)


def test_a_camera_that_looks_along_x_has_x_behind_it_and_z_above():
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, scene.look_at((0.0, 0.0, 0.5), (1.0, 0.0, 0.5)))
    right, up, back = matrix.reshape(3, 3).T
    np.testing.assert_allclose(back, (-1, 0, 0), atol=1e-12)
    np.testing.assert_allclose(up, (0, 0, 1), atol=1e-12)
    np.testing.assert_allclose(right, (0, -1, 0), atol=1e-12)


def test_a_camera_may_look_straight_down():
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, scene.look_at((0.2, 0.0, 0.5), (0.2, 0.0, 0.0)))
    np.testing.assert_allclose(matrix.reshape(3, 3)[:, 2], (0, 0, 1), atol=1e-12)


def test_a_camera_at_its_own_target_is_refused():
    with pytest.raises(ValueError, match="cannot look at itself"):
        scene.look_at((0.1, 0.2, 0.3), (0.1, 0.2, 0.3))


def test_a_missing_model_file_is_named(robot):
    with pytest.raises(ValueError, match=r"no model file 'nowhere\.xml'"):
        compile_with(dataclasses.replace(robot, mjcf="nowhere.xml"))


def test_a_malformed_model_file_is_named(robot, tmp_path):
    path = tmp_path / "broken.xml"
    path.write_text("<mujoco><worldbody>")
    with pytest.raises(ValueError, match=r"cannot read .*broken\.xml"):
        compile_with(dataclasses.replace(robot, mjcf=str(path)))


def test_a_model_without_a_tool_site_is_refused(robot, tmp_path):
    path = edited_model(tmp_path, 'site name="tool"', 'site name="tip"')
    with pytest.raises(ValueError, match="no site named 'tool'"):
        compile_with(dataclasses.replace(robot, mjcf=path))


def test_a_model_without_an_actuator_is_refused(robot, tmp_path):
    path = edited_model(
        tmp_path, 'name="elbow_flex" joint="elbow_flex"', 'name="elbow" joint="elbow_flex"'
    )
    with pytest.raises(ValueError, match="no position actuator named 'elbow_flex'"):
        compile_with(dataclasses.replace(robot, mjcf=path))


def test_limits_that_differ_are_both_shown(robot, tmp_path):
    path = edited_model(tmp_path, 'range="-1.69 1.69"', 'range="-1.2 1.69"')
    with pytest.raises(ValueError, match=r"-1\.2000\.\.1\.6900 .*-1\.6900\.\.1\.6900"):
        compile_with(dataclasses.replace(robot, mjcf=path))


def test_a_robot_whose_own_model_is_named_by_path_works(robot, tmp_path):
    path = edited_model(tmp_path, 'rgba="0.93 0.62 0.16 1"', 'rgba="0.1 0.9 0.1 1"')
    model = compile_with(dataclasses.replace(robot, mjcf=path)).model
    np.testing.assert_allclose(model.geom("forearm").rgba, (0.1, 0.9, 0.1, 1.0), atol=1e-6)


def test_options_and_keyframes_of_an_arms_file_do_not_count(robot, tmp_path):
    text = (scene.ASSETS / "so101.xml").read_text()
    begin, end = text.split("<compiler", 1)
    path = tmp_path / "mine.xml"
    path.write_text(
        f"""{begin}<option gravity="0 0 -1" cone="elliptic" impratio="10" timestep="0.001">
        <flag contact="disable"/></option><statistic meansize="0.7" center="1 1 1"/>
        <visual><map znear="0.5"/><headlight diffuse="0 0 0"/><rgba fog="1 0 0 1"/></visual>
        <keyframe><key name="home" qpos="0 0 0 0 0 0 0"/></keyframe><compiler{end}"""
    )
    mine = compile_with(dataclasses.replace(robot, mjcf=str(path))).model
    plain = compile_with(robot).model
    assert mine.nkey == 0
    for part in ("opt", "stat", "vis.map", "vis.headlight", "vis.rgba"):
        ours, theirs = operator.attrgetter(part)(mine), operator.attrgetter(part)(plain)
        for name in (name for name in dir(theirs) if not name.startswith("_")):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


def test_cameras_of_different_sizes_are_refused(robot):
    front, wrist = robot.cameras
    cameras = (front, dataclasses.replace(wrist, width_px=64))
    with pytest.raises(ValueError, match="must share one size"):
        compile_with(dataclasses.replace(robot, cameras=cameras))


def test_a_camera_on_an_unknown_body_is_refused(robot):
    cameras = (dataclasses.replace(robot.cameras[0], body="nose"), robot.cameras[1])
    with pytest.raises(ValueError, match="sits on body 'nose'"):
        compile_with(dataclasses.replace(robot, cameras=cameras))


def test_a_control_rate_that_does_not_fit_the_physics_step_is_refused(robot):
    with pytest.raises(ValueError, match="not a whole number"):
        compile_with(dataclasses.replace(robot, control_hz=30.0))


def test_the_solver_is_dense_and_shadows_are_off(robot):
    model = compile_with(robot).model
    assert int(model.opt.jacobian) == int(mujoco.mjtJacobian.mjJAC_DENSE)
    assert (model.vis.quality.shadowsize, model.vis.quality.offsamples) == (0, 0)
