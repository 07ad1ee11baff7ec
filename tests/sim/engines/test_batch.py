"""Any engine as a VecEnv: over MuJoCo's own physics it plays what the CPU backend plays."""

import numpy as np
import pytest

from sim import vec_env
from sim.core.scene import compile_scene
from sim.engines.batch import BatchVecEnv
from sim.engines.engine import VARIED, Engine, Reading
from sim.tasks import (
    count,
    cue_colour,
    day_log,
    late_query,
    latest_cue,
    named_once,
    put_back,
    sequence,
    shell,
    visit_all,
    wait_then_press,
)
from sim.vec_env import load_robot, load_task
from tests.sim.engines.host_engine import HostEngine
from vla.contracts.protocols import VecEnv

SHORT = {
    "cue_colour": cue_colour.Config(delay_steps=(16, 16), distractors=2, act_steps=16),
    "put_back": put_back.Config(delay_steps=(16, 16), distractors=2, act_steps=60),
    "sequence": sequence.Config(delay_steps=(16, 16), length=2, act_steps=30),
    "late_query": late_query.Config(delay_steps=(16, 16), distractors=2, act_steps=16),
    "day_log": day_log.Config(events=(3, 4), delay_steps=(16, 16), distractors=2, act_steps=16),
    "latest_cue": latest_cue.Config(cues=(1, 3), delay_steps=(16, 16), distractors=2, act_steps=16),
    "named_once": named_once.Config(
        names=(2, 2), delay_steps=(16, 16), distractors=2, act_steps=16
    ),
    "shell": shell.Config(delay_steps=(16, 16), act_steps=16),
    "count": count.Config(delay_steps=(16, 16), choices=1, act_steps=20),
    "visit_all": visit_all.Config(delay_steps=(16, 16), choices=2, distractors=2, act_steps=20),
    "wait_then_press": wait_then_press.Config(
        delay_steps=(16, 16), interval_decisions=(2, 3), act_steps=16
    ),
}
ZERO = np.zeros(1, np.int64)
TASKS = ("reach", "pick_place", "push", "drawer", *SHORT)


def make(task="reach", num_envs=2, kind=HostEngine, **engine):
    config, robot = load_task(task, SHORT.get(task)), load_robot(None)
    host = kind(compile_scene(config, robot), num_envs, **engine)
    return BatchVecEnv(config, robot, num_envs, host), host


def plain(task="reach", num_envs=2):
    return vec_env.make(task, num_envs, task_config=SHORT.get(task))


def home(env, length=8):
    return np.tile(np.array(env.spec.robot.home, np.float32), (env.num_envs, length, 1))


def wild(env, rng, length=8):
    robot = env.spec.robot
    noise = rng.normal(0.0, 0.2, (env.num_envs, length, len(robot.home)))
    return np.clip(np.array(robot.home) + noise, robot.low, robot.high).astype(np.float32)


def assert_same_observation(a, b):
    np.testing.assert_array_equal(a.images, b.images)
    np.testing.assert_allclose(a.proprio, b.proprio, atol=1e-6)
    np.testing.assert_array_equal(a.time_s, b.time_s)
    assert a.task == b.task
    assert a.image_ok.all()


@pytest.mark.parametrize(
    ("task", "gives"),
    [
        *((task, True) for task in TASKS),
        *((t, False) for t in ("pick_place", "drawer", "put_back")),
    ],
)
def test_episodes_are_those_of_the_cpu_backend(task, gives):
    (ours, _), theirs = make(task, 3, gives=gives), plain(task, 3)
    assert_same_observation(ours.reset(4), theirs.reset(4))
    rng = np.random.default_rng(0)
    ended = 0
    for chunk in range(17):
        actions = wild(ours, rng)
        marks = {
            "use_expert": np.array([True, False, chunk % 5 < 3]),
            "frozen": np.array([False, chunk % 4 == 0, False]),
        }
        a, b = ours.step_chunk(actions, **marks), theirs.step_chunk(actions, **marks)
        assert_same_observation(a.obs, b.obs)
        assert_same_observation(a.final_obs, b.final_obs)
        for field in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
        for name in ("success", "steps", "episode", "actions"):
            np.testing.assert_array_equal(a.info[name], b.info[name])
        np.testing.assert_allclose(a.info["progress"], b.info["progress"], atol=1e-6)
        ended += (a.terminated | a.truncated).sum()
    assert ended >= 2


