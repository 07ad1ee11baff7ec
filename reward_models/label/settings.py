"""What `vla label` is asked for: its arguments, and the small languages in some of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from reward_models.label_report.gates import Gates
from reward_models.shaping import Kind
from vla.contracts.config import check_least


@dataclass(frozen=True, kw_only=True)
class LabelArgs:
    """Label every frame of a LeRobotDataset v3 with progress and rewards, as a new data set."""

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """The data set; nothing in it is written."""
    critic: str
    """Folder that `vla critic train` wrote, or one of the controls: time, oracle."""
    out: Path
    """Directory of the new data set; unfinished parts are beside it in OUT.parts."""
    cameras: str = ""
    """Cameras of the data set for the critic's views, in its order: "front,wrist"; "-" is a dark
    view. By default those of the same name, or as many as there are, in order."""
    instruction: str = ""
    """What every episode is judged against, instead of the data set's own instructions."""
    agreement: bool = False
    """Score through each camera alone, too; where they disagree, confidence falls."""
    example: int | None = None
    """An episode of the data set that shows its task done, as one-shot reference."""
    example_progress: str = ""
    """Column with the progress of that episode, in [0, 1]; by default it grows with time."""
    episodes: str = ""
    """Which episodes to label: "0:20,35"; all by default. The others stay without labels until
    they are asked for with the same --out."""
    shard: str = ""
    """"i/n": score every n-th group of episodes, beginning with the i-th (from 1), and write
    parts; whoever finds them complete joins them."""
    reward: Kind = "potential"
    """Reward: of a potential, which nothing can farm, or the raw delta, which can be."""
    gamma: float = 0.99
    """Discount per scored step."""
    done_threshold: float = 0.5
    """Probability of being done from which a frame counts as done."""
    smooth: bool = False
    """Add progress.smoothed, which looks into the future as well."""
    overrides: Path | None = None
    """What people corrected: a JSON file, or the reviewed data set that holds it; by default
    SOURCE/meta/overrides.json if it exists."""
    memory_mb: int = 512
    """Memory for decoded images; decides how many episodes are in flight."""
    report: bool = True
    """Write a page about the labels, OUT_report.html, and check the gates: exit code 1 if one is
    missed. The labels are there all the same."""
    gates: Gates = field(default_factory=Gates)
    """Bounds that the labels must keep."""
    dry_run: bool = False
    """Time a few frames and say what labelling would take; write nothing."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the critic runs."""
    threads: int = 1
    """CPU threads of the critic; decoding has its own two."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, memory_mb=1, threads=1, gamma=0, done_threshold=0)
        for name in ("gamma", "done_threshold"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at most 1")
        if self.example is None and self.example_progress:
            raise ValueError("example_progress: names a column of no --example; give one")


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
                f"episodes: got {text!r}, expected numbers and ranges such as 0:20,35; the end of "
                "a range does not belong to it"
            )
        first, end = int(ends[0]), int(ends[-1]) + (len(ends) == 1)
        if not first < end <= count:
            raise ValueError(
                f"episodes: got {piece.strip()!r}, expected episodes from 0 to {count - 1}; give "
                "those that the data set has"
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
