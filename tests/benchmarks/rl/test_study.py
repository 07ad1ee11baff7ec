"""The study of online RL: commands that parse, and results read from finished runs."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.rl import study
from sim import vec_env
from training.commands import train, train_rl
from vla.contracts.config import type_name

OUT = Path("runs/study")


@pytest.mark.parametrize("name", study.ARMS)
def test_every_arm_is_a_command_that_parses(name) -> None:
    words = study.finetune("pick_place", 2, name, Path("reward_model"), OUT)
    assert words[:2] == ["train", "rl"]
    parsed, arm = train_rl.parse(words[2:]), study.ARMS[name]
    assert parsed.train.seed == 2
    assert parsed.train.steps == arm.steps * arm.iterations
    assert parsed.train.reward == arm.reward
    assert (parsed.start.reward_model is None) == ("learned" not in arm.reward)
    assert parsed.start.policy == OUT / "pick_place/seed-2" / (arm.start or "start")


def test_another_seed_of_online_rl_starts_from_the_same_policy() -> None:
    words = study.finetune("push", 0, "asymmetric_ac", Path("reward_model"), OUT, 1)
    parsed = train_rl.parse(words[2:])
    assert parsed.train.seed == 1
    assert parsed.out == OUT / "push/seed-0/asymmetric_ac-rl-1"
    assert parsed.start.policy == OUT / "push/seed-0/aux_bc"


def test_the_reward_of_a_suites_task_is_its_own_success() -> None:
    words = study.finetune("metaworld/reach-v3", 0, "asymmetric_ac", Path("reward_model"), OUT)
    parsed = train_rl.parse(words[2:])
    assert parsed.train.reward == "sparse"
    assert parsed.start.reward_model is None
    assert parsed.out == OUT / "metaworld-reach-v3/seed-0/asymmetric_ac"
    assert vec_env.title(parsed.train.task) == "metaworld/reach-v3"


@pytest.mark.parametrize("task", study.CLONES)
def test_the_start_policy_is_a_command_that_parses(task) -> None:
    demos, clone = study.start(task, 1, Path("reward_model"), OUT)
    parsed = train.parse(clone[1:])
    made = study.CLONES[task]
    assert parsed.train.task == vec_env.load_task(made.task)
    assert parsed.train.steps == made.steps
    encoder = "reward_model" if made.pretrained_vision else None
    assert parsed.train.pretrained_vision_encoder == encoder
    no_memory = type_name(parsed.train.policy.memory) == "none"
    assert no_memory == (made.task not in study.REMEMBERED or "without memory" in task)
    assert [str(folder) for folder in parsed.dataset] == [demos[demos.index("--out") + 1]]
    assert ("--robot" in demos) == bool(made.robot)
    assert parsed.train.robot == (made.robot or None)


def printed(sheet: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(sheet)
    return text.getvalue()


def finished_run(out: Path, name: str) -> None:
    place = out / "push/seed-0"
    run = place / name
    for folder in (place / "start", run):
        folder.mkdir(parents=True)
    for folder, success, decided in ((place / "start", 1, 2), (run, 3, 4)):
        result = {
            "success": [k < success for k in range(4)],
            "decided": [k < decided for k in range(4)],
        }
        (folder / "evaluation.json").write_text(json.dumps(result))
    rows = [
        {"step": 20, "rollout/episodes": 40, "rollout/control_steps": 900},
        {"step": 40, "rollout/episodes": 40, "rollout/control_steps": 900},
        {"step": 40, "eval/success": 0.7},
        {"step": 60, "rollout/episodes": 80, "rollout/control_steps": 800,
         "rollout/reward_spearman": 0.5},
        {"step": 80, "eval/success": 0.85},
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_results_are_read_from_finished_runs(tmp_path) -> None:
    finished_run(tmp_path, "ogpo-learned-reward")
    result = study.read("push", 0, "ogpo, learned reward", tmp_path)
    assert result.before == study.Tested(success=1, decided=2, trials=4)
    assert result.after == study.Tested(success=3, decided=4, trials=4)
    assert result.reached == {0.8: (80, 1700), 0.9: None}
    for cell in ("25.0%", "75.0%", "80 (1700)", "never", "0.50"):
        assert cell in printed(study.table("push", {"ogpo, learned reward": [result]}))
    # Two of four came to a choice and one of those was right; then all four, and three were right.
    for cell in ("50.0%", "100.0%", "75.0%"):
        assert cell in printed(study.memory_table("push", {"ogpo, learned reward": [result]}))


def test_interventions_on_a_suites_task_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="for a suite's task, .*name the arms with --arm"):
        study.Study(task=("metaworld/reach-v3",), reward_model=Path("reward_model"), out=OUT)
