"""Environments of other people's suites: where they lie, how they are made and taken away.

Each is a virtual environment with exact versions of all that a suite needs, so that its pins fight
with nobody's. It counts as made once its note is there, which is written last. What an environment
must hold stands in the suite's own file; whether the suite works in it, `sim.env_command` tries.
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
    """Everything, as exact pins or paths of wheels; pip is told to ask for nothing besides."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables that its simulator needs, beside those every suite gets."""
    sample: str
    """The task that is tried to see whether all this works."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """What came of trying a suite in its environment."""

    works: bool
    """One task was opened, reset, stepped and drawn."""
    detail: str
    """What was seen, in a few words, or what went wrong."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """What is written down of an environment that is whole."""

    python: str
    """Version of its interpreter."""
    requirements: tuple[str, ...]
    """What was installed."""
    seconds: float
    """Time it took."""
    megabytes: float
    """Room it takes."""
    health: Health | None = None
    """What the last try said; None where it has not been tried."""


def root() -> Path:
    """Return the folder of all environments: $MNEME_ENVS, or the user's data folder."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get("MNEME_ENVS") or Path(data) / "mneme-vla" / "envs").absolute()


def suites() -> dict[str, ModuleType]:
    """Return the files of all that has an environment of its own, by name: suites, and backends."""
    places = [(folder, name) for folder in (SUITES, BACKENDS) for name in registry.names(folder)]
    files = {name: registry.load(folder, name) for folder, name in places}
    return {name: file for name, file in files.items() if hasattr(file, "ENVIRONMENT")}


def check(suite: str) -> str:
    """Return the name of a suite that has an environment; gym-aloha is gym_aloha.

    Raises:
        ValueError: there is no such suite; the message offers the nearest names.
    """
    known, name = suites(), suite.replace("-", "_")
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"unknown suite {suite!r}: {hint}known names are {', '.join(known)}")


def module(suite: str) -> ModuleType:
    """Return the file of a suite: it has ENVIRONMENT, TASKS, HAS_EXPERT, PACKAGE and `Config`."""
    return registry.load(BACKENDS if is_backend(suite) else SUITES, suite)


def is_backend(suite: str) -> bool:
    """Return whether it is no suite, but a simulator that plays our own tasks."""
    return suite in registry.names(BACKENDS)


def described(suite: str) -> Environment:
    """Return how the environment of a suite is made."""
    return module(suite).ENVIRONMENT


def place(suite: str) -> Path:
    """Return the folder of the environment of a suite, made or not."""
    return root() / suite


def state(suite: str) -> Literal["no", "half", "old", "installed"]:
    """Return whether the environment of a suite is there, whole, and in the versions of today."""
    there = note(suite)
    if there is None:
        return "half" if place(suite).exists() else "no"
    return "installed" if there.requirements == described(suite).requirements else "old"


def note(suite: str) -> Note | None:
    """Return what is known of an environment; None if it is not there, or not whole."""
    file = place(suite) / NOTE
    try:
        return config.from_json(Note, json.loads(file.read_text()), str(file))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        # Whoever wrote it was another version of ours: what lies there is made anew.
        return None


def write_note(suite: str, text: Note) -> None:
    """Write down that an environment is whole, all at once."""
    file = place(suite) / NOTE
    part = file.with_suffix(".part")
    part.write_text(json.dumps(asdict(text), indent=2))
    part.replace(file)


def interpreter(suite: str) -> Path:
    """Return the Python of a suite's environment.

    Raises:
        ValueError: it is not made, or in other versions than those of today.
    """
    found = state(suite)
    if found != "installed":
        what = "installed in older versions" if found == "old" else "not installed"
        raise ValueError(f"{suite}: {what}; run `{ADD.format(suite)}`")
    return place(suite) / "bin" / "python"


def make(suite: str, python: str | None, say: Callable[[str], None]) -> Note:
    """Make the environment of a suite, or return what is known of it if it is whole and in date.

    Half of one never counts: what an interrupted call has left is taken away by it, or by the next
    call where it was killed. The wheels it fetched lie in pip's own store, so that it goes on from
    there.

    Args:
        suite: Its name.
        python: Path of an interpreter; None looks for one of the right version.
        say: Is told what is being done.

    Raises:
        ValueError: no such suite, no Python of the right version, or pip failed.
    """
    known, folder = described(suite), place(suite)
    with _alone(suite):
        there = note(suite)
        if there is not None and state(suite) == "installed":
            if python is not None and _version(python) != there.python:
                raise ValueError(
                    f"--python: got {python}, but {suite} is installed with Python {there.python}; "
                    f"run `vla env remove {suite}` first"
                )
            return there
        chosen, version = _find_python(suite, known, python)
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        try:
            say(f"{suite}: a virtual environment of Python {version} in {folder}")
            _create(chosen, folder)
            _install(suite, known, folder, say)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        made = Note(
            python=version,
            requirements=known.requirements,
            seconds=round(time.monotonic() - began, 1),
            megabytes=round(megabytes(folder), 1),
        )
        write_note(suite, made)
        return made


def remove(suite: str) -> bool:
    """Take an environment away, whole or half; return whether anything was there."""
    with _alone(suite):
        # Without its note it is not whole, should we be killed in between.
        (place(suite) / NOTE).unlink(missing_ok=True)
        was_there = place(suite).exists()
        if was_there:
            shutil.rmtree(place(suite))
        _log(suite).unlink(missing_ok=True)
    return was_there


def megabytes(folder: Path) -> float:
    """Return the room that a folder takes on disk."""
    files = (Path(here) / name for here, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_blocks for file in files) * 512 / 1e6


def _find_python(suite: str, known: Environment, given: str | None) -> tuple[str, str]:
    wanted = " or ".join(known.pythons)
    if given is not None:
        version = _version(given)
        if version not in known.pythons:
            found = f"Python {version}" if version else "no Python that runs and has venv"
            raise ValueError(f"--python: got {given}: {found}, expected Python {wanted} ({suite})")
        return given, version
    for candidate in (sys.executable, *(f"python{version}" for version in known.pythons)):
        version = _version(candidate)
        if version in known.pythons:
            return candidate, version
    raise ValueError(
        f"{suite}: no Python {wanted} found here; install one "
        f"(apt-get install python{known.pythons[0]}-venv), or give its path with --python"
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
    # From inside an environment, `venv` makes one that hangs on ours; --copies does not help.
    done = subprocess.run(
        [python, "-m", "venv", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["it says nothing"]
        raise ValueError(f"{folder}: {python} -m venv failed: {said[-1]}")


def _install(suite: str, known: Environment, folder: Path, say: Callable[[str], None]) -> None:
    command = [
        str(folder / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--no-input",
        "--disable-pip-version-check", "--progress-bar", "off", *known.requirements,
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
                say(f"{suite}: {count} of {len(known.requirements)}: {Path(rest).name}")
            elif line.startswith("Installing collected"):
                say(f"{suite}: unpacking")
    if process.returncode:
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no word"]
        raise ValueError(
            f"{suite}: pip failed: {errors[-1]}; all it said is in {log}; mend that and run "
            f"`{ADD.format(suite)}` again"
        )


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is gone when the block ends, however it ends."""
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
def _alone(suite: str) -> Iterator[None]:
    """Keep others from making or removing the same environment meanwhile."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f".{suite}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{suite}: another process makes or removes it just now; wait for that one"
            ) from None
        yield


def _log(suite: str) -> Path:
    return root() / f"{suite}.log"