def test_experts_succeed_as_often_as_on_the_cpu_backend():
    outcomes = []
    for env in (make("push", 3)[0], plain("push", 3)):
        env.reset(1)
        found = {}
        for _ in range(11):
            step = env.step_chunk(home(env), np.ones(3, np.bool_))
            for row in np.flatnonzero(step.terminated | step.truncated):
                found[int(step.info["episode"][row])] = bool(step.info["success"][row])
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) >= 4
    assert all(outcomes[0].values())


def test_it_satisfies_the_protocols():
    env, engine = make()
    assert isinstance(env, VecEnv)
    assert isinstance(engine, Engine)
    assert env.spec == plain().spec


def test_all_rows_that_end_are_written_in_one_call_and_rendered_before_it():
    env, engine = make("reach", 3)
    env.reset(0)
    assert engine.writes == [[0, 1, 2]]
    env.step_chunk(home(env, 36))
    engine.drawn = 0
    step = env.step_chunk(home(env, 8))  # 40 steps are the limit
    assert engine.writes[1:] == [[0, 1, 2]]
    assert engine.drawn == 6
    assert step.truncated.all()
    assert step.info["steps"].tolist() == [4, 4, 4]
    assert step.final_obs.time_s.tolist() == [4.0, 4.0, 4.0]
    assert step.obs.time_s.tolist() == [0.0, 0.0, 0.0]
    assert (step.final_obs.images != step.obs.images).any(axis=(1, 2, 3, 4)).all()
    assert env.step(home(env)[:, 0]).info["episode"].tolist() == [3, 4, 5]


def test_a_row_begins_any_episode_and_idle_rows_stand_still():
    env, engine = make("cue_colour", 2)
    env.reset(7)
    env.step_chunk(home(env))
    obs = env.begin(np.array([1]), np.array([5]), np.array([2]))
    theirs = plain("cue_colour", 3)
    np.testing.assert_array_equal(obs.images[1], theirs.reset(5).images[2])
    assert obs.time_s.tolist() == [0.8, 0.0]
    before = engine.worlds[0].data.time
    frozen = np.array([True, False])
    while True:
        step = env.step_chunk(home(env), frozen=frozen)
        np.testing.assert_array_equal(step.obs.images[0], obs.images[0])
        if step.truncated.any():
            break
    assert engine.worlds[0].data.time == before
    assert step.info["steps"][0] == 0
    assert env.step_chunk(home(env), frozen=frozen).info["episode"][1] == 4  # the next of its seed
    assert env.step_chunk(home(env)).obs.time_s[0] == pytest.approx(1.6)


def test_rows_that_nobody_began_can_only_be_idle():
    env, _ = make()
    assert env.begin(np.array([0]), np.array([5]), np.array([0])).images.shape[0] == 2
    assert env.step_chunk(home(env), frozen=np.array([False, True])).info["steps"].tolist() == [
        8,
        0,
    ]
    assert not env.step_chunk(home(env), frozen=np.ones(2, np.bool_)).info["steps"].any()
    with pytest.raises(ValueError, match="step before reset"):
        env.step_chunk(home(env))


def test_a_world_that_went_wrong_ends_truncated_and_begins_anew_within_the_step():
    env, engine = make("pick_place", 3)
    env.reset(2)
    seen = env.step_chunk(home(env)).obs
    engine.break_world(1)
    with pytest.warns(RuntimeWarning, match="1 of 3 worlds failed"):
        step = env.step_chunk(home(env))
    assert step.info["fault"].tolist() == [False, True, False]
    assert step.truncated.tolist() == [False, True, False]
    assert not step.terminated.any()
    assert not step.info["success"].any()
    assert step.info["progress"][1] == 0.0
    assert step.info["steps"].tolist() == [8, 1, 8]
    np.testing.assert_array_equal(step.final_obs.images[1], seen.images[1])
    np.testing.assert_array_equal(step.final_obs.proprio[1], seen.proprio[1])
    fresh = env.begin(np.array([0]), np.array([2]), np.array([4]))
    np.testing.assert_array_equal(step.obs.images[1], fresh.images[0])
    engine.break_world(2)
    again = env.step_chunk(home(env))  # it is said once
    assert again.info["fault"].tolist() == [False, False, True]
    assert again.info["episode"].tolist() == [4, 4, 2]
    assert np.isfinite(again.final_obs.proprio).all()
    assert not env.step_chunk(home(env)).info["fault"].any()


