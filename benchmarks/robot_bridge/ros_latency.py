"""`vla bench bridge`: is a policy over ROS 2 the policy in simulation, and how late does it act?

The closed loop is that of `launch/sim_arm.launch.py`: real nodes over real DDS in real time. The
same episodes run in one process. Then a bridge without a simulator gets two large cameras.
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

from benchmarks import harness
from benchmarks.robot_bridge import audit
from deploy.runtime import artefact as artefacts
from deploy.verify.difference import alike
from robot_bridge.launching import graph, package_files, up
from robot_bridge.launching.graph import NodeSpec, SimArm
from robot_bridge.motion import limits as joint_limits
from robot_bridge.policy.decision_log import MEMORY
from vla.contracts.config import validate_min
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation, PolicyState
from vla.runtime import policy_loader
from vla.utils import arguments, paired

MARGIN = 0.05
"""Share of success that may be lost; 100 episodes distinguish about 10 points from none."""
LONGEST_S = 120.0
"""Limit of an episode; a longer one hangs."""
DELAY = 5
"""Control steps that a decision may take, on busy machines too."""


@dataclass(frozen=True, kw_only=True)
class BridgeArgs:
    """Run episodes over ROS 2 and in one process, and time the bridge."""

    episodes: int = 100
    """Episodes of the policy's task, in real time."""
    seed: int = 1000
    """Seed of the episodes."""
    command_timeout_s: float = 0.3
    """Time without a chunk after which the safety node stops the arm."""
    joint_state_timeout_s: float = 0.2
    """Time without joint states after which it stops the arm."""
    driver: str = ""
    """Driver file that the simulated arm plays, such as benchmarks/robot_bridge/wirings/ur.yaml."""
    latency_s: float = 60.0
    """Seconds for which the bridge is timed with two cameras of 640 x 480 pixels; 0 for none."""
    realtime_priority: int = 0
    """Priority of a second timing, in which the safety node has SCHED_FIFO and locked memory; 0
    for none. It needs the right to both."""
    out: Path = Path("runs/bench-bridge")
    """Folder of bridge.json and the logs."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, seed=0)
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
        result = compared(folder, rows, inside, Path(logs))
    if args.latency_s:
        priorities = {"overhead": 0, "overhead_realtime": args.realtime_priority}
        for name, priority in priorities.items():
            if priority or name == "overhead":
                with tempfile.TemporaryDirectory() as logs:
                    task = artefact.manifest.task
                    result[name] = timed(folder, task, args, Path(logs), priority)
    (args.out / "bridge.json").write_text(json.dumps({**result, "episodes": rows}, indent=1))
    Console(highlight=False).print(sheet(result, str(folder), Path(args.driver).stem))
    wrong = faults(result)
    for line in wrong:
        print(f"beyond the budget: {line}", file=sys.stderr)
    return int(bool(wrong))


def in_one_process(folder: Path, args: BridgeArgs) -> np.ndarray:
    """Return success bool [n] of the episodes without ROS.

    Raises:
        ValueError: `vla eval` failed and printed why.
    """
    with tempfile.TemporaryDirectory() as out:
        words = ["eval", str(folder), "--episodes", str(args.episodes), "--seed", str(args.seed),
                 "--videos", "0", "--out", out]  # fmt: skip
        if subprocess.run([sys.executable, "-m", "vla.cli", *words], check=False).returncode:
            raise ValueError(f"`vla {' '.join(words)}` failed; see its message above")
        return np.array(json.loads((Path(out) / "evaluation.json").read_text())["success"])


def over_ros(
    folder: Path, task: dict[str, Any], args: BridgeArgs, logs: Path
) -> list[dict[str, Any]]:
    """Return the simulator's report of each episode that the nodes ran."""
    from benchmarks.robot_bridge.sim_episode_client import SimEpisodeClient

    use = SimArm(
        robot=_robot(folder), policy=str(folder), task=task["type"], use_sim_time=False,
        driver=args.driver,
    )  # fmt: skip
    parameters: dict[str, dict[str, graph.Value]] = {
        "sim_arm": {"task_config": json.dumps({k: v for k, v in task.items() if k != "type"})},
        "policy_node": {"log": str(logs), "seed": args.seed, "delay": DELAY},
        "safety_node": {
            "log": str(logs / "safety.npz"),
            "command_timeout_s": args.command_timeout_s,
            "joint_state_timeout_s": args.joint_state_timeout_s,
        },
    }
    with (
        running(graph.sim_arm(use), parameters, args.out / "nodes.log"),
        SimEpisodeClient() as client,
    ):
        client.bring_up()
        with Progress(transient=True) as bar:
            line = bar.add_task("episodes over ROS 2", total=args.episodes)
            rows = []
            for episode in range(args.episodes):
                rows.append(client.play(args.seed, episode, LONGEST_S))
                bar.advance(line)
        client.enable(False)
        client.say("")
    return rows


