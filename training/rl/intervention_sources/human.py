"""A person who intervenes through a page in a browser, in real time: when asked, or unasked.

Keys and sticks move the tool; the arm's kinematics turn that into joint targets. While the page is
open the arm moves at its own pace. Where no page is open, or nobody responds, the policy continues
and a line reports it.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.core.kinematics import moved
from training.rl.intervention.source import InterventionAction, InterventionContext
from training.rl.intervention.viewer import Controls, Viewer
from vla.contracts.specs import RobotSpec

SPEED = 0.5
"""Speed of the tool: this share of the arm's reach in a second."""
TURN_RAD_S = 1.2
"""Turning of the gripper."""
POLL_S = 0.01
"""Time between looks at what a person does."""


class Human:
    """Satisfies `InterventionSource`, for one environment.

    Args:
        config: An `InterventionConfig`: port, fraction and timeout.
        robot: The arm.

    Raises:
        ValueError: the port is taken.
    """

    every_step = True

    def __init__(self, config: Any, robot: RobotSpec) -> None:
        self.config, self.robot = config, robot
        self.period_s = 1.0 / robot.control_hz
        self.viewer = Viewer(config.port)
        self.axes = table_axes(robot)
        self.gripper = robot.names.index(robot.gripper.channel)
        channels = robot.channels
        velocity = np.array([c.velocity for c in channels])
        acceleration = np.array([c.acceleration for c in channels])
        self.max_step = np.minimum(velocity, acceleration * self.period_s) * self.period_s
        self.target, self.opening = np.zeros(len(channels)), 0.0
        self.closes = self.acts = self.answered = self.greeted = False
        self.page_open = True
        self.due = time.monotonic()
        self.statistics = InterventionStatistics()
        _print(
            f"a person can watch and take over: {self.viewer.url} (rollouts begin when that page "
            f"is open, or in {config.response_timeout_s:.0f} s)"
        )

    def act(self, context: InterventionContext) -> InterventionAction:
        """Let a control step's time pass, and return what the person did in it, if anything.

        Raises:
            ValueError: there is more than one environment.
        """
        if len(context.rows) != 1:
            raise ValueError(
                f"got {len(context.rows)} environments, expected one, in front of a person"
            )
        row, requested = int(context.rows[0]), bool(context.requested[0])
        measured = np.asarray(context.obs.proprio, np.float64)[row]
        if context.obs.time_s[row] == 0:
            self._begin_episode(measured)
        self.statistics.add_decision(int(context.decision[0]))
        self._show(context, row, requested)
        if not self.greeted:
            self.greeted = True
            self._wait(lambda: self.viewer.input.page_open)
        self._check_page()
        self.answered = self.answered and requested
        if requested and self.page_open and not self.answered:
            self.answered = True
            self._request()
        if self.page_open:
            self.due = max(self.due + self.period_s, time.monotonic())
            time.sleep(max(0.0, self.due - time.monotonic()))
        return self._action(measured, self.viewer.input.read())

    def close(self) -> None:
        """Print the statistics and close the page."""
        if self.viewer.fileno() >= 0:
            _print(self.summary())
            self.viewer.close()

    def summary(self) -> str:
        """Return how much the person acted, in a sentence."""
        fraction = self.config.fraction
        return (
            f"{self.statistics.sentence()}; interventions are requested in up to {fraction:.0%} of "
            "episodes"
        )

    def _action(self, measured: np.ndarray, controls: Controls) -> InterventionAction:
        """Return what the person does."""
        if controls.active and not self.acts:
            self.target = measured.copy()
            self._keep_gripper(measured)
        self.acts = controls.active
        if not self.acts:
            return InterventionAction(np.zeros(1, np.bool_), None)
        self.answered = True
        if controls.toggles:
            self.closes = not self.closes
            self.opening = self.robot.gripper.closed if self.closes else self.robot.gripper.open
        self.statistics.add_action()
        if controls.connected:  # else all of the arm stays where it is, the gripper too
            self.target = self._targets(measured, controls.move)
        actions = self.target.astype(np.float32)[None, None]
        return InterventionAction(np.ones(1, np.bool_), actions)

    def _targets(self, measured: np.ndarray, move: np.ndarray) -> np.ndarray:
        """Return joint targets [u], from velocities of the tool [4]."""
        robot = self.robot
        speed = SPEED * robot.reach_m[1] * self.period_s
        shift = np.append(self.axes @ move[:2], move[2]) * speed
        # Where something stops the arm its target does not run away from it.
        target = measured + np.clip(self.target - measured, -self.max_step, self.max_step)
        if move.any():
            target = moved(robot, target, shift, move[3] * TURN_RAD_S * self.period_s)
        i, step = self.gripper, self.max_step[self.gripper]
        target[i] = measured[i] + np.clip(self.opening - measured[i], -step, step)
        return np.clip(target, robot.low, robot.high)

    def _keep_gripper(self, measured: np.ndarray) -> None:
        """Let the gripper continue what it does."""
        gripper, opening = self.robot.gripper, float(measured[self.gripper])
        self.closes = abs(opening - gripper.closed) < 0.5 * abs(gripper.open - gripper.closed)
        # What it grasps may be all that holds it open.
        self.opening = gripper.closed if self.closes else opening

    def _begin_episode(self, measured: np.ndarray) -> None:
        self.viewer.input.reset()  # keys that are down were meant for the episode before
        self.answered, self.acts, self.target = False, False, measured.copy()
        self.due = time.monotonic()
        self.statistics.add_episode()

    def _request(self) -> None:
        """Wait for a response; the arm stands still meanwhile."""
        if not self._wait(lambda: self.viewer.input.active):
            _print(
                "an intervention was requested, and nobody responded in "
                f"{self.config.response_timeout_s:.0f} s: the policy continues"
            )
        self.viewer.update(requested=False)

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition until the timeout; return whether it holds."""
        end = time.monotonic() + self.config.response_timeout_s
        while not condition() and time.monotonic() < end:
            time.sleep(POLL_S)
        return condition()

    def _check_page(self) -> None:
        """Report when the page is opened or closed."""
        page_open = self.viewer.input.page_open
        if page_open != self.page_open:
            _print(
                "a person watches" if page_open
                else "no page is open: the policy continues alone, as fast as it can"
            )  # fmt: skip
        self.page_open = page_open

    def _show(self, context: InterventionContext, row: int, requested: bool) -> None:
        progress, obs = float(context.progress[0]), context.obs
        self.viewer.show(np.asarray(obs.images)[row].copy(), {
            "task": obs.task[row], "time_s": float(obs.time_s[row]),
            "time_limit_s": context.time_limit_s,
            "progress": None if np.isnan(progress) else progress,
            "requested": requested and not self.answered, "acts": self.acts,
            "summary": self.summary(), "closes": self.closes,
        })  # fmt: skip


@dataclass
class InterventionStatistics:
    """How much a person has acted so far."""

    episodes: int = 0
    decisions: int = 0
    intervention_episodes: int = 0
    """Episodes in which the person acted."""
    interventions: int = 0
    """Decisions in which the person acted."""
    _decision: int = -1
    _in_episode: bool = False
    _in_decision: bool = False

    def add_episode(self) -> None:
        """Count an episode."""
        self.episodes += 1
        self._decision, self._in_episode = -1, False

    def add_decision(self, decision: int) -> None:
        """Count a decision, unless it is the latest one."""
        if decision != self._decision:
            self.decisions += 1
            self._decision, self._in_decision = decision, False

    def add_action(self) -> None:
        """Count that the person acts in this decision."""
        self.interventions += not self._in_decision
        self.intervention_episodes += not self._in_episode
        self._in_decision = self._in_episode = True

    def sentence(self) -> str:
        """Return all of it in a sentence."""
        return (
            f"a person acted in {self.intervention_episodes} of {self.episodes} episodes and in "
            f"{self.interventions / max(1, self.decisions):.0%} of decisions"
        )


def table_axes(robot: RobotSpec) -> np.ndarray:
    """Return "right" and "away" on the table, as the first camera sees it: [2, 2].

    Columns are directions in the world's x and y. Where that camera moves with the arm, or looks
    straight down, away is where the arm points at rest.
    """
    camera = robot.cameras[0]
    away = np.subtract(camera.target_m, camera.pos_m)[:2]
    if camera.body != "world" or np.linalg.norm(away) < 1e-6:
        away = np.array([1.0, 0.0])
    away = away / np.linalg.norm(away)
    return np.stack([[away[1], -away[0]], away], axis=1)


def build(config: Any, robot: RobotSpec) -> Human:
    """Return the intervention source, with its page served; ValueError if the port is taken."""
    return Human(config, robot)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
