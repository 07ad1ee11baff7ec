"""The simulated arm behind its safety node as an environment, in real time: practice as on a robot.

Nodes of their own processes are the arm and its gate. Actions go out as targets with their times
and pass every limit; what is seen comes from joint states and cameras. One control step after the
other follows from the clock: a decision that takes time delays the next, and the arm holds its last
target meanwhile. Between episodes it is disarmed. Success and progress are the simulator's word.
"""

import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robot_bridge import graph, up
from robot_bridge.sync import Seen
from robot_bridge.way_back import way_back
from vla.contracts.specs import EnvSpec
from vla.contracts.types import EnvStep, Observation

HOLD_S = 30.0
"""How long the arm holds its last target while somebody decides; then silence stops it."""
AHEAD = 6
"""Targets of a message."""
SLOW = 0.25
"""Speed of the way back, as a share of each joint's."""
LEAD_S = 10.0
"""How long a target of whoever helps may take."""
REST_S = 5.0
"""How long an arm may take to come to rest."""
START_S = 60.0
"""How long the nodes may take to start."""
ALONE_S = 2.0
"""How long it is listened for nodes of somebody else."""
POLL_S = 0.1
NEAR = 0.05
"""Distance from home, in the unit of each joint, at which the way back is done."""
CUTS = 3
"""Episodes in a row that the safety node may cut before somebody has to see to the arm."""


