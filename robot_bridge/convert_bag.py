"""`vla convert`: bags become a LeRobotDataset v3 with one frame per control step.

Frame k of an episode is at its begin + k / fps: of each camera and of the joints it has the latest
message at or before that time, and as its action the newest command before the next frame, which is
where the arm was told to be. An episode goes from one message on `task` to the next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from robot_bridge.bag_scan import Names, Pictures, Scan, Series, lacking, scan
from vla import arguments
from vla.contracts import registry
from vla.contracts.specs import RobotSpec
from vla.data.plain_writer import PlainEpisode, features, write_set

INTERVENTION = "intervention"
"""Column that is true where a person led the arm."""
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """What to convert, and to what."""

    bags: tyro.conf.Positional[tuple[Path, ...]]
    """MCAP files, or folders of them."""
    out: Path
    """Directory of the data set; it must not exist."""
    robot: str = "so101"
    """The arm: a file name under vla/robots."""
    fps: int | None = None
    """Frames per second; the robot's control rate if not given."""
    cameras: tuple[str, ...] = ()
    """Names of the cameras; the robot's if not given."""
    size: tuple[int, int] | None = None
    """Height and width of the pictures, of the middle, scaled; the robot's if not given."""
    task: str = ""
    """Instruction of bags without a message on the task's topic."""
    max_age_s: float = 0.25
    """Oldest picture, state or command of a frame; before an older one the episode is cut."""
    namespace: str = ""
    """Of relative topic names: /NAMESPACE/joint_states."""
    state_topic: str = "joint_states"
    """Measured joints."""
    command_topic: tuple[str, ...] = (
        "joint_trajectory_controller/joint_trajectory",
        "forward_command_controller/commands",
    )
    """Commands that were sent; the one of them that the bag has."""
    camera_topic: tuple[str, ...] = (
        "cameras/NAME/image_raw",
        "cameras/NAME/image_raw/compressed",
    )
    """Pictures, with NAME for the camera's name; the one of them that the bag has."""
    task_topic: str = "task"
    """Instructions."""
    status_topic: str = "safety_node/status"
    """Says who leads the arm."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.fps is not None and self.fps < 1:
            raise ValueError(f"fps: got {self.fps}, expected at least 1")
        if not 0 < self.max_age_s < 60:
            raise ValueError(f"max_age_s: got {self.max_age_s}, expected above 0 and below 60")
        if self.size is not None and min(self.size) < 2:
            raise ValueError(f"size: got {self.size}, expected at least 2 by 2 pixels")


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Which messages make the frames of an episode."""

    task: str
    stamps: np.ndarray
    """i64 [t], nanoseconds."""
    state: np.ndarray
    """i64 [t], rows of the series, as the others are."""
    command: np.ndarray
    cameras: dict[str, np.ndarray]
    told: str
    """What was cut, empty if nothing was."""


def main(argv: list[str]) -> int:
    """Run `vla convert BAG.mcap [BAG...] --out DATASET`; return the exit code."""
    config = arguments.read(ConvertConfig, argv, "vla convert")
    info, told = convert_bags(config)
    for line in told:
        print(line)
    print(f"{info.num_episodes} episodes, {info.num_frames} frames in {info.path}")
    return 0


