"""The main job, `make demo`: verbs of `vla`, one after the other, each printed before it runs.

Every verb resumes, so a demo that was stopped continues where it was. A new capability joins by one
more command in `commands`.
"""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import harness
from vla.contracts import registry

OUT = Path("runs/demo")
MEMORIES = {"bank": "with memory bank", "none": "without memory"}
ONLINE = {
    "clone": "cloned from 20 demonstrations",
    "online": "after 1,700 episodes of online RL",
}
EPISODES = 200
SEED = 1000
SHORT = ("--steps", "600", "--eval.final-episodes", "0")
"""Of the recipe's 1,000 updates: enough to remember, and all of it stays within half an hour."""
REWARD_MODEL = (
    "--tasks.train", "pick_place", "drawer", "--tasks.validation", "--tasks.composition",
    "--sizes.train", "300", "--sizes.validation", "40", "--steps", "400", "--eval.every", "0",
)  # fmt: skip
"""A reward model of two tasks, small enough for a few minutes."""
FEW = ("--episodes", "20", "--seed", "3000")
"""So few demonstrations that the cloned policy fails more often than not."""
AUX = (
    "--algo.type", "aux_bc", "--task", "pick_place", "--episodes-per-iteration", "400",
    "--steps", "500", "--algo.synthetic-frames", "4000",
)  # fmt: skip
"""Half of what `aux_bc` does by default."""
ONLINE_RL = (
    "--task", "pick_place", "--algo.initial-episodes", "100", "--n-iterations", "13",
    "--steps", "1300",
)  # fmt: skip
"""The reward model alone gives the reward, and nobody helps."""


def commands(out: Path) -> list[list[str]]:
    """Return the commands of the main job, as words after `vla`."""
    recipe = registry.load("training.recipes", "cue_colour").recipe()
    dataset, runs = str(out / "data"), {memory: str(out / memory) for memory in MEMORIES}
    train = ["train", "--recipe", "cue_colour", "--dataset", dataset, *SHORT]
    test = ["--episodes", str(EPISODES), "--seed", str(SEED)]
    return [
        ["demos", "cue_colour", "--episodes", str(recipe.demos.episodes), "--out", dataset],
        *([*train, "--policy.memory.type", memory, "--out", runs[memory]] for memory in MEMORIES),
        *(["eval", runs[memory], *test] for memory in MEMORIES),
        *deployment(out, runs["bank"], dataset),
        ["report", *runs.values(), "--exported", str(out / "exported"),
         "--latency", str(out / "latency"), "--bridge", str(out / "bridge"),
         "--out", str(out / "report.html")],
        *reward_model(out),
        *online_rl(out),
    ]  # fmt: skip


def deployment(out: Path, run: str, dataset: str) -> list[list[str]]:
    """Return the commands that export a policy, compare it with its checkpoint, time it, and drive
    a simulated arm through ROS 2 with it.
    """
    exported = str(out / "exported")
    return [
        ["export", run, "--out", exported],
        ["verify-export", exported, "--reference-checkpoint", run, "--dataset", dataset],
        ["bench", "policy", "--checkpoint", run, "--exported", exported, "--decisions", "0",
         "--no-lerobot", "--out", str(out / "latency")],
        ["bench", "bridge", exported, "--episodes", "10", "--latency-s", "0",
         "--command-timeout-s", "1", "--joint-state-timeout-s", "1",  # on a busy machine, too
         "--out", str(out / "bridge")],
    ]  # fmt: skip


def reward_model(out: Path) -> list[list[str]]:
    """Return the commands that train a small reward model and label a data set with failures."""
    model, rollouts = str(out / "reward_model"), str(out / "rollouts")
    return [
        ["reward-model", "train", *REWARD_MODEL, "--dataset", str(out / "reward_model_data"),
         "--out", model],
        ["demos", "pick_place", "--behaviour", "mixed", "--episodes", "60", "--seed", "2000",
         "--out", rollouts],
        ["label", rollouts, "--reward-model", model, "--out", str(out / "labelled")],
    ]  # fmt: skip


def online_rl(out: Path) -> list[list[str]]:
    """Return the commands that clone a policy from few demonstrations and improve it online."""
    few, model = str(out / "few"), str(out / "reward_model")
    clone, online = (str(out / name) for name in ONLINE)
    aux = str(out / "aux")
    quick = ["--eval.every", "0", "--eval.final-episodes", "0"]
    test = ["--episodes", str(EPISODES), "--seed", str(SEED)]
    return [
        ["demos", "pick_place", *FEW, "--out", few],
        ["train", "--recipe", "pick_place", "--dataset", few, "--pretrained-vision-encoder", model,
         "--steps", "400", *quick, "--out", clone],
        ["train", "rl", *AUX, "--policy.path", clone, "--dataset", few,
         "--reward-model", model, *quick, "--out", aux],
        ["train", "rl", *ONLINE_RL, "--policy.path", aux, "--prior-runs", aux, "--dataset", few,
         "--reward-model", model, *quick, "--out", online],
        *(["eval", run, *test] for run in (clone, online)),
        ["report", clone, online, "--out", str(out / "online_rl_report.html")],
    ]  # fmt: skip


def summary(out: Path, seconds: float) -> Table:
    """Return the table of results."""
    rows = []
    for name, label in {**MEMORIES, **ONLINE}.items():
        result = harness.evaluation(out / name)
        count = sum(result["success"]), len(result["success"])
        rows.append(
            (
                result["task"]["type"],
                label,
                harness.rate(*count),
                harness.interval(*count),
                count[1],
            )
        )
    return harness.table(
        f"cue_colour: 4 choices, chance 25 %; {seconds / 60:.1f} minutes in all",
        ("task", "policy", "success", "95 % interval", "episodes"), rows, left=2,
    )  # fmt: skip


def main() -> int:
    """Run the commands; stop at the first that fails and return its exit code."""
    console = Console()
    begin_s = time.perf_counter()
    for words in commands(OUT):
        code = harness.run(words, console)
        if code:
            return code
    console.print()
    console.print(summary(OUT, time.perf_counter() - begin_s))
    console.print(f"report: {(OUT / 'report.html').resolve()}")
    console.print(f"labels: {(OUT / 'labelled_report.html').resolve()}")
    console.print(f"online RL: {(OUT / 'online_rl_report.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
