"""The scorer: curves by hand, streaming like all at once, and silence where it is not sure."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from reward_models.core.calibration import Calibration
from reward_models.core.checkpoint import load
from reward_models.core.curves import ScorerConfig, share_of_work
from reward_models.core.scorer import Scorer
from tests.fake_reward_models import BrightnessRewardModel, frames_of, take
from vla.contracts.protocols import RewardModel
from vla.contracts.types import Example, Frames, Progress

SURE = Calibration(confidence=(9.0, 0.0, 0.0, 0.0))
NAMES = ("value", "delta", "trend", "done_prob", "match", "confidence")


def scorer(config: ScorerConfig | None = None, calibration: Calibration = SURE) -> Scorer:
    return Scorer(BrightnessRewardModel(), config, calibration)


def said(progress: Progress) -> list[np.ndarray]:
    return [getattr(progress, name) for name in NAMES]


def streamed(model: Scorer, lanes: list[Frames], example: Example | None = None) -> list[Progress]:
    """Play one stream per lane side by side; a lane that ended starts over, as environments do.

    Returns:
        What was said of each lane's frames the first time.
    """
    task = ("push",) * len(lanes)
    state = model.start(len(lanes), example, "push")
    heard: list[list[list[np.ndarray]]] = [[] for _ in lanes]
    for t in range(max(len(lane.episode_index) for lane in lanes)):
        parts = [take(lane, [t % len(lane.episode_index)]) for lane in lanes]
        now = Frames(
            images=np.concatenate([p.images for p in parts]),
            image_ok=np.concatenate([p.image_ok for p in parts]),
            time_s=np.concatenate([p.time_s for p in parts]),
            episode_index=np.arange(len(lanes)),
        )
        progress, state = model.step(state, now, task)
        for b, lane in enumerate(lanes):
            if t < len(lane.episode_index):
                heard[b].append([part[b] for part in said(progress)])
    return [
        Progress(**{n: np.stack([h[i] for h in rows]) for i, n in enumerate(NAMES)})
        for rows in heard
    ]


def random_lane(rng: np.random.Generator, length: int) -> Frames:
    """Return one episode of random brightness at irregular times."""
    times = np.append(0.0, np.cumsum(rng.uniform(0.05, 0.9, length - 1)))
    return frames_of([rng.random(length).tolist()], [times.tolist()])


def assert_same(a: Progress, b: Progress) -> None:
    for name, x, y in zip(NAMES, said(a), said(b), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5, err_msg=name)


def test_it_is_a_reward_model() -> None:
    assert isinstance(scorer(), RewardModel)


# --- curves by hand ------------------------------------------------------------------------------


def test_curves_of_a_short_episode_by_hand() -> None:
    # 0.4 s apart; lags 0.4 and 0.8 s, horizon 0.8 s; brightness 0.2, 0.6, 0.4
    config = ScorerConfig(horizon_s=0.8, lags_s=(0.4, 0.8), absolute_share=0.5)
    frames = frames_of([[0.2, 0.6, 0.4]], [[0.0, 0.4, 0.8]])
    curves = scorer(config).curves(frames, ("push",))

    def change(a: tuple[float, float], b: tuple[float, float]) -> float:
        d = np.tanh(0.8 * (b[0] - a[0]) + 0.4 * (b[1] - a[1]))
        # Trend logits are -d, 0.1 d^2 and d; of the change counts what is not stagnation.
        odds = np.exp([-d, 0.1 * d**2, d])
        return float(d * (1 - odds[1] / odds.sum()))

    first, second, third = (0.2, 0.2), (0.6, 0.6), (0.4, 0.6)  # level now, brightest so far
    up, down, whole = change(first, second), change(second, third), change(first, third)
    # second: lag 0.4 is the first, lag 0.8 too (nothing older), so is the forward curve
    value_1 = 0.5 * 0.6 + 0.5 * (0.2 + up)
    # third: lag 0.4 is the second; lag 0.8 and forward are the first
    from_second, from_first = value_1 + down, 0.2 + whole
    value_2 = 0.5 * 0.4 + 0.5 * (from_second + 2 * from_first) / 3
    np.testing.assert_allclose(curves.value, [0.2, value_1, value_2], atol=1e-6)
    np.testing.assert_allclose(curves.absolute, [0.2, 0.6, 0.4], atol=1e-6)
    np.testing.assert_allclose(curves.forward, [0.2, 0.2 + up, from_first], atol=1e-6)
    incremental = [0.2, 0.2 + up, (from_second + from_first) / 2]
    np.testing.assert_allclose(curves.incremental, incremental, atol=1e-6)
    np.testing.assert_allclose(curves.difference, [0.0, up, whole], atol=1e-6)
    np.testing.assert_allclose(curves.before, [0.2, 0.2, 0.2], atol=1e-6)
    apart = np.std([0.4, from_first, incremental[2]])
    np.testing.assert_allclose(curves.disagreement[[0, 2]], [0.0, apart], atol=1e-6)


def test_the_first_moment_is_judged_alone() -> None:
    curves = scorer().curves(frames_of([[0.4, 0.4]]), ("push",))
    assert curves.value[0] == pytest.approx(0.4)
    assert curves.difference[0] == 0.0


def test_the_truth_passes_through_unchanged_and_so_does_time() -> None:
    truth = np.array([[0.0, 0], [0.5, 0], [0.2, 0], [1.0, 1]], np.float32)
    frames = replace(frames_of([[0.0] * 4]), truth=truth, end_s=np.full(4, 0.6))
    np.testing.assert_allclose(
        load("oracle").score(frames, ("push",)).value, truth[:, 0], atol=1e-6
    )
    said_done = load("oracle").score(frames, ("push",)).done_prob
    np.testing.assert_array_equal(said_done > 0.5, truth[:, 1] > 0)
    clock = load("time").score(frames, ("push",)).value
    np.testing.assert_allclose(clock, [0, 1 / 3, 2 / 3, 1], atol=1e-6)


def test_frames_out_of_order_are_refused() -> None:
    frames = frames_of([[0.1, 0.2]])
    for wrong in (
        replace(frames, time_s=np.array([0.2, 0.0])),
        replace(frames, time_s=np.zeros(2)),
        replace(frames, episode_index=np.array([1, 0])),
    ):
        with pytest.raises(ValueError, match="in order of episode and, within it, of time"):
            scorer().score(wrong, ("push", "push"))


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lags_s: got \(\), expected one or more above 0"):
        ScorerConfig(lags_s=())
    for settings, words in (
        ({"chunk": 0}, "chunk: got 0, expected at least 1"),
        ({"stride_s": 0.0}, "stride_s: got 0.0, expected more than 0"),
        ({"horizon_s": float("nan")}, "horizon_s: got nan, expected more than 0"),
        ({"absolute_share": 1.5}, "absolute_share: got 1.5, expected at most 1"),
    ):
        with pytest.raises(ValueError, match=words):
            ScorerConfig(**settings)


# --- all at once, in chunks, and as a stream -----------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_is_scored_like_its_episode_at_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = scorer()
    lanes = [random_lane(rng, length) for length in (30, 7, 1, 19)]
    for lane, heard in zip(lanes, streamed(model, lanes), strict=True):
        assert_same(heard, model.score(lane, ("push",)))


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_the_size_of_chunks_does_not_matter(chunk: int) -> None:
    rng = np.random.default_rng(0)
    lanes = [rng.random(n).tolist() for n in (5, 1, 11, 2)]
    frames, task = frames_of(lanes), ("push",) * 4
    at_once = scorer().score(frames, task)
    assert_same(scorer(ScorerConfig(chunk=chunk)).score(frames, task), at_once)


def test_no_more_than_a_chunk_is_encoded_at_once_and_every_frame_once() -> None:
    model = scorer(ScorerConfig(chunk=4))
    model.score(frames_of([[0.1] * 7, [0.2] * 3]), ("a", "b"))
    assert model.reward_model.embedded == [4, 4, 2]


def test_episodes_are_scored_alone() -> None:
    rng = np.random.default_rng(1)
    lanes = [rng.random(n).tolist() for n in (6, 9)]
    together = scorer().score(frames_of(lanes), ("push", "push"))
    alone = scorer().score(frames_of(lanes[1:]), ("push",))
    np.testing.assert_allclose(together.value[6:], alone.value, atol=1e-6)


def test_nothing_said_depends_on_later_frames() -> None:
    lane = random_lane(np.random.default_rng(2), 20)
    whole, half = scorer().score(lane, ("push",)), scorer().score(take(lane, range(10)), ("push",))
    for a, b in zip(said(whole), said(half), strict=True):
        np.testing.assert_allclose(a[:10], b, atol=1e-6)


def test_a_second_episode_in_a_stream_is_scored_like_the_first() -> None:
    model = scorer()
    short, long = (random_lane(np.random.default_rng(s), n) for s, n in ((3, 6), (4, 13)))
    # The short lane starts over at steps 6 and 12, while the other goes on.
    state = model.start(2)
    again = []
    for t in range(12):
        parts = [take(short, [t % 6]), take(long, [t])]
        now = Frames(
            images=np.concatenate([p.images for p in parts]), image_ok=np.ones((2, 1), bool),
            time_s=np.concatenate([p.time_s for p in parts]), episode_index=np.arange(2),
        )  # fmt: skip
        progress, state = model.step(state, now, ("push", "push"))
        again.append(progress.value[0])
    np.testing.assert_allclose(again[:6], again[6:], atol=1e-6)


def test_a_stream_joined_late_begins_where_it_is_joined() -> None:
    model = scorer()
    late = frames_of([[0.6, 0.9, 0.2]], [[3.0, 3.5, 4.2]])
    assert_same(streamed(model, [late])[0], model.score(late, ("push",)))


def test_a_stream_keeps_no_more_than_it_will_look_back_on() -> None:
    # 0.2 s apart and a longest lag of 2 s: the newest 2 s old, and the ten frames since
    model = scorer()
    lane = frames_of([[0.5] * 60])
    state = model.start(1)
    for t in range(60):
        _, state = model.step(
            state, replace(take(lane, [t]), episode_index=np.zeros(1, np.int64)), ("push",)
        )
    assert (
        state.embeddings.shape[1] == state.past.time_s.shape[1] == state.past.fused.shape[1] <= 11
    )


def test_a_step_does_not_change_the_state_it_was_given() -> None:
    model = scorer()
    lane = frames_of([[0.1, 0.9, 0.4]])
    _, state = model.step(model.start(1), take(lane, [0]), ("push",))
    first, _ = model.step(state, take(lane, [1]), ("push",))
    again, _ = model.step(state, take(lane, [1]), ("push",))
    assert_same(first, again)


def test_a_reference_episode_reaches_the_reward_model_in_both_ways_of_scoring() -> None:
    model = scorer()
    example = Example(frames=frames_of([[0.0, 1.0]]), progress=np.array([0.2, 0.4], np.float32))
    lane = random_lane(np.random.default_rng(5), 9)
    with_it = model.score(lane, ("push",), example)
    assert np.abs(with_it.value - model.score(lane, ("push",)).value).max() > 0.01
    assert_same(streamed(model, [lane], example)[0], with_it)


# --- labels --------------------------------------------------------------------------------------


def test_delta_is_a_share_of_what_was_left_or_of_what_was_done() -> None:
    before, after = np.array([0.2, 0.6, 0.5, 0.0]), np.array([0.6, 0.2, 0.5, 1.0])
    share = share_of_work(before, after, after - before)
    # 0.4 of 0.8 left; 0.4 of 0.6 done; nothing; all
    np.testing.assert_allclose(share, [0.5, -2 / 3, 0.0, 1.0])


def test_delta_leads_from_before_to_after_and_the_order_swapped_leads_back() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.uniform(0.1, 0.9, (2, 100))
    share = share_of_work(before, after, after - before)
    there = before + np.where(share >= 0, 1 - before, before) * share
    np.testing.assert_allclose(there, after)
    back = share_of_work(after, before, before - after)
    np.testing.assert_allclose(after + np.where(back >= 0, 1 - after, after) * back, before)


def test_near_the_end_a_small_change_is_no_large_share() -> None:
    # 0.01 of 0.01 left would be all of it; no less than 0.05 counts as left
    assert share_of_work(np.array([0.99]), np.array([1.0]), np.array([0.01])) == pytest.approx(0.2)


def test_where_confidence_is_low_the_scorer_is_silent() -> None:
    # confidence = sigmoid(9 - 100 * spread), spread a tenth of the brightest so far: 1 / (1 + e^-4)
    # at 0.5 and 1 / (1 + e) at 1.0, which 0.3 is above
    unsure = Calibration(confidence=(9.0, -100.0, 0.0, 0.0))
    frames = frames_of([[128 / 255, 1.0, 128 / 255]])
    progress = scorer(ScorerConfig(abstain_below=0.3), unsure).score(frames, ("push",))
    expected = 1 / (1 + np.exp([-9 + 1280 / 255, 1.0, 1.0]))
    np.testing.assert_allclose(progress.confidence, expected, rtol=1e-4)
    assert np.isnan(progress.value).tolist() == [False, True, True]
    assert np.isnan(progress.delta).tolist() == [False, True, True]
    for part in (progress.trend, progress.done_prob, progress.match, progress.confidence):
        assert np.isfinite(part).all()


def test_silence_does_not_change_what_is_said_later() -> None:
    frames = frames_of([[0.2, 0.9, 0.3, 0.7]])
    spoken = scorer().curves(frames, ("push",))
    silent = scorer(ScorerConfig(abstain_below=1.1)).curves(frames, ("push",))
    np.testing.assert_array_equal(spoken.value, silent.value)


def test_calibration_moves_the_probability_of_being_done() -> None:
    frames = frames_of([[204 / 255]])  # a logit of 20 * (0.8 - 0.8) = 0
    plain = scorer().score(frames, ("push",))
    moved = scorer(calibration=replace(SURE, done=(-1.0, 2.0))).score(frames, ("push",))
    assert plain.done_prob[0] == pytest.approx(0.5, abs=1e-5)
    assert moved.done_prob[0] == pytest.approx(1 / (1 + np.e), abs=1e-5)


def test_trend_is_a_distribution() -> None:
    trend = scorer().score(frames_of([[0.1, 0.5, 0.9]]), ("push",)).trend
    np.testing.assert_allclose(trend.sum(1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("fps", [5, 50])
def test_the_horizon_is_in_seconds_at_every_frame_rate(fps: int) -> None:
    # progress t / 4 s: over a horizon of 1 s the difference is d = tanh(0.8 / 4 + 0.4 / 4), of
    # which counts what is not stagnation
    d = np.tanh(0.3)
    counted = d * (1 - np.exp(0.1 * d**2) / np.exp([-d, 0.1 * d**2, d]).sum())
    times = np.arange(4 * fps) / fps
    frames = frames_of([(times / 4).tolist()], [times.tolist()])
    curves = scorer().curves(frames, ("push",))
    np.testing.assert_allclose(curves.difference[fps:], counted, atol=0.01)
    assert isinstance(scorer().embed(frames, ("push",)), torch.Tensor)
