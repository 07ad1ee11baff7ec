"""What a reward model learns from: which frames are drawn, how labelled, and what is never
mixed.
"""

from dataclasses import replace

import numpy as np
import pytest

from training.reward_model import datasets
from training.reward_model.batches import (
    ORDERS,
    SamplerConfig,
    _recolor,
    all_instructions,
    mismatched_instruction,
    sample_batch,
    swap_colour,
)
from training.reward_model.clips import COLOUR, PER_EPISODE, PER_FRAME, Clips, colour_of, composed

STEPS = 12
RED, BLUE = "push the red cube", "push the blue cube"


def clips(ends: tuple[float, ...] = (1.0, 0.5, 0.0), task: str = "push") -> Clips:
    """Episodes of 12 frames whose progress rises evenly to `ends`; frame t has brightness t."""
    count = len(ends)
    progress = np.concatenate([np.linspace(0, end, STEPS) for end in ends]).astype(np.float32)
    bright = np.tile(np.arange(STEPS, dtype=np.uint8) * 10, count)
    images = np.broadcast_to(bright[:, None, None, None, None], (count * STEPS, 2, 32, 32, 3))
    return Clips(
        images=images.copy(), time_s=np.tile(np.arange(STEPS) * 0.2, count), progress=progress,
        success=progress >= 1.0, proprio=np.zeros((count * STEPS, 2), np.float32),
        referents=np.full((count * STEPS, 2, 2, 2), 0.25, np.float32),
        offsets=np.arange(count + 1) * STEPS,
        instruction=np.array([(RED, BLUE)[i % 2] for i in range(count)]),
        task=np.full(count, task), behaviour=np.full(count, "expert"),
    )  # fmt: skip


