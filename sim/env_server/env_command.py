"""`vla env add|list|remove`: suites of tasks, each in its own environment."""

import argparse
import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from sim import vec_env
from sim.env_server import suite_installs
from sim.env_server.client import EnvServerError
from sim.env_server.suite_installs import ADD, Health

STEPS = 10
"""Control steps of the test episode."""
TICK_S = 10.0
"""Interval of progress messages in seconds."""


def add(argv: list[str]) -> int:
    """Make the environment of a suite and try it; return 1 if it does not work."""
    parser = argparse.ArgumentParser(
        prog="vla env add", description="Install a suite of tasks in an environment of its own."
    )
    parser.add_argument("suite", help="such as metaworld; `vla env list` shows all")
    parser.add_argument("--python", metavar="PATH", help="interpreter to make it with")
    args = parser.parse_args(argv)
    suite = suite_installs.check(args.suite)
    with _progress() as say:
        made = suite_installs.make(suite, args.python, say)
        say(f"{suite}: trying {suite}/{suite_installs.described(suite).sample}")
        health = examine(suite)
    count = len(suite_installs.module(suite).TASKS)
    print(
        f"{suite}: {count} tasks, Python {made.python}, {made.megabytes:.0f} MB, made in "
        f"{made.seconds:.0f} s; {health.detail}"
    )
    return 0 if health.works else 1


def list_environments(argv: list[str]) -> int:
    """Show every suite: its installation, whether it works, and the next command."""
    parser = argparse.ArgumentParser(
        prog="vla env list", description="List the suites of tasks and their environments."
    )
    parser.add_argument("--check", action="store_true", help="try those that are installed again")
    check = parser.parse_args(argv).check
    suites = suite_installs.suites()
    if check:
        with _progress() as say:
            for suite in suites:
                if suite_installs.state(suite) == "installed":
                    say(f"{suite}: trying {suite}/{suite_installs.described(suite).sample}")
                    examine(suite)
    sheet = Table("suite", "tasks", "expert", "installed", "works", "disk")
    for suite, module in suites.items():
        sheet.add_row(
            suite, str(len(module.TASKS)), "yes" if module.HAS_EXPERT else "no", *_status(suite)
        )
    console = Console(highlight=False)
    console.print(sheet)
    for suite in suites:
        console.print(f"  {suite}: {_next(suite)}", soft_wrap=True, markup=False)
    console.print(f"environments lie in {suite_installs.root()}", soft_wrap=True)
    return 0


def remove(argv: list[str]) -> int:
    """Remove the environment of a suite."""
    parser = argparse.ArgumentParser(
        prog="vla env remove", description="Remove the environment of a suite."
    )
    parser.add_argument("suite")
    suite = suite_installs.check(parser.parse_args(argv).suite)
    there = suite_installs.remove(suite)
    print(f"{suite}: {'removed' if there else 'was not installed; nothing to do'}")
    return 0


def examine(suite: str) -> Health:
    """Test one task of an installed suite and store the result in its note."""
    health = _try(suite)
    note = suite_installs.note(suite)
    if note is not None:
        suite_installs.write_note(suite, dataclasses.replace(note, health=health))
    return health


def _try(suite: str) -> Health:
    task = f"{suite}/{suite_installs.described(suite).sample}"
    try:
        if suite_installs.is_backend(suite):
            env = vec_env.make(suite_installs.described(suite).sample, 1, backend=suite)
        else:
            env = vec_env.make(task, 1)
        with contextlib.closing(env):
            checks = _run(env)
    except (EnvServerError, ValueError) as error:
        # A traceback of the other interpreter may follow the first line.
        return Health(works=False, detail=f"{task} fails: {str(error).splitlines()[0]}")
    wrong = [what for what, fine in checks.items() if not fine]
    if wrong:
        return Health(works=False, detail=f"{task} fails: {', '.join(wrong)}")
    return Health(works=True, detail=f"{task} opens, resets, steps and renders")


def _run(env: Any) -> dict[str, bool]:
    """Return failures of the first steps of an episode -> whether they are absent."""
    obs = env.reset(0)
    robot = env.spec.robot
    # Every channel can move towards the middle of its range.
    middle = (np.array(robot.low) + np.array(robot.high)) / 2
    actions = np.tile(middle.astype(np.float32), (1, STEPS, 1))
    step = env.step_chunk(actions)
    views = step.final_obs.images[0]
    return {
        "its first images are blank": all(np.ptp(view) > 0 for view in obs.images[0]),
        "its images are blank": all(np.ptp(view) > 0 for view in views),
        "its positions are not finite": bool(np.isfinite(step.final_obs.proprio).all()),
        "it takes no steps": int(step.info["steps"][0]) > 0,
    }


def _status(suite: str) -> tuple[str, str, str]:
    """Return the installed versions of a suite, whether it works, and its size on disk."""
    state, note = suite_installs.state(suite), suite_installs.note(suite)
    if note is None:
        return ("incomplete" if state == "half" else "no"), "", ""
    package = suite_installs.module(suite).PACKAGE
    pins = (pin.replace("==", " ") for pin in note.requirements)
    main = next((pin for pin in pins if pin.split()[0] == package), package)
    versions = f"{main}, Python {note.python}"
    if state == "old":
        versions = f"older: {versions}"
    health = note.health
    works = "not tried" if health is None else "yes" if health.works else "no"
    return versions, works, f"{note.megabytes:.0f} MB"


def _next(suite: str) -> str:
    """Return the next command."""
    note = suite_installs.note(suite)
    if note is None or suite_installs.state(suite) != "installed":
        return ADD.format(suite)
    if note.health is None:
        return "vla env list --check"
    if not note.health.works:
        return f"vla env list --check, once this is fixed: {note.health.detail}"
    if suite_installs.is_backend(suite):
        return f"vla eval RUN --backend.type {suite}"
    verb = "demos" if suite_installs.module(suite).HAS_EXPERT else "eval RUN --task"
    return f"vla {verb} {suite}/{suite_installs.described(suite).sample}"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints progress to stderr, and repeat its last message."""
    began = time.monotonic()
    last: list[Any] = ["", began]
    over = threading.Event()

    def write(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)

    def say(text: str) -> None:
        last[:] = [text, time.monotonic()]
        write(text)

    def tick() -> None:
        while not over.wait(1.0):
            if time.monotonic() - last[1] > TICK_S:
                last[1] = time.monotonic()
                write(f"{last[0]} ...")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        over.set()
        thread.join()