def test_a_world_that_went_wrong_disturbs_no_other():
    (broken, engine), (sound, _) = make("put_back", 2), make("put_back", 2)
    broken.reset(0)
    sound.reset(0)
    engine.break_world(0)
    with pytest.warns(RuntimeWarning):
        a = broken.step_chunk(home(broken))
    b = sound.step_chunk(home(sound))
    np.testing.assert_array_equal(a.obs.images[1], b.obs.images[1])
    assert a.info["steps"].tolist() == [1, 8]


def test_tensors_of_an_engine_pass_as_they_are():
    torch = pytest.importorskip("torch")

    class Tensors(HostEngine):
        def read(self):
            reading = super().read()
            return Reading(qpos=torch.tensor(reading.qpos), qvel=torch.tensor(reading.qvel))

        def faults(self):
            return torch.tensor(super().faults())

        def render(self, rows):
            return torch.tensor(super().render(rows))

    env, theirs = make("reach", 2, Tensors)[0], plain("reach", 2)
    env.reset(3)
    theirs.reset(3)
    for length in (36, 8):
        frozen = np.array([False, length == 8])
        a, b = (e.step_chunk(home(e, length), frozen=frozen) for e in (env, theirs))
        assert isinstance(a.obs.images, torch.Tensor)
        np.testing.assert_array_equal(a.obs.images, b.obs.images)
        np.testing.assert_array_equal(a.final_obs.images, b.final_obs.images)
        np.testing.assert_array_equal(a.final_obs.proprio, b.final_obs.proprio)
    assert a.truncated.tolist() == [True, False]


@pytest.mark.parametrize(("task", "field"), [("drawer", "body_pos"), ("reach", "geom_rgba")])
def test_an_engine_that_cannot_vary_what_a_task_sets_is_refused(task, field):
    env, _ = make(task, 1, varies=frozenset(VARIED) - {field})
    with pytest.raises(ValueError, match=f"worlds all have the same {field}, expected one that"):
        env.reset(0)


def test_an_engine_need_not_vary_what_randomisation_alone_changes():
    looks = frozenset({"geom_rgba"})
    env, _ = make("push", 1, varies=looks)
    env.reset(0)
    assert env.step_chunk(home(env)).info["steps"].tolist() == [8]


def test_closing_ends_the_engine():
    env, engine = make()
    env.reset(0)
    env.close()
    env.close()
    assert engine.closed
    with pytest.raises(ValueError, match="step before reset"):
        env.step_chunk(home(env))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.reset(-1), "seed: got -1"),
        (
            lambda env: env.begin(np.array([2]), ZERO, ZERO),
            "expected rows below 2 and nothing below 0",
        ),
        (lambda env: env.step(np.zeros((2, 5), np.float32)), r"expected \(2, h, 6\)"),
        (lambda env: env.step_chunk(np.zeros((2, 257, 6), np.float32)), "with h from 1 to 256"),
        (lambda env: env.step_chunk(np.full((2, 1, 6), np.nan)), "NaN or infinity"),
        (
            lambda env: env.step_chunk(home(env), np.ones(3, np.bool_)),
            r"use_expert: got shape \(3,\)",
        ),
        (lambda env: env.step_chunk(home(env), frozen=np.ones(1)), r"frozen: got shape \(1,\)"),
    ],
)
def test_mistakes_get_the_sentences_of_the_cpu_backend(call, message):
    for env in (make()[0], plain()):
        env.reset(0)
        with pytest.raises(ValueError, match=message):
            call(env)


@pytest.mark.parametrize(("worlds", "envs"), [(2, 3), (1, 0)])
def test_another_number_of_worlds_is_refused(worlds, envs):
    config, robot = load_task("reach"), load_robot(None)
    engine = HostEngine(compile_scene(config, robot), worlds)
    with pytest.raises(ValueError, match=r"engine: got 2 worlds, expected 3|num_envs: got 0"):
        BatchVecEnv(config, robot, envs, engine)
