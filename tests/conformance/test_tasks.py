"""What every registered task must satisfy, with every robot where that is cheap."""

import functools

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.task import Task
from sim.core.world import MujocoWorld
from sim.experts import behaviours
from sim.experts.episode import EpisodeRecord, record_episode
from sim.vec_env import make
from vla.contracts import config, registry
from vla.contracts.specs import RobotSpec

TASKS = registry.names("sim.tasks")
ROBOTS = registry.names("vla.robots")
SEEDS = range(5)


@pytest.fixture(params=TASKS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def _robot(name: str) -> RobotSpec:
    return registry.load("vla.robots", name).SPEC


def _world(name: str, robot: str = "so101") -> MujocoWorld:
    scene = compile_scene(registry.load("sim.tasks", name).Config(), _robot(robot))
    return MujocoWorld(scene)


@functools.cache
def _record(name: str, seed: int, robot: str = "so101") -> EpisodeRecord:
    return record_episode(name, seed, 0, robot=robot, render=False)


def test_it_satisfies_the_protocol(name: str) -> None:
    task = registry.load("sim.tasks", name).Config().build(_robot("so101"))
    assert isinstance(task, Task)


def test_it_has_four_different_instructions_or_more(name: str) -> None:
    instructions = _world(name).task.instructions
    assert len(set(instructions)) == len(instructions) >= 4


def test_its_configuration_survives_a_round_trip_and_explains_its_fields(name: str) -> None:
    module = registry.load("sim.tasks", name)
    there = config.to_json(module.Config())
    assert config.from_json(config.PluginConfig, there, package="sim.tasks") == module.Config()


def test_the_instruction_of_an_episode_is_one_of_those_promised(name: str) -> None:
    world = _world(name)
    said = set()
    for seed in range(30):
        world.reset(seed, 0)
        said.add(world.instruction)
    assert said <= set(world.task.instructions)
    assert len(said) >= 3


@pytest.mark.parametrize("robot", ROBOTS)
def test_observations_match_the_spec(name: str, robot: str) -> None:
    env = make(name, 1, robot=robot)
    obs = env.reset(0)
    spec = env.spec
    first = spec.robot.cameras[0]
    shape = (1, len(spec.robot.cameras), first.height_px, first.width_px, 3)
    assert obs.images.shape == shape
    assert obs.proprio.shape == (1, len(spec.robot.channels))
    assert obs.task[0] in spec.instructions
    assert obs.image_ok.all()
    assert obs.time_s[0] == 0.0
    assert spec.task == name
    assert spec.max_episode_steps >= 1
    env.close()


def test_renders_are_neither_blank_nor_alike(name: str) -> None:
    images = record_episode(name, 0, 0).images
    for view in range(images.shape[1]):
        assert images[0, view].std() > 5.0
        moved = np.abs(images[-1, view].astype(int) - images[0, view].astype(int))
        assert moved.max() > 30


@pytest.mark.parametrize("robot", ROBOTS)
def test_the_expert_succeeds(name: str, robot: str) -> None:
    for seed in SEEDS:
        assert _record(name, seed, robot).success[-1], f"seed {seed}"


def test_everything_recorded_is_finite_and_actions_lie_within_limits(name: str) -> None:
    robot = _robot("so101")
    for seed in SEEDS:
        record = _record(name, seed)
        assert np.isfinite(record.proprio).all()
        assert np.isfinite(record.progress).all()
        # Recorded as float32: a limit may be off by one part in ten million.
        assert np.all(record.action >= np.float32(robot.low) - 1e-6)
        assert np.all(record.action <= np.float32(robot.high) + 1e-6)


def test_the_same_seed_gives_the_same_episode_to_the_bit(name: str) -> None:
    once, again = record_episode(name, 7, 3), record_episode(name, 7, 3)
    assert once.instruction == again.instruction
    for field in ("images", "proprio", "action", "success", "progress"):
        np.testing.assert_array_equal(getattr(once, field), getattr(again, field))


def test_the_initial_state_varies(name: str) -> None:
    world = _world(name)
    seen = set()
    for seed in range(8):
        world.reset(seed, 0)
        # Layout in positions of bodies, or (cues) in the task's own plan for the episode.
        seen.add((world.data.xpos.tobytes(), repr(world.episode)))
    assert len(seen) == 8


def test_no_channel_is_constant_over_the_experts_episodes(name: str) -> None:
    records = [_record(name, seed) for seed in SEEDS]
    for field in ("proprio", "action"):
        values = np.concatenate([getattr(r, field) for r in records])
        assert np.ptp(values, axis=0).min() > 1e-4, field


@pytest.mark.parametrize("robot", ROBOTS)
def test_progress_reaches_1_exactly_with_success(name: str, robot: str) -> None:
    for seed in SEEDS:
        record = _record(name, seed, robot)
        np.testing.assert_array_equal(record.progress == 1.0, record.success)
        assert record.progress.min() >= 0.0
        assert record.progress.max() == 1.0
        assert record.progress[0] < 0.3


def test_progress_stays_below_1_in_failures(name: str) -> None:
    for behaviour in behaviours.supported(_world(name).task):
        record = record_episode(name, 0, 0, behaviour=behaviour, render=False)
        np.testing.assert_array_equal(record.progress == 1.0, record.success)
        assert record.progress.min() >= 0.0


def test_doing_nothing_neither_succeeds_nor_ends_before_the_time_limit(name: str) -> None:
    world = _world(name)
    world.reset(0, 0)
    home = np.array(world.robot.home)
    truncated = False
    for _ in range(world.time_limit):
        assert not truncated
        reward, terminated, truncated = world.step(home)
        assert reward == 0.0
        assert not terminated
    assert truncated
