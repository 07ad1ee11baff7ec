"""`vla env add|list|remove`: other people's suites, each in an environment of its own."""

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

from sim import environments, vec_env
from sim.bridge.client import BridgeError
from sim.environments import ADD, Health, Note

STEPS = 10
"""Of the episode that is tried."""
TICK_S = 10.0
"""How often somebody who waits hears that things go on."""


def add(argv: list[str]) -> int:
    """Make the environment of a suite and try it; return 1 if it does not work."""
    parser = argparse.ArgumentParser(
        prog="vla env add", description="Install a suite of tasks in an environment of its own."
    )
    parser.add_argument("suite", help="such as metaworld; `vla env list` shows all")
    parser.add_argument("--python", metavar="PATH", help="interpreter to make it with")
    args = parser.parse_args(argv)
    suite = environments.check(args.suite)
    with _told() as say:
        made = environments.make(suite, args.python, say)
        say(f"{suite}: trying {suite}/{environments.described(suite).sample}")
        health = examine(suite)
    count = len(environments.module(suite).TASKS)
    print(
        f"{suite}: {count} tasks, Python {made.python}, {made.megabytes:.0f} MB, made in "
        f"{made.seconds:.0f} s; {health.detail}"
    )
    return 0 if health.works else 1


def list_(argv: list[str]) -> int:
    """Show every suite: what is installed, whether it works, and what to type next."""
    parser = argparse.ArgumentParser(
        prog="vla env list", description="List the suites of tasks and their environments."
    )
    parser.add_argument("--check", action="store_true", help="try those that are installed again")
    check = parser.parse_args(argv).check
    suites = environments.suites()
    if check:
        with _told() as say:
            for suite in suites:
                if environments.state(suite) == "installed":
                    say(f"{suite}: trying {suite}/{environments.described(suite).sample}")
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
    console.print(f"environments lie in {environments.root()}", soft_wrap=True)
    return 0


def remove(argv: list[str]) -> int:
    """Take the environment of a suite away."""
    parser = argparse.ArgumentParser(
        prog="vla env remove", description="Take away the environment of a suite."
    )
    parser.add_argument("suite")
    suite = environments.check(parser.parse_args(argv).suite)
    there = environments.remove(suite)
    print(f"{suite}: {'removed' if there else 'was not installed; nothing to do'}")
    return 0


def examine(suite: str) -> Health:
    """Open one task of an installed suite, reset, step and draw it; write down what was seen."""
    health = _try(suite)
    known = environments.note(suite)
    if known is not None:
        environments.write_note(suite, dataclasses.replace(known, health=health))
    return health


def _try(suite: str) -> Health:
    task = f"{suite}/{environments.described(suite).sample}"
    try:
        if environments.is_backend(suite):
            env = vec_env.make(environments.described(suite).sample, 1, backend=suite)
        else:
            env = vec_env.make(task, 1)
        with contextlib.closing(env):
            seen = _play(env)
    except (BridgeError, ValueError) as error:
        # The first line says what; a traceback of the other interpreter may follow.
        return Health(works=False, detail=f"{task} fails: {str(error).splitlines()[0]}")
    wrong = [what for what, fine in seen.items() if not fine]
    if wrong:
        return Health(works=False, detail=f"{task} fails: {', '.join(wrong)}")
    return Health(works=True, detail=f"{task} opens, resets, steps and draws")


def _play(env: Any) -> dict[str, bool]:
    """Return what should be so of the first steps of an episode -> whether it is."""
    obs = env.reset(0)
    robot = env.spec.robot
    # Towards the middle of its range every channel can go, and something moves.
    middle = (np.array(robot.low) + np.array(robot.high)) / 2
    actions = np.tile(middle.astype(np.float32), (1, STEPS, 1))
    step = env.step_chunk(actions)
    views = step.final_obs.images[0]
    return {
        "its first pictures are blank": all(np.ptp(view) > 0 for view in obs.images[0]),
        "its pictures are blank": all(np.ptp(view) > 0 for view in views),
        "its positions are not finite": bool(np.isfinite(step.final_obs.proprio).all()),
        "it takes no steps": int(step.info["steps"][0]) > 0,
    }


def _status(suite: str) -> tuple[str, str, str]:
    """Return what is installed of a suite, whether it works, and its room on disk."""
    state, note = environments.state(suite), environments.note(suite)
    if note is None:
        return ("half, which counts as no" if state == "half" else "no"), "", ""
    versions = f"{_main_pin(suite, note)}, Python {note.python}"
    if state == "old":
        versions = f"older: {versions}"
    health = note.health
    works = "not tried" if health is None else "yes" if health.works else "no"
    return versions, works, f"{note.megabytes:.0f} MB"


def _next(suite: str) -> str:
    """Return what to type."""
    note = environments.note(suite)
    if note is None or environments.state(suite) != "installed":
        return ADD.format(suite)
    if note.health is None:
        return "vla env list --check"
    if not note.health.works:
        return f"vla env list --check, once this is mended: {note.health.detail}"
    if environments.is_backend(suite):
        return f"vla eval RUN --backend {suite}"
    verb = "demos" if environments.module(suite).HAS_EXPERT else "eval RUN --task"
    return f"vla {verb} {suite}/{environments.described(suite).sample}"


def _main_pin(suite: str, note: Note) -> str:
    """Return the version of the package that the suite is."""
    wanted = environments.module(suite).PACKAGE
    pins = (pin.replace("==", " ") for pin in note.requirements)
    return next((pin for pin in pins if pin.split()[0] == wanted), wanted)


@contextlib.contextmanager
def _told() -> Iterator[Callable[[str], None]]:
    """Give what tells the user on stderr what is being done, and that it still is."""
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
