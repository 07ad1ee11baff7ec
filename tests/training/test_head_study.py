"""The study of heads runs what is missing, by lines that `vla` knows, and pools over seeds."""

import json
from pathlib import Path

from training import head_study, lines, train
from training.recipes import reach


def fake_vla(said):
    """Return what stands for `vla`: it writes what the verbs leave, and remembers its lines."""

    def vla(words, console):
        said.append(words)
        out = Path(words[words.index("--out") + 1])
        out.mkdir(parents=True, exist_ok=True)
        if words[0] == "eval":
            good = 3 if "flow_matching" in words[1] else 1
            found = {"success": [k < good for k in range(4)], "rate": good / 4}
            (out / "evaluation.json").write_text(json.dumps(found))
        if words[0] == "bench":
            told = [{"policy": p, "p50_s": 0.002, "p99_s": 0.003} for p in words[2:-6]]
            (out / "compare.json").write_text(json.dumps(told))

    return vla


def test_what_is_missing_is_run_and_told_of_all_seeds_together(
    tmp_path, monkeypatch, capsys
) -> None:
    said = []
    monkeypatch.setattr(lines, "must", fake_vla(said))
    argv = ["--task", "reach", "--seeds", "0", "1", "--sampling", "1", "4", "--episodes", "4",
            "--steps", "7", "--heads", "diffusion", "flow_matching",
            "--out", str(tmp_path)]  # fmt: skip
    assert head_study.main(argv) == 0
    # demonstrations; for 2 heads and 2 seeds training, and for 2 numbers of steps 2 lines; times
    assert len(said) == 1 + 2 * 2 * (1 + 2 * 2) + 1
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    told = [row for row in rows if "│ 4 │" in row]
    assert "25.0% 25.0% │ 25.0% │ 7.1% to 59.1%" in told[0]  # Wilson, 2 of 8
    assert "75.0% 75.0% │ 75.0% │ 40.9% to 92.9%" in told[1]
    (tmp_path / "reach-diffusion-1-steps4-judged" / "evaluation.json").unlink()
    said.clear()
    head_study.main(argv)
    # verbs that go on by themselves are asked again, others are not
    assert [words[0] for words in said] == ["demos", "train", "train", "train", "eval", "train"]


def test_heads_learn_with_all_else_equal(tmp_path) -> None:
    runs = [
        train.parse(head_study.train("reach", head, 2, reach.recipe().steps, tmp_path)[1:])
        for head in head_study.HEADS
    ]
    assert len({one.data for one in runs}) == 1
    told = []
    for one in runs:
        config = {**vars(one.train), "policy": {**vars(one.train.policy), "head": None}}
        told.append(config)
    assert all(one == told[0] for one in told)
    parts = [one.train.policy.head for one in runs]
    assert len({(type(part), part.prediction) for part in parts}) == len(head_study.HEADS)
    assert told[0]["steps"] == reach.recipe().steps
