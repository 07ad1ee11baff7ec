"""The main job, `make demo`: verbs of `vla`, one after the other, each printed before it runs.

Every verb continues what is there, so a demo that was stopped goes on where it was. A later
capability joins by one more line in `steps`.
"""

import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from training import lines
from vla.contracts import registry

OUT = Path("runs/demo")
ARMS = {"bank": "with memory bank", "none": "without memory"}
LIFTED = {"clone": "cloned from 20 demonstrations", "lifted": "after 60 episodes of practice"}
EPISODES = 200
SEED = 1000
SHORT = ("--steps", "600", "--eval.final-episodes", "0")
"""Of the recipe's 1,000 updates: enough to remember, and the whole stays within half an hour."""
CRITIC = (
    "--tasks.train", "pick_place", "drawer", "--tasks.validation", "--tasks.composition",
    "--sizes.train", "300", "--sizes.validation", "40", "--steps", "400", "--eval.every", "0",
)  # fmt: skip
"""A critic of two tasks, small enough for a few minutes."""
FEW = ("--episodes", "20", "--seed", "3000")
"""Demonstrations of which a policy fails more often than not."""
PRACTICE = (
    "--task", "pick_place", "--rounds", "3", "--episodes", "20", "--steps", "600",
    "--algo.batch", "64", "--algo.queries", "1", "--optimiser.lr", "1e-3",
    "--optimiser.ema", "0.999", "--help.attended", "1", "--help.patience", "1",
)  # fmt: skip
"""Practice with the critic's reward alone; help comes where it sees no progress."""


def steps(out: Path) -> list[list[str]]:
    """Return the command lines of the main job, as words after `vla`."""
    recipe = registry.load("training.recipes", "cue_colour").recipe()
    data, runs = str(out / "data"), {memory: str(out / memory) for memory in ARMS}
    train = ["train", "--recipe", "cue_colour", "--data", data, *SHORT]
    test = ["--episodes", str(EPISODES), "--seed", str(SEED)]
    return [
        ["demos", "cue_colour", "--episodes", str(recipe.demos.episodes), "--out", data],
        *([*train, "--policy.memory.type", memory, "--out", runs[memory]] for memory in ARMS),
        *(["eval", runs[memory], *test] for memory in ARMS),
        *deployment_steps(out, runs["bank"], data),
        ["report", *runs.values(), "--exported", str(out / "exported"),
         "--latency", str(out / "latency"), "--bridge", str(out / "bridge"),
         "--out", str(out / "report.html")],
        *critic_steps(out),
        *practice_steps(out),
    ]  # fmt: skip


def deployment_steps(out: Path, run: str, data: str) -> list[list[str]]:
    """Return the lines that export a policy, prove that it is the same, time it, and let it drive
    a simulated arm through ROS 2.
    """
    exported = str(out / "exported")
    return [
        ["export", run, "--out", exported],
        ["parity", exported, "--against", run, "--data", data],
        ["bench", "policy", "--checkpoint", run, "--exported", exported, "--decisions", "0",
         "--no-lerobot", "--out", str(out / "latency")],
        ["bench", "bridge", exported, "--episodes", "10", "--latency-s", "0",
         "--silent-s", "1", "--blind-s", "1",  # others may use this machine, too
         "--out", str(out / "bridge")],
    ]  # fmt: skip


def critic_steps(out: Path) -> list[list[str]]:
    """Return the lines that train a small critic and label practice that holds failures with it."""
    critic, practice = str(out / "critic"), str(out / "practice")
    return [
        ["critic", "train", *CRITIC, "--data", str(out / "critic-data"), "--out", critic],
        ["demos", "pick_place", "--behaviour", "mixed", "--episodes", "60", "--seed", "2000",
         "--out", practice],
        ["label", practice, "--critic", critic, "--out", str(out / "labelled")],
    ]  # fmt: skip


def practice_steps(out: Path) -> list[list[str]]:
    """Return the lines that clone a policy from few demonstrations and lift it by practice."""
    few, critic = str(out / "few"), str(out / "critic")
    clone, lifted = (str(out / name) for name in LIFTED)
    quick = ["--eval.every", "0", "--eval.final-episodes", "0"]
    test = ["--episodes", str(EPISODES), "--seed", str(SEED)]
    return [
        ["demos", "pick_place", *FEW, "--out", few],
        ["train", "--recipe", "pick_place", "--data", few, "--vision-from", critic,
         "--steps", "400", *quick, "--out", clone],
        ["train", "rl", *PRACTICE, "--from", clone, "--demos", few, "--critic", critic, *quick,
         "--out", lifted],
        *(["eval", place, *test] for place in (clone, lifted)),
        ["report", clone, lifted, "--out", str(out / "practice_report.html")],
    ]  # fmt: skip


def summary(out: Path, seconds: float) -> Table:
    """Return the table of what was found."""
    table = Table(title=f"cue_colour: 4 choices, chance 25 %; {seconds / 60:.1f} minutes in all")
    for column in ("task", "policy", "success", "95 % interval", "episodes"):
        table.add_column(column, justify="left" if column in ("task", "policy") else "right")
    for name, label in {**ARMS, **LIFTED}.items():
        found = json.loads((out / name / "evaluation.json").read_text())
        low, high = found["interval"]
        table.add_row(
            found["task"]["type"], label, f"{found['rate']:.1%}", f"{low:.1%} to {high:.1%}",
            str(len(found["success"])),
        )  # fmt: skip
    return table


def main() -> int:
    """Run the steps; stop at the first that fails and return its exit code."""
    console = Console()
    begin = time.perf_counter()
    for words in steps(OUT):
        code = lines.run(words, console)
        if code:
            return code
    console.print()
    console.print(summary(OUT, time.perf_counter() - begin))
    console.print(f"report: {(OUT / 'report.html').resolve()}")
    console.print(f"labels: {(OUT / 'labelled_report.html').resolve()}")
    console.print(f"practice: {(OUT / 'practice_report.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
