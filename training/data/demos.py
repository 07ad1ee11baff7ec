"""`vla demos`: records scripted episodes of a task as a LeRobotDataset v3; resumable.

Worker processes write shards of a few episodes into `OUT.parts` atomically; all shards together are
merged into one data set at `OUT`. (seed, index) alone determine an episode, so a killed recording
resumes and ends with the same content.
"""

import contextlib
import dataclasses
import json
import multiprocessing
import shutil
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sim.core.randomize import check_visual_shift
from sim.experts import suite_episode
from sim.experts.behaviours import check_supported
from sim.experts.episode import record_episode
from sim.vec_env import TASKS, is_suite, load_arm, load_task, title
from vla.contracts import migrate, registry
from vla.contracts.config import (
    PluginConfig,
    from_json,
    to_json,
    type_name,
    validate_max,
    validate_min,
)
from vla.contracts.renames import ADDED
from vla.data.progress_bar import Rate
from vla.data.reader import DatasetInfo, open_dataset
from vla.data.writer import Episode, merge_shards, write_shard
from vla.utils import arguments, files
from vla.utils.interrupted import Interrupted, sigint_blocked, stop_requests

MAX_SHARD_EPISODES = 25
"""Episodes per shard and video file: the most that a kill loses per worker."""

Recorder = Callable[..., Episode]
"""Takes task, seed, index, behaviour, robot, task configuration, visual_shift and
recovery_fraction by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemosConfig:
    """Settings of a recording."""

    out: Path
    """Directory of the data set; unfinished shards are kept in OUT.parts."""
    episodes: int = 100
    """Number of episodes."""
    behaviour: str = "expert"
    """Acting behaviour: expert, one of the failure behaviours, or mixed."""
    visual_shift: str = "none"
    """Part of the appearance outside the training range, as a test split: none, camera (poses) or
    colour (of table and floor)."""
    seed: int = 0
    """Seed of the episodes; training and evaluation must use different seeds."""
    robot: str | None = None
    """Robot: a file name under vla/robots; None for so101, or for the robot of the task's suite."""
    recovery_fraction: float = 0.0
    """Fraction of episodes that begin where a clumsy expert came to, so that they show how to
    recover; its own steps are not recorded."""
    workers: int = 2
    """Worker processes; the result does not depend on them."""
    task: PluginConfig
    """Configuration of the task."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, workers=1, seed=0)
        validate_min(self, recovery_fraction=0)
        validate_max(self, recovery_fraction=1)


def main(argv: list[str]) -> int:
    """Run `vla demos TASK --episodes N --out DIR`; return the exit code."""
    if not argv or argv[0].startswith("-"):
        tasks, suites = (", ".join(registry.names(folder)) for folder in TASKS)
        print(f"usage: vla demos TASK --episodes N --out DIR [options]\ntasks: {tasks}")
        print(f"or SUITE/TASK, with a suite of {suites}: `vla env list`")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    options = arguments.read(_options(argv[0]), argv[1:], f"vla demos {argv[0]}")
    # Workers cannot import a class that was created dynamically.
    names = [field.name for field in dataclasses.fields(DemosConfig)]
    config = DemosConfig(**{name: getattr(options, name) for name in names})
    check(config)
    info = record_demos(config)
    print(f"{info.num_episodes} episodes, {info.num_frames} frames in {info.path}")
    return 0


def check(config: DemosConfig) -> None:
    """Build the task, so that errors are reported before workers start and a folder is created.

    Raises:
        ValueError: the robot or visual shift is unknown, or the task refuses its settings or the
            behaviour.
    """
    check_visual_shift(config.visual_shift)
    arm = load_arm(config.task, config.robot)
    if is_suite(config.task):
        suite_episode.check(config.task, config.behaviour, config.visual_shift)
        if config.recovery_fraction:
            raise ValueError(
                f"recovery_fraction: got {config.recovery_fraction} for {title(config.task)}, "
                "expected 0: its suite's expert begins at the start"
            )
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
    """Record the missing episodes of a data set, merge them at `config.out` and describe it.

    Args:
        config: Settings.
        record: Plays one episode; a module-level function, because workers import it. The task's
            expert if None.

    Raises:
        ValueError: `config.out` or its shards belong to another recording, or another process
            is recording it.
        Interrupted: Ctrl-C or SIGTERM; finished episodes were saved first.
        OSError: the disk is full; episodes reported as saved are intact.
    """
    expert = suite_episode.record_episode if is_suite(config.task) else record_episode
    record = record or expert
    recording = _recording(config)
    parts = config.out.with_name(config.out.name + ".parts")
    with files.claim(config.out):
        if config.out.exists():
            if not (config.out / "meta/info.json").exists():
                raise ValueError(
                    f"{config.out}: exists and holds no data set; choose another --out"
                )
            info = open_dataset(config.out)
            _check_same(config.out, info.recording, recording)
            shutil.rmtree(parts, ignore_errors=True)
            return info
        parts.mkdir(exist_ok=True)
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


def _recording(config: DemosConfig) -> dict[str, Any]:
    """Return the settings that determine the content of the data set, as JSON types."""
    return {
        "task": to_json(config.task), "robot": load_arm(config.task, config.robot).name,
        "behaviour": config.behaviour, "visual_shift": config.visual_shift, "seed": config.seed,
        "episodes": config.episodes, "recovery_fraction": config.recovery_fraction,
    }  # fmt: skip


def _check_same(place: Path, stored: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
    if stored is None:
        raise ValueError(f"{place}: exists and was not recorded by vla demos; choose another --out")
    stored = {"recovery_fraction": 0.0, **migrate.config(DemosConfig, stored)}
    with contextlib.suppress(ValueError):  # the difference that is reported names the problem
        task = to_json(from_json(None, stored.get("task"), package=TASKS))
        later = {name: value for name, value in task.items() if f"task.{name}" in ADDED}
        stored["task"] = {**later, **stored["task"]}
    for key, value in wanted.items():
        if stored.get(key) != value:
            raise ValueError(
                f"{place}: was recorded with {key} {stored.get(key)!r}, not {value!r}; choose "
                "another --out, delete it, or use the same settings"
            )


def _continue(parts: Path, recording: dict[str, Any]) -> None:
    """Check that `parts` holds this recording, or start it; delete leftovers of a kill."""
    file = parts / "recording.json"
    if file.exists():
        _check_same(parts, json.loads(file.read_text()), recording)
    else:
        files.write_text(file, json.dumps(recording, indent=1))
    _clear_leftovers(parts)


def _clear_leftovers(parts: Path) -> None:
    """Delete unfinished files of killed workers; no recording may be in progress."""
    for leftover in parts.glob(".episodes-*.tmp"):
        shutil.rmtree(leftover)


def _shards(parts: Path) -> dict[Path, int]:
    """Return the saved shards in order with their numbers of episodes."""
    return {
        shard: json.loads((shard / "meta/info.json").read_text())["total_episodes"]
        for shard in sorted(parts.glob("episodes-*"))
    }


def _missing(parts: Path, config: DemosConfig) -> deque[range]:
    """Return the missing episodes, divided into shards."""
    saved = {int(shard.name.split("-")[1]): n for shard, n in _shards(parts).items()}
    size = min(MAX_SHARD_EPISODES, -(-config.episodes // config.workers))
    jobs: deque[range] = deque()
    first = 0
    while first < config.episodes:
        if first in saved:
            first += saved[first]
            continue
        end = min([first + size, config.episodes, *(start for start in saved if start > first)])
        jobs.append(range(first, end))
        first = end
    return jobs


def _record_missing(config: DemosConfig, record: Recorder, parts: Path) -> None:
    """Let workers record the missing episodes; return when all are saved."""
    jobs = _missing(parts, config)
    saved = sum(_shards(parts).values())
    size = min(config.workers, len(jobs))
    with (
        # A second signal drops unsaved episodes.
        stop_requests(lambda: _stopped(config, parts)) as stopping,
        _WorkerPool(config, record, parts, size) as pool,
        _bar(config) as bar,
    ):
        line = bar.add_task("", total=config.episodes, completed=saved, saved=saved)
        pool.start(jobs)
        while pool.busy:
            for kind, count in pool.messages(stopping.is_set()):
                if kind == "episode":
                    bar.advance(line)
                    continue
                saved += count
                bar.update(line, saved=saved)
                if not bar.console.is_terminal:
                    print(f"saved {saved} of {config.episodes} episodes", flush=True)
    if saved < config.episodes:
        raise _stopped(config, parts)


def _stopped(config: DemosConfig, parts: Path) -> Interrupted:
    saved = sum(_shards(parts).values())
    return Interrupted(f"{saved} of {config.episodes} episodes are saved in {parts}")


def _bar(config: DemosConfig) -> Progress:
    return Progress(
        TextColumn(f"recording {title(config.task)}"), BarColumn(), MofNCompleteColumn(), Rate(),
        TextColumn("saved {task.fields[saved]}"), TimeRemainingColumn(),
        console=Console(stderr=True),
    )  # fmt: skip


class _WorkerPool:
    """Worker processes and their current shards; they end with their parent process."""

    def __init__(self, config: DemosConfig, record: Recorder, parts: Path, size: int) -> None:
        with sigint_blocked():
            context = multiprocessing.get_context("spawn")  # EGL does not survive a fork
            self._processes = {}
            for _ in range(size):
                parent, child = context.Pipe()
                process = context.Process(
                    target=_work, args=(child, config, record, parts), daemon=True
                )
                process.start()
                child.close()
                self._processes[parent] = process
        self._jobs: deque[range] = deque()
        self._stopping = False
        self.busy: set[Connection] = set()
        """Connections of workers that record a shard."""

    def __enter__(self) -> "_WorkerPool":
        return self

    def __exit__(self, *error: object) -> None:
        for connection, process in self._processes.items():
            connection.close()  # ends an idle worker
            process.join(timeout=0 if any(error) else 10)
            process.kill()

    def start(self, jobs: deque[range]) -> None:
        """Assign the first shard to every worker; further shards follow as they finish."""
        self._jobs = jobs
        for connection in self._processes:
            self._assign(connection)

    def messages(self, stopping: bool) -> Iterator[tuple[str, int]]:
        """Wait briefly, yield ("episode", 1) and ("saved", count), and assign further shards."""
        if stopping and not self._stopping:
            self._stopping = True
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
    try:
        while True:
            job = connection.recv()
            if job is not None:  # None means stop, without a shard in progress
                episodes = _play(connection, config, record, job)
                path = parts / f"episodes-{job.start:07d}"
                count = write_shard(
                    path, load_arm(config.task, config.robot), episodes, _recording(config)
                )
                connection.send(("saved", count))
    except (EOFError, BrokenPipeError):  # the parent process has ended
        return
    except Exception as error:  # noqa: BLE001 (the parent reports it)
        with contextlib.suppress(BrokenPipeError):
            connection.send(("error", _portable(error)))


def _play(
    connection: Connection, config: DemosConfig, record: Recorder, job: range
) -> Iterator[Episode]:
    """Yield the episodes of a shard; on a stop request end early, after at least one."""
    robot, task = load_arm(config.task, config.robot), type_name(config.task)
    for index in job:
        yield record(
            task, config.seed, index, config.behaviour, robot, config.task,
            visual_shift=config.visual_shift, recovery_fraction=config.recovery_fraction,
        )  # fmt: skip
        connection.send(("episode", 1))
        if connection.poll():
            connection.recv()  # EOFError if the parent process ended: save nothing
            break


def _portable(error: Exception) -> Exception:
    """Return an equivalent exception that can be sent between processes."""
    number = getattr(error, "errno", None)
    if isinstance(error, ValueError):
        return ValueError(str(error))
    if number is not None or isinstance(error, OSError):
        return OSError(number, str(error))
    return RuntimeError("".join(traceback.format_exception(error)))
