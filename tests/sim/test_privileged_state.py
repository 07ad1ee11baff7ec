"""What simulation knows beside the images: right by name, the same everywhere, and on demand."""

from types import SimpleNamespace

import numpy as np
import pytest

from sim import vec_env
from sim.backends import ros
from sim.core.privileged_state import VELOCITY_SCALE, PrivilegedState
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.engines.batch import BatchVecEnv
from sim.tasks import pick_place, tabletop
from sim.vec_env import load_robot, load_task, with_privileged_state
from tests.sim.engines.host_engine import HostEngine
from tests.sim.engines.test_batch import SHORT
from vla.contracts import registry

TASKS = registry.names("sim.tasks")
OBJECTS = {
    "pick_place": {"cube", "rim", "tray"}, "push": {"block", "disc"}, "drawer": {"drawer"},
    "reach": {"ball", "other_ball"},
}  # fmt: skip


def scene_of(task, robot=None):
    return compile_scene(load_task(task, SHORT.get(task)), load_robot(robot))


def plain(task, num_envs, **options):
    return vec_env.make(task, num_envs, task_config=SHORT.get(task), **options)


def engine(task, num_envs, gives):
    config, robot = load_task(task, SHORT.get(task)), load_robot(None)
    host = HostEngine(compile_scene(config, robot), num_envs, gives=gives)
    return BatchVecEnv(config, robot, num_envs, host)


def by_name(env):
    return dict(zip(env.privileged_state_names, env.privileged_state().T, strict=True))


def wild(env, rng):
    robot = env.spec.robot
    noise = rng.normal(0.0, 0.2, (env.num_envs, 8, len(robot.home)))
    return np.clip(np.array(robot.home) + noise, robot.low, robot.high).astype(np.float32)


def of_goal(world, what, axis=""):
    """Return a number of the present goal by its name."""
    if not axis:
        return float(tabletop.ACTS[int(world.episode.act)] == what)
    thing = world.data.body(world.task.things[int(world.episode.thing)]).xpos
    points = {
        "thing": thing, "thing_to_tool": thing - world.data.site("tool").xpos,
        "place": world.episode.goal_m, "place_to_thing": world.episode.goal_m - thing,
    }  # fmt: skip
    return points[what]["xyz".index(axis)]


def expected(world, name):
    """Return a number by its name, from MuJoCo's own arrays."""
    if name.startswith("goal/"):
        return of_goal(world, *name.split("/")[1:])
    data, (kind, what, *rest) = world.data, name.split("/")
    axis = "xyz".index(rest[-1]) if rest and rest[-1] in "xyz" else None
    tool = data.site("tool").xpos
    if kind in ("qpos", "qvel"):
        values = getattr(data.joint(what), kind)
        return values[int(rest[0]) if rest else 0] * (VELOCITY_SCALE if kind == "qvel" else 1.0)
    if kind == "ctrl":
        return data.actuator(what).ctrl[0]
    if kind == "tool":
        return tool["xyz".index(what)]
    if kind == "contact":
        return world.as_batch.touching(what)[0]
    if rest == ["pos"]:
        return data.joint(what).qpos[0]
    other = {
        "object": np.zeros(3),
        "object_to_tool": tool,
        "object_to_object": data.body(rest[0]).xpos if len(rest) == 2 else None,
    }[kind]
    return data.body(what).xpos[axis] - other[axis]


@pytest.mark.parametrize("robot", ["so101", "panda"])
@pytest.mark.parametrize("task", TASKS)
def test_every_number_is_what_its_name_says(task, robot):
    scene = scene_of(task, robot)
    world, reader = MujocoWorld(scene), PrivilegedState(scene)
    world.reset(2, 1)
    rng = np.random.default_rng(0)
    for _ in range(5):
        world.step(np.array(scene.robot.home) + rng.normal(0.0, 0.2, len(scene.robot.home)))
    state = reader.read(world.as_batch)
    assert state.dtype == np.float32
    assert state.shape == (1, len(reader.names))
    assert len(set(reader.names)) == len(reader.names)
    wanted = [expected(world, name) for name in reader.names]
    np.testing.assert_array_equal(state[0], np.array(wanted, np.float32))


@pytest.mark.parametrize("robot", ["so101", "panda"])
@pytest.mark.parametrize("task", sorted(OBJECTS))
def test_objects_are_what_moves_and_is_not_the_arm(task, robot):
    names = PrivilegedState(scene_of(task, robot)).names
    told = {name.split("/")[1] for name in names if name.startswith("object")}
    assert told == OBJECTS[task]  # no finger that follows another
    if task == "drawer":
        assert "object/drawer/pos" in names
        assert "contact/handle" in names


def test_it_tells_what_the_goal_is_where_there_are_several():
    names = PrivilegedState(scene_of("tabletop")).names
    told = {n.split("/")[1] for n in names if n.startswith("goal/")}
    assert told == {"thing", "place", "thing_to_tool", "place_to_thing", *tabletop.ACTS}
    assert not any(n.startswith("goal/") for n in PrivilegedState(scene_of("pick_place")).names)


