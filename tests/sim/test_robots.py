"""The two arms that come with the package: dimensions worked out by hand."""

import mujoco
import numpy as np
import pytest

from sim.core.scene import ASSETS
from vla.contracts.specs import RobotSpec
from vla.robots import panda, so101


def _tool_at(spec: RobotSpec, pose: list[float]) -> np.ndarray:
    model = mujoco.MjModel.from_xml_path(str(ASSETS / spec.mjcf))
    data = mujoco.MjData(model)
    data.qpos[[model.joint(name).qposadr[0] for name in spec.names]] = pose
    mujoco.mj_kinematics(model, data)
    return data.site("tool").xpos.copy()


def test_so101_at_zero_has_its_upper_arm_up_and_the_rest_forward() -> None:
    # x: shoulder 0.03 + forearm 0.135 + wrist 0.06 + hand 0.095; z: 0.06 + 0.055 + arm 0.116
    np.testing.assert_allclose(_tool_at(so101.SPEC, [0.0] * 6), [0.32, 0.0, 0.231], atol=1e-9)


def test_so101_bends_forward_and_down_with_positive_angles() -> None:
    # Elbow at 90 degrees: forearm, wrist and hand hang down 0.29 m from the elbow.
    pose = [0.0, 0.0, np.pi / 2, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(_tool_at(so101.SPEC, pose), [0.03, 0.0, -0.059], atol=1e-9)


def test_so101_turns_left_with_a_positive_pan() -> None:
    pose = [np.pi / 2, 0.0, 0.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(_tool_at(so101.SPEC, pose), [0.0, 0.32, 0.231], atol=1e-9)


def test_so101_pads_are_parallel_and_36_mm_apart_at_a_quarter_opening() -> None:
    model = mujoco.MjModel.from_xml_path(str(ASSETS / so101.SPEC.mjcf))
    data = mujoco.MjData(model)
    for name in ("gripper", "gripper_mirror"):
        data.qpos[model.joint(name).qposadr[0]] = 0.242
    mujoco.mj_kinematics(model, data)
    left, right = data.geom("pad_left"), data.geom("pad_right")
    np.testing.assert_allclose(left.xmat, right.xmat, atol=1e-9)
    # Centre to centre, less half a pad of 8 mm on either side.
    assert np.linalg.norm(left.xpos - right.xpos) - 0.008 == pytest.approx(0.036, abs=1e-9)


def test_panda_tool_is_where_its_dh_table_puts_it() -> None:
    # All joints at zero but the fourth cannot be: take the pose of Franka's own figure,
    # q = 0 except q4 = -pi/2 and q6 = pi/2, by hand: the forearm (0.384) points forward, the
    # flange hangs down 0.107 + 0.1034 from a7 = 0.088 ahead of the wrist.
    pose = [0.0, 0.0, 0.0, -np.pi / 2, 0.0, np.pi / 2, np.pi / 4, 0.0]
    x = 0.0825 + 0.384 + 0.088
    z = 0.333 + 0.316 + 0.0825 - 0.107 - 0.1034
    np.testing.assert_allclose(_tool_at(panda.SPEC, pose), [x, 0.0, z], atol=1e-6)
