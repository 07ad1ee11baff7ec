"""`vla demos`: records scripted episodes of a task as a LeRobotDataset v3, safe to interrupt.

Worker processes play and write shards of a few episodes into `OUT.parts`, each whole or absent;
when all are there they become one data set at `OUT`. An episode follows from (seed, index) alone,
so a recording that was killed continues where it stopped and ends with the same content.
"""

import contextlib
import dataclasses
import fcntl
import json
import multiprocessing
import shutil
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO

import av
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from sim import suite_episode
from sim.behaviours import check_supported
from sim.episode import record_episode
from sim.randomize import check_looks
from sim.vec_env import TASKS, is_suite, load_arm, load_task, title
from vla import arguments
from vla.contracts import registry
from vla.contracts.config import PluginConfig, check_least, to_json, type_name
from vla.data.bar import Rate
from vla.data.reader import DatasetInfo, open_dataset
from vla.data.whole import leftovers
from vla.data.writer import Episode, merge_shards, write_shard
from vla.interrupted import Interrupted

MAX_SHARD_EPISODES = 25
"""What a kill may cost each worker at most, and the number of episodes per video file."""

Recorder = Callable[..., Episode]
"""Arguments: task, seed, index, behaviour, robot, task configuration, and looks by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemosConfig:
    """What to record and where to put it."""

    out: Path
    """Directory of the data set; unfinished parts are beside it in OUT.parts."""
    episodes: int = 100
    """How many episodes."""
    behaviour: str = "expert"
    """Who acts: expert, one of the bad behaviours, or mixed."""
    looks: str = "usual"
    """What lies outside the usual range: nothing (usual), the camera poses, or surface colours."""
    seed: int = 0
    """Seed of the recording; training and evaluation must use different ones."""
    robot: str | None = None
    """The arm: a file name under vla/robots; so101, or the arm of the task's suite, if None."""
    workers: int = 2
    """Processes; changes the time it takes and nothing else."""
    task: PluginConfig
    """The task's own configuration."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=1, workers=1, seed=0)


def main(argv: list[str]) -> int:
    """Run `vla demos TASK --episodes N --out DIR`; return the exit code."""
    if not argv or argv[0].startswith("-"):
        known, suites = (", ".join(registry.names(folder)) for folder in TASKS)
        print(f"usage: vla demos TASK --episodes N --out DIR [options]\ntasks: {known}")
        print(f"or SUITE/TASK, with a suite of {suites}: `vla env list`")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    options = arguments.read(_options(argv[0]), argv[1:], f"vla demos {argv[0]}")
    # Workers cannot import a class made on the spot.
    names = [field.name for field in dataclasses.fields(DemosConfig)]
    config = DemosConfig(**{name: getattr(options, name) for name in names})
    check(config)
    info = record_demos(config)
    print(f"{info.num_episodes} episodes, {info.num_frames} frames in {info.path}")
    return 0


def check(config: DemosConfig) -> None:
    """Build the task, so that what it refuses is told before workers start and a folder is made.

    Raises:
        ValueError: no such robot or looks, or the task refuses its settings or the behaviour.
    """
    check_looks(config.looks)
    arm = load_arm(config.task, config.robot)
    if is_suite(config.task):
        suite_episode.check(config.task, config.behaviour, config.looks)
    else:
        check_supported(config.task.build(arm), config.behaviour)


def _options(task: str) -> type[DemosConfig]:
    """Return `DemosConfig` with the configuration of `task` as the type of its field."""
    default = load_task(task)
    field = ("task", type(default), dataclasses.field(default_factory=lambda: default))
    return dataclasses.make_dataclass(
        "Options", [field], bases=(DemosConfig,), frozen=True, kw_only=True
    )


def record_demos(config: DemosConfig, record: Recorder | None = None) -> DatasetInfo:
    """Record what is missing of a data set, join it at `config.out` and return its description.

    Args:
        config: What to record.
        record: Plays one episode; a function of a module, since workers import it. The task's own
            expert if None.

    Raises:
        ValueError: `config.out` or its parts belong to another recording, or another process is at
            work on it.
        Interrupted: Ctrl-C or SIGTERM; finished episodes were saved first.
        OSError: the disk is full; what was reported as saved is there.
    """
    record = record or _recorder(config)
    recording = _recording(config)
    parts = config.out.with_name(config.out.name + ".parts")
    if config.out.exists():
        if not (config.out / "meta/info.json").exists():
            raise ValueError(f"{config.out}: exists and holds no data set; choose another --out")
        info = open_dataset(config.out)
        _check_same(config.out, info.recording, recording)
        shutil.rmtree(parts, ignore_errors=True)
        return info
    parts.mkdir(parents=True, exist_ok=True)
    with (parts / "lock").open("w") as lock:
        _claim(lock, config.out)
        _continue(parts, recording)
        saved = sum(_shards(parts).values())
        if saved < config.episodes:
            try:
                _record_missing(config, record, parts)
            finally:
                _clear_leftovers(parts)
        info = merge_shards(list(_shards(parts)), config.out, recording)
    shutil.rmtree(parts)
    return info


def _recorder(config: DemosConfig) -> Recorder:
    return suite_episode.record_episode if is_suite(config.task) else record_episode


def _recording(config: DemosConfig) -> dict[str, Any]:
    """Return what decides the content of the data set, as JSON types."""
    return {
        "task": to_json(config.task),
        "robot": load_arm(config.task, config.robot).name,
        "behaviour": config.behaviour,
        "looks": config.looks,
        "seed": config.seed,
        "episodes": config.episodes,
    }


def _check_same(place: Path, found: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
    if found is None:
        raise ValueError(f"{place}: exists and was not recorded by vla demos; choose another --out")
    for key, value in wanted.items():
        if found.get(key) != value:
            raise ValueError(
                f"{place}: was recorded with {key} {found.get(key)!r}, not {value!r}; choose "
                "another --out, delete it, or use the same settings"
            )


def _claim(lock: TextIO, out: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system frees it when we are killed
    except BlockingIOError as error:
        raise ValueError(
            f"{out}: another process is recording it; wait for it or stop it"
        ) from error


def _continue(parts: Path, recording: dict[str, Any]) -> None:
    """Check that `parts` holds this recording, or make it so; clear what a kill left behind."""
    file = parts / "recording.json"
    if file.exists():
        _check_same(parts, json.loads(file.read_text()), recording)
    else:
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(recording, indent=1))
        temporary.rename(file)
    _clear_leftovers(parts)


def _clear_leftovers(parts: Path) -> None:
    """Delete what killed workers had begun to write; nobody may be recording."""
    out = parts.with_name(parts.name.removesuffix(".parts"))
    for leftover in (*parts.glob(".episodes-*.tmp"), *leftovers(out)):
        shutil.rmtree(leftover)


def _shards(parts: Path) -> dict[Path, int]:
    """Return the saved shards in order, with their numbers of episodes."""
    return {
        shard: json.loads((shard / "meta/info.json").read_text())["total_episodes"]
        for shard in sorted(parts.glob("episodes-*"))
    }


def _shard_path(parts: Path, first: int) -> Path:
    return parts / f"episodes-{first:07d}"


def _missing(parts: Path, config: DemosConfig) -> deque[range]:
    """Return the episodes still to record, cut into shards."""
    have = {int(shard.name.split("-")[1]): n for shard, n in _shards(parts).items()}
    size = min(MAX_SHARD_EPISODES, -(-config.episodes // config.workers))
    jobs: deque[range] = deque()
    first = 0
    while first < config.episodes:
        if first in have:
            first += have[first]
            continue
        end = min([first + size, config.episodes, *(start for start in have if start > first)])
        jobs.append(range(first, end))
        first = end
    return jobs


def _record_missing(config: DemosConfig, record: Recorder, parts: Path) -> None:
    """Let workers record what is missing; return when all of it is saved."""
    jobs = _missing(parts, config)
    saved = sum(_shards(parts).values())
    stopping = False

    def stop(signum: int, frame: Any) -> None:
        nonlocal stopping
        if stopping:  # asked twice: drop what is not saved
            raise _stopped(config, parts)
        stopping = True

    previous = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    size = min(config.workers, len(jobs))
    try:
        with _Team(config, record, parts, size) as team, _bar(config) as bar:
            line = bar.add_task("", total=config.episodes, completed=saved, saved=saved)
            team.start(jobs)
            while team.busy:
                for kind, count in team.messages(stopping):
                    if kind == "episode":
                        bar.advance(line)
                        continue
                    saved += count
                    bar.update(line, saved=saved)
                    if not bar.console.is_terminal:
                        print(f"saved {saved} of {config.episodes} episodes", flush=True)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if saved < config.episodes:
        raise _stopped(config, parts)


def _stopped(config: DemosConfig, parts: Path) -> Interrupted:
    saved = sum(_shards(parts).values())
    return Interrupted(f"{saved} of {config.episodes} episodes are saved in {parts}")


def _bar(config: DemosConfig) -> Progress:
    return Progress(
        TextColumn(f"recording {title(config.task)}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TextColumn("saved {task.fields[saved]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


class _Team:
    """Worker processes and the shards they are at; they end with the process that started them."""

    def __init__(self, config: DemosConfig, record: Recorder, parts: Path, size: int) -> None:
        # Ctrl-C reaches the whole process group: workers, who inherit the mask, must not die of it
        # in mid-shard. Our own comes when the mask is lifted; multiprocessing's tracker lifts it
        # when it starts, so it starts first.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            context = multiprocessing.get_context("spawn")  # EGL does not survive a fork
            self._processes = {}
            for _ in range(size):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_work, args=(theirs, config, record, parts), daemon=True
                )
                process.start()
                theirs.close()
                self._processes[ours] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._jobs: deque[range] = deque()
        self._told = False
        self.busy: set[Connection] = set()
        """Connections to workers that are at a shard."""

    def __enter__(self) -> "_Team":
        return self

    def __exit__(self, *error: object) -> None:
        for connection, process in self._processes.items():
            connection.close()  # tells an idle worker to go
            process.join(timeout=0 if any(error) else 10)
            process.kill()

    def start(self, jobs: deque[range]) -> None:
        """Give every worker its first shard; the others follow as they finish."""
        self._jobs = jobs
        for connection in self._processes:
            self._assign(connection)

    def messages(self, stopping: bool) -> Iterator[tuple[str, int]]:
        """Wait a moment; yield ("episode", 1) and ("saved", count) and hand out further shards."""
        if stopping and not self._told:
            self._told = True
            self._jobs.clear()
            for connection in self.busy:
                connection.send(None)
        ready = wait(self.busy, timeout=0.2)
        for connection in [c for c in self.busy if c in ready]:
            try:
                kind, value = connection.recv()
            except EOFError as error:
                self.busy.discard(connection)
                self._processes[connection].join()
                code = self._processes[connection].exitcode
                raise ChildProcessError(
                    f"a worker process died with exit code {code} (-9 often means out of memory); "
                    "run the same command to continue, with fewer --workers if it happens again"
                ) from error
            if kind == "error":
                raise value
            if kind == "saved":
                self.busy.discard(connection)
                self._assign(connection)
            yield kind, value

    def _assign(self, connection: Connection) -> None:
        if self._jobs:
            connection.send(self._jobs.popleft())
            self.busy.add(connection)


def _work(connection: Connection, config: DemosConfig, record: Recorder, parts: Path) -> None:
    """Record the shards that arrive through `connection` until it is closed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _quiet_libraries()
    try:
        while True:
            job = connection.recv()
            if job is not None:  # None arrives when told to stop with nothing in hand
                episodes = _play(connection, config, record, job)
                path = _shard_path(parts, job.start)
                count = write_shard(
                    path, load_arm(config.task, config.robot), episodes, _recording(config)
                )
                connection.send(("saved", count))
    except (EOFError, BrokenPipeError):  # whoever asked is gone; nothing to tell anyone
        return
    except Exception as error:  # noqa: BLE001 (told to the user by the parent)
        with contextlib.suppress(BrokenPipeError):
            connection.send(("error", _portable(error)))


def _play(
    connection: Connection, config: DemosConfig, record: Recorder, job: range
) -> Iterator[Episode]:
    """Yield the episodes of a shard; ends early, after at least one, when told to stop."""
    robot, task = load_arm(config.task, config.robot), type_name(config.task)
    for index in job:
        yield record(
            task, config.seed, index, config.behaviour, robot, config.task, looks=config.looks
        )
        connection.send(("episode", 1))
        if connection.poll():
            connection.recv()  # EOFError if the recording process died: save nothing
            break


def _portable(error: Exception) -> Exception:
    """Return an exception that can be sent between processes and says the same."""
    number = getattr(error, "errno", None)
    if isinstance(error, ValueError):
        return ValueError(str(error))
    if number is not None or isinstance(error, OSError):
        return OSError(number, str(error))
    return RuntimeError("".join(traceback.format_exception(error)))


def _quiet_libraries() -> None:
    """Keep FFmpeg, which LeRobot makes talkative, from writing over the progress bar."""
    av.logging.set_libav_level(av.logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning, module="lerobot")
