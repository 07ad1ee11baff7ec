"""`vla eval` writes what it measured, where it belongs, and refuses what does not fit."""

import json
from pathlib import Path

import av
import pytest

from sim.backends import ros
from tests.training.small_policy import TASK, small_policy, write_run
from training.commands import eval as eval_cli
from training.commands import report
from vla.memory import none


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder with a checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "bank"
    write_run(small_policy(), folder)
    return folder


def evaluation(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


def test_the_trained_task_is_tested_by_default_and_results_lie_in_the_run(run, capsys):
    words = [str(run), "--episodes", "3", "--seed", "5", "--videos", "2", "--threads", "1"]
    assert eval_cli.main(words) == 0
    found = evaluation(run)
    assert found["task"]["delay_steps"] == list(TASK.delay_steps)
    assert (len(found["success"]), found["seed"], found["step"]) == (3, 5, 7)
    assert found["rate"] == sum(found["success"]) / 3
    assert f"{sum(found['success'])} of 3 episodes" in capsys.readouterr().out
    with av.open(str(run / "episodes.mp4")) as film:
        assert sum(1 for _ in film.decode(video=0)) > max(found["steps"][:2])
    assert json.loads((run / "memory.json").read_text())["episode"] in (0, 1)
    assert (run / "memory.svg").read_text().startswith("<svg")


def test_other_settings_and_tasks_get_folders_of_their_own(run):
    short = ["--episodes", "1", "--videos", "0", "--threads", "1"]
    eval_cli.main([str(run / "checkpoint"), *short, "--task.delay-steps", "16", "16"])
    eval_cli.main([str(run), *short, "--task", "put_back", "--seed", "3", "--task.act-steps", "8"])
    names = sorted(path.name for path in run.glob("eval-*"))
    assert names == ["eval-cue_colour-delay_steps=16_16-1000", "eval-put_back-act_steps=8-3"]
    assert evaluation(run / names[0])["task"]["act_steps"] == TASK.act_steps
    assert not (run / names[0] / "episodes.mp4").exists()
    page = run / "report.html"
    assert report.main([str(run)]) == 0
    assert "put_back" in page.read_text()


def test_a_policy_without_memory_is_tested_without_a_memory_picture(tmp_path):
    write_run(small_policy(none.Config()), tmp_path / "none")
    out = tmp_path / "results"
    words = [str(tmp_path / "none"), "--episodes", "1", "--out", str(out), "--threads", "1"]
    assert eval_cli.main(words) == 0
    assert sorted(path.name for path in out.iterdir()) == ["episodes.mp4", "evaluation.json"]


def test_a_checkpoint_of_another_arm_is_refused(run):
    with pytest.raises(ValueError, match="wrong robot: the checkpoint was trained for so101"):
        eval_cli.main([str(run), "--robot", "panda"])


def test_unknown_tasks_and_empty_folders_are_refused_with_a_hint(run, tmp_path):
    with pytest.raises(ValueError, match="unknown task 'cue_color': did you mean cue_colour"):
        eval_cli.main([str(run), "--task", "cue_color"])
    with pytest.raises(ValueError, match="no checkpoint there"):
        eval_cli.main([str(tmp_path)])
    with pytest.raises(ValueError, match="episodes: got 0, expected at least 1"):
        eval_cli.main([str(run), "--episodes", "0", "--threads", "1"])


def test_where_a_policy_acts_is_chosen_by_name(run):
    args = eval_cli.parse(["--backend.type", "ros", "--backend.command-timeout-s", "2"], TASK)
    assert args.backend == ros.Config(command_timeout_s=2.0)
    # Its figures do not replace those of the run.
    assert eval_cli._results_folder(run, TASK, args) == run / "eval-cue_colour-ros-1000"
    with pytest.raises(ValueError, match="unknown backend 'ross': did you mean ros"):
        eval_cli.parse(["--backend.type", "ross"], TASK)
    with pytest.raises(ValueError, match="pass_at: got 4 with a real-time backend"):
        eval_cli.parse(["--backend.type", "ros", "--pass-at", "4"], TASK)


def test_a_checkpoint_takes_another_number_of_denoising_steps(run, monkeypatch):
    before = (run / "evaluation.json").read_bytes() if (run / "evaluation.json").exists() else b""
    seen = []
    monkeypatch.setattr(
        eval_cli, "_measure_success", lambda policy, *_: seen.append(policy.head.config)
    )
    eval_cli.main([str(run), "--episodes", "1", "--num-inference-steps", "2"])
    assert [config.num_inference_steps for config in seen] == [2]
    assert (run / "eval-cue_colour-steps=2-1000").is_dir()
    after = (run / "evaluation.json").read_bytes() if (run / "evaluation.json").exists() else b""
    assert before == after
    with pytest.raises(ValueError, match="num_inference_steps: got -1"):
        eval_cli.main([str(run), "--num-inference-steps", "-1"])


def test_without_a_checkpoint_usage_is_shown(capsys):
    assert eval_cli.main([]) == 2
    assert eval_cli.main(["--help"]) == 0
    assert "vla eval CHECKPOINT" in capsys.readouterr().out


def test_results_on_a_suite_whose_tasks_must_be_named_lie_in_one_folder(run):
    words = ["--task", "isaac_lab_env/My-v0", "--task.interpreter", "/a/python"]
    folder = eval_cli._results_folder(run, TASK, eval_cli.parse(words, TASK))
    assert folder == run / "eval-isaac_lab_env-name=My-v0-interpreter=_a_python-1000"
