"""The simulated arm behind its safety node as a real-time environment for rollouts.

The arm and its gate are nodes in their own processes. Actions are timed targets that pass every
limit; observations come from joint states and cameras. Control steps follow the clock: a slow
decision delays the next step, and the arm holds its last target meanwhile. The arm is disabled
between episodes. Success and progress come from the simulator.
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

from robot_bridge.launching import graph, up
from robot_bridge.motion.retrace import retrace
from vla.contracts.specs import EnvSpec
from vla.contracts.types import EnvStep, Observation

HOLD_S = 30.0
"""Longest time in s for which the last target is repeated before silence stops the arm."""
AHEAD = 6
"""Targets of a message."""
SLOW = 0.25
"""Velocity of retracing, as a share of each joint's limit."""
EXPERT_S = 10.0
"""Longest wait in s for a target of the expert."""
REST_S = 5.0
"""Longest time in s until the arm is at rest."""
START_S = 60.0
"""Longest time in s until the nodes have started."""
ALONE_S = 2.0
"""Time in s to listen for another safety node."""
POLL_S = 0.1
NEAR = 0.05
"""Distance from home, in the unit of each joint, at which the arm is home."""
CUTS = 3
"""Most episodes in a row that the safety node may cut before a person has to check the arm."""


class ArmEnv:
    """Satisfies `vla.contracts.protocols.VecEnv`, with one environment.

    Args:
        spec: Task, robot, instructions, length.
        task: The task's configuration as JSON types, with its "type".
        config: Configuration of the backend (`sim.backends.ros.Config`).

    Raises:
        ValueError: a node does not start.
    """

    num_envs = 1

    def __init__(self, spec: EnvSpec, task: dict[str, Any], config: Any) -> None:
        from robot_bridge.nodes.rollout_arm import RolloutArm

        self.spec, self.config = spec, config
        self.render_time_s = 0.0
        """Zero: another process renders."""
        self._hz = spec.robot.control_hz
        self._home = np.array(spec.robot.home)
        self._stride = SLOW * np.array([c.velocity for c in spec.robot.channels]) / self._hz
        self._seed, self._index, self._steps, self._due_s = 0, -1, 0, 0.0
        self._cuts = 0
        self._enabled = self._expert_acts = False
        self._path: list[np.ndarray] = []
        self._obs: Observation | None = None
        with contextlib.ExitStack() as ends:
            self._arm = ends.enter_context(RolloutArm(spec.robot))
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
        """Start another episode; the present one is dropped.

        Args:
            rows: i64 [n], environments: the only one, or none.
            seed: i64 [n], seed of its episode, 0 or more.
            index: i64 [n], index of the episode, 0 or more.

        Returns:
            The first observation.

        Raises:
            ValueError: a number is out of range, or a node refuses.
        """
        if np.any((np.asarray(rows) != 0) | (np.asarray(seed) < 0) | (np.asarray(index) < 0)):
            raise ValueError(
                f"begin: got rows {rows}, seeds {seed} and indices {index}, expected row 0 and "
                "nothing below 0"
            )
        self._check_nodes()
        for episode_seed, number in zip(seed.tolist(), index.tolist(), strict=True):
            self._finish_episode()
            self._begin(episode_seed, number)
        if self._obs is None:
            raise ValueError("begin: got no rows, expected row 0, as no episode has begun")
        return self._obs

    def step(self, action: np.ndarray) -> EnvStep:
        """Apply one action (position targets f32 [1, u]) for one control step."""
        return self.step_chunk(np.asarray(action)[:, None])

    def step_chunk(
        self,
        actions: np.ndarray,
        use_expert: np.ndarray | None = None,
        frozen: np.ndarray | None = None,
    ) -> EnvStep:
        """Send targets f32 [1, h, u], wait for the end of their time, and observe.

        With `use_expert` the simulation's expert acts on `teleop` instead; with `frozen` nothing
        happens.

        Raises:
            ValueError: a shape is wrong, a value is not finite, or the arm was stopped and a person
                has to check it.
        """
        got, channels = np.shape(actions), len(self.spec.robot.channels)
        if len(got) != 3 or got[0] != 1 or got[1] < 1 or got[2] != channels:
            raise ValueError(f"actions: got shape {got}, expected (1, h, {channels})")
        if self._obs is None:
            raise ValueError("step before reset: call reset(seed) first")
        if not np.isfinite(actions).all():
            raise ValueError("actions: got NaN or infinity, expected finite position targets")
        targets = np.asarray(actions, np.float64)[0]
        if frozen is not None and frozen[0]:
            return self._step(targets, 0)
        self._check_nodes()
        self._select_source(bool(use_expert is not None and use_expert[0]))
        done = self._run_expert(targets) if self._expert_acts else self._follow(targets)
        self._steps += done
        cut = self._check_stopped()
        state = self._episode_state()
        terminated = bool(state["terminated"])
        late = bool(state["truncated"]) or self._steps >= self.spec.max_episode_steps
        if (terminated or late) and not cut:
            self._cuts = 0
        return self._step(targets, done, terminated, not terminated and (cut or late))

    def close(self) -> None:
        """Disable the arm, and end the nodes; a second call does nothing."""
        self._obs = None
        self._ends.close()

    # --- acting ---------------------------------------------------------------------------------

    def _select_source(self, use_expert: bool) -> None:
        """Enable the arm for the policy or the expert; the expert's turn ends at rest."""
        if self._expert_acts and not use_expert:
            self._rest()
        if not self._enabled:
            self._arm.enable(True)
            self._enabled, self._due_s = True, time.monotonic()
        self._expert_acts = use_expert

    def _follow(self, targets: np.ndarray) -> int:
        """Send targets f64 [h, u] at their times; return the number of executed ones."""
        # The grid of control steps continues during a decision that takes at most a step.
        if time.monotonic() > self._due_s + 1 / self._hz:
            self._due_s = time.monotonic()
        for done in range(len(targets)):
            self._arm.send(targets[done : done + AHEAD], self._due_s)
            if not self._wait_step():
                return done + 1
        return len(targets)

    def _run_expert(self, targets: np.ndarray) -> int:
        """Let the expert act, and overwrite targets f64 [h, u] with its targets.

        If the arm is stopped or the episode ends before the first one, the target is its pose.
        """
        self._arm.request_expert(len(targets))
        for done in range(len(targets)):
            self._arm.wait(partial(self._has_expert_target, done), "the expert", EXPERT_S)
            if len(self._arm.expert_targets) <= done:
                targets[done] = self._path[-1]
                return max(done, 1)
            self._due_s, targets[done] = self._arm.expert_targets[done]
            if not self._wait_step():
                return done + 1
        return len(targets)

    def _has_expert_target(self, done: int) -> bool:
        return len(self._arm.expert_targets) > done or not self._goes_on

    def _wait_step(self) -> bool:
        """Wait for the end of the control step; return whether the episode continues."""
        self._due_s += 1 / self._hz
        with self._arm.changed:
            self._arm.changed.wait_for(
                lambda: not self._may_move, max(0.0, self._due_s - time.monotonic())
            )
        self._note_pose()
        return self._goes_on

    @property
    def _goes_on(self) -> bool:
        """Whether the arm may move and the episode has not ended."""
        return self._may_move and bool(self._episode_state()["running"])

    @property
    def _may_move(self) -> bool:
        """Whether the arm may move."""
        return self._arm.state in ("holding", "tracking")

    def _episode_state(self) -> dict[str, Any]:
        with self._arm.changed:
            return self._arm.heard["episode"]

    def _note_pose(self) -> None:
        pose = self._arm.observations.pose()
        if pose is not None:
            self._path.append(pose)

    # --- between episodes -----------------------------------------------------------------------

    def _begin(self, seed: int, index: int) -> None:
        """Start an episode and observe; the arm stays disabled until the first action."""
        in_place = self.config.reset == "arm" and self._index >= 0
        episode = self._arm.begin(seed, index, "next" if in_place else "reset")
        self._seed, self._index, self._steps = seed, index, 0
        self._task = str(episode["instruction"])
        self._path = []
        self._note_pose()
        began_ns = round(1e9 * episode["began_s"])
        self._obs = self._look(self._arm.observations.monotonic_s(began_ns))

    def _finish_episode(self) -> None:
        """End the episode: the arm retraces its path if nobody resets it, and is disabled."""
        if self.config.reset == "arm" and self._steps:
            self._rest()
            self._select_source(False)
            targets = retrace(np.stack(self._path), self._home, self._stride)
            # The last target is repeated until the arm, which lags a little, is there.
            for done in range(len(targets) + round(REST_S * self._hz)):
                self._arm.send(
                    targets[done : done + AHEAD] if done < len(targets) else targets[-1:],
                    self._due_s,
                )
                self._wait_step()
                if self._check_stopped():
                    self._select_source(False)
                if done >= len(targets) and self._is_home():
                    break
            else:
                raise ValueError(
                    "the arm did not come home along its path; see what holds it, then run the "
                    "same command again: episodes that have ended are kept"
                )
        self._rest()

    def _is_home(self) -> bool:
        pose = self._arm.observations.pose()
        return pose is not None and bool((np.abs(pose - self._home) < NEAR).all())

    def _rest(self) -> None:
        """Bring the arm to rest, disable it, and end the intervention."""
        if self._expert_acts:
            self._arm.request_expert(0)
        if self._enabled:
            self._arm.enable(False)
        self._enabled = self._expert_acts = False

    def _leave(self) -> None:
        """Disable the arm at the end, if its nodes run."""
        if not self._dead():
            with contextlib.suppress(ValueError):
                self._rest()

    # --- what may go wrong ----------------------------------------------------------------------

    def _check_stopped(self) -> bool:
        """Return whether the safety node stopped the arm, and enable rollouts again.

        Raises:
            ValueError: a person has to check the arm, or a node has ended.
        """
        self._check_nodes()
        if self._may_move:
            return False
        self._arm.wait(
            lambda: self._arm.state in ("latched_fault", "disabled"), "the arm's rest", REST_S
        )
        with self._arm.changed:
            status = dict(self._arm.heard["safety_node"])
        if status["state"] == "disabled":
            raise ValueError(
                "the arm was disabled in the middle of an episode; run the same command again: "
                "episodes that have ended are kept"
            )
        self._cuts += 1
        cause = f"{status['stage']}, {status['why']}"
        if status["stage"] not in self.config.auto_resume_stages or self._cuts > CUTS:
            raise ValueError(
                f"the safety node stopped the arm: {cause}; see to it, then run the same command "
                "again: episodes that have ended are kept"
            )
        line = f"the safety node stopped the arm: {cause}; the episode is cut"
        print(line, file=sys.stderr, flush=True)
        self._arm.rearm()
        self._rest()
        return True

    def _check_nodes(self) -> None:
        if dead := self._dead():
            raise ValueError(dead)

    def _dead(self) -> str:
        """Return a description of a node that has ended, "" while all run."""
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                child.reader.join(1.0)
                lines = [
                    line
                    for line in Path(self._log.name).read_text().splitlines()
                    if line.startswith(child.name)
                ]
                last = lines[-1].partition("| ")[2] if lines else "no output"
                return f"{child.name} ended with exit code {code}: {last}"
        return ""

    def _check_alone(self) -> None:
        with self._arm.changed:
            if self._arm.changed.wait_for(lambda: bool(self._arm.state), ALONE_S):
                raise ValueError(
                    "got a safety_node that runs already, expected none on this ROS domain; end "
                    "it, or set ROS_DOMAIN_ID to another number"
                )

    def _await(self) -> None:
        """Wait for the first messages of all nodes."""
        end_s = time.monotonic() + START_S
        while "episode" not in self._arm.heard or not self._arm.state:
            self._check_nodes()
            if time.monotonic() > end_s:
                raise ValueError(
                    f"waited {START_S:g} s for the nodes of the arm; see their output, which "
                    "--backend.log FILE keeps"
                )
            time.sleep(POLL_S)

    # --- observations ---------------------------------------------------------------------------

    def _look(self, since_s: float) -> Observation:
        """Return an observation with no part before a time."""
        observation = self._arm.look()
        while observation.time_s < since_s:
            time.sleep(1 / self._hz / 10)
            observation = self._arm.look()
        return observation.row(self._task, self._steps / self._hz)

    def _step(
        self, targets: np.ndarray, done: int, terminated: bool = False, truncated: bool = False
    ) -> EnvStep:
        """Return the result of targets f64 [h, u], of which `done` were executed."""
        state, index = self._episode_state(), self._index
        assert self._obs is not None
        # Not a picture of before the last step, as where a busy machine draws late.
        last = self._look(min(self._due_s, time.monotonic()) - 1 / self._hz) if done else self._obs
        self._obs = last
        success = bool(state["success"])
        if terminated or truncated:
            self._finish_episode()
            self._begin(self._seed, self._index + 1)
        return EnvStep(
            obs=self._obs, reward=np.array([success and terminated], np.float32),
            terminated=np.array([terminated]), truncated=np.array([truncated]), final_obs=last,
            info={
                "success": np.array([success]),
                "progress": np.array([state["progress"]], np.float32),
                "steps": np.array([done], np.int32), "episode": np.array([index]),
                "actions": targets[None].astype(np.float32),
            },
        )  # fmt: skip


def _nodes(spec: EnvSpec, task: dict[str, Any], config: Any) -> tuple[graph.NodeSpec, ...]:
    """Return the simulated arm and its safety node."""
    settings = {name: value for name, value in task.items() if name != "type"}
    parameters: dict[str, dict[str, graph.Value]] = {
        "sim_arm": {"task_config": json.dumps(settings), "waits": True},
        "safety_node": {
            "command_timeout_s": config.command_timeout_s,
            "joint_state_timeout_s": config.joint_state_timeout_s,
        },
    }
    use = graph.SimArm(robot=spec.robot.name, task=spec.task, use_sim_time=False)
    return tuple(
        dataclasses.replace(node, parameters={**node.parameters, **parameters[node.name]})
        for node in graph.sim_arm(use)
    )


def _lines(log: str) -> Any:
    """Return a file for the nodes' output."""
    return open(log, "w") if log else tempfile.NamedTemporaryFile("w", suffix=".log")
