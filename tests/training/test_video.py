"""Grid videos show what the policy does, and browsers can play them."""

from pathlib import Path

import av
import numpy as np
import pytest

from tests.training.small_policy import TASK, small_policy
from training.evaluation import video
from training.evaluation.evaluate import evaluate
from training.evaluation.video import FAILURE, RUNNING, SUCCESS, Frame, Grid
from vla.utils.video import encode


@pytest.fixture(scope="module")
def played():
    """Return a policy and the frames of three of its episodes."""
    policy = small_policy()
    return policy, list(video.play(policy, TASK, episodes=3, seed=5))


def test_a_video_shows_the_episodes_that_the_evaluation_counts(played):
    policy, frames = played
    result = evaluate(policy, TASK, episodes=3, seed=5)
    lengths = [sum(not frame.over[e] for frame in frames) for e in range(3)]
    assert lengths == result.steps
    assert frames[-1].success.tolist() == result.success
    assert len(frames) == max(result.steps) + 1


def test_an_episode_that_is_over_keeps_its_last_picture(played):
    _, frames = played
    first = min(range(3), key=lambda e: sum(not frame.over[e] for frame in frames))
    after = [frame.images[first] for frame in frames if frame.over[first]]
    assert len(after) > 8
    assert all(np.array_equal(images, after[0]) for images in after)


def test_every_control_step_is_shown_and_the_arm_moves_after_go(played):
    _, frames = played
    before = [frame.images for frame in frames if not frame.over.any()]
    assert not np.array_equal(before[-1], before[0])
    assert frames[0].images.shape == (3, 2, 96, 96, 3)


def frame(over: list[bool], success: list[bool]) -> Frame:
    images = np.zeros((len(over), 2, 8, 80, 3), np.uint8)
    images[:, 1] = 200
    return Frame(images, np.array(over), np.array(success), ("press it",) * len(over))


def test_frames_turn_green_for_success_and_red_for_failure():
    picture = Grid()(frame([False, True, True], [False, True, False]))
    # Two columns of cells, each two views of 160 px and two borders of 4 px wide.
    cell_w, cell_h = 2 * 160 + 8, 40 + 16 + 8
    assert picture.shape == (2 * cell_h + 24, 2 * cell_w + 24, 3)
    assert tuple(picture[8, 8]) == RUNNING
    assert tuple(picture[8, 16 + cell_w]) == SUCCESS
    assert tuple(picture[16 + cell_h, 8]) == FAILURE


def test_views_stand_side_by_side_at_twice_their_size():
    picture = Grid()(frame([False], [False]))
    top, left = 8 + 4 + 40, 8 + 4
    assert (picture[top : top + 16, left : left + 160] == 0).all()
    assert (picture[top : top + 16, left + 160 : left + 320] == 200).all()


def test_a_long_instruction_leaves_room_for_the_outcome():
    text = "remember the very long instruction " * 9
    plain, marked = (video.caption(text, 384, outcome) for outcome in (0, 1))
    changed = np.flatnonzero((plain != marked).any(axis=(0, 2)))
    assert len(changed)
    background = plain[:, changed[0] :]
    assert (background == background[0, 0]).all(), "the instruction runs into the outcome"


def test_the_file_is_h264_that_browsers_play_and_seek_in(tmp_path: Path):
    path = tmp_path / "film.mp4"
    shades = [np.full((32, 48, 3), 40 * k, np.uint8) for k in range(5)]
    encode(iter(shades), path, 10.0, hold_s=0.3)
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 10
        seen = [round(float(f.to_ndarray(format="rgb24").mean())) for f in file.decode(video=0)]
    # Five pictures, and the last one 0.3 s = 3 times more.
    assert seen == pytest.approx([0, 40, 80, 120, 160, 160, 160, 160], abs=4)
    data = path.read_bytes()  # one index for all, else Chromium does not seek
    assert data.count(b"moov") == data.count(b"mdat") == 1
    assert b"moof" not in data


def test_a_video_that_breaks_off_leaves_the_old_file_alone(tmp_path: Path):
    path = tmp_path / "film.mp4"
    path.write_bytes(b"old")

    def pictures():
        yield np.zeros((32, 32, 3), np.uint8)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        encode(pictures(), path, 10.0)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["film.mp4"]
