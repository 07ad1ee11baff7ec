"""cue_colour: nothing seen from go on depends on the cue, and the first touch decides."""

import numpy as np
import pytest

from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import _lock, cue_colour
from sim.vec_env import load_robot
from vla.contracts.referents import HIDDEN

SHORT = cue_colour.Config(delay_steps=(16, 16), distractors=2)


def make(config=SHORT, robot="so101"):
    return MujocoWorld(compile_scene(config, load_robot(robot)))


def to_go(world, action=None):
    """Step until the arm is free, with an action that would move it."""
    action = np.array(world.robot.high) if action is None else action
    while world.steps < world.episode.schedule.go:
        world.step(action)


def test_until_go_the_arm_stays_exactly_at_home_whatever_is_asked():
    world = make()
    world.reset(0, 0)
    home = np.array(world.robot.home)
    while world.steps < world.episode.schedule.go:
        np.testing.assert_array_equal(world.data.qpos[world.joint_qpos], home)
        np.testing.assert_array_equal(world.data.qvel[world.joint_qvel], 0.0)
        world.step(np.array(world.robot.high))


def test_swapping_the_cue_changes_nothing_after_it_to_the_bit():
    def play(cue):
        world = make()
        world.reset(4, 2)
        world.as_batch.episode.cue[:] = cue
        camera = Camera(shared_renderer(world.scene), world)
        before, after = [], []
        actions = np.random.default_rng(0).uniform(world.robot.low, world.robot.high, (200, 6))
        for action in actions:
            kept = after if world.steps >= world.episode.schedule.cue_end else before
            kept.append(camera.render().tobytes() + world.data.qpos.tobytes())
            if world.step(action)[1]:
                break
        return before, after

    plays = [play(cue) for cue in range(4)]
    assert len({tuple(before) for before, _ in plays}) == 4  # the lamp shows each colour
    shortest = min(len(after) for _, after in plays)
    assert shortest > 20
    assert len({tuple(after[:shortest]) for _, after in plays}) == 1


def test_what_happened_before_go_leaves_no_trace_in_the_physics():
    states = []
    for action in ("low", "high"):
        world = make()
        world.reset(1, 1)
        to_go(world, np.array(getattr(world.robot, action)))
        data = world.data
        states.append((data.qpos, data.qvel, data.ctrl, data.qacc_warmstart, data.time))
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


def test_cue_layout_and_times_are_drawn_independently():
    world = make(cue_colour.Config())
    cues, angles, gos = [], [], []
    for index in range(800):
        world.reset(11, index)
        episode = world.episode
        cues.append(episode.cue)
        spots = episode.buttons_m
        angles.append(np.argsort(np.arctan2(spots[:, 1], spots[:, 0]))[0])
        gos.append(episode.schedule.go)
    table = np.zeros((4, 4))
    np.add.at(table, (cues, angles), 1)
    # Chi-squared of independence with 9 degrees of freedom: 99.9 % of draws lie below 27.9.
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    assert ((table - expected) ** 2 / expected).sum() < 27.9
    # The cue says nothing about go either: group means within four standard errors.
    gos, cues = np.array(gos, float), np.array(cues)
    for cue in range(4):
        error = gos.std() / np.sqrt((cues == cue).sum())
        assert abs(gos[cues == cue].mean() - gos.mean()) < 4 * error


def test_times_keep_their_promises():
    world = make(cue_colour.Config(delay_steps=(16, 128)))
    starts, delays = set(), []
    for index in range(300):
        world.reset(0, index)
        schedule = world.episode.schedule
        starts.add(schedule.cue_start)
        assert schedule.cue_end - schedule.cue_start == 16
        assert schedule.go % 8 == 0
        delays.append(schedule.go - schedule.cue_end)
        assert world.time_limit == schedule.go + 40 <= world.task.max_episode_steps
    assert starts == set(range(17))
    assert min(delays) >= 16
    assert max(delays) <= 128 + 7  # go waits for the next decision
    # Log-uniform: half of the delays below sqrt(16 * 128) = 45, and up to 3.5 steps of rounding.
    assert 38 < np.median(delays) < 58


def test_a_delay_of_zero_leaves_the_cue_visible():
    world = make(cue_colour.Config(delay_steps=(0, 0)))
    world.reset(0, 0)
    to_go(world)
    lamp = world.model.geom("lamp").rgba[:3]
    expected = list(_lock.PALETTE.values())[world.episode.cue]
    np.testing.assert_allclose(lamp, expected, atol=1e-6)


def test_distractors_light_the_side_lamp_and_only_that():
    config = cue_colour.Config(delay_steps=(64, 64), distractors=8)
    world = make(config)
    world.reset(0, 0)
    lit, cue = [], []
    while world.steps < world.episode.schedule.go:
        side, lamp = (world.model.geom(n).rgba[:3].copy() for n in ("side_lamp", "lamp"))
        lit.append(not np.allclose(side, _lock.OFF_RGB))
        cue.append(not np.allclose(lamp, _lock.OFF_RGB))
        world.step(np.array(world.robot.home))
    assert sum(cue) == 16
    assert len(world.episode.schedule.flashes) == 8
    assert sum(lit) == sum(end - start for start, end, _ in world.episode.schedule.flashes)
    assert np.allclose(world.model.geom("side_lamp").rgba[:3], _lock.OFF_RGB)


