"""`vla up`: starts the nodes of a use as processes of this interpreter, and ends all together.

The same description as the launch files', for machines without `ros2 launch`.
"""

import difflib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from robot_bridge import graph
from robot_bridge.graph import NodeSpec
from vla import arguments

POLL_S = 0.1
PATIENCE_S = {signal.SIGINT: 5.0, signal.SIGTERM: 3.0, signal.SIGKILL: 2.0}
"""How long a node may take to end after each signal, in order."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends everything."""
LIFECYCLE = "robot_bridge.nodes.lifecycle"


def main(argv: list[str]) -> int:
    """Run `vla up USE`.

    Raises:
        ValueError: there is no such use, or its settings are wrong.
    """
    if not argv or argv[0].startswith("-"):
        print(f"usage: vla up {' | '.join(graph.USES)} [SETTINGS]; vla up USE --help lists them")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    use, *words = argv
    if use not in graph.USES:
        near = difflib.get_close_matches(use, graph.USES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown use {use!r}: {hint}known uses are {', '.join(graph.USES)}")
    kind, build = graph.USES[use]
    nodes = build(arguments.read(kind, words, f"vla up {use}"))
    if importlib.util.find_spec("rclpy") is None:
        raise ModuleNotFoundError("no rclpy", name="rclpy")
    return run(nodes)


def discovery(environment: dict[str, str]) -> dict[str, str]:
    """Return what keeps nodes to this machine, unless a user has said how far they may be heard."""
    if environment.get("ROS_DISTRO") == "humble":  # it does not know the other one yet
        return {"ROS_LOCALHOST_ONLY": environment.get("ROS_LOCALHOST_ONLY", "1")}
    name = "ROS_AUTOMATIC_DISCOVERY_RANGE"
    return {name: environment.get(name, "LOCALHOST")}


@dataclass
class Child:
    """A process of ours."""

    name: str
    """What its lines begin with."""
    process: subprocess.Popen[str]
    """It, in a session of its own, so that Ctrl-C reaches only us."""
    reader: threading.Thread
    """Copies its lines."""
    node: NodeSpec | None = None
    """What it is; None for one that brings a node up."""
    over: bool = False
    """Its end was told."""


@dataclass
class Stopped:
    """What came in from outside."""

    signals: list[int] = field(default_factory=list)
    """Signals, in order."""


def run(nodes: tuple[NodeSpec, ...]) -> int:
    """Run nodes until Ctrl-C or SIGTERM, or until a vital one ends or one cannot be brought up.

    A node that is not vital may end: the others go on, and the safety node holds the arm.

    Returns:
        0 if a person ended it and every node ended by itself, else 1.
    """
    width, why = _width(nodes), ""
    with _signals() as stopped, started(nodes, stopped) as (children, forced):
        for node in nodes:
            if node.lifecycle:
                named = graph.called(f"{node.name}_starter", node.namespace)
                words = [LIFECYCLE, node.name, "--ros-args", *named]
                words += ["--enclave", f"{node.path}_starter"]
                children.append(_start(node.path, words, width))
        _say(width, f"{len(nodes)} nodes started; Ctrl-C ends them")
        why = _watch(children, stopped, width)
    if why:
        _say(width, f"ended because {why}", sys.stderr)
    if forced:
        _say(width, f"had to be killed: {', '.join(forced)}", sys.stderr)
    return 1 if why or forced else 0


@contextmanager
def started(
    nodes: tuple[NodeSpec, ...], stopped: Stopped | None = None, out: Any = None
) -> Iterator[tuple[list[Child], list[str]]]:
    """Start nodes, and end all of them at the end.

    Args:
        nodes: What to start; who brings lifecycle nodes up is the caller.
        stopped: Signals that ask for the end, if the caller collects them.
        out: Where their lines go; standard output if None.

    Yields:
        Their processes and, at the end, who had to be killed.
    """
    children: list[Child] = []
    forced: list[str] = []
    try:
        for node in nodes:
            named = graph.called(node.name, node.namespace)
            words = [node.module, "--ros-args", *named, *graph.told(node)]
            children.append(_start(node.path, words, _width(nodes), node, out))
        yield children, forced
    finally:
        forced += _end(children, stopped or Stopped())


def _width(nodes: tuple[NodeSpec, ...]) -> int:
    return max(len(node.path) for node in nodes)


def _watch(children: list[Child], stopped: Stopped, width: int) -> str:
    """Wait for the end; return why it came, "" if a person wanted it."""
    while not stopped.signals:
        for child in children:
            code = child.process.poll()
            if code is None or child.over:
                continue
            child.over = True
            if child.node is None:
                if code:
                    return f"{child.name} could not be brought up"
            elif child.node.vital:
                return f"{child.name} ended with exit code {code}"
            else:
                _say(width, f"{child.name} ended with exit code {code}; the others go on")
        if all(child.over for child in children):
            return "every node ended"
        time.sleep(POLL_S)
    return ""


def _end(children: list[Child], stopped: Stopped) -> list[str]:
    """End what still runs, the vital nodes last; return the names of those that were killed."""
    forced: list[str] = []
    for vital in (False, True):  # the safety node brings the arm to rest while the others end
        group = [c for c in children if bool(c.node and c.node.vital) == vital]
        forced += _end_group(group, stopped)
    for child in children:
        child.reader.join(timeout=1.0)
        if child.process.stdout and not child.reader.is_alive():
            child.process.stdout.close()
    return forced


def _end_group(group: list[Child], stopped: Stopped) -> list[str]:
    """End some children, each signal in turn; a further Ctrl-C makes it hurry."""
    left = group
    for number, patience_s in PATIENCE_S.items():
        heard, until = len(stopped.signals), time.monotonic() + patience_s
        for child in left:
            _signal(child.process, number)
        while left and time.monotonic() < until and len(stopped.signals) == heard:
            left = [child for child in left if child.process.poll() is None]
            if left:
                time.sleep(POLL_S / 5)
        if number == signal.SIGTERM:
            killed = [child.name for child in left]
    return killed


def _signal(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to a child; the last one to all that it started, too."""
    if process.poll() is not None:
        return
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def _start(
    name: str, words: list[str], width: int, node: NodeSpec | None = None, out: Any = None
) -> Child:
    """Start a process that runs the `main` of a module."""
    process = subprocess.Popen(
        [sys.executable, "-m", "robot_bridge.child", str(os.getpid()), *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
        env={**os.environ, **discovery(dict(os.environ)), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    reader = threading.Thread(target=_copy, args=(process.stdout, name, width, out), daemon=True)
    reader.start()
    return Child(name=name, process=process, reader=reader, node=node)


def _copy(lines: Any, name: str, width: int, out: Any) -> None:
    for line in lines:
        print(f"{name:<{width}} | {line.rstrip()}\n", end="", flush=True, file=out)


def _say(width: int, text: str, file: Any = None) -> None:
    print(f"{'vla up':<{width}} | {text}", file=file, flush=True)


@contextmanager
def _signals() -> Iterator[Stopped]:
    """Collect the signals that end everything, and put back what was done with them before."""
    stopped = Stopped()
    before = {
        number: signal.signal(number, lambda number, _: stopped.signals.append(number))
        for number in ENDS
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
