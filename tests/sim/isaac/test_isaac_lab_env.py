"""Environments of Isaac Lab as rows over the env server, against stand-ins of 2.3 and 3.x."""

import contextlib
import json
import os
import warnings

import numpy as np
import pytest

from sim import vec_env
from sim.backends.process import Config as Process
from sim.suites import isaac_lab_env
from sim.suites._suite import ADAPTERS, Suite
from tests.sim.isaac import stand
from tests.sim.isaac.test_stand_ins import uses
from vla.contracts.config import from_json, to_json

ROWS = 3
UP, DOWN, STILL = (1.0, 0.0), (-1.0, 0.0), (0.0, 0.0)


def config(name, folder, lab, **fields):
    python = stand.interpreter(folder, lab)
    fields = {"device": "cpu", "instruction": "lift it", "camera_px": 8, **fields}
    return isaac_lab_env.Config(name=name, interpreter=python, **fields)


@pytest.fixture(scope="module", params=[2, 3])
def lab(request, tmp_path_factory):
    """Return the release, and a `ManagerBasedRLEnv` of it behind our interface."""
    folder = tmp_path_factory.mktemp("lab")
    task = config("Isaac-Manager-v0", folder, request.param)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        env = vec_env.make("isaac_lab_env/Isaac-Manager-v0", ROWS, task_config=task)
    env.told = [str(warning.message) for warning in told]
    with contextlib.closing(env):
        yield request.param, env


def actions(*rows, length=1):
    return np.repeat(np.array(rows, np.float32)[:, None], length, axis=1)


def shade(position):
    """Return what the camera shows of a row that stands so."""
    return np.floor(128 + 100 * position[..., 0] + 1e-4)


def shown(obs):
    return obs.images[:, 0, 4, 4, 0].astype(float)


def test_rows_are_seen_with_the_arm_that_the_environment_announces(lab):
    release, env = lab
    obs = env.reset(1)
    assert env.spec.robot.names == ("a0", "a1")
    assert [(c.low, c.high) for c in env.spec.robot.channels] == [(-1.0, 1.0)] * 2
    assert env.spec.robot.control_hz == 20.0
    assert env.spec.max_episode_steps == 20
    camera = "tiled_camera" if release == 2 else "wrist"
    assert [c.name for c in env.spec.robot.cameras] == [camera]
    assert obs.task == ("lift it",) * ROWS
    # Alpha is dropped, and what was there before is not shown.
    assert obs.images.shape == (ROWS, 1, 8, 8, 3)
    np.testing.assert_array_equal(shown(obs), shade(obs.proprio))
    assert len({float(x) for x in obs.proprio[:, 0]}) == ROWS
    np.testing.assert_array_equal(env.reset(1).proprio, obs.proprio)
    assert not np.array_equal(env.reset(2).proprio, obs.proprio)


def test_an_episode_ends_by_its_term_its_failure_or_its_time(lab):
    _, env = lab
    start = env.reset(0).proprio[:, 0]
    seen = []
    while len(seen) < 12:
        step = env.step_chunk(actions(UP, DOWN, STILL))
        seen.append(step)
        if step.truncated.any():
            break
    # From 0 +- 0.2 by 0.1 a step to beyond 0.9.
    first = {row: next(i for i, s in enumerate(seen) if s.terminated[row]) for row in (0, 1)}
    assert first[0] + 1 == int(np.floor((0.9 - start[0]) / 0.1)) + 1
    ended = seen[first[0]]
    assert ended.info["success"].tolist() == [True, False, False]
    assert ended.info["progress"][0] == ended.reward[0] == 1.0
    lost = seen[first[1]]
    assert lost.terminated[1]
    assert not lost.info["success"][1]
    assert lost.reward[1] == 0.0


