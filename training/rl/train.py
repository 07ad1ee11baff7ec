"""`vla train rl`: practice in simulation lifts a cloned policy, with the critic as its reward."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from training import flags, loop
from training.rl.config import PracticeConfig, Start
from training.view import live
from vla import arguments


@dataclass(frozen=True, kw_only=True)
class Args:
    """What `vla train rl` was told."""

    out: Path
    """Folder of the run."""
    start: Start
    """What practice starts from."""
    train: PracticeConfig
    """The run."""
    view: str = ""
    """Where it is shown as it goes on; nowhere if empty."""


def parse(argv: list[str]) -> Args:
    """Return the arguments of `vla train rl`.

    Raises:
        ValueError: an unknown plug-in or flag.
    """
    name, rest = flags.take(argv, "--task", "")
    words = ["--task.type", name, *rest] if name else rest
    config, rest = flags.choose_plugins(PracticeConfig(), words)

    def told(
        out: Path, policy: Annotated[Path, tyro.conf.arg(name="from")], demos: Path,
        critic: Path | None = None, also: tuple[Path, ...] = (), view: str = "",
        train: Annotated[PracticeConfig, tyro.conf.arg(name="")] = config,
    ) -> Args:  # fmt: skip
        """Practise in simulation: --task NAME chooses a task, --algo.type NAME an algorithm.

        Args:
            out: Folder of the run; the same command continues what is there.
            policy: Checkpoint to start from.
            demos: Data set it was cloned from; its cloning term keeps what the policy can do.
            critic: Folder of the critic that gives reward.
            also: Earlier runs of practice to learn from as well, judged anew.
            view: Show practice as it goes on: a file *.rrd, or the address of a Rerun viewer that
                runs on this machine, such as rerun+http://127.0.0.1:9876/proxy.
            train: The run; every setting is a flag.
        """
        start = Start(
            policy=policy, demos=demos, critic=critic, experience=out / "experience",
            earlier=tuple(run / "experience" for run in also),
        )  # fmt: skip
        return Args(out=out, start=start, train=train, view=view and live.check(view))

    return arguments.read(told, rest, "vla train rl")


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    console = Console()
    watcher = live.Live(args.view, _say(console)) if args.view else None
    try:
        loop.run(args.train, args.start, args.out, console, watcher=watcher)
    finally:
        if watcher is not None:
            watcher.close()
    return 0


def _say(console: Console) -> Callable[[str], None]:
    def say(words: str) -> None:
        console.print(f"view: {words}", style="yellow", markup=False, soft_wrap=True)

    return say
