"""Arguments of `vla label`, and the parsers of some of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from reward_models.core.shaping import Kind
from reward_models.label_report.gates import Gates
from vla.contracts.config import validate_min


@dataclass(frozen=True, kw_only=True)
class LabelArgs:
    """Label every frame of a LeRobotDataset v3 with progress and rewards, as a new data set."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """The data set; it is never written."""
    reward_model: str
    """Folder that `vla reward-model train` wrote, or one of the controls: time, oracle."""
    out: Path
    """Directory of the new data set; intermediate results are in OUT.parts."""
    cameras: str = ""
    """Cameras of the data set for the reward model's views, in its order: "front,wrist"; "-" is a
    black view. By default those of the same names, or all in order."""
    instruction: str = ""
    """Instruction of every episode, in place of the data set's instructions."""
    agreement: bool = False
    """Score with each camera alone, too; confidence is lower where they disagree."""
    example: int | None = None
    """A successful episode of the data set, as the reference of its task."""
    example_progress: str = ""
    """Column with the progress of that episode, in [0, 1]; by default it is linear in time."""
    episodes: str = ""
    """Episodes to label: "0:20,35"; all by default. A later run with the same --out adds others."""
    shard: str = ""
    """"i/n": score every n-th group of episodes, starting with the i-th (from 1); the process that
    scores the last one writes the data set."""
    reward: Kind = "potential"
    """Reward: potential-based, in which loops earn nothing, or the raw delta."""
    gamma: float = 0.99
    """Discount per scored step."""
    done_threshold: float = 0.5
    """Probability of done from which a frame counts as done."""
    smooth: bool = False
    """Add progress.smoothed, which is not causal."""
    overrides: Path | None = None
    """Corrections by people: a JSON file, or a reviewed data set; by default
    SOURCE/meta/overrides.json if it exists."""
    memory_mb: int = 512
    """Memory for decoded images in MB; decides how many episodes are scored together."""
    report: bool = True
    """Write a report, OUT_report.html, and check the gates: exit code 1 if one is missed. Labels
    are written in any case."""
    gates: Gates = field(default_factory=Gates)
    """Bounds of the labels' quality."""
    dry_run: bool = False
    """Time a few frames, print an estimate, and write nothing."""
    device: str = "cpu"
    """Device of the reward model: cpu, cuda or cuda:N."""
    threads: int = 1
    """CPU threads of the reward model; decoding uses two more."""

    def __post_init__(self) -> None:
        validate_min(self, memory_mb=1, threads=1, gamma=0, done_threshold=0)
        for name in ("gamma", "done_threshold"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at most 1")
        if self.example is None and self.example_progress:
            raise ValueError("example_progress: names a column of no --example; give --example")


def chosen_episodes(text: str, count: int) -> tuple[int, ...]:
    """Return the episodes that "0:20,35" means, in order; all `count` of them if it is empty.

    Raises:
        ValueError: it is malformed or names an episode that does not exist.
    """
    if not text:
        return tuple(range(count))
    chosen: set[int] = set()
    for piece in text.split(","):
        ends = piece.strip().split(":")
        if not all(end.isdecimal() for end in ends) or len(ends) > 2:
            raise ValueError(
                f"episodes: got {text!r}, expected numbers and ranges such as 0:20,35, without the "
                "ends of ranges"
            )
        first, end = int(ends[0]), int(ends[-1]) + (len(ends) == 1)
        if not first < end <= count:
            raise ValueError(
                f"episodes: got {piece.strip()!r}, expected episodes from 0 to {count - 1}"
            )
        chosen |= set(range(first, end))
    return tuple(sorted(chosen))


def shard(text: str) -> tuple[int, int]:
    """Return (i, n) of "i/n", (1, 1) if it is empty.

    Raises:
        ValueError: it is malformed.
    """
    if not text:
        return 1, 1
    i, _, n = text.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise ValueError(f"shard: got {text!r}, expected i/n with i from 1 to n, such as 1/4")
    return int(i), int(n)
