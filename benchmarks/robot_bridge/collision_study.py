"""`python -m benchmarks.robot_bridge.collision_study`: what the collision stage adds to a tick of
the gate.

The same random targets, from all over the range, with and without it. The arm is where it is told
to be; what a tick takes is the thread's own time: other work on the machine does not count.
"""

import sys
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.robot_bridge import audit
from robot_bridge.motion import limits as joint_limits
from robot_bridge.motion.workspace import Workspace
from robot_bridge.safety.clearance import Clearance
from robot_bridge.safety.collision import Collision
from robot_bridge.safety.gate import Gate
from robot_bridge.safety.gate_config import GateConfig
from vla.contracts import registry
from vla.contracts.config import validate_min
from vla.contracts.specs import RobotSpec
from vla.utils import arguments

ROBOTS = ("so101", "panda")
CONFIG = GateConfig(
    rate_hz=audit.RATE_HZ,
    max_chunk_age_s=1.0,
    command_timeout_s=1.0,
    joint_state_timeout_s=1.0,
    max_start_deviation=10.0,
    max_tracking_error=10.0,
    rest_position_tolerance=0.05,
)
CHUNK = 10
"""Ticks from chunk to chunk, and targets of one, 0.1 s apart."""
TOWARDS = 15
"""Chunks towards one pose before the next pose."""
SHARE = 0.4
"""Commanded share of a joint's highest velocity."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Time the collision stage."""

    ticks: int = 6000
    """Ticks of each robot, with and without the stage."""
    seed: int = 0
    """Seed of the targets."""
    margin: float = 0.005
    """Clearance in metres."""

    def __post_init__(self) -> None:
        validate_min(self, ticks=100, seed=0)
        if not 0.001 <= self.margin <= 0.05:
            raise ValueError(f"margin: got {self.margin}, expected 0.001 to 0.05")


def main() -> int:
    """Run the study; return 0."""
    args = arguments.read(
        StudyArgs, sys.argv[1:], "python -m benchmarks.robot_bridge.collision_study"
    )
    table = Table(title=f"a tick of the gate, {args.ticks} each, ms of the thread's own time")
    for column in (
        "robot",
        "without, median / p99 / max",
        "with, median / p99 / max",
        "ticks it acted in",
    ):
        table.add_column(column, justify="left" if column == "robot" else "right")
    for name in track(ROBOTS, "robots", transient=True):
        robot = registry.load("vla.robots", name).SPEC
        (plain, _), (judged, acted) = (ticks_ms(robot, args, judges) for judges in (False, True))
        table.add_row(name, _three(plain), _three(judged), str(acted))
    Console(highlight=False).print(table)
    return 0


def ticks_ms(robot: RobotSpec, args: StudyArgs, judges: bool) -> tuple[np.ndarray, int]:
    """Return milliseconds f64 [n] of ticks, and the number in which the stage acted.

    Args:
        robot: The arm, over a table.
        args: How many ticks, and towards what.
        judges: Whether there is a collision stage.
    """
    allowed = joint_limits.of_spec(robot)
    obstacles = None
    if judges:
        obstacles = Collision(Clearance(robot, Workspace(table=0.0), args.margin), args.margin)
    gate = Gate(CONFIG, allowed, obstacles)
    rng, pose, ticks_ms = np.random.default_rng(args.seed), np.array(robot.home, np.float64), []
    target = pose
    gate.measure(0.0, pose)
    gate.enable(0.0, True)
    for k in range(args.ticks):
        now_s = k / audit.RATE_HZ
        gate.measure(now_s, pose)
        if k % (CHUNK * TOWARDS) == 0:
            target = rng.uniform(allowed.low, allowed.high)
        if k % CHUNK == 0:
            far = SHARE * allowed.velocity * np.arange(1, CHUNK + 1)[:, None] / 10
            positions = pose + np.clip(target - pose, -far, far)
            times_s = now_s + np.arange(1, CHUNK + 1) / 10
            gate.offer(now_s, "policy", times_s, positions, 0.0)
        begin_s = time.thread_time()
        command = gate.tick(now_s)
        ticks_ms.append(1e3 * (time.thread_time() - begin_s))
        pose = pose if command is None else command
    return np.array(ticks_ms), gate.counts["collision"]


def _three(ticks_ms: np.ndarray) -> str:
    median, p99 = np.percentile(ticks_ms, (50, 99))
    return f"{median:.2f} / {p99:.2f} / {ticks_ms.max():.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