def test_a_random_number_of_distractors_is_up_to_the_largest():
    world = make(cue_colour.Config(delay_steps=(64, 64), distractors=2, random_distractors=True))
    found = set()
    for index in range(20):
        world.reset(0, index)
        flashes = world.episode.schedule.flashes
        assert flashes.shape == (2, 3)  # as many rows in each episode, for batches
        found.add(int((flashes[:, 1] > flashes[:, 0]).sum()))
    assert found == {0, 1, 2}


def test_buttons_are_out_of_sight_until_go_and_apart_after_it():
    world = make()
    world.reset(0, 3)
    geoms = [world.model.geom(f"button{k}").id for k in range(4)]
    assert world.data.geom_xpos[geoms, 2].max() < -0.5  # under the floor
    to_go(world)
    spots = world.data.geom_xpos[geoms]
    np.testing.assert_allclose(spots, world.episode.buttons_m)
    gaps = np.linalg.norm(spots[:, None] - spots[None], axis=-1)[np.triu_indices(4, 1)]
    assert gaps.min() > 0.065  # discs of 6 cm do not overlap
    near, far = world.robot.reach_m
    reach = np.linalg.norm(spots[:, :2], axis=1)
    assert near <= reach.min() <= reach.max() <= far


def test_the_expert_presses_the_right_button_and_progress_ends_at_one():
    for index in range(5):
        record = record_episode("cue_colour", 0, index, task_config=SHORT, render=False)
        assert record.success[-1]
        assert not record.success[:-1].any()
        assert record.progress[-1] == 1.0
        assert record.progress[:-1].max() < 1.0


def test_the_wrong_button_ends_the_episode_in_failure():
    record = record_episode("cue_colour", 0, 0, "wrong_object", task_config=SHORT, render=False)
    assert not record.success.any()
    assert record.progress[-1] == 0.0
    world = make()
    world.reset(0, 0)
    for action in record.action[:-1]:
        _, terminated, truncated = world.step(action)
    assert terminated
    assert not truncated
    assert np.flatnonzero(world.episode.touched) == [(world.episode.cue + 1) % 4]


@pytest.mark.parametrize("variant", ["near_miss", "hover"])
def test_near_misses_touch_no_button(variant):
    for index in range(3):
        record = record_episode("cue_colour", 0, index, variant, task_config=SHORT, render=False)
        assert not record.success.any()
        assert record.progress.max() > 0.5
        world = make()
        world.reset(0, index)
        for action in record.action[:-1]:
            world.step(action)
        assert not world.episode.touched.any()


@pytest.mark.parametrize("choices", [2, 8])
def test_the_expert_copes_with_any_number_of_choices(choices):
    config = cue_colour.Config(choices=choices, delay_steps=(16, 16))
    for index in range(4):
        assert record_episode("cue_colour", 1, index, task_config=config, render=False).success[-1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choices": 9}, "choices: got 9, expected 2 to 8"),
        ({"cue_steps": 8}, "cue_steps: got 8, expected at least 16"),
        ({"delay_steps": (8, 64)}, "delay_steps: got 8 64, expected 0 0 .* or 16 <= min"),
        ({"delay_steps": (64, 32)}, "delay_steps: got 64 32"),
        ({"distractors": -1}, "distractors: got -1"),
        ({"decision_steps": 0}, "decision_steps: got 0"),
        ({"distractor_steps": -5}, "distractor_steps: got -5, expected at least 1"),
        ({"act_steps": 0}, "act_steps: got 0, expected at least 1"),
    ],
)
def test_settings_that_would_break_the_ceiling_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        cue_colour.Config(**settings).build(load_robot("so101"))


def test_records_have_the_observation_before_each_action_and_the_last_one():
    record = record_episode("cue_colour", 3, 1, task_config=SHORT)
    steps = len(record.action)
    assert record.images.shape == (steps, 2, 96, 96, 3)
    assert record.proprio.shape == record.action.shape == (steps, 6)
    np.testing.assert_array_equal(record.action[-1], record.action[-2])
    world = make()
    world.reset(3, 1)
    camera = Camera(shared_renderer(world.scene), world)
    for t in range(steps):
        np.testing.assert_array_equal(camera.render(), record.images[t])
        np.testing.assert_array_equal(world.proprio, record.proprio[t])
        if t < steps - 1:
            world.step(record.action[t])
    assert world.succeeded


def test_records_say_where_the_right_button_is_once_there_are_buttons():
    right = 0
    for index in range(4):
        record = record_episode("cue_colour", 3, index, task_config=SHORT)
        where = np.stack([record.labels[f"referent.object.front.{axis}"] for axis in "xy"], 1)
        hidden = (where == HIDDEN).all(1)
        go = int(hidden.argmin())
        assert hidden[:go].all()
        assert not hidden[go:].any()
        side = record.images.shape[2]
        column, row = ((where[go] + 1) / 2 * side).astype(int)
        seen = record.images[go, 0, row, column].astype(float)
        lamp = record.images[:go, 0].reshape(go, -1, 3).astype(float)
        # The lamp's colour is the most saturated thing that goes out again.
        change = lamp - lamp[-1]
        brightest = np.abs(change).sum((0, 2)).argmax()
        shown = lamp[np.abs(change[:, brightest]).sum(1).argmax(), brightest]
        right += np.dot(seen, shown) / np.linalg.norm(seen) / np.linalg.norm(shown) > 0.9
    assert right >= 3
