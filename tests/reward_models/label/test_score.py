"""What is scored is what the one scorer says, however it is cut into groups and slices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.reward_models import synthetic_dataset
from reward_models.core import checkpoint
from reward_models.label import source
from reward_models.label.score import Job, encode, encode_example, groups, score_group, score_groups
from tests.fake_episodes import fake_robot
from vla.contracts.types import Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.reader import open_dataset
from vla.data.writer import write_shard


def job(data: Path, reward_model: Path | str, **changes: object) -> Job:
    scorer = checkpoint.load(reward_model)
    read = source.read(data, stride_s=scorer.config.stride_s)
    cameras = source.match_cameras(read.info, scorer.reward_model.cameras, "")
    return replace(Job(scorer=scorer, source=read, cameras=cameras), **changes)


def test_labels_are_those_of_the_scorer_on_the_same_frames(fake_dataset, reward_model) -> None:
    made = job(fake_dataset, reward_model)
    got = score_group(made, range(5))
    info = made.source.info
    steps = [np.unique(np.append(np.arange(0, n, 2), n - 1)) for n in info.lengths]
    row = np.repeat(np.arange(5), [len(s) for s in steps])
    step = np.concatenate(steps)
    images = decode_views(info, info.cameras, FrameChoice(episode=row, step=step), (96, 96))
    frames = Frames(
        images=images,
        image_ok=np.ones((len(row), 2), np.bool_),
        time_s=step / 10.0,
        episode_index=row,
    )
    said = made.scorer.score(frames, info.tasks)
    for e in range(5):
        assert got[e]["frame"].tolist() == steps[e].tolist()
        np.testing.assert_array_equal(got[e]["progress"], said.value[row == e])
        np.testing.assert_array_equal(got[e]["delta"], said.delta[row == e])
        np.testing.assert_array_equal(got[e]["done_prob"], said.done_prob[row == e])
        np.testing.assert_array_equal(got[e]["trend"], said.trend[row == e].argmax(1) - 1)
        np.testing.assert_array_equal(got[e]["confidence"], said.confidence[row == e])


def test_little_memory_makes_small_groups_and_slices_that_say_the_same(
    fake_dataset, reward_model
) -> None:
    much, little = job(fake_dataset, reward_model), job(fake_dataset, reward_model, memory_mb=1)
    assert groups(much) == [(0, 1, 2, 3, 4)]
    # 2 views of 96 x 96 x 3 bytes, three times: 6 frames in a MiB; episodes have 5 to 8
    assert little.frames_in_memory == 6
    assert groups(little) == [(0,), (1,), (2,), (3,), (4,)]
    got = {e: score_group(little, [e])[e] for e in range(5)}
    for e, columns in score_group(much, range(5)).items():
        np.testing.assert_allclose(got[e]["progress"], columns["progress"], atol=1e-5)
    tight = replace(much, memory_mb=1)
    segments = [segment for parts in much.source.segments for segment in parts]
    torch.testing.assert_close(encode(tight, segments)[0], encode(much, segments)[0])


def test_each_frame_is_decoded_once_and_encoded_once(
    fake_dataset, reward_model, monkeypatch
) -> None:
    made = job(fake_dataset, reward_model, memory_mb=1)
    seen: list[tuple[int, int]] = []
    encoded = []
    true_decode, true_embed = decode_views, made.scorer.reward_model.embed

    def decode(info, cameras, choice, hw):
        seen.extend(zip(choice.episode.tolist(), choice.step.tolist(), strict=True))
        return true_decode(info, cameras, choice, hw)

    def embed(frames, task, memory):
        encoded.append(len(frames.episode_index))
        return true_embed(frames, task, memory)

    monkeypatch.setattr("reward_models.label.score.decode_views", decode)
    monkeypatch.setattr(made.scorer.reward_model, "embed", embed)
    assert len(list(score_groups(made, groups(made)))) == 5
    assert len(seen) == len(set(seen)) == made.source.scored_frames.sum() == sum(encoded)


def test_cameras_that_disagree_lower_confidence_and_nothing_else(
    fake_dataset, reward_model
) -> None:
    one, both = (job(fake_dataset, reward_model, agreement=asked) for asked in (False, True))
    before, after = score_group(one, [0])[0], score_group(both, [0])[0]
    np.testing.assert_allclose(after["progress"], before["progress"], atol=1e-6)
    assert (after["confidence"] <= before["confidence"]).all()
    assert (after["confidence"] < before["confidence"]).any()


def test_an_example_tells_only_episodes_of_its_own_task(fake_dataset, reward_model) -> None:
    plain = job(fake_dataset, reward_model)
    task, shown = encode_example(plain, 0, "", None)
    assert task == "push 0"
    np.testing.assert_allclose(shown.progress[[0, -1]], [0.0, 1.0])
    before, after = score_group(plain, range(5)), score_group(
        replace(plain, example=(task, shown)), range(5)
    )  # fmt: skip
    for e in (1, 3):  # "push 1"
        np.testing.assert_allclose(after[e]["progress"], before[e]["progress"], atol=1e-6)
    for e in (2, 4):
        assert not np.allclose(after[e]["progress"], before[e]["progress"], atol=1e-6)


def test_progress_of_an_example_must_be_progress(fake_dataset, reward_model) -> None:
    with pytest.raises(ValueError, match=r"'torque' of episode 0 leaves \[0, 1\] \(7 to 7\)"):
        encode_example(job(fake_dataset, reward_model), 0, "torque", np.full(14, 7.0))


@pytest.mark.parametrize(
    ("views", "asked", "expected"),
    [
        (("front", "wrist"), "", ["front", "wrist"]),
        (("wrist", "front"), "", ["wrist", "front"]),
        (("front", "top"), "", ["front", None]),
        (("left", "right"), "", ["front", "wrist"]),
        (("left", "right"), "wrist,-", ["wrist", None]),
        ((), "", []),
    ],
)
def test_cameras_are_found_for_views(fake_dataset, views, asked, expected) -> None:
    found = source.match_cameras(open_dataset(fake_dataset), views, asked)
    assert [camera and camera.name for camera in found] == expected


def test_a_camera_that_is_not_clear_is_asked_for(fake_dataset) -> None:
    with pytest.raises(ValueError, match="assign them with --cameras"):
        source.match_cameras(open_dataset(fake_dataset), ("top",), "")
    with pytest.raises(ValueError, match="got 1 .front., expected 2"):
        source.match_cameras(open_dataset(fake_dataset), ("a", "b"), "front")


def test_a_dark_view_is_black_and_told_to_be(fake_dataset, reward_model, monkeypatch) -> None:
    made = job(fake_dataset, reward_model)
    made = replace(made, cameras=(made.cameras[0], None))
    seen = []
    embed = made.scorer.reward_model.embed
    monkeypatch.setattr(
        made.scorer.reward_model, "embed", lambda *given: (seen.append(given[0]), embed(*given))[1]
    )
    score_group(made, [0])
    assert seen[0].image_ok[:, 0].all()
    assert not seen[0].image_ok[:, 1].any()
    assert not seen[0].images[:, 1].any()
    assert seen[0].images[:, 0].any()


def test_the_same_motion_at_10_and_at_50_frames_per_second_is_scored_alike(tmp_path) -> None:
    found = {}
    for fps, steps in ((10, 19), (50, 91)):  # 1.8 s
        robot = replace(fake_robot(), control_hz=float(fps))
        write_shard(tmp_path / str(fps), robot, [synthetic_dataset.clip(robot, 0, 0, steps)], {})
        found[fps] = score_group(job(tmp_path / str(fps), "time"), [0])[0]
    np.testing.assert_allclose(found[10]["frame"] / 10, found[50]["frame"] / 50)
    for name in ("progress", "delta", "trend", "done_prob"):
        np.testing.assert_allclose(found[10][name], found[50][name], atol=1e-6)
