"""What `vla view` writes is read back and compared with the data set and the policy's episodes."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reward_models.core import checkpoint as reward_model_checkpoint
from tests.commands.lines import only_sentence
from tests.training.small_policy import SLOTS, TASK, small_policy, write_run
from tests.training.view import rrd
from training.commands import view
from training.evaluation import slot_map
from training.evaluation.evaluate import evaluate
from training.view import rollout
from vla import cli
from vla.data.decode import FrameChoice, decode_views
from vla.data.reader import open_dataset, read_columns
from vla.memory import gru

SEED = 1000


# --- data sets -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(fake_dataset, tmp_path_factory) -> Path:
    """Episodes 1 and 4 of a data set, by the command."""
    out = tmp_path_factory.mktemp("view") / "data.rrd"
    assert cli.main(f"view {fake_dataset} --episodes 1 4 --out {out}".split()) == 0
    assert [path.name for path in out.parent.iterdir()] == ["data.rrd"]  # nothing begun is left
    return out


@pytest.mark.parametrize("number", [1, 4])
def test_states_actions_and_labels_are_those_of_the_data_set(number, shown, fake_dataset) -> None:
    info = open_dataset(fake_dataset)
    columns = read_columns(info)
    mine = slice(info.offsets[number], info.offsets[number + 1])
    expected = np.arange(info.lengths[number]) / info.fps
    wanted = {"state": columns.state[mine], "action": columns.action[mine]}
    wanted |= {
        f"reward_model/{name}": values[mine, None]
        for name, values in columns.scalars.items()
        if name.startswith(("progress", "next."))
    }
    assert len(wanted) > 2
    for name, values in wanted.items():
        at, found = rrd.series(shown, f"/episode_{number}/{name}")
        np.testing.assert_allclose(at, expected, atol=1e-8)
        np.testing.assert_array_equal(found, values)
        steps, _ = rrd.series(shown, f"/episode_{number}/{name}", "step")
        np.testing.assert_array_equal(steps, np.arange(info.lengths[number]))
    names = rrd.still(shown, f"/episode_{number}/state", "SeriesLines:names")
    assert tuple(names) == info.state_names
    (text,) = rrd.still(shown, f"/episode_{number}/task", "TextDocument:text")
    assert text == info.tasks[number]


def test_pictures_are_those_of_the_data_set_but_for_jpeg(shown, fake_dataset) -> None:
    info = open_dataset(fake_dataset)
    steps = np.arange(info.lengths[4])
    choice = FrameChoice(episode=np.full(len(steps), 4), step=steps)
    for camera in info.cameras:
        sides = (camera.height_px, camera.width_px)
        wanted = decode_views(info, (camera,), choice, sides)[:, 0]
        path = f"/episode_4/camera/{camera.name}"
        at, blobs = rrd.rows(shown, path, "EncodedImage:blob")
        np.testing.assert_allclose(at, steps / info.fps, atol=1e-8)
        found = np.stack([picture(blob) for blob in blobs])
        assert found.shape == wanted.shape
        assert np.abs(found.astype(int) - wanted).mean() < 4


def picture(blob) -> np.ndarray:
    """Return the pixels of a picture."""
    data = np.array(blob, np.uint8).ravel().tobytes()
    return np.asarray(Image.open(io.BytesIO(data)))


def test_only_the_episodes_asked_for_are_there_and_the_file_is_sound(shown) -> None:
    found = {name.split("/")[1] for name in rrd.entities(shown) if name.startswith("/episode")}
    assert found == {"episode_1", "episode_4"}
    program = Path(sys.executable).with_name("rerun")
    done = subprocess.run([program, "rrd", "verify", shown], capture_output=True, check=False)
    assert done.returncode == 0
    printed = subprocess.run(
        [program, "rrd", "print", shown], capture_output=True, text=True, check=True
    )
    assert "kind: BlueprintRecording" in printed.stdout or "Blueprint" in printed.stdout


# --- policies --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy():
    return small_policy()


@pytest.fixture(scope="module")
def rows(policy):
    return rollout.play(policy, TASK, episodes=2, seed=SEED)


@pytest.fixture(scope="module")
def rolled(policy, tmp_path_factory) -> Path:
    """Two episodes with a reward model, by the command."""
    place = tmp_path_factory.mktemp("roll")
    write_run(policy, place / "run")
    out = place / "run.rrd"
    line = f"view {place / 'run'} --episodes 2 --seed {SEED} --reward-model time --out {out}"
    assert cli.main(line.split()) == 0
    return out


def test_the_episodes_are_those_of_an_evaluation(policy, rows) -> None:
    found = evaluate(policy, TASK, episodes=2, seed=SEED)
    assert [row.success for row in rows] == found.success
    assert [len(row.decided) for row in rows] == found.steps
    trace = slot_map.record(policy, TASK, seed=SEED, episode=1)
    assert rows[1].at == trace.step_index.tolist()
    assert rows[1].task == trace.instruction
    np.testing.assert_array_equal(np.stack([rows[1].images[t] for t in rows[1].at]), trace.images)


def test_what_was_seen_decided_and_done_is_in_the_recording(policy, rows, rolled) -> None:
    hz = policy.robot.control_hz
    for row in rows:
        at = f"/episode_{row.number}"
        for name in ("decided", "executed"):
            times, values = rrd.series(rolled, f"{at}/action/{name}")
            np.testing.assert_allclose(times, np.arange(len(row.decided)) / hz, atol=1e-8)
            np.testing.assert_array_equal(values, np.stack(getattr(row, name)))
        times, values = rrd.series(rolled, f"{at}/state")
        assert len(times) == len(row.decided) + 1
        np.testing.assert_array_equal(values, np.stack(row.state))
        times, chunks = rrd.tensors(rolled, f"{at}/chunk/values")
        np.testing.assert_allclose(times, np.array(row.at) / hz, atol=1e-8)
        np.testing.assert_array_equal(np.stack(chunks), np.stack(row.chunk))
        _, blobs = rrd.rows(rolled, f"{at}/camera/wrist", "EncodedImage:blob")
        assert len(blobs) == len(row.images)
        assert np.abs(picture(blobs[-1]).astype(int) - row.images[-1][1]).mean() < 4
        (text,) = rrd.still(rolled, f"{at}/task", "TextDocument:text")
        assert text == f"{row.task}\n\n{'success' if row.success else 'failure'}"


def test_the_line_of_a_chunk_goes_up_where_a_target_does(policy, rows, rolled) -> None:
    _, lines = rrd.rows(rolled, "/episode_0/chunk/line", "LineStrips2D:strips")
    robot, chunk = policy.robot, rows[0].chunk[3]
    count = len(chunk)
    for channel, line in enumerate(np.array(lines[3])):
        np.testing.assert_array_equal(line[:, 0], np.arange(count))
        low, high = robot.low[channel], robot.high[channel]
        share = (chunk[:, channel] - low) / (high - low)
        np.testing.assert_allclose(line[:, 1], -count * share / 2, atol=1e-4)


def test_memory_is_what_each_decision_read(policy, rows, rolled) -> None:
    trace = slot_map.record(policy, TASK, seed=SEED, episode=1)
    _, count = rrd.series(rolled, "/episode_1/memory/slot_count")
    assert count.shape == (len(rows[1].at), SLOTS)
    # Before a decision it holds every earlier one: 0, 1, 2, ... however they are merged.
    np.testing.assert_allclose(count.sum(1), np.arange(len(count)))
    np.testing.assert_allclose(np.sort(count, 1), np.sort(trace.count, 1), atol=1e-5)
    _, shares = rrd.tensors(rolled, "/episode_1/memory/share")
    np.testing.assert_allclose(np.stack(shares), trace.share, atol=1e-5)
    _, time_s = rrd.series(rolled, "/episode_1/memory/slot_time")
    assert (np.isnan(time_s) == (count == 0)).all()
    # Weighted by their counts, slots are as old as what was written: at steps 0, 8, 16, ...
    held = np.nansum(time_s[5] * count[5]) / count[5].sum()
    assert held == pytest.approx(np.mean(rows[1].at[:5]) / policy.robot.control_hz)


def test_likeness_is_one_for_a_slot_that_holds_what_is_seen_again(policy, rows, rolled) -> None:
    _, found = rrd.series(rolled, "/episode_0/memory/similarity")
    np.testing.assert_allclose(found, rollout.slot_similarity(rows[0]), equal_nan=True)
    assert np.isnan(found[0]).all()
    assert np.nanmax(np.abs(found)) <= 1 + 1e-6
    twin = rollout.Rollout(number=0, task="", read=rows[0].read[1:2], wrote=rows[0].wrote[:1])
    only = np.flatnonzero(np.asarray(twin.read[0]["slot_count"][0]))
    assert rollout.slot_similarity(twin)[0, only] == pytest.approx(1.0, abs=1e-6)


def test_a_memory_without_slots_is_shown_tensor_by_tensor(tmp_path) -> None:
    policy = small_policy(gru.Config(hidden_size=4))
    (row,) = rollout.play(policy, TASK, episodes=1, seed=SEED)
    assert (row.wrote, len(row.read)) == ([], len(row.at))
    write_run(policy, tmp_path / "run")
    out = tmp_path / "run.rrd"
    line = f"view {tmp_path / 'run'} --episodes 1 --seed {SEED} --out {out}"
    assert cli.main(line.split()) == 0
    _, size = rrd.series(out, "/episode_0/memory/hidden")
    hidden = np.concatenate([state["hidden"] for state in row.read])
    np.testing.assert_allclose(size, np.sqrt((hidden**2).mean(2)), atol=1e-6)
    assert not size[0].any()
    assert not [name for name in rrd.entities(out) if name.endswith("/slot_count")]


def test_the_reward_models_word_knows_only_what_was_seen_until_then(policy, rows, rolled) -> None:
    at, progress = rrd.series(rolled, "/episode_0/reward_model/progress")
    moments = [*rows[0].at, len(rows[0].decided)]
    np.testing.assert_allclose(at, np.array(moments) / policy.robot.control_hz, atol=1e-8)
    for name in ("done_prob", "confidence"):
        assert len(rrd.series(rolled, f"/episode_0/reward_model/{name}")[0]) == len(moments)
    said = rollout.predict(rows[0], reward_model_checkpoint.load("time"), policy.robot)
    np.testing.assert_array_equal(progress[:, 0], said["progress"])


# --- without a file --------------------------------------------------------------------------


def test_without_a_screen_a_file_is_asked_for(monkeypatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(ValueError, match=r"no display for the viewer; add --out FILE.rrd"):
        view.viewer()


def test_without_a_viewer_it_is_said_how_to_install_one(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ValueError, match=r"is installed; pip install 'mneme-vla\[view\]'"):
        view.viewer()


def test_the_viewer_listens_to_this_machine_alone(
    monkeypatch, tmp_path, fake_dataset, capsys
) -> None:
    program = tmp_path / "rerun"
    program.write_text(f'#!/bin/sh\necho "$1 $2" > {tmp_path}/told\ntest -s "$3" || exit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":9")
    assert cli.main(f"view {fake_dataset}".split()) == 0
    assert (tmp_path / "told").read_text() == "--bind 127.0.0.1\n"


def test_a_viewer_that_fails_is_not_taken_for_one_that_was_closed(
    monkeypatch, tmp_path, fake_dataset, capsys
) -> None:
    program = tmp_path / "rerun"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":9")
    assert cli.main(f"view {fake_dataset}".split()) == 1
    said = only_sentence(capsys.readouterr().err)
    assert "the viewer ended with exit code 3" in said
    assert "--out FILE.rrd" in said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("view {data} --episodes 7 --out {new}.rrd", ("got 7", "has 0 to 4")),
        ("view {data} --episodes 0 --out {new}.mp4", ("expected a file *.rrd",)),
        ("view {new} --out {new}.rrd", ("no checkpoint there",)),
        ("view {data} --reward-model x --out {new}.rrd", ("unrecognized options: --reward-model",)),
    ],
)
def test_what_makes_no_sense_is_one_sentence(line, words, fake_dataset, tmp_path, capsys) -> None:
    capsys.readouterr()
    assert cli.main(line.format(data=fake_dataset, new=tmp_path / "new").split()) == 1
    said = only_sentence(capsys.readouterr().err)
    for word in words:
        assert word in said
    assert not list(tmp_path.iterdir())
