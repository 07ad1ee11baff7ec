"""Logs of a policy's decisions and of the safety node. This module does not import ROS."""

from pathlib import Path
from typing import Any

import numpy as np

from robot_bridge.policy.policy_runner import Decision
from vla.contracts.types import PolicyState
from vla.utils.arrays import to_numpy

MEMORY = "memory_"
"""Prefix of the arrays with the policy state's tensors after each decision."""


class SafetyLog:
    """Arrival of chunks at the gate, and its commands; times by the monotonic clock."""

    def __init__(self) -> None:
        self.chunks: list[tuple[float, int, bool]] = []
        self.commands: list[tuple[float, int, np.ndarray, bool]] = []

    def chunk(self, now_s: float, stamp: Any, taken: bool) -> None:
        """Log the arrival of a chunk, its stamp, and whether the gate accepted it."""
        self.chunks.append((now_s, stamp.sec * 10**9 + stamp.nanosec, taken))

    def command(self, now_s: float, series: int, command: np.ndarray, stops: bool) -> None:
        """Log a command f64 [u] of a series, and whether it is of a stop; see `Gate`."""
        self.commands.append((now_s, series, command, stops))

    def write(self, path: Path) -> None:
        """Write the log as .npz."""
        with path.open("wb") as file:
            np.savez(
                file,
                chunk_s=np.array([c[0] for c in self.chunks]),
                chunk_stamp=np.array([c[1] for c in self.chunks], np.int64),
                chunk_taken=np.array([c[2] for c in self.chunks], np.bool_),
                command_s=np.array([c[0] for c in self.commands]),
                series=np.array([c[1] for c in self.commands]),
                command=np.array([c[2] for c in self.commands]),
                stops=np.array([c[3] for c in self.commands], np.bool_),
            )


class DecisionLog:
    """Collects decisions; `write` makes a .npz file of them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.decisions = folder, list[Decision]()

    def add(self, decision: Decision) -> None:
        """Append a decision."""
        self.decisions.append(decision)

    def write(self) -> None:
        """Write the decisions of an episode, if any, as FOLDER/episode-N.npz."""
        decisions, self.decisions = self.decisions, []
        if not decisions:
            return
        requests = [decision.request for decision in decisions]
        memory = PolicyState.concatenate([d.state.map(to_numpy) for d in decisions])
        path = self.folder / f"episode-{requests[0].episode:06d}.npz"
        partial = path.with_name(f".{path.name}.new")
        with partial.open("wb") as file:
            np.savez(
                file,
                step=np.array([r.step for r in requests]),
                images=np.concatenate([r.obs.images for r in requests]),
                proprio=np.concatenate([r.obs.proprio for r in requests]),
                noise=np.concatenate([r.noise for r in requests]),
                task=np.array([r.obs.task[0] for r in requests]),
                latency_s=np.array([d.latency_s for d in decisions]),
                underway_s=np.array([r.underway_s for r in requests]),
                made_s=np.array([r.made_s for r in requests]),
                begin_s=np.array([r.begin_s for r in requests]),
                stamp=np.array([d.stamp for d in decisions], np.int64),
                **{f"{MEMORY}{name}": value for name, value in memory.tensors.items()},
            )
        partial.replace(path)