def compared(
    folder: Path, rows: list[dict[str, Any]], inside: np.ndarray, logs: Path
) -> dict[str, Any]:
    """Return the differences in success, cadence, memory and limits."""
    success = np.array([row["success"] for row in rows])
    policy = policy_loader.open_policy(folder, threads=1).policy
    grid = merged = decisions = 0
    latency_s: list[float] = []
    for path in track(sorted(logs.glob("episode-*.npz")), "replaying", transient=True):
        with np.load(path, allow_pickle=False) as log:
            latency_s += log["latency_s"].tolist()
            decisions += len(log["step"])
            grid += int((log["step"] == policy.n_action_steps * np.arange(len(log["step"]))).sum())
            merged += replay(policy, log)
    with np.load(logs / "safety.npz", allow_pickle=False) as log:
        robot = policy.robot
        allowed = joint_limits.read(package_files.params() / f"{robot.name}_limits.yaml", robot)
        audited = audit.audit(
            log["series"], log["command"], log["stops"], allowed, 1 / audit.RATE_HZ
        )
        period_s = np.diff(log["command_s"])[np.diff(log["series"]) == 0]
    difference = paired.difference(inside, success)
    jitter_s = np.abs(period_s - 1 / audit.RATE_HZ)
    return {
        "in_process": float(inside.mean()), "over_ros": float(success.mean()),
        "difference": difference._asdict(), "decisions": decisions, "on_the_grid": grid,
        "merges_alike": merged, "latency_ms": _quantiles(latency_s),
        "jitter_ms": _quantiles(jitter_s.tolist()),
        "interventions": {
            row["safety"]["stage"]: row["safety"]["why"] for row in rows if row["safety"]["stage"]
        },
        "audit": audited._asdict(),
    }  # fmt: skip


def replay(policy: ArmPolicy, log: Any) -> int:
    """Return the number of decisions after which the memory equals that of one process, on the same
    observations at the times of training.
    """
    state, same = policy.initial_state(1), 0
    for k in range(len(log["step"])):
        obs = Observation(
            images=log["images"][k : k + 1],
            image_ok=np.ones((1, log["images"].shape[1]), np.bool_),
            proprio=log["proprio"][k : k + 1], task=(str(log["task"][k]),),
            time_s=np.array([k * policy.n_action_steps / policy.robot.control_hz]),
        )  # fmt: skip
        _, state = policy.act(obs, state, log["noise"][k : k + 1])
        logged = {name: log[f"{MEMORY}{name}"][k : k + 1] for name in state.tensors}
        same += int(alike(state, PolicyState(tensors=logged)))
    return same


def timed(
    folder: Path, task: dict[str, Any], args: BridgeArgs, logs: Path, priority: int
) -> dict[str, Any]:
    """Return what the bridge adds to a decision, with two cameras of 640 x 480 at 30 Hz.

    From the image's stamp to the start of the decision, and from its end to the gate. The age of
    the latest image when a decision is due, up to a period of the camera, is not the bridge's.
    """
    from benchmarks.robot_bridge.sim_episode_client import SimEpisodeClient

    use = SimArm(robot=_robot(folder), policy=str(folder), task=task["type"], use_sim_time=False)
    parameters: dict[str, dict[str, graph.Value]] = {
        "sim_arm": {"camera_hz": 0},
        "policy_node": {"log": str(logs), "instruction": "go", "delay": DELAY},
        "safety_node": {
            "log": str(logs / "safety.npz"),
            "max_start_deviation": 10.0,
            "max_tracking_error": 10.0,
            "command_timeout_s": args.command_timeout_s,
            "joint_state_timeout_s": args.joint_state_timeout_s,
            "realtime_priority": priority,
            "lock_memory": priority > 0,
        },
    }
    nodes = graph.sim_arm(use)
    nodes += (
        NodeSpec(executable="camera_feed", module="benchmarks.robot_bridge.camera_feed_node"),
    )
    with running(nodes, parameters, args.out / "timed.log"), SimEpisodeClient() as client:
        client.bring_up()
        client.enable(True)
        for _ in track(range(round(args.latency_s)), "timing", transient=True):
            time.sleep(1.0)
        client.enable(False)
        client.say("")
    parts: list[np.ndarray] = []
    with np.load(logs / "safety.npz", allow_pickle=False) as log:
        arrived = dict(zip(log["chunk_stamp"].tolist(), log["chunk_s"].tolist(), strict=True))
        command_s = log["command_s"]
    jitter_s = np.abs(np.diff(command_s) - 1 / audit.RATE_HZ)
    for path in sorted(logs.glob("episode-*.npz")):
        with np.load(path, allow_pickle=False) as log:
            for k, stamp in enumerate(log["stamp"].tolist()):
                if arrived.get(stamp, np.inf) < command_s[-1]:
                    answered_s = log["begin_s"][k] + log["latency_s"][k]
                    left_s = command_s[np.searchsorted(command_s, arrived[stamp])]
                    parts.append(
                        np.array([
                            log["underway_s"][k], log["made_s"][k],
                            arrived[stamp] - answered_s, left_s - arrived[stamp],
                        ])
                    )  # fmt: skip
    seconds = np.array(parts)
    return {
        "decisions": len(seconds),
        "jitter_ms": _quantiles(jitter_s.tolist()),
        "overhead_ms": _quantiles(seconds[:, :3].sum(1).tolist()),
        "image_ms": _quantiles(seconds[:, 0].tolist()),
        "observation_ms": _quantiles(seconds[:, 1].tolist()),
        "chunk_ms": _quantiles(seconds[:, 2].tolist()),
        "tick_ms": _quantiles(seconds[:, 3].tolist()),
    }