def test_distractors_are_objects_too():
    config = pick_place.Config(distractors=1)
    env = vec_env.make("pick_place", 1, task_config=config)
    cubes = {n for n in env.privileged_state_names if n.startswith("contact/")}
    assert len(cubes) == 2


def test_a_held_cube_is_touched_by_two_bodies_and_goes_with_the_tool():
    env = plain("pick_place", 1)
    env.reset(0)
    assert by_name(env)["contact/cube"] == 0
    home = np.tile(np.array(env.spec.robot.home, np.float32), (1, 1, 1))
    most, lowest = 0, np.inf
    for _ in range(60):
        env.step_chunk(home, np.ones(1, np.bool_))
        state = by_name(env)
        most = max(most, state["contact/cube"][0])
        if state["object/cube/z"][0] > 0.04:
            lowest = min(lowest, abs(state["object_to_tool/cube/z"][0]))
    assert most == 2
    assert lowest < 0.03


@pytest.mark.parametrize("task", TASKS)
def test_workers_and_engines_know_the_same_through_ends_of_episodes(task):
    """Also with rows that stand still, and right after resets."""
    ours = plain(task, 3)
    others = [plain(task, 3, workers=2), *(engine(task, 3, gives) for gives in (True, False))]
    envs = [ours, *others]
    for env in envs:
        env.reset(4)
    rng, ended, marks = np.random.default_rng(0), 0, {}
    for chunk in range(26):
        expected = ours.privileged_state()
        for env in others:
            assert with_privileged_state(env) is env
            assert env.privileged_state_names == ours.privileged_state_names
            state, names = env.privileged_state(), np.array(env.privileged_state_names)
            # MuJoCo's contacts are those before the last step of physics, computed ones after it.
            late = np.char.startswith(names, "contact/") & (env is others[2])
            np.testing.assert_allclose(state[:, ~late], expected[:, ~late], atol=1e-5)
        marks = {
            "use_expert": np.array([True, False, chunk % 5 < 3]),
            "frozen": np.array([False, chunk % 4 == 0, False]),
        }
        actions = wild(ours, rng)
        steps = [env.step_chunk(actions, **marks) for env in envs]
        ended += (steps[0].terminated | steps[0].truncated).sum()
    assert ended >= 2
    for env in envs:
        env.close()


@pytest.mark.parametrize("make", [plain, lambda *a: engine(*a, True), lambda *a: engine(*a, False)])
def test_after_the_end_of_an_episode_it_is_that_of_the_next(make):
    env, alone = make("pick_place", 2), plain("pick_place", 1)
    env.reset(0)
    home = np.tile(np.array(env.spec.robot.home, np.float32), (2, 100, 1))
    step = env.step_chunk(home, np.array([True, False]))
    assert (step.terminated | step.truncated).all()
    state = env.privileged_state()
    for row in range(2):
        alone.begin(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([2 + row]))
        np.testing.assert_allclose(state[row], alone.privileged_state()[0], atol=1e-6)


def test_contacts_before_a_reset_are_forgotten_and_those_of_idle_rows_are_not():
    for gives in (True, False):
        env = engine("pick_place", 2, gives)
        env.reset(0)
        home = np.tile(np.array(env.spec.robot.home, np.float32), (2, 1, 1))
        while by_name(env)["contact/cube"].min() < 2:
            held = by_name(env)["contact/cube"] >= 2
            env.step_chunk(home, ~held, held)
        env.step_chunk(home, frozen=np.array([True, True]))
        assert by_name(env)["contact/cube"].tolist() == [2, 2]
        env.begin(np.array([1]), np.array([0]), np.array([5]))
        assert by_name(env)["contact/cube"].tolist() == [2, 0]


def test_nothing_is_computed_unless_it_is_asked_for(monkeypatch):
    def asked(self, worlds):
        raise AssertionError("asked")

    monkeypatch.setattr(PrivilegedState, "read", asked)
    for env in (plain("reach", 1), engine("reach", 1, True)):
        env.reset(0)
        env.step_chunk(wild(env, np.random.default_rng(0)))
        with pytest.raises(AssertionError, match="asked"):
            env.privileged_state()


def test_what_is_returned_does_not_change_with_the_next_step():
    for env in (plain("reach", 1), engine("reach", 1, True)):
        env.reset(0)
        state = env.privileged_state()
        kept = state.copy()
        env.step_chunk(wild(env, np.random.default_rng(0)))
        assert not np.array_equal(env.privileged_state(), kept)
        np.testing.assert_array_equal(state, kept)


def test_there_is_none_before_a_reset_and_after_close():
    for env in (plain("reach", 1), plain("reach", 2, workers=2), engine("reach", 1, True)):
        with pytest.raises(ValueError, match="privileged_state before reset"):
            env.privileged_state()
        env.reset(0)
        env.close()
        with pytest.raises(ValueError, match="privileged_state before reset"):
            env.privileged_state()


def test_an_arm_behind_ros_has_none():
    arm = SimpleNamespace(spec=SimpleNamespace(task="reach"), config=ros.Config())
    with pytest.raises(ValueError, match="the ros backend has no privileged state: an arm has"):
        with_privileged_state(arm)
