"""The main job, `make demo`: verbs of `vla`, one after the other, each printed before it runs.

Every verb continues what is there, so a demo that was stopped goes on where it was. A later
capability joins by one more line in `steps`.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vla.contracts import registry

OUT = Path("runs/demo")
ARMS = {"bank": "with memory bank", "none": "without memory"}
EPISODES = 200
SEED = 1000
CRITIC = (
    "--tasks.train", "pick_place", "drawer", "--tasks.validation", "--tasks.composition",
    "--sizes.train", "300", "--sizes.validation", "40", "--steps", "500", "--eval.every", "0",
)  # fmt: skip
"""A critic of two tasks, small enough for a few minutes."""


def steps(out: Path) -> list[list[str]]:
    """Return the command lines of the main job, as words after `vla`."""
    recipe = registry.load("training.recipes", "cue_colour").recipe()
    data, runs = str(out / "data"), {memory: str(out / memory) for memory in ARMS}
    train = ["train", "--recipe", "cue_colour", "--data", data, "--eval.final-episodes", "0"]
    test = ["--episodes", str(EPISODES), "--seed", str(SEED)]
    return [
        ["demos", "cue_colour", "--episodes", str(recipe.demos.episodes), "--out", data],
        *([*train, "--policy.memory.type", memory, "--out", runs[memory]] for memory in ARMS),
        *(["eval", runs[memory], *test] for memory in ARMS),
        ["report", *runs.values(), "--out", str(out / "report.html")],
        *critic_steps(out),
    ]


def critic_steps(out: Path) -> list[list[str]]:
    """Return the lines that train a small critic and label practice that holds failures with it."""
    critic, practice = str(out / "critic"), str(out / "practice")
    return [
        ["critic", "train", *CRITIC, "--data", str(out / "critic-data"), "--out", critic],
        ["demos", "pick_place", "--behaviour", "mixed", "--episodes", "60", "--seed", "2000",
         "--out", practice],
        ["label", practice, "--critic", critic, "--out", str(out / "labelled")],
    ]  # fmt: skip


def summary(out: Path, seconds: float) -> Table:
    """Return the table of what was found."""
    table = Table(title=f"cue_colour, 4 choices (chance 25 %), {seconds / 60:.1f} minutes in all")
    for column in ("policy", "success", "95 % interval", "episodes"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for memory, label in ARMS.items():
        found = json.loads((out / memory / "evaluation.json").read_text())
        low, high = found["interval"]
        table.add_row(
            label, f"{found['rate']:.1%}", f"{low:.1%} to {high:.1%}", str(len(found["success"]))
        )
    return table


def main() -> int:
    """Run the steps; stop at the first that fails and return its exit code."""
    console = Console()
    begin = time.perf_counter()
    # Ctrl-C reaches the verb, too: it saves and says so, and we wait for it.
    signal.signal(signal.SIGINT, lambda *_: None)
    for words in steps(OUT):
        console.print(f"\n[bold]$ vla {' '.join(words)}[/bold]", highlight=False)
        code = subprocess.run([sys.executable, "-m", "vla.cli", *words], check=False).returncode
        if code:
            return code
    console.print()
    console.print(summary(OUT, time.perf_counter() - begin))
    console.print(f"report: {(OUT / 'report.html').resolve()}")
    console.print(f"labels: {(OUT / 'labelled_report.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
