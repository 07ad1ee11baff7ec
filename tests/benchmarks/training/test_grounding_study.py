"""The study of where a policy looks: acts from words, and a policy without queries refused."""

from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.training import grounding_study
from sim.tasks import _language, tabletop
from tests.training.tiny_run import tiny_config
from training.core import loop
from training.data import demos
from vla.backbones import tiny
from vla.memory import none
from vla.policies import vla


def test_the_act_of_every_instruction_is_known() -> None:
    things = [("red", "cube"), ("blue", "can")]
    for act in _language.ACTS:
        for number, wording in enumerate(_language.wordings(act, "all")):
            told = _language.instruction(wording, number, *things)
            assert grounding_study.act_of(told) == act
    with pytest.raises(ValueError, match="expected one of tabletop"):
        grounding_study.act_of("reach the red ball")


def test_it_tells_by_act_camera_and_kind_how_often_queries_miss(tmp_path, capsys) -> None:
    task, data = tabletop.Config(goals=(8,)), tmp_path / "data"  # into the left tray
    demos.record_demos(demos.DemosConfig(out=data, task=task, episodes=2))
    for queries in (2, 0):
        policy = vla.Config(
            chunk_size=4, n_action_steps=4, memory=none.Config(),
            backbone=tiny.Config(blocks=1, queries=queries),
        )  # fmt: skip
        config = tiny_config(task=task, policy=policy, steps=1)
        config = replace(config, algo=replace(config.algo, sampling="frame", short_decisions=0))
        loop.run(config, data, tmp_path / f"run{queries}", Console(quiet=True))
    words = ["--dataset", str(data), "--threads", "1"]
    assert grounding_study.main([str(tmp_path / "run2"), *words]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "%" in line]
    named = {tuple(word for word in row if word.isalpha())[:3] for row in rows}
    assert ("left", "front", "object") in named
    assert {kind for _, _, kind in named} == {"object", "place"}
    with pytest.raises(ValueError, match="got no queries in the policy"):
        grounding_study.main([str(tmp_path / "run0"), *words])
