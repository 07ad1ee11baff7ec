"""The study of speed against worlds, on a CPU with as few of them as will do."""

import json

import pytest

pytest.importorskip("mujoco_warp")

from benchmarks.sim import gpu_study
from sim.engines.warp_start import find_device
from vla import cli

pytestmark = pytest.mark.timeout(600)  # whoever comes first compiles

TARGET = "benchmarks.sim.gpu_study:main"


def test_it_measures_each_number_of_worlds_and_writes_a_report(tmp_path, capsys):
    words = ["--device", "cpu", "--worlds", "3", "2", "--steps", "1", "--out", str(tmp_path)]
    assert gpu_study.main(words) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["task"], report["steps"], report["device"]) == ("pick_place", 1, "CPU")
    assert [row["worlds"] for row in report["rows"]] == [2, 3]
    for row in report["rows"]:
        assert min(row[name] for name in gpu_study.SERIES) > 0
        assert (row["faults"], row["error"]) == (0, "")
        assert row["memory_mb"] > 50
    page = (tmp_path / "report.html").read_text()
    assert page.count("<polyline") + page.count("<path") >= len(gpu_study.SERIES)
    assert "3 worlds, control steps/s" in capsys.readouterr().out


def test_a_number_of_worlds_that_fails_is_in_the_report_with_its_reason(tmp_path):
    rows = [
        gpu_study.Measured(worlds=2, physics_per_s=5.0, without_per_s=4.0, with_per_s=3.0),
        gpu_study.Measured(worlds=4, error="Failed to allocate <8> bytes"),
    ]
    gpu_study.write(tmp_path, "CPU", "reach", 3, rows)
    assert json.loads((tmp_path / "report.json").read_text())["rows"][1]["error"]
    assert "Failed to allocate &lt;8&gt; bytes" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--worlds 0 --out {}", "worlds: got (0,), expected numbers of at least 1"),
        ("--steps 0 --out {}", "steps: got 0, expected 1 to 256"),
        ("--task reech --device cpu --out {}", "unknown task 'reech': did you mean reach?"),
    ],
)
def test_wrong_words_are_one_sentence(words, sentence, tmp_path, capsys):
    assert cli.run(TARGET, words.format(tmp_path / "new").split()) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path, capsys):
    if find_device("auto") != "cpu":
        pytest.skip("there is a GPU")
    assert cli.run(TARGET, ["--out", str(tmp_path / "new")]) == 1
    assert "finds no NVIDIA GPU here" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