class ArmEnv:
    """Satisfies `vla.contracts.protocols.VecEnv`, with one environment.

    Args:
        spec: Task, robot, instructions, length.
        task: The task's configuration as JSON types, with its "type".
        config: How the arm is run (`sim.backends.ros.Config`).

    Raises:
        ValueError: a node does not start.
    """

    num_envs = 1

    def __init__(self, spec: EnvSpec, task: dict[str, Any], config: Any) -> None:
        from robot_bridge.nodes.practice_arm import PracticeArm

        self.spec, self.config = spec, config
        self.render_s = 0.0
        """Pictures are taken elsewhere."""
        self._hz = spec.robot.control_hz
        self._home = np.array(spec.robot.home)
        self._stride = SLOW * np.array([c.velocity for c in spec.robot.channels]) / self._hz
        self._seed, self._index, self._steps, self._due_s = 0, -1, 0, 0.0
        self._cuts = 0
        self._armed = self._helped = False
        self._path: list[np.ndarray] = []
        self._obs: Observation | None = None
        with contextlib.ExitStack() as ends:
            self._arm = ends.enter_context(PracticeArm(spec.robot))
            self._arm.hold_s = HOLD_S
            self._check_alone()
            self._log = ends.enter_context(_lines(config.log))
            nodes = _nodes(spec, task, config)
            self._children, _ = ends.enter_context(up.started(nodes, out=self._log))
            ends.callback(self._leave)
            self._await()
            self._ends = ends.pop_all()

    # --- the contract ---------------------------------------------------------------------------

    def reset(self, seed: int) -> Observation:
        """Start episode 0 of a seed (>= 0)."""
        return self.begin(np.zeros(1, np.int64), np.array([seed]), np.zeros(1, np.int64))

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> Observation:
        """Start another episode; what the arm was at is dropped.

        Args:
            rows: i64 [n], which environments: the one, or none.
            seed: i64 [n], seed of its episode, 0 or more.
            index: i64 [n], its index among those of the seed, 0 or more.

        Returns:
            What is seen now.

        Raises:
            ValueError: a number is out of range, or a node refuses.
        """
        if np.any((np.asarray(rows) != 0) | (np.asarray(seed) < 0) | (np.asarray(index) < 0)):
            raise ValueError(
                f"begin: got rows {rows}, seeds {seed} and indices {index}, expected row 0 and "
                "nothing below 0"
            )
        self._check_nodes()
        for one, number in zip(seed.tolist(), index.tolist(), strict=True):
            self._retire_()
            self._begin_(one, number)
        if self._obs is None:
            raise ValueError("begin: got no rows, expected row 0, as no episode has begun")
        return self._obs

    def step(self, action: np.ndarray) -> EnvStep:
        """Apply one action (position targets f32 [1, u]) for one control step."""
        return self.step_chunk(np.asarray(action)[:, None])

    def step_chunk(
        self, actions: np.ndarray, helped: np.ndarray | None = None, idle: np.ndarray | None = None
    ) -> EnvStep:
        """Send targets f32 [1, h, u], wait until their time is over, and look.

        Where the row is `helped` the simulation's expert leads on `teleop` instead; where it is
        `idle` nothing happens.

        Raises:
            ValueError: a shape is wrong, a value is not finite, or the arm was stopped and somebody
                has to see to it.
        """
        got, channels = np.shape(actions), len(self.spec.robot.channels)
        if len(got) != 3 or got[0] != 1 or got[1] < 1 or got[2] != channels:
            raise ValueError(f"actions: got shape {got}, expected (1, h, {channels})")
        if self._obs is None:
            raise ValueError("step before reset: call reset(seed) first")
        if not np.isfinite(actions).all():
            raise ValueError("actions: got NaN or infinity, expected finite position targets")
        targets = np.asarray(actions, np.float64)[0]
        if idle is not None and idle[0]:
            return self._step(targets, 0)
        self._check_nodes()
        self._hand_over_(bool(helped is not None and helped[0]))
        done = self._lead_(targets) if self._helped else self._follow_(targets)
        self._steps += done
        cut = self._stopped_()
        told = self._told()
        terminated = bool(told["terminated"])
        late = bool(told["truncated"]) or self._steps >= self.spec.max_episode_steps
        if (terminated or late) and not cut:
            self._cuts = 0
        return self._step(targets, done, terminated, not terminated and (cut or late))

    def close(self) -> None:
        """Disarm, and end the nodes; calling it twice does no harm."""
        self._obs = None
        self._ends.close()

    # --- acting ---------------------------------------------------------------------------------

    def _hand_over_(self, helped: bool) -> None:
        """Arm, and let the one act who is to; from a helper's hands the arm is taken at rest."""
        if self._helped and not helped:
            self._rest()
        if not self._armed:
            self._arm.enable(True)
            self._armed, self._due_s = True, time.monotonic()
        self._helped = helped

    def _follow_(self, targets: np.ndarray) -> int:
        """Send targets f64 [h, u] as their time comes; return how many there was time for."""
        # The grid of control steps goes on through a decision, unless it took longer than a step.
        if time.monotonic() > self._due_s + 1 / self._hz:
            self._due_s = time.monotonic()
        for done in range(len(targets)):
            self._arm.send(targets[done : done + AHEAD], self._due_s)
            if not self._pass_():
                return done + 1
        return len(targets)

    def _lead_(self, targets: np.ndarray) -> int:
        """Let the helper act for a while; overwrite targets f64 [h, u] by what it did.

        Where the arm was stopped before a target came, that was to stand still.
        """
        self._arm.ask(len(targets))
        for done in range(len(targets)):
            self._arm.wait(partial(self._is_led, done), "who helps", LEAD_S)
            if len(self._arm.led) <= done:
                targets[done] = self._path[-1]
                return done + 1
            self._due_s, targets[done] = self._arm.led[done]
            if not self._pass_():
                return done + 1
        return len(targets)

    def _is_led(self, done: int) -> bool:
        return len(self._arm.led) > done or not self._well

    def _pass_(self) -> bool:
        """Wait for the end of the control step; return whether the episode goes on."""
        self._due_s += 1 / self._hz
        with self._arm.changed:
            self._arm.changed.wait_for(
                lambda: not self._well, max(0.0, self._due_s - time.monotonic())
            )
        self._note_pose()
        return self._well and bool(self._told()["running"])

    @property
    def _well(self) -> bool:
        """Whether the arm may move."""
        return self._arm.state in ("holding", "following")

    def _told(self) -> dict[str, Any]:
        with self._arm.changed:
            return self._arm.heard["episode"]

    def _note_pose(self) -> None:
        pose = self._arm.eyes.pose()
        if pose is not None:
            self._path.append(pose)

    # --- between episodes -----------------------------------------------------------------------

    def _begin_(self, seed: int, index: int) -> None:
        """Begin an episode, and look; the arm stays disarmed until something is to be done."""
        goes_on = self.config.reset == "arm" and self._index >= 0
        begin_s = time.monotonic()
        told = self._arm.begin(seed, index, "next" if goes_on else "reset")
        self._seed, self._index, self._steps = seed, index, 0
        self._task = str(told["instruction"])
        self._path = []
        self._note_pose()
        self._obs = self._look(begin_s)

    def _retire_(self) -> None:
        """End what the arm is at: it goes back if nobody puts it back, and is disarmed."""
        if self.config.reset == "arm" and self._steps:
            self._rest()
            self._hand_over_(False)
            targets = way_back(np.stack(self._path), self._home, self._stride)
            # The last target is said until the arm is there, which follows a little later.
            for done in range(len(targets) + round(REST_S * self._hz)):
                self._arm.send(
                    targets[done : done + AHEAD] if done < len(targets) else targets[-1:],
                    self._due_s,
                )
                self._pass_()
                if self._stopped_():
                    self._hand_over_(False)
                if done >= len(targets) and self._is_home():
                    break
            else:
                raise ValueError(
                    "the arm did not come home on the way it came; see what holds it, then run the "
                    "same command again: episodes that have ended are kept"
                )
        self._rest()

    def _is_home(self) -> bool:
        pose = self._arm.eyes.pose()
        return pose is not None and bool((np.abs(pose - self._home) < NEAR).all())

    def _rest(self) -> None:
        """Bring the arm to rest, and disarm it; nobody helps any more."""
        if self._helped:
            self._arm.ask(0)
        if self._armed:
            self._arm.enable(False)
        self._armed = self._helped = False

    def _leave(self) -> None:
        """Disarm at the end, whatever state things are in."""
        if not self._dead():
            with contextlib.suppress(ValueError):
                self._rest()

    # --- what may go wrong ----------------------------------------------------------------------

    def _stopped_(self) -> bool:
        """Return whether the safety node stopped the arm, after which practice may go on.

        Raises:
            ValueError: it may not: somebody has to see to the arm, or a node is gone.
        """
        self._check_nodes()
        if self._well:
            return False
        self._arm.wait(lambda: self._arm.state in ("latched", "disarmed"), "the arm's rest", REST_S)
        with self._arm.changed:
            said = dict(self._arm.heard["safety_node"])
        if said["state"] == "disarmed":
            raise ValueError(
                "somebody disarmed the arm in the middle of an episode; run the same command "
                "again: episodes that have ended are kept"
            )
        self._cuts += 1
        if said["stage"] not in self.config.goes_on or self._cuts > CUTS:
            raise ValueError(
                f"the safety node stopped the arm: {said['stage']}, {said['why']}; see to it, then "
                "run the same command again: episodes that have ended are kept"
            )
        _say(f"the safety node stopped the arm: {said['stage']}, {said['why']}; the episode is cut")
        self._arm.rearm()
        self._rest()
        return True

    def _check_nodes(self) -> None:
        if dead := self._dead():
            raise ValueError(dead)

    def _dead(self) -> str:
        """Return what became of a node that has ended, "" while all run."""
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                child.reader.join(1.0)
                lines = [
                    line
                    for line in Path(self._log.name).read_text().splitlines()
                    if line.startswith(child.name)
                ]
                last = lines[-1].partition("| ")[2] if lines else "it said nothing"
                return f"{child.name} ended with exit code {code}: {last}"
        return ""

    def _check_alone(self) -> None:
        end_s = time.monotonic() + ALONE_S
        while time.monotonic() < end_s:
            if self._arm.state:
                raise ValueError(
                    "got a safety_node that runs already, expected none on this ROS domain; end "
                    "it, or set ROS_DOMAIN_ID to another number"
                )
            time.sleep(POLL_S)

    def _await(self) -> None:
        """Wait until all nodes speak."""
        end_s = time.monotonic() + START_S
        while "episode" not in self._arm.heard or not self._arm.state:
            self._check_nodes()
            if time.monotonic() > end_s:
                raise ValueError(
                    f"waited {START_S:g} s for the nodes of the arm; see what they say, which "
                    "--backend.log FILE keeps"
                )
            time.sleep(POLL_S)

    # --- what is seen ---------------------------------------------------------------------------

    def _look(self, since_s: float) -> Observation:
        """Return what is seen, none of it before a moment."""
        seen = self._arm.look()
        while seen.time_s < since_s:
            time.sleep(1 / self._hz / 10)
            seen = self._arm.look()
        return self._observation(seen)

    def _observation(self, seen: Seen) -> Observation:
        return Observation(
            images=seen.images[None], image_ok=np.ones((1, len(seen.images)), np.bool_),
            proprio=seen.proprio[None], task=(self._task,),
            time_s=np.array([self._steps / self._hz]),
        )  # fmt: skip

    def _step(
        self, targets: np.ndarray, done: int, terminated: bool = False, truncated: bool = False
    ) -> EnvStep:
        """Return what came of targets f64 [h, u], `done` of which were executed."""
        told, index = self._told(), self._index
        assert self._obs is not None
        last = self._observation(self._arm.look()) if done else self._obs
        self._obs = last
        success = bool(told["success"])
        if terminated or truncated:
            self._retire_()
            self._begin_(self._seed, self._index + 1)
        return EnvStep(
            obs=self._obs, reward=np.array([success and terminated], np.float32),
            terminated=np.array([terminated]), truncated=np.array([truncated]), final_obs=last,
            info={
                "success": np.array([success]),
                "progress": np.array([told["progress"]], np.float32),
                "steps": np.array([done], np.int32), "episode": np.array([index]),
                "actions": targets[None].astype(np.float32),
            },
        )  # fmt: skip


def _nodes(spec: EnvSpec, task: dict[str, Any], config: Any) -> tuple[graph.NodeSpec, ...]:
    """Return the simulated arm and its safety node."""
    settings = {name: value for name, value in task.items() if name != "type"}
    told: dict[str, dict[str, graph.Value]] = {
        "sim_arm": {"task_config": json.dumps(settings), "waits": True},
        "safety_node": {"silent_s": config.silent_s, "blind_s": config.blind_s},
    }
    use = graph.SimArm(robot=spec.robot.name, task=spec.task, use_sim_time=False)
    return tuple(
        dataclasses.replace(node, parameters={**node.parameters, **told[node.name]})
        for node in graph.sim_arm(use)
    )


def _lines(log: str) -> Any:
    """Return a file for what the nodes say."""
    return open(log, "w") if log else tempfile.NamedTemporaryFile("w", suffix=".log")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