def convert_bags(config: ConvertConfig) -> tuple[Any, list[str]]:
    """Write the data set; return its description and what a user has to know, line by line.

    Raises:
        ValueError: what is wrong with the options or a bag; nothing is written.
        OSError: the disk is full; nothing is left.
    """
    robot: RobotSpec = registry.load("vla.robots", config.robot).SPEC
    fps = config.fps if config.fps is not None else int(robot.control_hz)
    if config.fps is None and fps != robot.control_hz:
        raise ValueError(f"{robot.name} acts at {robot.control_hz} Hz, a set wants whole: --fps")
    if config.out.exists():
        raise ValueError(f"{config.out}: is there already; choose another --out, or delete it")
    paths = bag_files(config.bags)
    sizes = picture_sizes(robot, config)
    names = topic_names(config, tuple(sizes))
    scans = [scan(path, names, robot.names) for path in paths]
    wrong = [lacking(one, names) for one in scans]
    if all(wrong):
        raise ValueError(wrong[0])
    # One episode that was stopped before anything came must not cost all the others.
    told = [f"{sentence}; left out" for sentence in wrong if sentence]
    scans = [one for one, sentence in zip(scans, wrong, strict=True) if not sentence]
    told += [line for one in scans for line in notes(one)]
    recording: dict[str, Any] = {"bags": [path.name for path in paths], "episodes": []}

    def episodes() -> Iterator[PlainEpisode]:
        for one in scans:
            views = {name: Pictures(one.bag, one.cameras[name], *hw) for name, hw in sizes.items()}
            for frames in cut_episodes(one, fps, config):
                if frames.told:
                    told.append(frames.told)
                if len(frames.stamps):
                    recording["episodes"].append(
                        {"bag": one.bag.path.name, "begin_s": int(frames.stamps[0]) / 1e9}
                    )
                    yield _episode(one, frames, views)
        if not recording["episodes"]:
            raise ValueError("; ".join([*told, "no episode is left: nothing is written"]))

    config.out.parent.mkdir(parents=True, exist_ok=True)
    table = features(robot, sizes, {INTERVENTION: "bool"})
    return write_set(config.out, robot, fps, table, episodes(), recording), told


def bag_files(bags: Sequence[Path]) -> list[Path]:
    """Return the MCAP files named, those of a folder in the order of their names.

    Raises:
        ValueError: none is named, or a folder holds none.
    """
    found: list[Path] = []
    for bag in bags:
        inside = sorted(bag.glob("*.mcap")) if bag.is_dir() else [bag]
        if not inside:
            raise ValueError(f"{bag}: holds no *.mcap; name a bag or a folder of a recorder")
        found += inside
    if not found:
        raise ValueError("got no bag, expected vla convert BAG.mcap [BAG...] --out DATASET")
    return found


def picture_sizes(robot: RobotSpec, config: ConvertConfig) -> dict[str, tuple[int, int]]:
    """Return height and width by name of the camera.

    Raises:
        ValueError: a camera is not the robot's, and no size is given.
    """
    known = {camera.name: (camera.height_px, camera.width_px) for camera in robot.cameras}
    names = config.cameras or tuple(known)
    other = [name for name in names if name not in known]
    if other and config.size is None:
        raise ValueError(
            f"camera {other[0]!r} is none of {robot.name}'s ({', '.join(known)}); give --size "
            "HEIGHT WIDTH for its pictures"
        )
    return {name: config.size or known[name] for name in names}


def topic_names(config: ConvertConfig, cameras: Sequence[str]) -> Names:
    """Return full names of the topics."""

    def full(name: str) -> str:
        inside = f"/{config.namespace.strip('/')}/{name}".replace("//", "/")
        return name if name.startswith("/") else inside

    return Names(
        state=full(config.state_topic),
        command=tuple(full(name) for name in config.command_topic),
        task=full(config.task_topic),
        status=full(config.status_topic),
        cameras={
            camera: tuple(full(name.replace("NAME", camera)) for name in config.camera_topic)
            for camera in cameras
        },
    )


def notes(one: Scan) -> list[str]:
    """Return what a user has to know of a bag before its episodes are cut."""
    bag, told = one.bag, []
    if not bag.closed:
        told.append(
            f"{bag.path}: was cut off; converted as far as it is whole ({bag.whole} of {bag.size} "
            "bytes)"
        )
    told += [
        f"{bag.path}: left out {series.skipped} messages of {series.topic} whose stamp was not "
        "later than the one before"
        for series in one.all_series()
        if series.skipped
    ]
    if not one.status.stamps:
        told.append(f"{bag.path}: nothing says who led the arm: no frame is an intervention")
    return told


