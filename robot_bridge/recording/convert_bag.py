"""`vla convert`: makes a LeRobotDataset v3 of bags, one frame per control step.

Frame k of an episode, at its beginning + k / fps, has the latest images and joint states at or
before that time. Its action is the newest command before the next frame. An episode goes from one
message on `instruction` to the next.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from robot_bridge.launching import driver
from robot_bridge.launching.driver import Driver
from robot_bridge.recording.bag_scan import ImageReader, Names, Scan, Series, missing_topics, scan
from robot_bridge.recording.mcap_reader import open_bag
from robot_bridge.recording.recorder import BEGIN
from vla.contracts import migrate, robot_file
from vla.contracts.specs import RobotSpec
from vla.data.episode import EpisodeData, episode_data, feature_table
from vla.data.info import DatasetInfo
from vla.data.source import check_names
from vla.data.writer import DatasetWriter
from vla.utils import arguments, files

INTERVENTION = "intervention"
"""Column that is true while a person led the arm."""
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Settings of `vla convert`."""

    bags: tyro.conf.Positional[tuple[Path, ...]]
    """MCAP files, or folders of them."""
    out: Path
    """Folder of the data set; it must not exist."""
    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    driver: str = ""
    """Driver file, or its name under launch/drivers, of the arm; by default that in the bag."""
    fps: int | None = None
    """Frames per second; the robot's control rate by default."""
    cameras: tuple[str, ...] = ()
    """Names of the cameras; the robot's by default."""
    size: tuple[int, int] | None = None
    """Height and width of images, cropped in the center and resized; the robot's by default."""
    task: str = ""
    """Instruction of bags without a message on the instruction's topic."""
    max_age_s: float = 0.25
    """Largest age in s of a frame's images, state and command; older ones end the episode."""
    namespace: str = ""
    """Namespace of relative topics: /NAMESPACE/joint_states."""
    state_topic: str = "joint_states"
    """Topic of the joint states."""
    command_topic: tuple[str, ...] = (
        "safety_node/command",
        "joint_trajectory_controller/joint_trajectory",
        "forward_command_controller/commands",
    )
    """Topics of commands: the first, or else the only one of the others, that is in the bag."""
    camera_topic: tuple[str, ...] = (
        "cameras/NAME/image_raw",
        "cameras/NAME/image_raw/compressed",
    )
    """Topics of images, of which the bag has one; NAME stands for the camera's name."""
    instruction_topic: str = "instruction"
    """Topic of the instructions; in recordings of an earlier release it is `task`."""
    status_topic: str = "safety_node/status"
    """Topic with the source that leads the arm."""

    def __post_init__(self) -> None:
        if self.fps is not None and self.fps < 1:
            raise ValueError(f"fps: got {self.fps}, expected at least 1")
        if not 0 < self.max_age_s < 60:
            raise ValueError(f"max_age_s: got {self.max_age_s}, expected above 0 and below 60")
        if self.size is not None and min(self.size) < 2:
            raise ValueError(f"size: got {self.size}, expected at least 2 by 2 pixels")


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Messages of the frames of an episode."""

    task: str
    stamps: np.ndarray
    """i64 [t], nanoseconds."""
    state: np.ndarray
    """i64 [t], rows of the series, as the others are."""
    command: np.ndarray
    cameras: dict[str, np.ndarray]
    note: str
    """Note about a cut; empty if there is none."""


def main(argv: list[str]) -> int:
    """Run `vla convert BAG.mcap [BAG...] --out DATASET`; return the exit code."""
    config = arguments.read(ConvertConfig, argv, "vla convert")
    info, notes = convert_bags(config)
    for line in notes:
        print(line)
    print(f"{info.num_episodes} episodes, {info.num_frames} frames in {info.path}")
    return 0


def convert_bags(config: ConvertConfig) -> tuple[DatasetInfo, list[str]]:
    """Write the data set; return its description and notes for the user.

    Raises:
        ValueError: an option or a bag is wrong; nothing is written.
        OSError: the disk is full; nothing is left.
    """
    robot: RobotSpec = robot_file.load(config.robot)
    fps = config.fps if config.fps is not None else int(robot.control_hz)
    if config.fps is None and fps != robot.control_hz:
        raise ValueError(f"{robot.name} acts at {robot.control_hz} Hz, a set wants whole: --fps")
    with files.claim(config.out):
        if config.out.exists():
            raise ValueError(f"{config.out}: is there already; choose another --out, or delete it")
        return _convert(config, robot, fps)


def _convert(config: ConvertConfig, robot: RobotSpec, fps: int) -> tuple[DatasetInfo, list[str]]:
    paths = bag_files(config.bags)
    sizes = image_sizes(robot, config)
    check_names(Path("--cameras"), sizes)
    names = topic_names(config, tuple(sizes))
    scans = []
    for path in paths:
        arm = _driver(path, robot, config)
        # A message of one of several controllers is no action: what the safety node says is.
        split = len(arm.controllers) > 1
        of_arm = replace(names, command=names.command[:1]) if split else names
        scans.append(scan(path, of_arm, arm, config.max_age_s))
    missing = [missing_topics(bag_scan, names) for bag_scan in scans]
    if all(missing):
        raise ValueError(missing[0])
    # One episode that was stopped before anything came must not cost all the others.
    notes = [f"{sentence}; left out" for sentence in missing if sentence]
    scans = [bag_scan for bag_scan, sentence in zip(scans, missing, strict=True) if not sentence]
    notes += [line for bag_scan in scans for line in bag_notes(bag_scan)]
    recording: dict[str, Any] = {"bags": [path.name for path in paths], "episodes": []}

    features = feature_table(sizes, robot.names, robot.names, {INTERVENTION: "bool"})
    with DatasetWriter(
        config.out, robot=robot.name, fps=fps, features=features, recording=recording
    ) as writer:
        for bag_scan in scans:
            views = {
                name: ImageReader(bag_scan.bag, bag_scan.cameras[name], *hw)
                for name, hw in sizes.items()
            }
            with contextlib.ExitStack() as opened:
                for view in views.values():
                    opened.callback(view.close)
                for frames in cut_episodes(bag_scan, fps, config):
                    if frames.note:
                        notes.append(frames.note)
                    if len(frames.stamps):
                        recording["episodes"].append(
                            {"bag": bag_scan.bag.path.name, "begin_s": int(frames.stamps[0]) / 1e9}
                        )
                        writer.add(_episode(bag_scan, frames, fps, views))
        if not recording["episodes"]:
            raise ValueError("; ".join([*notes, "no episode is left: nothing is written"]))
    return writer.info, notes


def _driver(path: Path, robot: RobotSpec, config: ConvertConfig) -> Driver:
    """Return the driver of the arm that was recorded in a bag."""
    bag = open_bag(path)
    next(bag.messages(), None)  # what is written of an episode precedes its messages
    text = bag.metadata.get(BEGIN, {}).get("driver", "")
    if config.driver or not text:
        return driver.read(config.driver, robot)
    return driver.of_text(text, robot, f"{path}: driver")


def bag_files(bags: Sequence[Path]) -> list[Path]:
    """Return the MCAP files, those of a folder in the order of their names.

    Raises:
        ValueError: there is none, or a folder has none.
    """
    files: list[Path] = []
    for bag in bags:
        inside = sorted(bag.glob("*.mcap")) if bag.is_dir() else [bag]
        if not inside:
            raise ValueError(f"{bag}: holds no *.mcap; name a bag or a folder of a recorder")
        files += inside
    if not files:
        raise ValueError("got no bag, expected vla convert BAG.mcap [BAG...] --out DATASET")
    return files


def image_sizes(robot: RobotSpec, config: ConvertConfig) -> dict[str, tuple[int, int]]:
    """Return height and width by name of the camera.

    Raises:
        ValueError: a camera is not the robot's, and no size is given.
    """
    sizes = {camera.name: (camera.height_px, camera.width_px) for camera in robot.cameras}
    names = config.cameras or tuple(sizes)
    other = [name for name in names if name not in sizes]
    if other and config.size is None:
        raise ValueError(
            f"camera {other[0]!r} is none of {robot.name}'s ({', '.join(sizes)}); give --size "
            "HEIGHT WIDTH for its images"
        )
    return {name: config.size or sizes[name] for name in names}


def topic_names(config: ConvertConfig, cameras: Sequence[str]) -> Names:
    """Return full names of the topics."""

    def full(name: str) -> str:
        inside = f"/{config.namespace.strip('/')}/{name}".replace("//", "/")
        return name if name.startswith("/") else inside

    return Names(
        state=full(config.state_topic),
        command=tuple(full(name) for name in config.command_topic),
        instruction=tuple(full(name) for name in migrate.topics(config.instruction_topic)),
        status=full(config.status_topic),
        cameras={
            camera: tuple(full(name.replace("NAME", camera)) for name in config.camera_topic)
            for camera in cameras
        },
    )


def bag_notes(content: Scan) -> list[str]:
    """Return notes for the user about a bag."""
    bag, notes = content.bag, []
    if not bag.closed:
        notes.append(
            f"{bag.path}: was cut off; converted as far as it is whole ({bag.whole} of {bag.size} "
            "bytes)"
        )
    notes += [
        f"{bag.path}: left out {series.skipped} messages of {series.topic} whose stamp was not "
        "later than the one before"
        for series in (*content.required.values(), content.instruction, content.status)
        if series.skipped
    ]
    if not content.status.stamps:
        notes.append(f"{bag.path}: nothing says who led the arm: no frame is an intervention")
    return notes


def cut_episodes(content: Scan, fps: int, config: ConvertConfig) -> Iterator[Frames]:
    """Yield the frames of every episode of a bag.

    Raises:
        ValueError: neither the bag nor the user gives an instruction.
    """
    needed = content.required.values()
    last = max(series.stamps[-1] for series in needed) + 1
    starts = list(zip(content.instruction.stamps, content.instruction.values, strict=True))
    if config.task or not starts:
        if not config.task:
            topic = topic_names(config, ()).instruction[0]
            raise ValueError(
                f"{content.bag.path}: no message on {topic}, so no instruction; give it with "
                "--task TEXT, or another --instruction-topic"
            )
        starts = [(min(series.stamps[0] for series in needed), config.task)]
    ends = [stamp for stamp, _ in starts[1:]] + [last]
    # An empty instruction ends an episode and begins none.
    spans = [(*start, end) for start, end in zip(starts, ends, strict=True) if start[1]]
    bad = [task for _, task, _ in spans if not task.strip() or "\0" in task]
    if bad:
        raise ValueError(
            f"{content.bag.path}: got the instruction {bad[0]!r}, expected text; give it with "
            "--task TEXT"
        )
    for number, (begin, task, end) in enumerate(spans):
        yield _frames(content, (begin, max(end, begin)), task, fps, config, number)


def _frames(
    content: Scan, span: tuple[int, int], task: str, fps: int, config: ConvertConfig, number: int
) -> Frames:
    """Return the frames of an episode, up to the first that lacks something."""
    age = round(config.max_age_s * SECOND_NS)
    named = content.required
    begin = _begin(content, span[0], span[0] - age, SECOND_NS // fps)
    what = f"{content.bag.path}: episode {number} ({task!r})"
    length = max(0, -(-(span[1] - begin) * fps // SECOND_NS))
    # Each message serves so many frames; after as many as all serve one lacks something. A wrong
    # stamp may say that the episode lasts for years.
    served = min(len(series.stamps) for series in named.values()) * (age * fps // SECOND_NS + 1)
    stamps = begin + np.arange(min(length, served + 1) + 1, dtype=np.int64) * SECOND_NS // fps
    rows = {
        name: _latest(series, stamps[:-1]) for name, series in named.items() if name != "command"
    }
    # The newest command strictly before the next frame, and before the next episode.
    rows["command"] = _latest(content.command, np.minimum(stamps[1:], span[1]) - 1)
    stale = {
        name: (row < 0) | (stamps[:-1] - np.array(named[name].stamps)[row] > age)
        for name, row in rows.items()
    }
    wrong = {name: int(np.argmax(bad)) for name, bad in stale.items() if bad.any()}
    note, count = "", int(length)
    if wrong:
        name = min(wrong, key=lambda key: wrong[key])
        count = wrong[name]
        note = (
            f"{what}: cut at frame {count} of {length}, {count / fps:.1f} s: the {name} on "
            f"{named[name].topic} is older than {config.max_age_s:g} s there"
        )
    elif not length:
        note = f"{what}: left out, the bag has no image, state or command in it"
    return Frames(
        task=task, stamps=stamps[:count], state=rows["state"][:count], note=note,
        command=rows["command"][:count],
        cameras={name: rows[f"camera {name}"][:count] for name in content.cameras},
    )  # fmt: skip


def _begin(content: Scan, start: int, since: int, step: int) -> int:
    """Return the time of an episode's first frame, in nanoseconds.

    By then state and images have come. If no command follows within a control step, it is the time
    of the last image before the first command.
    """
    observed = [content.state, *content.cameras.values()]
    begin = max(start, *(_first(series, since) for series in observed))
    acted = _first(content.command, since)
    if acted < begin + step:
        return begin
    row = int(_latest(observed[-1], np.array([acted]))[0])
    return max(begin, observed[-1].stamps[max(row, 0)])


def _first(series: Series, since: int) -> int:
    """Return the stamp of the first message at or after a time; the last one's if there is none."""
    row = int(np.searchsorted(series.stamps, since))
    return series.stamps[min(row, len(series.stamps) - 1)]


def _latest(series: Series, times: np.ndarray) -> np.ndarray:
    """Return for each time the row of the latest message at or before it, -1 if there is none."""
    return np.searchsorted(np.array(series.stamps, np.int64), times, side="right") - 1


def _episode(scan: Scan, frames: Frames, fps: int, views: dict[str, ImageReader]) -> EpisodeData:
    """Return an episode whose images are read on demand."""
    status = _latest(scan.status, frames.stamps)
    by_person = np.array([*scan.status.values, False])[status]  # -1, before the first status: False
    values = {
        "observation.state": np.array(scan.state.values)[frames.state],
        "action": np.array(scan.command.values)[frames.command],
        INTERVENTION: by_person.astype(bool),
    }
    images = {
        f"observation.images.{name}": views[name].read(rows)
        for name, rows in frames.cameras.items()
    }
    return episode_data(values, frames.task, fps, images)
