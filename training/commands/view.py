"""`vla view`: shows episodes of a data set, or a policy in simulation, in Rerun."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.progress

from reward_models.core import checkpoint as reward_model_checkpoint
from sim import vec_env
from training.core import runtime
from training.view import drawing, episodes, rollout
from vla.contracts import config as configs
from vla.contracts.config import validate_min
from vla.data.reader import open_dataset, read_columns
from vla.runtime import policy_loader
from vla.utils import arguments

USAGE = (
    "usage: vla view DATA [--episodes 0 3 5] [--out FILE.rrd]\n"
    "       vla view RUN [--episodes N] [--seed S] [--reward-model DIR] [--out FILE.rrd]\n"
    "DATA is a LeRobotDataset v3, RUN a run of `vla train` or an exported policy; without --out a "
    "window opens.\n`vla view DATA --help` and `vla view RUN --help` list every setting."
)
SUFFIX = ".rrd"


@dataclass(frozen=True, kw_only=True)
class DataArgs:
    """Show episodes of a data set."""

    episodes: tuple[int, ...] = (0,)
    """Episode numbers."""
    out: Path | None = None
    """File to write, *.rrd; a viewer window if not given."""


@dataclass(frozen=True, kw_only=True)
class RunArgs:
    """Show a policy in simulation."""

    episodes: int = 3
    """Number of episodes."""
    seed: int = 1000
    """Seed of the episodes, the same as in `vla eval`."""
    reward_model: Path | None = None
    """Reward model whose causal predictions are shown as well."""
    out: Path | None = None
    """File to write, *.rrd; a viewer window if not given."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, seed=0)


def main(argv: list[str]) -> int:
    """Run `vla view`; return the exit code."""
    if not argv or argv[0].startswith("-"):
        print(USAGE)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    place, rest = Path(argv[0]), argv[1:]
    if (place / "meta").is_dir():
        return _data(place, arguments.read(DataArgs, rest, "vla view DATA"))
    return _run(place, arguments.read(RunArgs, rest, "vla view RUN"))


def _data(place: Path, args: DataArgs) -> int:
    info = open_dataset(place)
    episodes.check(info, args.episodes)

    def fill(stream: Any) -> None:
        with rich.progress.Progress(transient=True) as bar:
            episodes.show(stream, info, read_columns(info), args.episodes, bar)

    _show(fill, args.out)
    return 0


def _run(place: Path, args: RunArgs) -> int:
    loaded = policy_loader.open_policy(place, threads=1)
    task = configs.from_json(None, loaded.task, f"{loaded.folder}: task", vec_env.TASKS)
    scorer = reward_model_checkpoint.load(args.reward_model) if args.reward_model else None

    def fill(stream: Any) -> None:
        runtime.prepare(1)
        rows = rollout.play(loaded.policy, task, episodes=args.episodes, seed=args.seed)
        rollout.show(stream, rows, loaded.policy, scorer)
        for row in rows:
            end = "success" if row.success else "failure"
            print(f"episode {row.number}: {end} after {len(row.decided)} steps")

    _show(fill, args.out)
    return 0


def _show(fill: Callable[[Any], None], out: Path | None) -> None:
    """Make a recording in a file, or show it in a window if there is none."""
    if out is not None:
        if out.suffix != SUFFIX:
            raise ValueError(f"out: got {out}, expected a file *{SUFFIX}")
        out.parent.mkdir(parents=True, exist_ok=True)
        with drawing.recording(out) as stream:
            fill(stream)
        print(f"recording: {out} ({out.stat().st_size / 1e6:.1f} MB); open it with `rerun {out}`")
        return
    program = viewer()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"view{SUFFIX}"
        with drawing.recording(path) as stream:
            fill(stream)
        # By default the viewer listens on all network interfaces.
        done = subprocess.run([program, "--bind", "127.0.0.1", str(path)], check=False)
    if done.returncode:
        raise ValueError(
            f"the viewer ended with exit code {done.returncode}, the recording is lost; add --out "
            f"FILE{SUFFIX} to keep it, and open that with `rerun FILE{SUFFIX}`"
        )


def viewer() -> str:
    """Return the path of the viewer.

    Raises:
        ValueError: no viewer is installed, or there is no display.
    """
    program = shutil.which("rerun") or shutil.which("rerun", path=str(Path(sys.executable).parent))
    if program is None:
        raise ValueError(
            "no viewer is installed; pip install 'mneme-vla[view]', or add --out FILE.rrd and open "
            "that elsewhere"
        )
    screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if sys.platform == "linux" and not screen:
        raise ValueError(
            "there is no display for the viewer; add --out FILE.rrd and open that elsewhere "
            "with `rerun FILE.rrd`"
        )
    return program
