"""What a policy saw and decided, an episode a file: for whoever wants to know why; no ROS here."""

from pathlib import Path
from typing import Any

import numpy as np

from robot_bridge.pilot import Decision


class SafetyLog:
    """When chunks came to the gate, and what left it; times by the monotonic clock."""

    def __init__(self) -> None:
        self.chunks: list[tuple[float, int, bool]] = []
        self.commands: list[tuple[float, int, np.ndarray]] = []

    def chunk(self, now_s: float, stamp: Any, taken: bool) -> None:
        """Keep when a chunk came, its stamp in nanoseconds, and whether it was taken."""
        self.chunks.append((now_s, stamp.sec * 10**9 + stamp.nanosec, taken))

    def command(self, now_s: float, series: int, command: np.ndarray) -> None:
        """Keep a command f64 [u] of a series, see `Gate.series`."""
        self.commands.append((now_s, series, command))

    def write(self, path: Path) -> None:
        """Write all of it."""
        with path.open("wb") as file:
            np.savez(
                file,
                chunk_s=np.array([c[0] for c in self.chunks]),
                chunk_stamp=np.array([c[1] for c in self.chunks], np.int64),
                chunk_taken=np.array([c[2] for c in self.chunks], np.bool_),
                command_s=np.array([c[0] for c in self.commands]),
                series=np.array([c[1] for c in self.commands]),
                command=np.array([c[2] for c in self.commands]),
            )


class DecisionLog:
    """Collects decisions; `write` makes a file of them. Arrays alone, no pickle."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.decisions = folder, list[Decision]()

    def add(self, decision: Decision) -> None:
        """Keep a decision."""
        self.decisions.append(decision)

    def write(self) -> None:
        """Write what was kept of an episode, if anything, as FOLDER/episode-N.npz."""
        found, self.decisions = self.decisions, []
        if not found:
            return
        jobs = [one.job for one in found]
        path = self.folder / f"episode-{jobs[0].episode:06d}.npz"
        fresh = path.with_name(f".{path.name}.new")
        with fresh.open("wb") as file:
            np.savez(
                file,
                step=np.array([job.step for job in jobs]),
                images=np.concatenate([job.obs.images for job in jobs]),
                proprio=np.concatenate([job.obs.proprio for job in jobs]),
                noise=np.concatenate([job.noise for job in jobs]),
                task=np.array([job.obs.task[0] for job in jobs]),
                counts=np.stack([one.counts for one in found]),
                latency_s=np.array([one.latency_s for one in found]),
                underway_s=np.array([job.underway_s for job in jobs]),
                made_s=np.array([job.made_s for job in jobs]),
                begun_s=np.array([job.begun_s for job in jobs]),
                stamp=np.array([one.stamp for one in found], np.int64),
            )
        fresh.replace(path)
