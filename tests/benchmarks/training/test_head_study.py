"""The study of heads runs what is missing, by lines that `vla` knows, and pools over seeds."""

import json
from pathlib import Path

from benchmarks import harness
from benchmarks.training import head_study
from training.commands import train
from training.recipes import reach


def fake_vla(lines):
    """Return a function instead of `vla`: it writes what the verbs write and keeps its words."""

    def vla(words, console):
        lines.append(words)
        out = Path(words[words.index("--out") + 1])
        out.mkdir(parents=True, exist_ok=True)
        if words[0] == "eval":
            good = 3 if "flow_matching" in words[1] else 1
            result = {"success": [k < good for k in range(4)], "rate": good / 4}
            (out / "evaluation.json").write_text(json.dumps(result))
        if words[0] == "bench":
            times = [{"policy": p, "p50_s": 0.002, "p99_s": 0.003} for p in words[2:-6]]
            (out / "compare.json").write_text(json.dumps(times))

    return vla


def test_what_is_missing_runs_and_all_seeds_are_pooled(tmp_path, monkeypatch, capsys) -> None:
    lines = []
    monkeypatch.setattr(harness, "must", fake_vla(lines))
    argv = ["--task", "reach", "--seeds", "0", "1", "--sampling", "1", "4", "--episodes", "4",
            "--steps", "7", "--heads", "diffusion", "flow_matching",
            "--out", str(tmp_path)]  # fmt: skip
    assert head_study.main(argv) == 0
    # demonstrations; for 2 heads and 2 seeds training, and for 2 numbers of steps 2 lines; times
    assert len(lines) == 1 + 2 * 2 * (1 + 2 * 2) + 1
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    four = [row for row in rows if "│ 4 │" in row]
    assert "25.0% 25.0% │ 25.0% │ 7.1% to 59.1%" in four[0]  # Wilson, 2 of 8
    assert "75.0% 75.0% │ 75.0% │ 40.9% to 92.9%" in four[1]
    (tmp_path / "reach-diffusion-1-steps4-evaluated" / "evaluation.json").unlink()
    lines.clear()
    head_study.main(argv)
    # verbs that resume run again, others do not
    assert [words[0] for words in lines] == ["demos", "train", "train", "train", "eval", "train"]


def test_heads_learn_with_all_else_equal(tmp_path) -> None:
    runs = [
        train.parse(head_study.train("reach", head, 2, reach.recipe().steps, tmp_path)[1:])
        for head in head_study.HEADS
    ]
    assert len({run.dataset for run in runs}) == 1
    told = []
    for one in runs:
        config = {**vars(one.train), "policy": {**vars(one.train.policy), "head": None}}
        told.append(config)
    assert all(one == told[0] for one in told)
    parts = [one.train.policy.head for one in runs]
    assert len({(type(part), part.prediction_type) for part in parts}) == len(head_study.HEADS)
    assert told[0]["steps"] == reach.recipe().steps