def cut_episodes(one: Scan, fps: int, config: ConvertConfig) -> Iterator[Frames]:
    """Yield the frames of every episode of a bag.

    Raises:
        ValueError: the bag says no instruction, and none was given.
    """
    needed = [one.state, one.command, *one.cameras.values()]
    last = max(series.stamps[-1] for series in needed) + 1
    starts = list(zip(one.task.stamps, one.task.values, strict=True))
    if config.task or not starts:
        if not config.task:
            raise ValueError(
                f"{one.bag.path}: no message on {topic_names(config, ()).task}, so no "
                "instruction; give it with --task TEXT, or another --task-topic"
            )
        starts = [(min(series.stamps[0] for series in needed), config.task)]
    ends = [stamp for stamp, _ in starts[1:]] + [last]
    for number, ((begin, task), end) in enumerate(zip(starts, ends, strict=True)):
        yield _frames(one, (begin, max(end, begin)), task, fps, config, number)


def _frames(
    one: Scan, span: tuple[int, int], task: str, fps: int, config: ConvertConfig, number: int
) -> Frames:
    """Return the frames of an episode, up to the first that lacks something."""
    age = round(config.max_age_s * SECOND_NS)
    named = {"state": one.state, "command": one.command}
    named |= {f"camera {name}": series for name, series in one.cameras.items()}
    begin = _begin(one, span[0], span[0] - age, SECOND_NS // fps)
    what = f"{one.bag.path}: episode {number} ({task!r})"
    length = max(0, -(-(span[1] - begin) * fps // SECOND_NS))
    stamps = begin + np.arange(length + 1, dtype=np.int64) * SECOND_NS // fps
    rows = {
        name: _latest(series, stamps[:-1]) for name, series in named.items() if name != "command"
    }
    # The newest command strictly before the next frame, and before the next episode.
    rows["command"] = _latest(one.command, np.minimum(stamps[1:], span[1]) - 1)
    stale = {
        name: (row < 0) | (stamps[:-1] - np.array(named[name].stamps)[row] > age)
        for name, row in rows.items()
    }
    wrong = {name: int(np.argmax(bad)) for name, bad in stale.items() if bad.any()}
    told, kept = "", int(length)
    if wrong:
        name = min(wrong, key=lambda key: wrong[key])
        kept = wrong[name]
        told = (
            f"{what}: cut at frame {kept} of {length}, {kept / fps:.1f} s: the {name} on "
            f"{named[name].topic} is older than {config.max_age_s:g} s there"
        )
    elif not length:
        told = f"{what}: left out, the bag has no picture, state or command in it"
    return Frames(
        task=task, stamps=stamps[:kept], state=rows["state"][:kept], told=told,
        command=rows["command"][:kept],
        cameras={name: rows[f"camera {name}"][:kept] for name in one.cameras},
    )  # fmt: skip


def _begin(one: Scan, start: int, since: int, step: int) -> int:
    """Return when an episode's first frame is, in nanoseconds.

    That is when state and pictures have come, and if no command follows within a control step, the
    last picture before the first command: what came before led to no action.
    """
    seen = [one.state, *one.cameras.values()]
    begin = max(start, *(_first(series, since) for series in seen))
    acted = _first(one.command, since)
    if acted < begin + step:
        return begin
    row = int(_latest(seen[-1], np.array([acted]))[0])
    return max(begin, seen[-1].stamps[max(row, 0)])


def _first(series: Series, since: int) -> int:
    """Return the stamp of the first message at or after a time; the last one's if there is none."""
    row = int(np.searchsorted(series.stamps, since))
    return series.stamps[min(row, len(series.stamps) - 1)]


def _latest(series: Series, times: np.ndarray) -> np.ndarray:
    """Return for each time the row of the latest message at or before it, -1 if there is none."""
    return np.searchsorted(np.array(series.stamps, np.int64), times, side="right") - 1


def _episode(one: Scan, frames: Frames, views: dict[str, Pictures]) -> PlainEpisode:
    """Return an episode whose pictures are read when they are asked for."""
    status = _latest(one.status, frames.stamps)
    by_person = np.array([*one.status.values, False])[status]  # -1, before the first: nobody
    return PlainEpisode(
        task=frames.task,
        columns={
            "observation.state": np.array(one.state.values)[frames.state].astype(np.float32),
            "action": np.array(one.command.values)[frames.command].astype(np.float32),
            INTERVENTION: by_person.astype(bool),
        },
        pictures={name: views[name].read(rows) for name, rows in frames.cameras.items()},
    )
