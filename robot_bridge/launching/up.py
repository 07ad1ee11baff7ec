"""`vla ros launch`: starts the nodes of a configuration as child processes, and ends all together.

It uses the same description as the launch files, for machines without `ros2 launch`.
"""

import difflib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from robot_bridge.launching import graph, package_files
from robot_bridge.launching.graph import NodeSpec
from vla.utils import arguments

VERB = "vla ros launch"
POLL_S = 0.1
PATIENCE_S = {signal.SIGINT: 5.0, signal.SIGTERM: 3.0, signal.SIGKILL: 2.0}
"""Time in s a node may take to end after each signal, in order."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end all nodes."""
LIFECYCLE = "robot_bridge.nodes.lifecycle"
RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
"""Variables with which users choose how nodes find each other."""
FAST_DDS, LOOPBACK = "rmw_fastrtps_cpp", "fastdds_loopback.xml"
PYPI_DISTRO, PROFILE_DISTROS = "kilted", ("kilted", "lyrical", "rolling")
"""ROS 2 of PyPI, which sets no ROS_DISTRO; releases with Fast DDS 3, which reads PROFILES[0]."""


def main(argv: list[str]) -> int:
    """Run `vla ros launch CONFIG`.

    Raises:
        ValueError: there is no such configuration, or its settings are wrong.
    """
    if not argv or argv[0].startswith("-"):
        names = " | ".join(graph.CONFIGS)
        print(f"usage: {VERB} {names} [SETTINGS]; {VERB} CONFIG --help lists them")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    name, *words = argv
    if name not in graph.CONFIGS:
        near = difflib.get_close_matches(name, graph.CONFIGS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown configuration {name!r}: {hint}known: {', '.join(graph.CONFIGS)}")
    kind, build = graph.CONFIGS[name]
    nodes = build(arguments.read(kind, words, f"{VERB} {name}"))
    if importlib.util.find_spec("rclpy") is None:
        raise ModuleNotFoundError("no rclpy", name="rclpy")
    return run(nodes)


def discovery(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that keep nodes to this machine unless the user has set them.

    By a profile of ours where Fast DDS certainly reads it; nodes without the profile hear the
    others all the same.
    """
    if environment.get("ROS_DISTRO") == "humble":  # it lacks the other variable
        return {"ROS_LOCALHOST_ONLY": environment.get("ROS_LOCALHOST_ONLY", "1")}
    chosen = {name: environment[name] for name in (RANGE, *PROFILES) if name in environment}
    profile = package_files.params() / LOOPBACK
    is_read = (
        environment.get("RMW_IMPLEMENTATION", FAST_DDS) == FAST_DDS
        and environment.get("ROS_DISTRO", PYPI_DISTRO) in PROFILE_DISTROS
        and os.access(profile, os.R_OK)
    )
    if chosen or not is_read:  # who does not read the profile would be heard everywhere
        return {RANGE: "LOCALHOST", **chosen}
    return {RANGE: "SYSTEM_DEFAULT", PROFILES[0]: str(profile)}


@dataclass
class Child:
    """A child process."""

    name: str
    """Prefix of its lines."""
    process: subprocess.Popen[str]
    """The process, in its own session, so that Ctrl-C reaches only this one."""
    reader: threading.Thread
    """Thread that copies its lines."""
    node: NodeSpec | None = None
    """The node; None for a process that brings a node up."""
    ended: bool = False
    """Its end was reported."""


def run(nodes: tuple[NodeSpec, ...]) -> int:
    """Run nodes until Ctrl-C or SIGTERM, or until a vital one ends or one cannot be brought up.

    A node that is not vital may end: the others continue, and the safety node holds the arm.

    Returns:
        0 if a person ended it and no node had to be killed, else 1.
    """
    width, why = _width(nodes), ""
    with _signals() as stopped, started(nodes, stopped) as (children, forced):
        for node in nodes:
            if node.lifecycle:
                named = graph.name_arguments(f"{node.name}_starter", node.namespace)
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
    nodes: tuple[NodeSpec, ...], stopped: Sequence[int] = (), out: Any = None
) -> Iterator[tuple[list[Child], list[str]]]:
    """Start nodes, and end all of them at the end.

    Args:
        nodes: Nodes to start; the caller brings lifecycle nodes up.
        stopped: Signals that request the end, in order, if the caller collects them.
        out: File for their lines; standard output if None.

    Yields:
        Their processes and, at the end, the names of killed ones.
    """
    children: list[Child] = []
    forced: list[str] = []
    try:
        for node in nodes:
            named = graph.name_arguments(node.name, node.namespace)
            words = [node.module, "--ros-args", *named, *graph.ros_arguments(node)]
            children.append(_start(node.path, words, _width(nodes), node, out))
        yield children, forced
    finally:
        forced += _end(children, stopped)


def _width(nodes: tuple[NodeSpec, ...]) -> int:
    return max(len(node.path) for node in nodes)


def _watch(children: list[Child], stopped: Sequence[int], width: int) -> str:
    """Wait for the end; return its cause, "" if a person requested it."""
    while not stopped:
        for child in children:
            code = child.process.poll()
            if code is None or child.ended:
                continue
            child.ended = True
            if child.node is None:
                if code:
                    return f"{child.name} could not be brought up"
            elif child.node.vital:
                return f"{child.name} ended with exit code {code}"
            else:
                _say(width, f"{child.name} ended with exit code {code}; the others continue")
        if all(child.ended for child in children):
            return "every node ended"
        time.sleep(POLL_S)
    return ""


def _end(children: list[Child], stopped: Sequence[int]) -> list[str]:
    """End all nodes, the vital ones last; return the names of killed ones."""
    forced: list[str] = []
    for vital in (False, True):  # the safety node brings the arm to rest while the others end
        group = [c for c in children if bool(c.node and c.node.vital) == vital]
        forced += _end_group(group, stopped)
    for child in children:
        child.reader.join(timeout=1.0)
        if child.process.stdout and not child.reader.is_alive():
            child.process.stdout.close()
    return forced


def _end_group(group: list[Child], stopped: Sequence[int]) -> list[str]:
    """End children with each signal in turn; a further Ctrl-C skips to the next signal."""
    left = group
    for number, patience_s in PATIENCE_S.items():
        received, until = len(stopped), time.monotonic() + patience_s
        for child in left:
            _signal(child.process, number)
        while left and time.monotonic() < until and len(stopped) == received:
            left = [child for child in left if child.process.poll() is None]
            if left:
                time.sleep(POLL_S / 5)
        if number == signal.SIGTERM:
            killed = [child.name for child in left]
    return killed


def _signal(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to a child; SIGKILL also goes to all processes it started."""
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
        [sys.executable, "-m", "robot_bridge.launching.child", str(os.getpid()), *words],
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
    print(f"{VERB:<{width}} | {text}", file=file, flush=True)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that end all nodes, and restore their handlers at the end."""
    stopped: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: stopped.append(number)) for number in ENDS
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
