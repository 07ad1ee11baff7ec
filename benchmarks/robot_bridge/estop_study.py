"""How soon the e-stop answers while the safety node's topics are flooded, over real DDS.

`python -m benchmarks.robot_bridge.estop_study --presses 100`

A process of its own sends chunks as fast as it can: small ones, or ones of 20,000 points. The
e-stop is a service in a thread and an executor of its own.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.robot_bridge.ros_latency import running
from robot_bridge.launching import graph, up
from vla.contracts.config import validate_min
from vla.utils import arguments

FLOODS = {"none": 0, "small chunks": 2, "20,000 points": 20_000}
"""Points of the chunks that flood."""
SETTLED_S = 1.0
"""Time for the flood to be found."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Press the e-stop while topics are flooded."""

    presses: int = 100
    """Presses under each flood."""
    out: Path = Path("runs/estop")
    """Folder of estop.json and the nodes' log."""

    def __post_init__(self) -> None:
        validate_min(self, presses=1)


def main() -> int:
    """Run the study; 1 if a press did not latch."""
    if sys.argv[1:2] == ["flood"]:
        return flood(int(sys.argv[2]))
    args = arguments.read(StudyArgs, sys.argv[1:], "python -m benchmarks.robot_bridge.estop_study")
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.update(up.discovery(dict(os.environ)))
    from robot_bridge.nodes.operator import Operator

    nodes = graph.sim_arm(graph.SimArm(task="reach", use_sim_time=False))
    results: dict[str, dict[str, Any]] = {}
    with (
        running(nodes, {"sim_arm": {"camera_hz": 0}}, args.out / "nodes.log"),
        Operator() as operator,
    ):
        operator.wait(lambda: bool(operator.state), "the safety node")
        for name, points in FLOODS.items():
            words = [sys.executable, "-m", "benchmarks.robot_bridge.estop_study", "flood"]
            sender = subprocess.Popen([*words, str(points)], stdout=subprocess.PIPE, text=True)
            try:
                time.sleep(SETTLED_S)
                results[name] = press(operator, args.presses, name)
            finally:
                sender.terminate()
                sent = sender.communicate()[0]
            results[name]["chunks_per_s"] = float(sent or 0)
    (args.out / "estop.json").write_text(json.dumps(results, indent=1))
    Console(highlight=False).print(sheet(results))
    return int(any(row["latched"] < args.presses for row in results.values()))


def press(operator: Any, presses: int, name: str) -> dict[str, Any]:
    """Enable and press so many times; return times in s until the answer, and how many latched."""
    from std_srvs.srv import Trigger

    took_s, latched = [], 0
    client = operator.node.create_client(Trigger, "safety_node/estop")
    client.wait_for_service()
    for _ in track(range(presses), f"e-stop, flood: {name}", transient=True):
        operator.rearm()
        operator.enable(True)
        begin_s = time.monotonic()
        operator.answer(client.call_async(Trigger.Request()), "e-stop")
        took_s.append(time.monotonic() - begin_s)
        operator.wait(lambda: operator.state == "latched_fault", "the latch", 30.0)
        latched += operator.state == "latched_fault"
    operator.node.destroy_client(client)
    return {"took_s": took_s, "latched": latched}


def sheet(results: dict[str, dict[str, Any]]) -> Table:
    """Return the results as a table."""
    table = Table(title="e-stop under a flood of chunks")
    for column in ("flood", "chunks per s", "latched", "answer p50 / p99 / longest"):
        table.add_column(column, justify="left" if column == "flood" else "right")
    for name, row in results.items():
        p50, p99 = 1e3 * np.percentile(row["took_s"], (50, 99))
        longest = 1e3 * max(row["took_s"])
        table.add_row(
            name, f"{row['chunks_per_s']:.0f}", f"{row['latched']} of {len(row['took_s'])}",
            f"{p50:.1f} / {p99:.1f} / {longest:.1f} ms",
        )  # fmt: skip
    return table


def flood(points: int) -> int:
    """Send chunks of so many points until SIGTERM, then print how many a second; 0 sends none."""
    import signal

    import rclpy
    from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

    from robot_bridge.nodes import common

    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))
    rclpy.init(signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
    node = rclpy.create_node("flood")
    publisher = node.create_publisher(JointTrajectory, "teleop", common.COMMANDS)
    message = JointTrajectory(joint_names=["nobody"])
    message.points = [JointTrajectoryPoint(positions=[0.0]) for _ in range(points)]
    count, begin_s = 0, time.monotonic()
    while not over:
        if points:
            publisher.publish(message)
            count += 1
        else:
            time.sleep(0.05)
    print(count / (time.monotonic() - begin_s), flush=True)
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