def sheet(result: dict[str, Any], name: str, driver: str) -> Table:
    """Return the results as a table."""
    difference, audited = result["difference"], result["audit"]
    rows = [
        ("success in one process / over ROS 2",
         f"{result['in_process']:.1%} / {result['over_ros']:.1%}"),
        ("difference, 95 %",
         f"{100 * difference['low']:+.1f} to {100 * difference['high']:+.1f} points"),
        ("decisions on the grid of training", f"{result['on_the_grid']} of {result['decisions']}"),
        ("decisions with the same memory",
         f"{result['merges_alike']} of {result['decisions']}"),
        ("decision, with asking, p50 / p99", _pair(result["latency_ms"])),
        ("command jitter at 100 Hz, p50 / p99", _pair(result["jitter_ms"])),
        ("commands / violations of a limit",
         f"{audited['commands']:,} / {sum(audited['violations'].values())}"),
        *((f"largest share of {limit}", f"{audited['worst'][limit]:.6f}")
          for limit in ("velocity", "acceleration", "jerk")),
        *((f"intervention: {stage}", why) for stage, why in result["interventions"].items()),
    ]  # fmt: skip
    if "overhead" in result:
        over = result["overhead"]
        rows += [
            ("overhead with two cameras 640 x 480 at 30 Hz, p50 / p99", _pair(over["overhead_ms"])),
            ("  image to policy node", _pair(over["image_ms"])),
            ("  observation made from it", _pair(over["observation_ms"])),
            ("  chunk to gate", _pair(over["chunk_ms"])),
            ("waiting for the gate's next tick", _pair(over["tick_ms"])),
            ("command jitter meanwhile", _pair(over["jitter_ms"])),
        ]
    if "overhead_realtime" in result:
        over = result["overhead_realtime"]
        rows += [
            ("with SCHED_FIFO and locked memory: overhead", _pair(over["overhead_ms"])),
            ("  command jitter", _pair(over["jitter_ms"])),
        ]
    title = f"{name} over ROS 2{' behind ' * bool(driver)}{driver}, against one process"
    return harness.table(title, ("quantity", "value"), rows)


def faults(result: dict[str, Any]) -> list[str]:
    """Return what exceeds its budget, one sentence each."""
    wrong = []
    high = result["difference"]["high"]
    if not high >= -MARGIN:  # few episodes prove little: only a certain loss counts
        wrong.append(f"at least {-100 * high:.1f} points of success are lost")
    if result["merges_alike"] != result["decisions"]:
        different = result["decisions"] - result["merges_alike"]
        wrong.append(f"memories differ after {different} decisions")
    violations = sum(result["audit"]["violations"].values())
    if violations:
        wrong.append(f"{violations} commands violate a limit")
    return wrong


@contextmanager
def running(
    nodes: tuple[NodeSpec, ...], parameters: dict[str, dict[str, graph.Value]], out: Path
) -> Iterator[None]:
    """Run nodes with further parameters by name of the node; their output goes to a file."""
    specs = tuple(
        dataclasses.replace(
            node, lifecycle=False, parameters={**node.parameters, **parameters.get(node.name, {})}
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
