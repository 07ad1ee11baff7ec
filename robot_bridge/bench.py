"""`vla bench bridge`: is a policy over ROS 2 the policy in simulation, and how late does it act?

The closed loop is that of `launch/sim_arm.launch.py`, real nodes over real DDS in real time; beside
it the same episodes in one process. Then a bridge without a simulator, fed by two large cameras.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from deploy import artefact as artefacts
from robot_bridge import audit, graph, share, up
from robot_bridge import limits as joint_limits
from robot_bridge.graph import NodeSpec, SimArm
from vla import arguments, opening, paired
from vla.contracts.config import check_least
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation

MARGIN = 0.05
"""Success that may be lost on the way; 100 episodes tell a loss of about 10 points from none."""
LONGEST_S = 120.0
"""An episode that takes longer hangs."""
DELAY = 5
"""Control steps that a decision may take, on machines that do other things, too."""


@dataclass(frozen=True, kw_only=True)
class BridgeArgs:
    """Play episodes over ROS 2 and in one process, and time the bridge."""

    episodes: int = 100
    """Episodes of the policy's task, in real time."""
    seed: int = 1000
    """Seed of those."""
    silent_s: float = 0.3
    """Silence of the policy after which the safety node stops the arm."""
    blind_s: float = 0.2
    """Silence of the joint states after which it does."""
    latency_s: float = 60.0
    """Seconds for which the bridge is timed with two cameras of 640 x 480 pixels; 0 for none."""
    out: Path = Path("runs/bench-bridge")
    """Folder of bridge.json and the logs."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=1, seed=0)
        if not 0 <= self.latency_s <= 3600:
            raise ValueError(f"latency_s: got {self.latency_s}, expected 0 to 3600")


def main(argv: list[str]) -> int:
    """Run `vla bench bridge FOLDER`; 1 if success is lost or the memory differs.

    Raises:
        ValueError: the policy is damaged, or a node refuses.
    """
    if not argv or argv[0].startswith("-"):
        print("usage: vla bench bridge FOLDER [--episodes N] [--latency-s S] [--out DIR]")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    args = arguments.read(BridgeArgs, argv[1:], "vla bench bridge FOLDER")
    folder = Path(argv[0])
    artefact = artefacts.read(folder)
    args.out.mkdir(parents=True, exist_ok=True)
    inside = in_one_process(folder, args)
    with tempfile.TemporaryDirectory() as logs:
        rows = over_ros(folder, artefact.manifest.task, args, Path(logs))
        found = compared(folder, rows, inside, Path(logs))
    if args.latency_s:
        with tempfile.TemporaryDirectory() as logs:
            found["overhead"] = timed(folder, artefact.manifest.task, args, Path(logs))
    (args.out / "bridge.json").write_text(json.dumps({**found, "episodes": rows}, indent=1))
    Console(highlight=False).print(sheet(found, str(folder)))
    wrong = faults(found)
    for line in wrong:
        print(f"beyond the budget: {line}", file=sys.stderr)
    return int(bool(wrong))


def in_one_process(folder: Path, args: BridgeArgs) -> np.ndarray:
    """Return success bool [n] of the episodes without ROS.

    Raises:
        ValueError: `vla eval` refuses; it has said why.
    """
    with tempfile.TemporaryDirectory() as out:
        words = ["eval", str(folder), "--episodes", str(args.episodes), "--seed", str(args.seed),
                 "--videos", "0", "--out", out]  # fmt: skip
        if subprocess.run([sys.executable, "-m", "vla.cli", *words], check=False).returncode:
            raise ValueError(f"`vla {' '.join(words)}` failed; mend what it says above")
        return np.array(json.loads((Path(out) / "evaluation.json").read_text())["success"])


def over_ros(
    folder: Path, task: dict[str, Any], args: BridgeArgs, logs: Path
) -> list[dict[str, Any]]:
    """Return what the simulation says of each episode that the nodes played."""
    from robot_bridge.nodes.conductor import Conductor

    use = SimArm(robot=_robot(folder), policy=str(folder), task=task["type"], use_sim_time=False)
    told: dict[str, dict[str, graph.Value]] = {
        "sim_arm": {"task_config": json.dumps({k: v for k, v in task.items() if k != "type"})},
        "policy_node": {"log": str(logs), "seed": args.seed, "delay": DELAY},
        "safety_node": {
            "log": str(logs / "safety.npz"),
            "silent_s": args.silent_s,
            "blind_s": args.blind_s,
        },
    }
    with running(graph.sim_arm(use), told, args.out / "nodes.log"), Conductor() as conductor:
        conductor.bring_up()
        with Progress(transient=True) as bar:
            line = bar.add_task("episodes over ROS 2", total=args.episodes)
            rows = []
            for episode in range(args.episodes):
                rows.append(conductor.play(args.seed, episode, LONGEST_S))
                bar.advance(line)
        conductor.enable(False)
        conductor.say("")
    return rows


def compared(
    folder: Path, rows: list[dict[str, Any]], inside: np.ndarray, logs: Path
) -> dict[str, Any]:
    """Return how both ways differ: success, cadence, memory, limits."""
    success = np.array([row["success"] for row in rows])
    policy = opening.open_(folder, threads=1).policy
    grid = merged = decisions = 0
    latency_s: list[float] = []
    for path in track(sorted(logs.glob("episode-*.npz")), "replaying", transient=True):
        with np.load(path, allow_pickle=False) as log:
            latency_s += log["latency_s"].tolist()
            decisions += len(log["step"])
            grid += int((log["step"] == policy.execute * np.arange(len(log["step"]))).sum())
            merged += replay(policy, log)
    with np.load(logs / "safety.npz", allow_pickle=False) as log:
        robot = policy.robot
        allowed = joint_limits.read(share.params() / f"{robot.name}_limits.yaml", robot)
        kept = audit.audit(log["series"], log["command"], allowed, 1 / audit.RATE_HZ)
        apart_s = np.diff(log["command_s"])[np.diff(log["series"]) == 0]
    difference = paired.difference(inside, success)
    jitter_s = np.abs(apart_s - 1 / audit.RATE_HZ)
    return {
        "in_process": float(inside.mean()), "over_ros": float(success.mean()),
        "difference": difference._asdict(), "decisions": decisions, "on_the_grid": grid,
        "merges_alike": merged, "latency_ms": _quantiles(latency_s),
        "jitter_ms": _quantiles(jitter_s.tolist()),
        "interventions": {
            row["safety"]["stage"]: row["safety"]["why"] for row in rows if row["safety"]["stage"]
        },
        "audit": kept._asdict(),
    }  # fmt: skip


def replay(policy: ArmPolicy, log: Any) -> int:
    """Return the decisions of an episode after which the memory has the same counts as in one
    process, on the same observations at the times of training.
    """
    state, same = policy.initial_state(1), 0
    for k in range(len(log["step"])):
        obs = Observation(
            images=log["images"][k : k + 1],
            image_ok=np.ones((1, log["images"].shape[1]), np.bool_),
            proprio=log["proprio"][k : k + 1], task=(str(log["task"][k]),),
            time_s=np.array([k * policy.execute / policy.robot.control_hz]),
        )  # fmt: skip
        _, state = policy.act(obs, state, log["noise"][k : k + 1])
        same += int(np.array_equal(np.asarray(state.slot_count)[0], log["counts"][k]))
    return same


def timed(folder: Path, task: dict[str, Any], args: BridgeArgs, logs: Path) -> dict[str, Any]:
    """Return what the bridge adds to a decision, with two cameras of 640 x 480 at 30 Hz.

    From the picture's stamp to the policy being asked, and from its answer to the gate; the age of
    the latest picture when a decision is due, up to a period of the camera, is not the bridge's.
    """
    from robot_bridge.nodes.conductor import Conductor

    use = SimArm(robot=_robot(folder), policy=str(folder), task=task["type"], use_sim_time=False)
    told: dict[str, dict[str, graph.Value]] = {
        "sim_arm": {"camera_hz": 0},
        "policy_node": {"log": str(logs), "instruction": "go", "delay": DELAY},
        "safety_node": {
            "log": str(logs / "safety.npz"),
            "jump": 10.0,
            "stuck": 10.0,
            "silent_s": args.silent_s,
            "blind_s": args.blind_s,
        },
    }
    nodes = graph.sim_arm(use)
    nodes += (NodeSpec(executable="camera_feed", module="robot_bridge.nodes.camera_feed"),)
    with running(nodes, told, args.out / "timed.log"), Conductor() as conductor:
        conductor.bring_up()
        conductor.enable(True)
        for _ in track(range(round(args.latency_s)), "timing", transient=True):
            time.sleep(1.0)
        conductor.enable(False)
        conductor.say("")
    parts: list[np.ndarray] = []
    with np.load(logs / "safety.npz", allow_pickle=False) as log:
        came = dict(zip(log["chunk_stamp"].tolist(), log["chunk_s"].tolist(), strict=True))
        command_s = log["command_s"]
    for path in sorted(logs.glob("episode-*.npz")):
        with np.load(path, allow_pickle=False) as log:
            for k, stamp in enumerate(log["stamp"].tolist()):
                if came.get(stamp, np.inf) < command_s[-1]:
                    answered_s = log["begun_s"][k] + log["latency_s"][k]
                    left_s = command_s[np.searchsorted(command_s, came[stamp])]
                    parts.append(
                        np.array([
                            log["underway_s"][k], log["made_s"][k],
                            came[stamp] - answered_s, left_s - came[stamp],
                        ])
                    )  # fmt: skip
    found = np.array(parts)
    return {
        "decisions": len(found),
        "overhead_ms": _quantiles(found[:, :3].sum(1).tolist()),
        "picture_ms": _quantiles(found[:, 0].tolist()),
        "observation_ms": _quantiles(found[:, 1].tolist()),
        "chunk_ms": _quantiles(found[:, 2].tolist()),
        "tick_ms": _quantiles(found[:, 3].tolist()),
    }


def sheet(found: dict[str, Any], name: str) -> Table:
    """Return what was found as a table."""
    table = Table(title=f"{name} over ROS 2, against one process")
    table.add_column("what")
    table.add_column("found", justify="right")
    difference, kept = found["difference"], found["audit"]
    rows = [
        ("success in one process / over ROS 2",
         f"{found['in_process']:.1%} / {found['over_ros']:.1%}"),
        ("difference, 95 %",
         f"{100 * difference['low']:+.1f} to {100 * difference['high']:+.1f} points"),
        ("decisions on the grid of training", f"{found['on_the_grid']} of {found['decisions']}"),
        ("memories that merged the same entries",
         f"{found['merges_alike']} of {found['decisions']}"),
        ("decision, with asking, p50 / p99", _pair(found["latency_ms"])),
        ("command jitter at 100 Hz, p50 / p99", _pair(found["jitter_ms"])),
        ("commands / violations of a limit",
         f"{kept['commands']:,} / {sum(kept['violations'].values())}"),
        *((f"largest share of {limit}", f"{kept['worst'][limit]:.6f}")
          for limit in ("velocity", "acceleration", "jerk")),
        *((f"intervention: {stage}", why) for stage, why in found["interventions"].items()),
    ]  # fmt: skip
    if "overhead" in found:
        over = found["overhead"]
        rows += [
            ("overhead with two cameras 640 x 480 at 30 Hz, p50 / p99", _pair(over["overhead_ms"])),
            ("  picture to policy node", _pair(over["picture_ms"])),
            ("  observation made of it", _pair(over["observation_ms"])),
            ("  chunk to gate", _pair(over["chunk_ms"])),
            ("waiting for the gate's next tick", _pair(over["tick_ms"])),
        ]
    for row in rows:
        table.add_row(*row)
    return table


def faults(found: dict[str, Any]) -> list[str]:
    """Return what lies beyond its budget."""
    wrong = []
    high = found["difference"]["high"]
    if not high >= -MARGIN:  # few episodes prove little: what counts is what is beyond doubt
        wrong.append(f"at least {-100 * high:.1f} points of success are lost")
    if found["merges_alike"] != found["decisions"]:
        parted = found["decisions"] - found["merges_alike"]
        wrong.append(f"memories merged other entries in {parted} decisions")
    violations = sum(found["audit"]["violations"].values())
    if violations:
        wrong.append(f"{violations} commands violate a limit")
    return wrong


@contextmanager
def running(
    nodes: tuple[NodeSpec, ...], told: dict[str, dict[str, graph.Value]], out: Path
) -> Iterator[None]:
    """Run nodes with further parameters by name of the node; their lines go into a file."""
    specs = tuple(
        dataclasses.replace(
            node, lifecycle=False, parameters={**node.parameters, **told.get(node.name, {})}
        )
        for node in nodes
    )
    with out.open("w") as file, up.started(specs, out=file):
        yield


def _robot(folder: Path) -> str:
    return artefacts.read(folder).manifest.robot.name


def _quantiles(values: Any) -> list[float]:
    return [1e3 * float(q) for q in np.percentile(values, (50, 99))] if len(values) else []


def _pair(pair: list[float]) -> str:
    return f"{pair[0]:.2f} / {pair[1]:.2f} ms" if pair else "none"