def test_a_time_out_is_no_termination(lab):
    _, env = lab
    env.reset(0)
    step = env.step_chunk(actions(STILL, STILL, STILL, length=64))
    assert step.info["steps"].tolist() == [20] * ROWS
    assert step.truncated.all()
    assert not step.terminated.any()
    assert step.info["episode"].tolist() == [0, 1, 2]
    step = env.step_chunk(actions(STILL, STILL, STILL))
    assert step.info["episode"].tolist() == [3, 4, 5]
    # The ends of the step before were told in the very same buffers.
    assert not step.truncated.any()


def test_a_chunk_stops_in_all_rows_with_the_first_that_ends(lab):
    _, env = lab
    env.reset(0)
    step = env.step_chunk(actions(UP, STILL, STILL, length=20))
    count = int(step.info["steps"][0])
    assert count < 12
    assert step.info["steps"].tolist() == [count] * ROWS
    assert step.terminated.tolist() == [True, False, False]
    assert step.obs.time_s.tolist() == pytest.approx([0.0, count / 20, count / 20])


def test_the_last_observation_is_told_or_repeats_the_one_before(lab):
    release, env = lab
    start = env.reset(0)
    step = env.step_chunk(actions(UP, STILL, STILL, length=20))
    count = int(step.info["steps"][0])
    known = count if release == 3 else count - 1
    last = start.proprio[0, 0] + 0.1 * known
    assert step.final_obs.proprio[0, 0] == pytest.approx(last, abs=1e-5)
    assert step.final_obs.time_s[0] == pytest.approx(known / 20)
    assert shown(step.final_obs)[0] == pytest.approx(shade(np.array([last])), abs=1)
    # The next episode has begun, and is shown.
    assert abs(step.obs.proprio[0, 0]) <= 0.2
    np.testing.assert_array_equal(shown(step.obs), shade(step.obs.proprio))
    lost = [text for text in env.told if "final_obs repeats" in text]
    assert len(lost) == (1 if release == 2 else 0)


def test_actions_are_kept_within_limits_and_all_rows_may_rest(lab):
    _, env = lab
    before = env.reset(0).proprio
    step = env.step_chunk(actions((0.0, 5.0), STILL, STILL))
    assert step.obs.proprio[0, 1] == pytest.approx(before[0, 1] + 0.1, abs=1e-6)
    rested = env.step_chunk(actions(UP, UP, UP), frozen=np.ones(ROWS, np.bool_))
    assert rested.info["steps"].tolist() == [0] * ROWS
    np.testing.assert_array_equal(rested.obs.proprio, step.obs.proprio)


def test_rows_cannot_be_begun_or_left_idle_one_by_one(lab):
    _, env = lab
    start = env.reset(4)
    every, same = np.arange(ROWS), np.full(ROWS, 4)
    for rows, seed, index in (
        (every[:1], same[:1], every[:1]),
        (every, same, every + 1),
        (every, same + every, every),
    ):
        with pytest.raises(ValueError, match=r"begin: .* draws all its episodes from one stream"):
            env.begin(rows, seed, index)
    np.testing.assert_array_equal(env.begin(every, same, every).proprio, start.proprio)
    with pytest.raises(ValueError, match="frozen: got some rows, expected all or none"):
        env.step_chunk(actions(UP, UP, UP), frozen=np.array([True, False, False]))
    with pytest.raises(ValueError, match="has no scripted expert"):
        env.step_chunk(actions(UP, UP, UP), use_expert=np.ones(ROWS, np.bool_))
    # Nothing of it ended the simulator.
    env.step_chunk(actions(UP, UP, UP))


