"""Environments registered with Gymnasium: ours and Gymnasium's own, here and in a child process."""

import sys

import gymnasium
import numpy as np
import pytest

from benchmarks.sim.env_server_study import ROOT, TASK
from sim.backends.process import Config
from sim.suites import gymnasium_env
from vla.contracts.config import from_json, to_json


def make(num_envs=1, backend=None, **fields):
    task = gymnasium_env.Config(**fields)
    return (backend or Config()).build(task, task.arm(), num_envs)


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized.*")
def test_our_own_task_is_the_same_here_and_in_another_interpreter():
    here = make(2, name=TASK)
    there = make(2, name=TASK, interpreter=sys.executable, path=str(ROOT))
    try:
        assert here.spec == there.spec
        assert here.spec.max_episode_steps == 40
        assert here.spec.robot.control_hz == 10.0
        assert [c.name for c in here.spec.robot.cameras] == ["front", "wrist"]
        assert "reach the red ball" in here.spec.instructions
        a, b = here.reset(4), there.reset(4)
        rng = np.random.default_rng(0)
        for _ in range(6):
            np.testing.assert_array_equal(a.images, b.images)
            np.testing.assert_array_equal(a.proprio, b.proprio)
            assert a.task == b.task
            chunk = rng.uniform(-1.0, 1.0, (2, 8, 6)).astype(np.float32)
            x, y = here.step_chunk(chunk), there.step_chunk(chunk)
            np.testing.assert_array_equal(x.truncated, y.truncated)
            np.testing.assert_array_equal(x.info["progress"], y.info["progress"])
            a, b = x.obs, y.obs
    finally:
        here.close()
        there.close()


def test_an_environment_without_images_in_its_observation_is_drawn():
    env = make(name="Reacher-v5", camera_px=64)
    obs = env.reset(0)
    assert obs.images.shape == (1, 1, 64, 64, 3)
    assert obs.images.std() > 10.0
    assert env.spec.max_episode_steps == 50
    robot = env.spec.robot
    assert [(c.name, c.unit, c.low, c.high) for c in robot.channels] == [
        ("a0", "1", -1.0, 1.0),
        ("a1", "1", -1.0, 1.0),
    ]
    assert obs.task == ("Reacher-v5",)
    moved = env.step_chunk(np.ones((1, 10, 2), np.float32)).obs
    assert not np.array_equal(moved.images, obs.images)
    assert not env.has_expert
    with pytest.raises(
        ValueError, match="use_expert: gymnasium_env/Reacher-v5 has no scripted expert"
    ):
        env.step_chunk(np.ones((1, 1, 2), np.float32), np.ones(1, np.bool_))
    env.close()


def test_options_say_what_the_environment_does_not():
    env = make(name="Reacher-v5", instruction="touch it", control_hz=5.0, max_episode_steps=3)
    env.reset(0)
    step = env.step_chunk(np.zeros((1, 9, 2), np.float32))
    assert step.truncated[0]
    assert step.info["steps"][0] == 3
    assert step.final_obs.time_s[0] == pytest.approx(0.6)
    assert step.obs.task == ("touch it",)
    env.close()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "expected gymnasium_env/ID"),
        ({"name": "X-v0", "camera_px": 4}, "camera_px: got 4, expected 8 to 1024"),
        ({"name": "X-v0", "kwargs": "{"}, "kwargs: got '{', expected JSON"),
        ({"name": "X-v0", "kwargs": "[]"}, "kwargs: got '\\[\\]', expected a JSON object"),
        ({"name": "X-v0", "control_hz": -1.0}, "control_hz, max_episode_steps: got -1.0"),
        ({"name": "X-v0", "interpreter": "/no/python"}, "interpreter: got /no/python, expected a"),
    ],
)
def test_fields_out_of_range_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        gymnasium_env.Config(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "Nope-v0"}, "Nope-v0: Gymnasium cannot make it: .*Nope"),
        ({"name": "nowhere:Nope-v0"}, "nowhere:Nope-v0: Gymnasium cannot make it: "),
        ({"name": "Reacher-v5", "kwargs": '{"colour": 1}'}, "Gymnasium cannot make it: .*colour"),
        ({"name": "Reacher-v5", "proprio": "arm"}, "proprio: got 'arm', expected"),
        ({"name": "CartPole-v1"}, r"its actions are Discrete\(2\), expected a Box"),
    ],
)
def test_what_cannot_be_driven_is_refused_in_a_sentence(fields, words):
    with pytest.raises(ValueError, match=words):
        gymnasium_env.Config(**fields).arm()


def test_its_configuration_goes_to_json_and_back():
    task = gymnasium_env.Config(name="Reacher-v5", camera_px=64)
    assert from_json(None, to_json(task), package="sim.suites") == task


class Odd(gymnasium.Env):
    """Images and a state under names of its own; ends by itself, and says nothing of its rate."""

    metadata = {"render_modes": ["rgb_array"]}
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    observation_space = gymnasium.spaces.Dict(
        {
            "eye": gymnasium.spaces.Box(0, 255, (20, 40, 3), np.uint8),
            "depth": gymnasium.spaces.Box(0, 255, (20, 40, 1), np.uint8),
            "joints": gymnasium.spaces.Box(-9.0, 9.0, (2,)),
        }
    )

    def __init__(self, ends=4, success=False):
        self.ends, self.succeeds = ends, success

    def seen(self):
        image = np.zeros((20, 40, 3), np.uint8)
        image[:, 20:] = 200
        return {"eye": image, "depth": image[..., :1], "joints": np.array([1.0, 2.0])}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def step(self, action):
        self.steps += 1
        over = self.steps >= self.ends
        return self.seen(), 0.0, over, False, {"success": over and self.succeeds}


@pytest.fixture
def odd():
    gymnasium.register(id="Odd-v0", entry_point=Odd, max_episode_steps=30)
    yield "Odd-v0"
    del gymnasium.registry["Odd-v0"]


def test_images_and_state_are_found_under_any_name_and_brought_to_size(odd):
    env = make(name=odd, control_hz=10.0, camera_px=10)
    obs = env.reset(0)
    assert [c.name for c in env.spec.robot.cameras] == ["eye"]
    assert obs.images.shape == (1, 1, 10, 10, 3)
    # 40 columns become 10: the left half is black, the right one 200.
    assert obs.images[0, 0, 3, :, 0].tolist() == [0] * 5 + [200] * 5
    # Two numbers of state for three channels.
    assert obs.proprio[0].tolist() == [1.0, 2.0, 0.0]
    env.close()


@pytest.mark.parametrize("success", [False, True])
def test_an_end_is_a_success_only_if_the_environment_says_so(odd, success):
    env = make(name=odd, control_hz=10.0, kwargs=f'{{"success": {str(success).lower()}}}')
    env.reset(0)
    step = env.step_chunk(np.zeros((1, 9, 3), np.float32))
    assert step.terminated[0]
    assert step.info["steps"][0] == 4
    assert bool(step.info["success"][0]) is success
    assert step.reward[0] == float(success)
    env.close()


def test_an_environment_that_does_not_say_its_rate_is_refused(odd):
    with pytest.raises(ValueError, match=r"has no rate \(render_fps\)"):
        gymnasium_env.Config(name=odd).arm()
