"""The report is one offline page, says what figures mean, and bears with unfinished runs."""

import json
import re
from pathlib import Path

import pytest

from training.commands import report
from training.report import page as report_page

TASK = {"type": "cue_colour", "choices": 4, "delay_steps": [16, 128]}


def write_run(folder: Path, wins: int | None = None, count: int = 40, **config) -> Path:
    """Write a run folder with figures made up."""
    folder.mkdir(parents=True)
    policy = {"type": "vla", "memory": {"type": "bank", "slots": 16}}
    whole = {"task": TASK, "policy": policy, "steps": 60, "seed": 0, **config}
    (folder / "config.json").write_text(json.dumps(whole))
    if wins is not None:
        low, high = report_page.statistics.wilson(wins, count)
        found = {
            "task": TASK, "seed": 9, "success": [k < wins for k in range(count)],
            "rate": wins / count, "interval": [low, high], "steps": [30] * count,
        }  # fmt: skip
        (folder / "evaluation.json").write_text(json.dumps(found))
    return folder


def page_of(*folders: Path) -> str:
    return report_page.page(report.read_runs(folders))


def test_the_page_says_how_success_compares_with_chance(tmp_path):
    page = page_of(
        write_run(tmp_path / "good", 38),
        write_run(tmp_path / "guess", 10),
        write_run(tmp_path / "bad", 0),
    )
    # Wilson 95 %: 38 of 40 is 83.5 to 98.6 %, 10 of 40 is 14.2 to 40.2 %, 0 of 40 to 8.8 %.
    assert (
        "38 of 40 episodes: 95.0%, 95 % interval 83.5% to 98.6%; this is above chance (25.0%)"
        in page
    )
    assert "10 of 40 episodes: 25.0%, 95 % interval 14.2% to 40.2%; this is compatible with" in page
    assert "0 of 40 episodes: 0.0%, 95 % interval 0.0% to 8.8%; this is below chance" in page


def test_tasks_without_choices_and_with_a_visible_cue_have_no_chance_level():
    assert report_page.chance({"type": "reach"}) is None
    assert report_page.chance({"type": "cue_colour", "choices": 4, "delay_steps": [0, 0]}) is None
    assert report_page.chance(TASK) == 0.25
    # 3 of 4 colours in order: 4 * 3 * 2 orders.
    assert report_page.chance({"type": "sequence", "choices": 4, "length": 3}) == 1 / 24


def test_a_run_that_has_only_begun_is_shown(tmp_path):
    page = page_of(write_run(tmp_path / "fresh"))
    assert "fresh has not been evaluated yet" in page
    assert "0 of 60, unfinished" in page
    assert "Curves" not in page