IN_HOST = f"""
import sys
sys.path.insert(0, {str(ADAPTERS)!r})
import numpy as np
def opened(name, rows=(0, 2), **changes):
    import isaac_lab_env
    options = dict(task=name, rows=list(rows), num_envs=2, path="", device="cpu", camera_px=8,
                   instruction="lift it", cameras=[], proprio="", success_term="success",
                   low=-1.0, high=1.0)
    options.update(changes)
    adapter = isaac_lab_env.open_adapter(options)
    arrays = {{name: np.zeros(shape, kind) for name, (shape, kind) in adapter.fields().items()}}
    adapter.bind(arrays)
    adapter.call("reset", dict(seed=0))
    return adapter, arrays
def played(name, **changes):
    adapter, arrays = opened(name, **changes)
    first = arrays["proprio"][0, 0]
    arrays["actions"][0] = (1.0, 0.0)
    adapter.call("step", dict(length=64))
    told = {{key: arrays[key].tolist() for key in
            ("steps", "success", "terminated", "truncated", "reward")}}
    told["moved"] = float(arrays["final_proprio"][0, 0] - first) / 0.1
    told["shown"] = int(arrays["final_images"][0, 0, 0, 0, 0])
    told["before"] = int(128 + 100 * (arrays["final_proprio"][0, 0] - 0.1))
    return told
"""
WORDS = {
    2: [
        ("opened('Isaac-Manager-v0', (0, 1))", "workers: got several, expected 1"),
        ("[opened('Isaac-Direct-v0'), opened('Isaac-Direct-v0')]", "already has an app"),
        ("opened('Isaac-Nope-v0')", "Isaac-Nope-v0: Isaac Lab does not have it"),
        ("opened('nowhere:My-v0')", "nowhere:My-v0: cannot be imported: No module"),
        ("opened('Isaac-Unsaid-v0')", "there are the keys lifted; give success_term, or 'none'"),
        ("opened('Isaac-Unnamed-v0')", "and the terms time_out, dropped, lifted; give"),
        ("opened('Isaac-Direct-v0', proprio='arm')", "got 'arm', expected one of policy"),
        ("opened('Isaac-Direct-v0', cameras=['top'])", "'top', expected some of tiled_camera"),
    ],
    3: [("opened('Isaac-Blind-v0')", "nor its scene have images: terms of uint8")],
}
PLAYED = {
    2: [
        "played('Isaac-Direct-v0')",
        "played('Isaac-Unnamed-v0', success_term='lifted')",
        "played('Isaac-Unnamed-v0', success_term='none')",
        "played('Isaac-Open-v0')",
        "[opened('Isaac-Limited-v0')[0].announce()]",
    ],
    3: [
        "played('Isaac-Direct-v0')",
        "[opened('Isaac-Normal-v0')[0].announce()]",
        "[opened('Isaac-Direct-v0')[0].announce()]",
    ],
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return code -> what came of it in the interpreter of either release."""
    folder, found = tmp_path_factory.mktemp("adapter"), {}
    for release in (2, 3):
        codes = [code for code, _ in WORDS[release]] + PLAYED[release]
        wrapped = [f"{IN_HOST}\n{code}" for code in codes]
        said = stand.answers(folder, "import gymnasium, torch", wrapped, release)
        found.update({(release, code): text for code, text in zip(codes, said, strict=True)})
    return lambda release, code: json.loads(
        # What Isaac Lab prints comes first.
        found[release, code]
    ) if found[release, code][:1] in "{[" else found[release, code]  # fmt: skip


@pytest.mark.parametrize(
    ("release", "code", "words"), [(lab, *pair) for lab, pairs in WORDS.items() for pair in pairs]
)
def test_what_cannot_be_driven_is_refused_in_a_sentence(answers, release, code, words):
    said = answers(release, code)
    assert said.startswith("ValueError ")
    assert words in said


def test_a_direct_environment_says_success_in_its_extras(answers):
    told = answers(2, "played('Isaac-Direct-v0')")
    assert told["success"] == told["terminated"] == [True, False]
    assert told["moved"] == pytest.approx(told["steps"][0] - 1, abs=1e-4)


def test_success_is_read_under_the_name_that_is_given(answers):
    named = answers(2, PLAYED[2][1])
    assert named["success"] == [True, False]
    unknown = answers(2, PLAYED[2][2])
    assert unknown["terminated"] == named["terminated"] == [True, False]
    assert unknown["success"] == [False, False]


def test_a_success_that_ends_nothing_counts_until_the_episode_ends(answers):
    told = answers(2, PLAYED[2][3])
    assert told["steps"] == [20, 20]
    assert told["truncated"] == [True, True]
    assert told["success"] == [True, False]
    assert told["reward"] == [1.0, 0.0]


def test_limits_are_those_of_the_environment_where_it_has_any(answers):
    told = answers(2, PLAYED[2][4])[0]
    assert (told["low"], told["high"]) == ([-0.5] * 2, [0.25] * 2)
    assert told["final_obs"] == "lost"


def test_normalised_images_are_left_out_for_the_cameras_of_the_scene(answers):
    told = answers(3, PLAYED[3][1])[0]
    assert told["cameras"] == ["tiled_camera"]


def test_the_last_image_of_a_camera_of_the_scene_is_lost_but_positions_are_not(answers):
    assert answers(3, PLAYED[3][2])[0]["final_obs"] == "positions"
    told = answers(3, PLAYED[3][0])
    assert told["moved"] == pytest.approx(told["steps"][0], abs=1e-4)
    assert told["shown"] == pytest.approx(told["before"], abs=1)


# --- this side ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "expected isaac_lab_env/ID"),
        ({"camera_px": 4}, "camera_px: got 4, expected 8 to 1024"),
        ({"low": 1.0}, "low, high: got 1.0 and 1.0"),
        ({"startup_timeout_s": float("nan")}, "startup_timeout_s: got nan"),
    ],
)
def test_fields_out_of_range_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        isaac_lab_env.Config(**{"name": "X-v0", **fields})


def test_what_is_missing_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv(isaac_lab_env.PYTHON, raising=False)
    with pytest.raises(ValueError, match="got no instruction, expected one, since"):
        vec_env.make("isaac_lab_env/X-v0", 1)
    task = isaac_lab_env.Config(name="X-v0", instruction="lift it")
    with pytest.raises(ValueError, match="interpreter: got '', expected the Python in which Isaac"):
        task.arm()
    assert isinstance(task, Suite)
    assert from_json(None, to_json(task), package="sim.suites") == task
    monkeypatch.setenv(isaac_lab_env.PYTHON, stand.interpreter(tmp_path))
    assert task.python() == tmp_path / "python-lab2"


def test_several_workers_are_refused(lab, tmp_path):
    release, env = lab
    task = config("Isaac-Manager-v0", tmp_path, release)
    with pytest.raises(ValueError, match="workers: got several, expected 1: one app"):
        Process(workers=2).build(task, env.spec.robot, 2)


def test_the_host_uses_nothing_but_what_was_recorded():
    known = json.loads((stand.STAND_INS.parent / "isaac_lab_env.json").read_text())["symbols"]
    names = {symbol["name"].rsplit(".", 1)[-1] for symbol in known}
    bases = ("self._env", "env", "self._env.scene", "env.scene", "cfg", "manager", "utils")
    used = {name for _, name in uses("isaac_lab_env", dict.fromkeys(bases, "*"))}
    assert len(used) > 10
    assert used <= names
    # What is asked of by name.
    assert {"termination_manager", "compute_final_obs", "final_obs", "output"} <= names


@pytest.mark.isaac
def test_a_real_environment_is_reset_and_stepped():
    if not os.environ.get(isaac_lab_env.PYTHON):
        pytest.skip(f"{isaac_lab_env.PYTHON} names no interpreter with the real Isaac Lab")
    task = isaac_lab_env.Config(
        name="Isaac-Cartpole-RGB-Camera-Direct-v0", instruction="hold the pole up",
        success_term="none",
    )  # fmt: skip
    with contextlib.closing(vec_env.make(vec_env.title(task), 4, task_config=task)) as env:
        assert env.reset(0).images.std() > 1.0
        step = env.step_chunk(np.zeros((4, 8, len(env.spec.robot.channels)), np.float32))
        assert step.info["steps"].max() <= 8
