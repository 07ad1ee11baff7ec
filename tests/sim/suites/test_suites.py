"""Suites that are not installed: pins, tasks, arms, and their adapters' source."""

import ast
import importlib.util
import re

import mujoco
import numpy as np
import pytest

from sim import vec_env
from sim.env_server import suite_installs
from sim.suites._suite import ADAPTERS, Suite

SUITES = sorted(s for s in suite_installs.suites() if not suite_installs.is_backend(s))
COUNTS = {
    "gym_aloha": 2,
    "gymnasium_robotics": 4,
    "libero": 130,
    "metaworld": 50,
    "mikasa": 27,
    "robosuite": 11,
}


def beside(name):
    """Return a module that adapters share."""
    spec = importlib.util.spec_from_file_location(name, ADAPTERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_suites_and_their_tasks_are_all_there():
    assert {suite: len(suite_installs.module(suite).TASKS) for suite in SUITES} == COUNTS


@pytest.mark.parametrize("suite", SUITES)
def test_environments_are_made_of_exact_pins_of_the_suite_and_its_engine(suite):
    known, package = suite_installs.described(suite), suite_installs.module(suite).PACKAGE
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9.a-z]*", pin) for pin in known.requirements)
    names = [pin.split("==")[0] for pin in known.requirements]
    assert len(set(names)) == len(names)
    engine = {"mikasa": {"sapien", "torch"}}.get(suite, {"mujoco"})
    assert {package, "numpy"} | engine <= set(names)
    assert "torch" in engine or "torch" not in names
    assert known.sample in suite_installs.module(suite).TASKS


@pytest.mark.parametrize("suite", SUITES)
def test_every_task_says_what_to_do_in_plain_words(suite):
    if suite == "libero":
        return  # its tasks say so themselves, once they are opened
    tasks = suite_installs.module(suite).TASKS
    if suite == "mikasa":  # in the benchmark's own words, alike for every number of things
        kinds = {re.sub(r"[0-9].*", "", name): text for name, text in tasks.items()}
        assert len(set(kinds.values())) == len(kinds) == len(set(tasks.values()))
        return
    instructions = list(tasks.values())
    assert len(set(instructions)) == len(instructions)
    assert all(re.fullmatch(r"[a-z][a-z ]+", text) for text in instructions)


@pytest.mark.parametrize("suite", SUITES)
def test_a_suites_config_offers_all_that_the_backend_asks_for(suite):
    config = vec_env.load_task(suite)
    assert isinstance(config, Suite)
    assert config.adapter() == ADAPTERS / f"{suite}.py"
    assert config.options()["task"] == config.name
    assert vec_env.load_task(f"{suite}/{config.name}") == config
    with pytest.raises(ValueError, match=f"{suite}: got the task 'fly', expected one of its"):
        vec_env.load_task(f"{suite}/fly")


@pytest.mark.parametrize("suite", SUITES)
def test_arms_rest_within_their_limits_and_tick_a_whole_number_a_second(suite):
    arm = vec_env.load_task(suite).arm()
    assert arm.control_hz == int(arm.control_hz)
    assert arm.mjcf == ""
    assert len(arm.cameras) == 2
    assert arm.gripper.channel in arm.names
    for channel, home in zip(arm.channels, arm.home, strict=True):
        assert channel.low <= home <= channel.high
        assert min(channel.velocity, channel.acceleration, channel.jerk) > 0
        assert channel.source


@pytest.mark.parametrize("file", sorted(ADAPTERS.glob("*.py")), ids=lambda file: file.stem)
def test_adapters_are_python_38_and_import_nothing_of_ours(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    names = [n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names]
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    tops = {name.split(".")[0] for name in (*names, *(str(node.module) for node in froms))}
    assert not tops & {"vla", "sim", "training", "deploy", "reward_models", "robot_bridge"}
    assert all(node.level == 0 for node in froms)
    assert all((ADAPTERS / f"{top}.py").is_file() for top in tops if top.startswith("_"))


def attributes(name, file):
    """Return the attributes of a class of an adapter, with those of its bases beside it."""
    classes = {
        node.name: node for path in (*ADAPTERS.glob("_*.py"), file)
        for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    values = {}
    for base in classes[name].bases:
        values |= attributes(base.id, file)
    return values | {
        node.targets[0].id: node.value for node in classes[name].body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }  # fmt: skip


@pytest.mark.parametrize("suite", SUITES)
def test_arms_and_hosts_agree_on_channels_cameras_and_rate(suite):
    said = attributes("World", ADAPTERS / f"{suite}.py")
    arm = vec_env.load_task(suite).arm()
    assert ast.literal_eval(said["cameras"]) == tuple(camera.name for camera in arm.cameras)
    assert ast.literal_eval(said["control_hz"]) == arm.control_hz
    expert = ast.literal_eval(said["has_expert"])
    assert expert == suite_installs.module(suite).HAS_EXPERT
    if suite != "gym_aloha":  # which makes its names and limits of those of one arm
        assert ast.literal_eval(said["channels"]) == arm.names


def test_a_hand_that_points_down_has_no_turn():
    hand = beside("_hand_pose").hand
    down = hand(np.zeros(3), (1.0, 0.0, 0.0, 0.0), 0.5)
    assert down == pytest.approx([0, 0, 0, 0, 0, 0, 0.5])
    # The same orientation, written with the other sign.
    assert hand(np.zeros(3), (-1.0, 0.0, 0.0, 0.0), 0.5) == pytest.approx(down)


def test_a_hand_turned_about_the_vertical_says_by_how_much():
    # Half a turn about x, then 0.4 rad about z: (0, 0, sin 0.2, cos 0.2) times (1, 0, 0, 0).
    turned = beside("_hand_pose").hand(np.ones(3), (np.cos(0.2), np.sin(0.2), 0.0, 0.0), 1.0)
    assert turned == pytest.approx([1, 1, 1, 0, 0, 0.4, 1], abs=1e-6)


def test_bodies_that_a_view_leaves_out_are_in_the_others():
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><light pos="0 0 3"/><camera name="above" pos="0 0 2"/>'
        '<body name="ball"><geom size="0.5" rgba="1 0 0 1"/></body></worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    free = ((0.0, 0.0, 0.0), 2.0, 90.0, -90.0)
    drawing = beside("_drawing").Drawing(model, ("above", free), (32, 48), hidden=((), ("ball",)))
    images = drawing.draw(data)
    drawing.close()
    drawing.close()
    assert images.shape == (2, 32, 48, 3)
    assert images[0, 16, 24].max() > 50
    assert images[1].max() == 0
    assert model.geom_group[0] == 0