def join(parts: list[Clips]) -> Clips:
    """The episodes of several sets, one after the other."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    both = {n: np.concatenate([getattr(p, n) for p in parts]) for n in (*PER_FRAME, *PER_EPISODE)}
    return Clips(offsets=np.concatenate([[0], np.cumsum(lengths)]), **both)


PLAIN = SamplerConfig(
    batch_episodes=6,
    mismatched_instruction_prob=0.0,
    view_dropout=0.0,
    random_shift_px=0,
    brightness_jitter=0.0,
    rewind_prob=0.0,
    recolor_prob=0.0,
)


def seen(batch, frames):
    """Brightness of frames: which step of the episode they are."""
    return np.asarray(batch.frames.images)[np.asarray(frames), 0, 0, 0, 0] / 10


def test_the_first_and_the_last_frame_of_every_episode_are_judged_in_order():
    batch = sample_batch(clips(), PLAIN, np.random.default_rng(0))
    steps = seen(batch, batch.loss_index).reshape(6, -1)
    assert steps.shape[1] == 2 + PLAIN.anchor_frames + PLAIN.pair_frames + 1
    assert (steps[:, 0] == 0).all()
    assert (steps[:, -1] == STEPS - 1).all()
    assert (np.diff(steps, axis=1) >= 0).all()


def test_the_last_frame_before_anything_is_done_is_always_judged():
    source = clips(ends=(1.0,))
    source = replace(source, progress=np.where(np.arange(STEPS) < 7, 0.0, 1.0).astype(np.float32))
    for seed in range(5):
        batch = sample_batch(
            source, replace(PLAIN, anchor_frames=2, pair_frames=0), np.random.default_rng(seed)
        )
        assert (seen(batch, batch.loss_index).reshape(6, -1) == 6).any(1).all()


def test_goals_are_where_the_arm_was_when_most_was_done_and_unknown_where_little_was():
    source = clips(ends=(1.0, 0.6, 0.4))
    state = np.stack([np.arange(3 * STEPS), np.zeros(3 * STEPS)], 1).astype(np.float32)
    progress = source.progress.copy()
    progress[STEPS - 1] = 0.1  # undone in the last step: the one before is the goal
    source = replace(source, progress=progress, proprio=state)
    first, last = STEPS - 2, 2 * STEPS - 1
    mean, half = (first + last) / 2, (last - first) / 2
    assert np.allclose(source.goal[:2], [[(first - mean) / half, 0], [(last - mean) / half, 0]])
    assert np.isnan(source.goal[2]).all()


def test_goals_count_from_where_work_begins_by_what_is_left_of_it():
    source = clips(ends=(1.0,))
    rising = np.where(np.arange(STEPS) < 7, 0.0, (np.arange(STEPS) - 6) / 5).astype(np.float32)
    batch = sample_batch(replace(source, progress=rising), PLAIN, np.random.default_rng(9))
    steps = seen(batch, batch.loss_index).astype(int)
    assert np.allclose(batch.goal_weight, np.where(steps < 6, 0.0, 1.0 - rising[steps]))


def test_episodes_may_be_drawn_from_some_alone():
    source = join([clips(), clips(task="reach")])
    among = np.array([False, True, False, False, False, True])
    batch = sample_batch(source, replace(PLAIN, batch_episodes=8), np.random.default_rng(10), among)
    ends = np.asarray(batch.progress[batch.last]).round(3)
    assert set(ends.tolist()) == {0.5, 0.0}


def test_no_goal_is_taught_under_an_instruction_that_is_not_the_episodes_own():
    source = clips(ends=(1.0, 1.0))
    batch = sample_batch(
        source,
        replace(PLAIN, mismatched_instruction_prob=0.5, reference_prob=0.0),
        np.random.default_rng(8),
    )
    own = np.asarray(batch.matches) == 1
    assert own.any()
    assert not own.all()
    assert np.array_equal(np.isnan(np.asarray(batch.goal)).any(1), ~own)


def test_labels_are_those_of_the_frames():
    source = clips(ends=(1.0, 1.0))
    batch = sample_batch(source, PLAIN, np.random.default_rng(1))
    assert np.allclose(batch.progress, seen(batch, batch.loss_index) / (STEPS - 1))
    assert np.array_equal(batch.success == 1, seen(batch, batch.loss_index) == STEPS - 1)


def test_every_episode_ranks_above_those_of_its_task_that_ended_worse():
    source = join([clips(), clips(task="reach")])
    batch = sample_batch(source, replace(PLAIN, batch_episodes=8), np.random.default_rng(2))
    ends = np.asarray(batch.progress[batch.last])
    pairs = np.asarray(batch.preferences)
    assert len(pairs)
    assert (ends[pairs[:, 0]] > ends[pairs[:, 1]]).all()


def test_a_foreign_instruction_makes_every_label_zero():
    batch = sample_batch(
        clips(), replace(PLAIN, mismatched_instruction_prob=1.0), np.random.default_rng(3)
    )
    assert not batch.progress.any()
    assert not batch.success.any()
    assert not batch.matches.any()
    assert (np.asarray(batch.reference) == -1).all()
    assert not len(batch.preferences)


def test_memory_reaches_the_frame_itself_or_a_later_one_of_its_episode_when_rewound():
    now = sample_batch(clips(), PLAIN, np.random.default_rng(4))
    assert np.array_equal(now.memory_index, now.loss_index)
    batch = sample_batch(clips(), replace(PLAIN, rewind_prob=1.0), np.random.default_rng(4))
    row = np.asarray(batch.frames.episode_index)
    assert (batch.memory_index >= batch.loss_index).all()
    assert (batch.memory_index > batch.loss_index).any()
    assert np.array_equal(row[batch.memory_index], row[batch.loss_index])


def test_stretches_in_which_much_happens_are_drawn_more_often():
    source = clips(ends=(1.0,))
    late = np.where(np.arange(STEPS) < 9, 0.0, (np.arange(STEPS) - 8) / 3).astype(np.float32)
    source = replace(source, progress=late)
    rng = np.random.default_rng(5)
    sampler = replace(PLAIN, pair_frames=0, static_frame_weight=0.1)
    steps = np.concatenate(
        [seen(b := sample_batch(source, sampler, rng), b.loss_index) for _ in range(20)]
    )
    # 3 of 12 frames hold all the change; spread evenly they would be a quarter of the draws.
    inner = steps[(steps > 0) & (steps < STEPS - 1)]
    assert np.mean(inner >= 8) > 0.6


def test_pairs_stay_within_an_episode_and_come_in_both_orders():
    batch = sample_batch(clips(), PLAIN, np.random.default_rng(6))
    asked = len(batch.loss_index) // 6
    pairs = np.asarray(batch.pairs)
    assert np.array_equal(pairs[:, 0] // asked, pairs[:, 1] // asked)
    assert (pairs[:, 0] < pairs[:, 1]).any()
    assert (pairs[:, 0] > pairs[:, 1]).any()


def test_references_are_other_successful_episodes_of_the_same_task():
    source = join([clips(), clips(task="reach")])
    sampler = replace(PLAIN, batch_episodes=16, reference_prob=1.0)
    batch = sample_batch(source, sampler, np.random.default_rng(7))
    shown = np.asarray(batch.reference)
    ends = np.asarray(batch.progress[batch.last])
    chosen = shown[shown >= 0]
    assert len(chosen)
    assert (ends[chosen] == 1.0).all()
    assert (shown != np.arange(16)).all()


def test_recoloured_episodes_are_told_in_the_colours_that_their_pictures_have():
    rng = np.random.default_rng(0)
    drawn = {_recolor("reach the red ball", 1.0, rng) for _ in range(200)}
    # Where red is the second channel of the new picture, the ball is green; third, blue.
    name = {0: "red", 1: "green", 2: "blue"}
    assert {(o, f"reach the {name[o.index(0)]} ball") for o in ORDERS[1:]} == drawn
    # Yellow would become cyan or magenta, which have no name.
    assert {o for o, _ in (_recolor("the yellow ball", 1.0, rng) for _ in range(200))} == {
        (0, 1, 2), (1, 0, 2),
    }  # fmt: skip
    assert _recolor("reach the red ball", 0.0, rng) == ((0, 1, 2), "reach the red ball")


def test_channels_change_places_in_whole_episodes_and_words_follow():
    grey = clips()
    source = replace(grey, images=grey.images * np.array([1, 0, 0], np.uint8))
    plan = replace(PLAIN, batch_episodes=12, recolor_prob=1.0, reference_prob=0.0)
    place = {"push the red cube": 0, "push the green cube": 1, "push the blue cube": 2}
    # A red cube is what the lit channel says it is.
    only = source.pick(np.flatnonzero(source.instruction == RED))
    batch = sample_batch(only, plan, np.random.default_rng(0))
    size = len(batch.frames.episode_index) // 12
    lit = np.asarray(batch.frames.images).reshape(12, size, -1, 3).any((1, 2))
    assert [place[task] for task in batch.task] == lit.argmax(1).tolist()
    assert (lit.sum(1) == 1).all()
    assert len(set(batch.task)) == 3
    assert not np.isnan(np.asarray(batch.goal)).all()


def test_a_dark_view_is_dark_for_the_whole_episode_and_never_the_only_one():
    batch = sample_batch(clips(), replace(PLAIN, view_dropout=0.5), np.random.default_rng(8))
    images = np.asarray(batch.frames.images).reshape(6, -1, 2, 32 * 32 * 3)
    dark = ~images.any(3)
    later = dark[:, 4:]  # the first frames of these episodes are nearly black themselves
    assert np.array_equal(later.all(1), later.any(1))
    assert later.any()
    assert not later.all(2).any()


def test_the_same_generator_state_draws_the_same_batch():
    a, b = (
        sample_batch(clips(), SamplerConfig(batch_episodes=4), np.random.default_rng(9))
        for _ in range(2)
    )
    assert np.array_equal(a.frames.images, b.frames.images)
    assert a.task == b.task


def test_foreign_words_name_another_colour_or_another_task():
    source = join([clips(), replace(clips(task="open"), instruction=np.array(["open it"] * 3))])
    rng = np.random.default_rng(10)
    said = {mismatched_instruction(RED, source, rng) for _ in range(40)}
    assert RED not in said
    assert "open it" in said
    assert {mismatched_instruction(RED, source, rng, colours=False) for _ in range(9)} == {
        "open it"
    }
    assert {colour_of(swap_colour(RED, rng)) for _ in range(40)} == {"blue", "green", "yellow"}
    assert all(f"push the {c} cube" in all_instructions(source) for c in ("green", "yellow"))


def test_a_composition_that_is_held_out_is_not_learned_as_foreign_either():
    source = join([clips(), replace(clips(task="open"), instruction=np.array(["open it"] * 3))])
    rng = np.random.default_rng(11)
    said = {mismatched_instruction(RED, source, rng) for _ in range(40)}
    assert said == {BLUE, "open it"}


def test_compositions_are_told_apart_by_task_and_colour():
    source = join([clips(), clips(task="reach")])
    found = composed(source.task, source.instruction, ("push:blue",))
    assert found.tolist() == [False, True, False] + [False] * 3


def test_picked_episodes_keep_their_frames():
    source = join([clips(), clips(task="reach", ends=(0.25,))])
    picked = source.pick(np.array([3, 0]))
    assert picked.task.tolist() == ["reach", "push"]
    assert picked.progress[picked.offsets[1:] - 1].tolist() == [0.25, 1.0]
    assert source.level.tolist() == [2, 1, 0, 0]


def test_splits_share_no_seed_and_hold_out_what_they_say():
    tasks, sizes = (
        datasets.Tasks(),
        datasets.Sizes(train=10, validation=4, test=5, episodes_per_task=("reach:30",)),
    )
    found = datasets.splits(tasks, sizes)
    assert len({split.seed for split in found.values()}) == len(found)
    assert found["train"].episodes == (30, 10, 10, 10)
    assert set(found["task"].tasks).isdisjoint({*found["train"].tasks, *found["validation"].tasks})
    assert found["camera"].visual_shift == "camera"
    assert found["robot"].robot == "panda"
    assert found["composition"].episodes == (20, 20)
    assert found["composition"].composition
    own = datasets.splits(replace(tasks, composition=("tabletop:held_out",)), sizes)["composition"]
    assert (own.tasks, own.held_out, own.episodes) == (("tabletop",), ("tabletop",), (5,))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: datasets.Tasks(train=("reach",), test=("reach",)), "none twice"),
        (lambda: datasets.Tasks(train=("fly",)), "fly"),
        (lambda: datasets.Sizes(episodes_per_task=("reach",)), "expected a task and a number"),
        (lambda: datasets.Sizes(episodes_per_task=("reach:0",)), "expected a task and a number"),
        (lambda: datasets.Sizes(episodes_per_task=("fly:10",)), "fly"),
        (lambda: datasets.Tasks(composition=("reach:mauve",)), "expected a task and one of red"),
        (lambda: datasets.Tasks(composition=("fly:red",)), "fly"),
        (lambda: datasets.Sizes(train=0), "train: got 0"),
    ],
)
def test_sets_that_make_no_sense_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_labels_of_places_move_with_the_images_and_are_left_out_where_they_are_wrong() -> None:
    def batch(**changes: float) -> np.ndarray:
        config = replace(PLAIN, **changes)
        return sample_batch(clips(), config, np.random.default_rng(3)).referents.numpy()

    assert (batch() == 0.25).all()
    moved = batch(random_shift_px=4)
    assert np.unique(moved).size > 4
    steps = (moved - 0.25) * 16  # 32 pixels are 2 units
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)
    assert np.isnan(batch(mismatched_instruction_prob=1.0)).all()
    dark = np.isnan(batch(view_dropout=0.5)).all((2, 3))
    assert dark.any()
    assert not dark.all(1).any()  # one view always stays


def test_an_instruction_with_two_colours_keeps_them_apart() -> None:
    rng = np.random.default_rng(0)
    text = "put the red cube in front of the green can"
    drawn = {_recolor(text, 1.0, rng) for _ in range(200)}
    assert ((1, 0, 2), "put the green cube in front of the red can") in drawn
    assert all(len(set(COLOUR.findall(told))) == 2 for _, told in drawn)
    for _ in range(20):
        thing, reference = COLOUR.findall(swap_colour(text, rng))
        assert thing != "red"
        assert reference == "green"