def test_time_updates_and_parameters_come_from_the_run(tmp_path):
    folder = write_run(tmp_path / "run", 1, 2)
    rows = [{"step": 20 * k, "loss": 1 / k, "seconds": 70.0} for k in (1, 2, 3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"step": 80, "lo')
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "policy.json").write_text(json.dumps({"parameters": 1234567}))
    page = page_of(folder)
    # 3 x 70 s = 3.5 min; the line that a kill cut short does not count.
    for cell in ("1,234,567", ">60<", "3.5 min", "50.0%"):
        assert cell in page
    assert 'aria-label="loss against updates"' in page


def test_runs_are_compared_by_the_settings_in_which_they_differ(tmp_path):
    bank = write_run(tmp_path / "bank")
    none = write_run(tmp_path / "none", policy={"type": "vla", "memory": {"type": "none"}})
    page = page_of(bank, none)
    assert "<td>policy.memory.type</td><td>bank</td><td>none</td>" in page
    assert "<td>policy.memory.slots</td><td>16</td><td>–</td>" in page
    assert "<td>seed</td>" not in page


def test_runs_of_the_same_name_are_told_apart_by_their_paths(tmp_path):
    one, two = write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run")
    assert [run.name for run in report.read_runs([one, two])] == [str(one), str(two)]


def test_the_page_loads_and_runs_nothing(tmp_path):
    folder = write_run(tmp_path / "run", 3, wandb_project='<script src="http://x">')
    (folder / "episodes.mp4").write_bytes(b"film")
    (folder / "memory.svg").write_text("<svg><script>alert(1)</script></svg>")
    memory = {
        "episode": 3, "success": True, "instruction": "<b>press</b>", "slots": 16,
        "cue_share_at_go": 0.5,
    }  # fmt: skip
    (folder / "memory.json").write_text(json.dumps(memory))
    page = page_of(folder)
    assert "<script" not in page
    assert "&lt;b&gt;press" in page
    assert "in a slot is 50%." in page
    sources = re.findall(r'(?:src|href)="([^"#][^"]{0,20})', page)
    assert len(sources) == 2
    assert all(source.startswith("data:") for source in sources)
    assert "default-src 'none'" in page


def test_a_large_video_is_named_and_not_embedded(tmp_path, monkeypatch):
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    for folder in folders:
        (folder / "episodes.mp4").write_bytes(b"x" * 60)
    monkeypatch.setattr(report_page, "MAX_VIDEOS_BYTES", 100)
    # Room for one of two videos of 60 bytes.
    page = page_of(*folders)
    assert page.count("<video") == 1
    assert "is too large for this page" in page


def test_a_folder_that_is_no_run_is_refused_with_a_hint(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"no run there \(no config.json\); give the folder"):
            report.main([str(folder)])


def test_a_damaged_file_is_named(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "evaluation.json").write_text('{"task": ')
    with pytest.raises(ValueError, match=r"evaluation.json: damaged, not JSON"):
        report.main([str(folder)])
    (folder / "evaluation.json").write_text("[]")
    with pytest.raises(
        ValueError, match=r"evaluation.json: damaged, expected a JSON object with task"
    ):
        report.main([str(folder)])


def test_the_page_lies_in_the_first_run_or_where_it_is_told(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    assert report.main([str(folder)]) == 0
    assert report.main([str(folder), "--out", str(tmp_path / "pages" / "one.html")]) == 0
    assert (folder / "report.html").read_text() == (tmp_path / "pages" / "one.html").read_text()
    assert "one.html" in capsys.readouterr().out


def test_the_page_of_online_rl_shows_predicted_and_true_success(tmp_path):
    place = write_run(tmp_path / "lifted", 30)
    config = json.loads((place / "config.json").read_text())
    del config["policy"]
    (place / "config.json").write_text(json.dumps(config))
    rows = [
        {"step": 20, "rollout/episodes": 40.0, "rollout/success": 0.275,
         "rollout/predicted_success": 0.2, "rollout/success_accuracy": 0.925,
         "rollout/intervention_rate": 0.41,
         "rollout/intervention_episodes": 0.675, "rollout/retry_episodes": 0.325,
         "rollout/mismatched_success": 0.05,
         "rollout/reward_spearman": 0.76, "rollout/reward_spearman_alarm": 0.0,
         "diagnostics/action_std": 0.213, "diagnostics/kl": 0.0},
        {"step": 40, "rollout/episodes": 80.0, "rollout/success": 0.5,
         "rollout/predicted_success": 0.9, "rollout/success_accuracy": 0.6,
         "rollout/reward_spearman_alarm": 1.0, "diagnostics/action_std": 0.0123,
         "diagnostics/action_std_alarm": 1.0, "diagnostics/kl": 0.071},
    ]  # fmt: skip
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(place)
    for said in (
        "Iterations of online RL",
        "27.5%",
        "92.5%",
        "5.0%",
        "41.0%",
        "67.5%",
        "32.5%",
        "0.76",
        "yes",
    ):
        assert said in page
    assert "nan" not in page
    for said in (
        "<h3>Diagnostics</h3>",
        "<b>0.0123</b>",
        "0.071",
        "After 80 episodes: standard deviation",
    ):
        assert said in page
    assert "After 40 episodes" not in page
    assert "dormant" not in page
    both = page_of(write_run(tmp_path / "clone", 10, steps=40), place)
    assert "<td>steps</td>" in both
    assert "<td>policy.type</td>" not in both
    assert "Iterations of online RL" not in page_of(write_run(tmp_path / "cloned", 30))


def test_what_was_exported_is_told_with_its_parity(tmp_path: Path) -> None:
    found = {
        "stages": {"encode": {"worst": 1.5e-6, "cosine": 1.0}}, "action": 3e-7, "cosine": 1.0,
        "parted": 0, "decisions": 2000,
    }  # fmt: skip
    loop = {"torch": 1.0, "exported": 0.995, "low": -0.0213, "episodes": 200}
    told = {"found": found, "closed_loop": loop, "faults": ["something <b>"]}
    (tmp_path / "manifest.json").write_text(json.dumps({"precision": "int8", "parity": told}))
    page = report.deployed(tmp_path)
    for words in ("Exported, int8", "3.0e-07", "2,000 decisions", "99.5%", "2.1 points"):
        assert words in page
    assert "something &lt;b&gt;" in page
    with pytest.raises(
        ValueError, match=r"no latency\.json; give the folder that `vla bench policy` wrote"
    ):
        report.deployed(latency=tmp_path)
    with pytest.raises(
        ValueError, match=r"no manifest\.json; give the folder that `vla export` wrote"
    ):
        report.deployed(tmp_path / "none")


def test_how_a_policy_drove_an_arm_through_ros_is_told(tmp_path: Path) -> None:
    told = {
        "in_process": 1.0, "over_ros": 0.5, "decisions": 40, "on_the_grid": 39, "merges_alike": 38,
        "audit": {"commands": 12345, "violations": {"jerk": 2},
                  "worst": {"velocity": 0.5, "acceleration": 1.0, "jerk": 1.25}},
        "episodes": [
            {"success": True, "instruction": "push <it>", "steps": 140, "safety": {"stage": ""}},
            {
                "success": False, "instruction": "hit it", "steps": 60,
                "safety": {"stage": "tracking_error"},
            },
        ],
    }  # fmt: skip
    (tmp_path / "bridge.json").write_text(json.dumps(told))
    page = report.deployed(bridge=tmp_path)
    for words in (
        "1 of 2 episodes succeeded", "100% of the same episodes in one process",
        "38 of 40 decisions", "39 came at the control step", "push &lt;it&gt;", "tracking_error",
        "Of 12,345 commands 2 violate a limit", "velocity 50%, acceleration 100%, jerk 125%",
    ):  # fmt: skip
        assert words in page
    with pytest.raises(
        ValueError, match=r"no bridge\.json; give the folder that `vla bench bridge` wrote"
    ):
        report.deployed(bridge=tmp_path / "none")
