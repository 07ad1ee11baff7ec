"""`vla train rl`: rollouts in simulation fine-tune a cloned policy, with rewards of the reward
model.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from sim import vec_env
from training.core import loop, plugin_flags
from training.rl.config import OnlineRLConfig, Start, run_config
from training.view import rerun_stream
from vla.contracts.config import type_name


@dataclass(frozen=True, kw_only=True)
class Args:
    """Fine-tune a policy by online RL: --task NAME chooses a task, --algo.type NAME an
    algorithm.
    """

    out: Path
    """Folder of the run; the same command resumes what is there."""
    policy: Annotated[Path, tyro.conf.arg(name="policy.path")]
    """Checkpoint to start from."""
    dataset: Path
    """Demonstrations it was trained on; the BC loss keeps what the policy can do."""
    reward_model: Path | None = None
    """Folder of the reward model that gives reward."""
    prior_runs: tuple[Path, ...] = ()
    """Runs of online RL to learn from as well, with new rewards."""
    view: str = ""
    """Show the run as it goes: a file *.rrd, or the address of a Rerun viewer that runs on this
    machine, such as rerun+http://127.0.0.1:9876/proxy."""
    train: Annotated[OnlineRLConfig, tyro.conf.arg(name="")]
    """The run; every setting is a flag."""

    @property
    def start(self) -> Start:
        """What the run starts from."""
        return Start(
            policy=self.policy, dataset=self.dataset, reward_model=self.reward_model,
            experience=self.out / "experience",
            prior_runs=tuple(run / "experience" for run in self.prior_runs),
        )  # fmt: skip


def parse(argv: list[str]) -> Args:
    """Return the arguments of `vla train rl`.

    Raises:
        ValueError: an unknown plug-in or flag, or a view that is no file or address of a viewer.
    """
    name, rest = plugin_flags.take(argv, "--task", "")
    algo, _ = plugin_flags.take(rest, "--algo.type", type_name(OnlineRLConfig().algo))
    config = run_config(algo)
    if name:
        config = replace(config, task=vec_env.load_task(name))
    args = plugin_flags.read_args(Args, config, rest, "vla train rl")
    if args.view:
        rerun_stream.check(args.view)
    return args


def main(argv: list[str]) -> int:
    """Run the verb."""
    args, console = parse(argv), Console()

    def report(line: str) -> None:
        console.print(f"view: {line}", style="yellow", markup=False, soft_wrap=True)

    watcher = rerun_stream.Live(args.view, report) if args.view else None
    try:
        loop.run(args.train, args.start, args.out, console, callback=watcher)
    finally:
        if watcher is not None:
            watcher.close()
    return 0
