"""Virtual environments of suites: made with exact pins, found, and removed.

An environment is complete once its note exists, which is written last. The suite's file lists its
requirements; `sim.env_server.env_command` tries whether the suite works.
"""

import contextlib
import difflib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from vla.contracts import config, registry

SUITES = "sim.suites"
BACKENDS = "sim.backends"
NOTE = "mneme.json"
ADD = "vla env add {}"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """How the environment of a suite is made."""

    pythons: tuple[str, ...]
    """Versions of Python that the pins install on, such as "3.11", the best first."""
    requirements: tuple[str, ...]
    """All packages as exact pins or paths of wheels; pip resolves nothing else."""
    sample: str
    """The task that tests the installation."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """Result of a test of a suite in its environment."""

    works: bool
    """Whether a task opened, reset, stepped and rendered."""
    detail: str
    """Summary, or the error."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Record of a complete environment."""

    python: str
    """Version of its interpreter."""
    requirements: tuple[str, ...]
    """The installed packages."""
    seconds: float
    """Duration of the installation."""
    megabytes: float
    """Size on disk."""
    health: Health | None = None
    """Result of the last test; None before the first."""


def root() -> Path:
    """Return the folder of all environments: $MNEME_ENVS, or the user's data folder."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get("MNEME_ENVS") or Path(data) / "mneme-vla" / "envs").absolute()


def suites() -> dict[str, ModuleType]:
    """Return the modules with an environment, by name: suites and backends."""
    places = [(folder, name) for folder in (SUITES, BACKENDS) for name in registry.names(folder)]
    files = {name: registry.load(folder, name) for folder, name in places}
    return {name: file for name, file in files.items() if hasattr(file, "ENVIRONMENT")}


def check(suite: str) -> str:
    """Return the name of a suite that has an environment; gym-aloha is gym_aloha.

    Raises:
        ValueError: there is no such suite; the message offers the nearest names.
    """
    names, name = suites(), suite.replace("-", "_")
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"unknown suite {suite!r}: {hint}known names are {', '.join(names)}")


def module(suite: str) -> ModuleType:
    """Return the file of a suite: it has ENVIRONMENT, TASKS, HAS_EXPERT, PACKAGE and `Config`."""
    return registry.load(BACKENDS if is_backend(suite) else SUITES, suite)


def is_backend(suite: str) -> bool:
    """Return whether it is a backend for the tasks of `sim/tasks`."""
    return suite in registry.names(BACKENDS)


def described(suite: str) -> Environment:
    """Return the requirements of a suite's environment."""
    return module(suite).ENVIRONMENT


def place(suite: str) -> Path:
    """Return the folder of the environment of a suite, made or not."""
    return root() / suite


def state(suite: str) -> Literal["no", "half", "old", "installed"]:
    """Return the state of a suite's environment: absent, incomplete, outdated or installed."""
    record = note(suite)
    if record is None:
        return "half" if place(suite).exists() else "no"
    return "installed" if record.requirements == described(suite).requirements else "old"


def note(suite: str) -> Note | None:
    """Return the note of an environment; None if it is absent or incomplete."""
    file = place(suite) / NOTE
    try:
        return config.from_json(Note, json.loads(file.read_text()), str(file))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # ValueError: another version of this package wrote it, and the environment is made again.
        return None


def write_note(suite: str, text: Note) -> None:
    """Write the note of a complete environment, atomically."""
    file = place(suite) / NOTE
    part = file.with_suffix(".part")
    part.write_text(json.dumps(asdict(text), indent=2))
    part.replace(file)


def interpreter(suite: str) -> Path:
    """Return the Python of a suite's environment.

    Raises:
        ValueError: it is not installed, or outdated.
    """
    current = state(suite)
    if current != "installed":
        what = "installed in older versions" if current == "old" else "not installed"
        raise ValueError(f"{suite}: {what}; run `{ADD.format(suite)}`")
    return place(suite) / "bin" / "python"


