"""`vla train rl`: rollouts in simulation fine-tune a cloned policy, with rewards of the reward
model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from training.core import loop, plugin_flags
from training.rl.config import OnlineRLConfig, Start
from training.view import rerun_stream
from vla.utils import arguments


@dataclass(frozen=True, kw_only=True)
class Args:
    """Arguments of `vla train rl`."""

    out: Path
    """Folder of the run."""
    start: Start
    """What it starts from."""
    train: OnlineRLConfig
    """The run."""
    view: str = ""
    """Where it is shown while it runs; nowhere if empty."""


def parse(argv: list[str]) -> Args:
    """Return the arguments of `vla train rl`.

    Raises:
        ValueError: an unknown plug-in or flag.
    """
    name, rest = plugin_flags.take(argv, "--task", "")
    words = ["--task.type", name, *rest] if name else rest
    config, rest = plugin_flags.choose_plugins(OnlineRLConfig(), words)

    def make_args(
        out: Path, policy: Annotated[Path, tyro.conf.arg(name="policy.path")], dataset: Path,
        reward_model: Path | None = None, prior_runs: tuple[Path, ...] = (), view: str = "",
        train: Annotated[OnlineRLConfig, tyro.conf.arg(name="")] = config,
    ) -> Args:  # fmt: skip
        """Fine-tune a policy by online RL: --task NAME chooses a task, --algo.type NAME an
        algorithm.

        Args:
            out: Folder of the run; the same command resumes what is there.
            policy: Checkpoint to start from.
            dataset: Demonstrations it was trained on; the BC loss keeps what the policy can do.
            reward_model: Folder of the reward model that gives reward.
            prior_runs: Runs of online RL to learn from as well, with new rewards.
            view: Show the run as it goes: a file *.rrd, or the address of a Rerun viewer that
                runs on this machine, such as rerun+http://127.0.0.1:9876/proxy.
            train: The run; every setting is a flag.
        """
        start = Start(
            policy=policy, dataset=dataset, reward_model=reward_model,
            experience=out / "experience", prior_runs=tuple(r / "experience" for r in prior_runs),
        )  # fmt: skip
        return Args(out=out, start=start, train=train, view=view and rerun_stream.check(view))

    return arguments.read(make_args, rest, "vla train rl")


def main(argv: list[str]) -> int:
    """Run the verb."""
    args, console = parse(argv), Console()

    def say(line: str) -> None:
        console.print(f"view: {line}", style="yellow", markup=False, soft_wrap=True)

    watcher = rerun_stream.Live(args.view, say) if args.view else None
    try:
        loop.run(args.train, args.start, args.out, console, callback=watcher)
    finally:
        if watcher is not None:
            watcher.close()
    return 0
