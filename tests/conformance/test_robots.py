"""What every registered robot must satisfy: its model says the same as its RobotSpec."""

from types import MappingProxyType

import mujoco
import numpy as np
import pytest

from sim.core.kinematics import solve
from sim.core.scene import ASSETS, compile_scene
from sim.core.world import MujocoWorld
from sim.experts.motions import Motion
from sim.tasks import reach
from vla.contracts import registry
from vla.contracts.specs import RobotSpec

SPECS = MappingProxyType(
    {name: registry.load("vla.robots", name).SPEC for name in registry.names("vla.robots")}
)


@pytest.fixture(params=sorted(SPECS), scope="module")
def spec(request: pytest.FixtureRequest) -> RobotSpec:
    return SPECS[request.param]


@pytest.fixture(scope="module")
def model(spec: RobotSpec) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(ASSETS / spec.mjcf))


@pytest.fixture(scope="module")
def world(spec: RobotSpec) -> MujocoWorld:
    world = MujocoWorld(compile_scene(reach.Config(), spec), vary=False)
    world.reset(0, 0)
    return world


def test_the_name_is_the_file_name() -> None:
    assert all(name == spec.name for name, spec in SPECS.items())


def test_limits_are_ordered_and_positive_and_have_a_source(spec: RobotSpec) -> None:
    for channel in spec.channels:
        assert channel.low < channel.high
        assert min(channel.velocity, channel.acceleration, channel.jerk) > 0.0
        assert channel.source


def test_position_limits_are_those_of_the_model(spec: RobotSpec, model: mujoco.MjModel) -> None:
    got = [model.jnt_range[model.joint(name).id] for name in spec.names]
    np.testing.assert_allclose(got, np.stack([spec.low, spec.high], axis=1), atol=1e-9)


def test_every_channel_has_a_position_actuator_on_its_joint(
    spec: RobotSpec, model: mujoco.MjModel
) -> None:
    for name in spec.names:
        actuator = model.actuator(name).id
        assert model.actuator_trnid[actuator, 0] == model.joint(name).id
        # A position servo: its force is gain * (target - position), so bias is minus the gain.
        assert model.actuator_biasprm[actuator, 1] == -model.actuator_gainprm[actuator, 0] < 0


def test_units_are_those_of_the_joints(spec: RobotSpec, model: mujoco.MjModel) -> None:
    slide = int(mujoco.mjtJoint.mjJNT_SLIDE)
    for channel in spec.channels:
        is_slide = int(model.joint(channel.name).type[0]) == slide
        assert channel.unit == ("m" if is_slide else "rad")


def test_home_and_gripper_positions_lie_within_limits(spec: RobotSpec) -> None:
    assert len(spec.home) == len(spec.channels)
    assert np.all(np.array(spec.low) < spec.home)
    assert np.all(np.array(spec.home) < spec.high)
    hand = spec.channels[spec.names.index(spec.gripper.channel)]
    for position in (spec.gripper.open, spec.gripper.closed):
        assert hand.low <= position <= hand.high


def test_home_is_an_exact_equilibrium(world: MujocoWorld, spec: RobotSpec) -> None:
    world.reset(0, 0)
    for _ in range(20):
        world.step(np.array(spec.home))
    np.testing.assert_allclose(world.data.qpos[world.joint_qpos], spec.home, atol=1e-6)


def test_at_home_the_hand_is_above_the_table_and_points_down(
    world: MujocoWorld, spec: RobotSpec
) -> None:
    world.reset(0, 0)
    axes = world.data.site_xmat[world.tool_site].reshape(3, 3)
    assert world.data.site_xpos[world.tool_site][2] > 0.1
    assert axes[2, 2] < -0.7
    np.testing.assert_allclose(axes[:, 1], [0.0, 1.0, 0.0], atol=1e-3)


def test_the_hand_opens_along_the_tools_y_axis(world: MujocoWorld, spec: RobotSpec) -> None:
    world.reset(0, 0)
    motion = Motion(world)
    width = {}
    for name in ("open", "closed"):
        for action in motion.grip(getattr(spec.gripper, name), max_steps=20):
            world.step(action)
        pads = [
            world.data.geom_xpos[world.model.geom(f"pad_{side}").id] for side in ("left", "right")
        ]
        axes = world.data.site_xmat[world.tool_site].reshape(3, 3)
        width[name] = np.abs(axes.T @ (pads[0] - pads[1]))
    assert width["open"][1] - width["closed"][1] > 0.05
    assert max(width["open"][0], width["open"][2]) < 0.005


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_arm_gets_down_to_the_table_everywhere_within_reach(
    spec: RobotSpec, depth: float, side: float
) -> None:
    near, far = spec.reach_m
    pos = np.array([near + depth * (far - near), side * 0.75 * (far - near), 0.02])
    pose = solve(spec, np.array(spec.home), pos)
    assert np.all(pose >= spec.low)
    assert np.all(pose <= spec.high)
    scene = MujocoWorld(compile_scene(reach.Config(), spec), vary=False)
    scene.data.qpos[scene.joint_qpos] = pose
    mujoco.mj_kinematics(scene.model, scene.data)
    assert np.linalg.norm(scene.data.site_xpos[scene.tool_site] - pos) < 0.004


def test_every_camera_sees_the_middle_of_the_workspace_from_home(
    world: MujocoWorld, spec: RobotSpec
) -> None:
    if spec.cameras[0].body != "world":
        pytest.skip("no camera fixed to the world")
    middle = np.array([np.mean(spec.reach_m), 0.0, 0.0])
    camera = world.model.camera(spec.cameras[0].name).id
    seen = world.data.cam_xmat[camera].reshape(3, 3).T @ (middle - world.data.cam_xpos[camera])
    half = np.tan(np.radians(world.model.cam_fovy[camera]) / 2)
    assert seen[2] < 0.0
    assert np.abs(seen[:2] / -seen[2]).max() < 0.7 * half


def test_cameras_share_one_size_and_have_different_names(spec: RobotSpec) -> None:
    assert len({(c.width_px, c.height_px) for c in spec.cameras}) == 1
    assert len({c.name for c in spec.cameras}) == len(spec.cameras)