def make(suite: str, python: str | None, say: Callable[[str], None]) -> Note:
    """Make the environment of a suite, or return the note of a complete, current one.

    An interrupted call removes its incomplete environment, or the next call does. Downloaded wheels
    stay in pip's cache.

    Args:
        suite: Its name.
        python: Path of an interpreter; None looks for one of the right version.
        say: Receives progress messages.

    Raises:
        ValueError: no such suite, no Python of the right version, or pip failed.
    """
    environment, folder = described(suite), place(suite)
    with _locked(suite):
        installed = note(suite)
        if installed is not None and state(suite) == "installed":
            if python is not None and _version(python) != installed.python:
                raise ValueError(
                    f"--python: got {python}, but {suite} is installed with Python "
                    f"{installed.python}; run `vla env remove {suite}` first"
                )
            return installed
        chosen, version = _find_python(suite, environment, python)
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        try:
            say(f"{suite}: a virtual environment of Python {version} in {folder}")
            _create(chosen, folder)
            _install(suite, environment, folder, say)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        made = Note(
            python=version,
            requirements=environment.requirements,
            seconds=round(time.monotonic() - began, 1),
            megabytes=round(megabytes(folder), 1),
        )
        write_note(suite, made)
        return made


def remove(suite: str) -> bool:
    """Remove an environment, complete or not; return whether anything was there."""
    with _locked(suite):
        # Without its note it is incomplete, even if this process is killed here.
        (place(suite) / NOTE).unlink(missing_ok=True)
        was_there = place(suite).exists()
        if was_there:
            shutil.rmtree(place(suite))
        _log(suite).unlink(missing_ok=True)
    return was_there


def megabytes(folder: Path) -> float:
    """Return the size of a folder on disk."""
    files = (Path(here) / name for here, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_blocks for file in files) * 512 / 1e6


def _find_python(suite: str, environment: Environment, path: str | None) -> tuple[str, str]:
    wanted = " or ".join(environment.pythons)
    if path is not None:
        version = _version(path)
        if version not in environment.pythons:
            got = f"Python {version}" if version else "no Python that runs and has venv"
            raise ValueError(f"--python: got {path}: {got}, expected Python {wanted} ({suite})")
        return path, version
    for candidate in (sys.executable, *(f"python{version}" for version in environment.pythons)):
        version = _version(candidate)
        if version in environment.pythons:
            return candidate, version
    raise ValueError(
        f"{suite}: no Python {wanted} found here; install one "
        f"(apt-get install python{environment.pythons[0]}-venv), or give its path with --python"
    )


def _version(python: str) -> str | None:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _create(python: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Inside an environment, `venv` makes one that depends on it; --copies does not help.
    done = subprocess.run(
        [python, "-m", "venv", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise ValueError(f"{folder}: {python} -m venv failed: {output[-1]}")


def _install(
    suite: str, environment: Environment, folder: Path, say: Callable[[str], None]
) -> None:
    command = [
        str(folder / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--no-input",
        "--disable-pip-version-check", "--progress-bar", "off", *environment.requirements,
    ]  # fmt: skip
    log, lines, count = _log(suite), [], 0
    with log.open("w") as file, _running(command) as process:
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            lines.append(line.strip())
            word, _, rest = line.strip().partition(" ")
            if word in ("Collecting", "Processing"):
                count += 1
                say(f"{suite}: {count} of {len(environment.requirements)}: {Path(rest).name}")
            elif line.startswith("Installing collected"):
                say(f"{suite}: unpacking")
    if process.returncode:
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no output"]
        raise ValueError(
            f"{suite}: pip failed: {errors[-1]}; its output is in {log}; fix the cause and run "
            f"`{ADD.format(suite)}` again"
        )


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that has ended when the block ends, however it ends."""
    settings = {"PYTHONNOUSERSITE": "1", "PIP_REQUIRE_VIRTUALENV": "0"}
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**inherited, **settings},
    )  # fmt: skip
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
        process.wait()


@contextlib.contextmanager
def _locked(suite: str) -> Iterator[None]:
    """Lock the environment against other processes."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f".{suite}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{suite}: another process is installing or removing it; wait for it"
            ) from None
        yield


def _log(suite: str) -> Path:
    return root() / f"{suite}.log"
