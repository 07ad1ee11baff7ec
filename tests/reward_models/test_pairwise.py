"""The pairwise reward model: exact symmetries, a memory that lasts, and losses by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from reward_models.core import checkpoint
from reward_models.core.interface import Reference
from reward_models.core.scorer import Scorer
from reward_models.losses import pairwise as pairs
from reward_models.models import pairwise
from reward_models.models.pairwise import around_median, update_memory
from vla.backbones import tiny
from vla.contracts.types import Frames
from vla.nn.text import train_tokenizer

INF = float("inf")


@pytest.fixture
def reward_model():
    config = pairwise.Config(backbone=tiny.Config(image_px=32), memory_width=8, width=16, bins=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251
        return config.build(train_tokenizer(["push it", "open it"])).eval()


def frames(rows, times, seed=0):
    rng = np.random.default_rng(seed)
    return Frames(
        images=rng.integers(0, 255, (len(rows), 2, 32, 32, 3), np.uint8),
        image_ok=np.ones((len(rows), 2), np.bool_), time_s=np.array(times, np.float64),
        episode_index=np.array(rows, np.int64),
    )  # fmt: skip


@pytest.fixture
def embedded(reward_model):
    with torch.no_grad():
        found, _ = reward_model.embed(
            frames([0] * 6, range(6)), ("push it",), reward_model.initial_memory(1)
        )
    return found


def test_the_same_frame_twice_is_no_change_at_all(reward_model, embedded):
    change = reward_model.compare(embedded, embedded, embedded[:1].expand(6, -1), None)
    assert (change.difference == 0).all()
    assert torch.equal(change.trend[:, 0], change.trend[:, 2])


def test_swapping_a_pair_mirrors_everything(reward_model, embedded):
    a, b, first = embedded[:3], embedded[3:], embedded[:1].expand(3, -1)
    forth, back = reward_model.compare(a, b, first, None), reward_model.compare(b, a, first, None)
    assert torch.equal(forth.difference, -back.difference)
    assert torch.equal(forth.trend, back.trend.flip(1))
    assert forth.difference.abs().min() > 0


def test_values_lie_between_0_and_1_and_their_spread_is_that_of_the_bins(reward_model, embedded):
    moment = reward_model.score(embedded, embedded[:1].expand(6, -1), None)
    assert ((moment.value > 0) & (moment.value < 1)).all()
    # Nothing on [0, 1] varies by more than half.
    assert ((moment.spread > 0) & (moment.spread <= 0.5)).all()


def test_progress_is_the_median_to_a_fraction_of_a_bin():
    levels = torch.linspace(0, 1, 11)
    one = pairs.two_hot(torch.tensor([0.0, 0.42, 0.97, 1.0]), levels)
    assert torch.allclose(around_median(one) @ levels, torch.tensor([0.0, 0.42, 0.97, 1.0]))
    # Nothing is done, or all of it: never half of it.
    torn = 0.6 * one[:1] + 0.4 * one[3:]
    assert (around_median(torn) @ levels).item() == 0.0


def test_memory_is_what_is_more_than_at_the_beginning_of_the_episode():
    kept = torch.tensor([[1.0], [5.0], [2.0], [3.0]])
    row = torch.tensor([0, 1, 0, 1])
    memory = torch.tensor([[9.0, 8.0], [4.0, 3.0]])
    seen, after = update_memory(kept, row, memory, torch.tensor([True, False, False, False]))
    # Row 0 starts afresh: 1, then 2. Row 1 began with 3 and goes on from 4: 5, then still 5.
    assert seen.flatten().tolist() == [0.0, 2.0, 1.0, 2.0]
    assert after.tolist() == [[2.0, 1.0], [5.0, 3.0]]


def test_a_row_without_frames_keeps_its_memory_and_one_joined_late_begins_there():
    empty = torch.full((1, 2), -torch.inf)
    seen, after = update_memory(
        torch.tensor([[1.0]]), torch.tensor([1]), torch.cat([torch.tensor([[7.0, 6.0]]), empty]),
        torch.tensor([False]),
    )  # fmt: skip
    assert after.tolist() == [[7.0, 6.0], [1.0, 1.0]]
    assert seen.item() == 0.0


def test_what_was_seen_before_changes_how_the_present_looks(reward_model):
    now = frames([0, 0], [0.0, 0.2], seed=1)
    other = replace(now, images=now.images.copy())
    other.images[0] = 255 - other.images[0]
    a, b = (
        reward_model.embed(f, ("push it",), reward_model.initial_memory(1))[0] for f in (now, other)
    )
    assert not torch.allclose(a[1], b[1])


def test_one_reference_for_all_says_the_same_as_one_for_each(reward_model, embedded):
    keys, progress = embedded[:3], torch.tensor([0.0, 0.5, 1.0])
    first = embedded[:1].expand(2, -1)
    every = reward_model.features(embedded[3:5], first, Reference(keys, progress))
    each = reward_model.features(
        embedded[3:5], first, Reference(keys[None].expand(2, -1, -1), progress[None].expand(2, -1))
    )
    none = reward_model.features(embedded[3:5], first, None)
    masked = reward_model.features(
        embedded[3:5], first, Reference(keys, torch.full((3,), torch.nan))
    )
    assert torch.allclose(every, each, atol=1e-6)
    assert torch.allclose(none, masked, atol=1e-6)
    assert not torch.allclose(every, none)


def test_a_stream_gives_the_numbers_of_the_whole(reward_model):
    scorer, task = Scorer(reward_model), ("push it", "open it")
    whole = frames([0] * 12 + [1] * 9, [0.2 * t for t in range(12)] + [0.2 * t for t in range(9)])
    scored = scorer.score(whole, task)
    state = scorer.start(2)
    for t in range(9):
        now = [t, 12 + t]
        part = Frames(
            images=whole.images[now], image_ok=whole.image_ok[now], time_s=whole.time_s[now],
            episode_index=np.arange(2),
        )  # fmt: skip
        said, state = scorer.step(state, part, task)
        for name in ("value", "delta", "trend", "done_prob", "confidence"):
            np.testing.assert_allclose(
                getattr(said, name), getattr(scored, name)[now], atol=1e-5, err_msg=name
            )


def test_a_saved_reward_model_says_the_same(reward_model, tmp_path):
    scorer = Scorer(reward_model)
    checkpoint.save(
        scorer, reward_model.config, reward_model.text.tokenizer, tmp_path / "reward_model",
        weights=reward_model.state_dict(), provenance={"step": 3},
    )  # fmt: skip
    again = checkpoint.load(tmp_path / "reward_model")
    seen = frames([0] * 5, [0.2 * t for t in range(5)])
    a, b = (s.score(seen, ("push it",)) for s in (scorer, again))
    assert np.array_equal(a.value, b.value, equal_nan=True)
    assert checkpoint.describe(tmp_path / "reward_model").provenance == {"step": 3}
    (tmp_path / "reward_model" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="damaged weights"):
        checkpoint.load(tmp_path / "reward_model")


def test_two_hot_targets_have_the_mean_they_stand_for():
    levels = torch.linspace(0, 1, 5)
    target = pairs.two_hot(torch.tensor([0.0, 0.3, 1.0]), levels)
    assert target[1].tolist() == pytest.approx([0.0, 0.8, 0.2, 0.0, 0.0], abs=1e-6)
    assert (target @ levels).tolist() == pytest.approx([0.0, 0.3, 1.0])


def test_trends_leave_out_what_is_too_close_to_tell():
    change = torch.tensor([-0.2, -0.03, 0.0, 0.01, 0.04, 0.06])
    assert pairs.trend_of(change).tolist() == [0, -1, 1, 1, -1, 2]


def test_the_focal_loss_is_cross_entropy_at_even_odds_and_less_where_it_is_easy():
    even = pairs.focal(torch.tensor([0.0]), torch.tensor([1.0]))
    assert even.item() == pytest.approx(np.log(2))
    # p = 0.9: 0.1^2 * -log(0.9) * 4
    easy = pairs.focal(torch.logit(torch.tensor([0.9])), torch.tensor([1.0]))
    assert easy.item() == pytest.approx(4 * 0.01 * -np.log(0.9), rel=1e-4)


def test_preference_is_bradley_terry_of_the_ends():
    ends = torch.tensor([0.8, 0.3], requires_grad=True)
    found = pairs.preference(ends, torch.tensor([[0, 1]]))
    assert found.item() == pytest.approx(np.log1p(np.exp(-8.0 * 0.5)))
    assert pairs.preference(ends, torch.zeros(0, 2, dtype=torch.long)).item() == 0.0


def test_memory_in_training_reaches_to_the_history_of_each_query():
    kept = torch.tensor([[1.0], [4.0], [2.0], [3.0], [0.0]])
    row = torch.tensor([0, 0, 1, 1, 1])
    found = pairs.memory_at(kept, row, torch.tensor([0, 1, 2, 4]))
    assert found.flatten().tolist() == [0.0, 3.0, 0.0, 1.0]


def test_only_frames_from_which_a_goal_can_be_told_teach_it(reward_model):
    seen = frames([0, 0, 0, 1, 1, 1], [0.0, 0.2, 0.4] * 2)
    query = torch.tensor([0, 1, 2, 3, 4, 5])
    batch = pairs.RewardModelBatch(
        frames=replace(
            seen, images=torch.from_numpy(seen.images),
            episode_index=torch.from_numpy(seen.episode_index),
        ),
        task=("push it", "open it"), loss_index=query, memory_index=query,
        first=torch.tensor([0, 0, 0, 3, 3, 3]), last=torch.tensor([2, 5]),
        progress=torch.zeros(6), success=torch.zeros(6), matches=torch.ones(2),
        goal=torch.tensor([[1.0, -1.0], [torch.nan, torch.nan]]),
        referents=torch.full((6, 2, 2, 2), torch.nan),
        goal_weight=torch.tensor([0.0, 1.0, 0.5, 1.0, 1.0, 1.0]),
        pairs=torch.zeros(0, 2, dtype=torch.long), reference=torch.tensor([-1, -1]),
        preferences=torch.zeros(0, 2, dtype=torch.long),
    )  # fmt: skip
    with torch.no_grad():
        embedded, _ = reward_model.embed(seen, batch.task, reward_model.initial_memory(2))
    # Frame 0 lies before the work, episode 1 has no known goal: frames 1 and 2 are left.
    losses = pairs.goal_losses(reward_model, batch, pairs.Losses(goal=1.0))
    assert losses.keys() == {"goal"}  # this backbone has no queries
    found = losses["goal"]
    expected = pairs.goal_error(
        reward_model.goal(embedded[1:3]), batch.goal[:1].expand(2, -1), torch.tensor([1.0, 0.5])
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    assert found.item() > 0


def test_goals_are_weighed_by_the_work_left_and_unknown_ones_left_out():
    said = torch.tensor([[0.0, 9.0], [0.5, 9.0], [7.0, 9.0]], requires_grad=True)
    goal = torch.tensor([[1.0], [1.0], [torch.nan]])
    found = pairs.goal_error(said, goal, torch.tensor([1.0, 0.5, 1.0]))
    # Huber: 0.5 * 1^2 and 0.5 * 0.5^2, weights 1 and 0.5.
    assert found.item() == pytest.approx((0.5 + 0.5 * 0.125) / 1.5)
    found.backward()
    assert said.grad[2].tolist() == [0.0, 0.0]
    assert pairs.goal_error(said, torch.full((3, 1), torch.nan), torch.ones(3)).item() == 0.0


def test_a_reward_model_without_words_or_cameras_is_refused():
    with pytest.raises(ValueError, match="needs a camera and a tokenizer"):
        pairwise.Config().build()


def test_queries_of_the_backbone_learn_to_look_at_what_the_instruction_names():
    config = pairwise.Config(
        cameras=("front", "wrist"), backbone=tiny.Config(image_px=32, blocks=1, queries=2)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251
        model = config.build(train_tokenizer(["push it", "open it"]))
    seen = frames([0, 0, 1, 1], [0.0, 0.2] * 2)
    query = torch.arange(4)
    batch = pairs.RewardModelBatch(
        frames=replace(
            seen, images=torch.from_numpy(seen.images),
            episode_index=torch.from_numpy(seen.episode_index),
        ),
        task=("push it", "open it"), loss_index=query, memory_index=query,
        first=torch.tensor([0, 0, 2, 2]), last=torch.tensor([1, 3]),
        progress=torch.zeros(4), success=torch.zeros(4), matches=torch.ones(2),
        goal=torch.zeros(2, 8), referents=torch.zeros(4, 2, 2, 2), goal_weight=torch.ones(4),
        pairs=torch.tensor([[0, 1]]), reference=torch.tensor([-1, -1]),
        preferences=torch.zeros(0, 2, dtype=torch.long),
    )  # fmt: skip
    weights = pairs.Losses(grounding=0.5)
    for losses in (pairs.loss(model, batch, weights), pairs.goal_losses(model, batch, weights)):
        model.zero_grad()
        losses["grounding"].backward()
        assert losses["grounding"].item() > 0
        assert sum(float(p.grad.abs().sum()) for p in model.backbone.attend.parameters()) > 0
    unknown = replace(batch, referents=torch.full((4, 2, 2, 2), torch.nan))
    assert pairs.loss(model, unknown, weights)["grounding"].item() == 0.0
