"""The study of suites: policies from images, cloned from the demonstrations of a suite's experts.

`python -m benchmarks.training.suite_study metaworld/door-close-v3 metaworld/drawer-open-v3 --out
runs/suites`

Every command is printed, resumes, and can be run by itself. Next to each policy stands a control
that sees nothing: the demonstrations themselves, played back in the test episodes.
"""

import contextlib
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from sim import vec_env
from sim.rollout import outcomes
from training.core.config import EvalConfig
from vla import cli
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.types import Observation
from vla.data.reader import open_dataset, read_columns
from vla.utils import files

BAR = 0.8


@dataclass(frozen=True, kw_only=True)
class Study:
    """Clone policies from the demonstrations of a suite's experts and test them."""

    tasks: tyro.conf.Positional[tuple[str, ...]]
    """Tasks, as SUITE/TASK."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of training."""
    demos: int = 100
    """Demonstrations of each task."""
    episodes: int = 100
    """Test episodes of each policy."""
    out: Path
    """Folder of the study."""
    more: tuple[str, ...] = ()
    """Further flags of every `vla train`; all words after this flag."""

    def __post_init__(self) -> None:
        validate_min(self, demos=1, episodes=1)


def record(task: str, episodes: int, out: Path) -> list[str]:
    """Return the command, as words after `vla`, that records a task's demonstrations."""
    return ["demos", task, "--episodes", str(episodes), "--out", str(_data(task, out))]


def train(task: str, seed: int, study: Study) -> list[str]:
    """Return the command that trains and tests one policy."""
    return [
        "train", "--task", task, "--dataset", str(_data(task, study.out)), "--seed", str(seed),
        "--out", str(_run(task, seed, study.out)),
        "--eval.every", "0", "--eval.final-episodes", str(study.episodes), *study.more,
    ]  # fmt: skip


def replayed(task: PluginConfig, data: Path, episodes: int, seed: int, width: int = 8) -> int:
    """Return in how many episodes of `seed` a demonstration that is played back succeeds.

    Episode k gets demonstration k, again from the first where there are fewer. After the end of a
    demonstration its last action is repeated.
    """
    info = open_dataset(data)
    recorded = np.split(read_columns(info).action, info.offsets[1:-1])
    length: Counter[int] = Counter()

    def act(obs: Observation, number: np.ndarray) -> np.ndarray:
        length.update(number.tolist())
        demos = [(recorded[k % len(recorded)], length[k] - 1) for k in number.tolist()]
        now = [actions[min(step, len(actions) - 1)] for actions, step in demos]
        return np.stack(now)[:, None].astype(np.float32)

    env = vec_env.make(configs.type_name(task), min(width, episodes), task_config=task)
    with contextlib.closing(env):
        return sum(o.success for o in outcomes(env, env.reset(seed), act, episodes))


def table(study: Study) -> tuple[Table, int]:
    """Return one row per task, pooled over seeds, and how many tasks reach the bar."""
    rows, reached = [], 0
    for task in study.tasks:
        tests = [harness.evaluation(_run(task, seed, study.out)) for seed in study.seeds]
        successes, trials = harness.pooled(tests)
        control = harness.load(_control(task, study.out))
        reached += successes / trials >= BAR
        rows.append((
            task, open_dataset(_data(task, study.out)).num_episodes,
            " ".join(f"{test['rate']:.1%}" for test in tests), harness.rate(successes, trials),
            harness.interval(successes, trials),
            harness.rate(control["success"], control["episodes"]),
        ))  # fmt: skip
    sheet = harness.table(
        "success of policies cloned from images, on episodes of a separate seed",
        ("task", "demonstrations", "by seed", "all", "95 %", "demonstrations played back"), rows,
    )  # fmt: skip
    return sheet, reached


def _control(task: str, out: Path) -> Path:
    return out / f"replayed-{_folder(task)}.json"


def _data(task: str, out: Path) -> Path:
    return out / f"data-{_folder(task)}"


def _run(task: str, seed: int, out: Path) -> Path:
    return out / f"{_folder(task)}-{seed}"


def _folder(task: str) -> str:
    return task.replace("/", "-")


def main(argv: list[str]) -> int:
    """Run the missing parts and print the table."""
    study, console = harness.read(Study, argv, "training.suite_study"), Console()
    test_seed = EvalConfig().seed + 1
    for task in study.tasks:
        harness.must(record(task, study.demos, study.out), console)
        if not _control(task, study.out).exists():
            successes = replayed(
                vec_env.load_task(task), _data(task, study.out), study.episodes, test_seed
            )
            control = {"success": successes, "episodes": study.episodes, "seed": test_seed}
            files.write_json(_control(task, study.out), control)
        for seed in study.seeds:
            harness.must(train(task, seed, study), console)
    sheet, reached = table(study)
    console.print(sheet)
    console.print(f"{reached} of {len(study.tasks)} tasks at {BAR:.0%} or more")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.suite_study:main", sys.argv[1:]))
