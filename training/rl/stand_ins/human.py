"""A person who acts through a page in a browser, in real time: asked for help, or unasked.

What is held down moves the tool; the arm's kinematics say what that is in joint targets. While the
page is open the arm moves at its own pace. Where nobody is there, or nobody answers, the policy
goes on and a line says so. What the person did is handed over as the expert's help is.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.kinematics import moved
from training.rl.stand_in import Moment, Move
from training.rl.viewer import Held, Viewer
from vla.contracts.specs import RobotSpec

SPEED = 0.5
"""Speed of the tool: this share of the arm's reach in a second."""
TURN_RAD_S = 1.2
"""Turning of the hand."""
PAUSE_S = 0.01
"""Time between looks at what a person does."""


class Human:
    """Satisfies `StandIn`, for one environment.

    Args:
        config: Port, budget and patience (`training.rl.help.HelpConfig`).
        robot: The arm.

    Raises:
        ValueError: the port is taken.
    """

    live = True

    def __init__(self, config: Any, robot: RobotSpec) -> None:
        self.config, self.robot = config, robot
        self.period_s = 1.0 / robot.control_hz
        self.viewer = Viewer(config.port)
        self.axes = plane(robot)
        self.gripper = robot.names.index(robot.gripper.channel)
        channels = robot.channels
        velocity = np.array([c.velocity for c in channels])
        acceleration = np.array([c.acceleration for c in channels])
        self.stride = np.minimum(velocity, acceleration * self.period_s) * self.period_s
        self.target, self.opening = np.zeros(len(channels)), 0.0
        self.closes = self.acts = self.waited = self.greeted = False
        self.there = True
        self.due = time.monotonic()
        self.tally = Tally()
        _say(
            f"a person can watch and take over: {self.viewer.url} (practice begins when that page "
            f"is open, or in {config.answer_s:.0f} s)"
        )

    def act(self, now: Moment) -> Move:
        """Let a control step's time go by, and return what the person did in it, if anything.

        Raises:
            ValueError: there is more than one environment.
        """
        if len(now.rows) != 1:
            raise ValueError(
                f"got {len(now.rows)} environments, expected one, in front of a person"
            )
        row, asked = int(now.rows[0]), bool(now.asked[0])
        measured = np.asarray(now.obs.proprio, np.float64)[row]
        if now.obs.time_s[row] == 0:
            self._begin_(measured)
        self.tally.see_(int(now.decision[0]))
        self._show(now, row, asked)
        if not self.greeted:
            self.greeted = True
            self._wait(lambda: self.viewer.hands.there)
        self._notice_()
        self.waited = self.waited and asked
        if asked and self.there and not self.waited:
            self.waited = True
            self._ask_()
        if self.there:
            self.due = max(self.due + self.period_s, time.monotonic())
            time.sleep(max(0.0, self.due - time.monotonic()))
        return self._move(measured, self.viewer.hands.look())

    def close(self) -> None:
        """Say how much of the budget was used, and close the page."""
        if self.viewer.fileno() >= 0:
            _say(self.used())
            self.viewer.close()

    def used(self) -> str:
        """Return how much of the budget was used, in a sentence."""
        asked = f"help is asked for in up to {self.config.attended:.0%} of episodes"
        return f"{self.tally.sentence()}; {asked}"

    def _move(self, measured: np.ndarray, held: Held) -> Move:
        """Return what is done by who holds the keys."""
        if held.active and not self.acts:
            self.target = measured.copy()
            self._hold_(measured)
        self.acts = held.active
        if not self.acts:
            return Move(np.zeros(1, np.bool_), None)
        self.waited = True
        if held.toggles:
            self.closes = not self.closes
            self.opening = self.robot.gripper.closed if self.closes else self.robot.gripper.open
        self.tally.act_()
        if held.loud:  # else all of the arm stays where it is, the hand too
            self.target = self._targets(measured, held.move)
        return Move(np.ones(1, np.bool_), self.target.astype(np.float32)[None, None])

    def _targets(self, measured: np.ndarray, move: np.ndarray) -> np.ndarray:
        """Return joint targets [u], from velocities of the tool [4]."""
        robot = self.robot
        speed = SPEED * robot.reach_m[1] * self.period_s
        way = np.append(self.axes @ move[:2], move[2]) * speed
        # Where something stops the arm its target does not run away from it.
        near = measured + np.clip(self.target - measured, -self.stride, self.stride)
        found = near
        if move.any():
            found = moved(robot, near, way, move[3] * TURN_RAD_S * self.period_s)
        hand, stride = self.gripper, self.stride[self.gripper]
        found[hand] = measured[hand] + np.clip(self.opening - measured[hand], -stride, stride)
        return np.clip(found, robot.low, robot.high)

    def _hold_(self, measured: np.ndarray) -> None:
        """Let the hand go on with what it does."""
        hand, opening = self.robot.gripper, float(measured[self.gripper])
        self.closes = abs(opening - hand.closed) < 0.5 * abs(hand.open - hand.closed)
        # What it grasps may be all that holds it open.
        self.opening = hand.closed if self.closes else opening

    def _begin_(self, measured: np.ndarray) -> None:
        self.viewer.hands.drop_()  # what was held down was meant for the episode before
        self.waited, self.acts, self.target = False, False, measured.copy()
        self.due = time.monotonic()
        self.tally.begin_()

    def _ask_(self) -> None:
        """Wait for an answer; the arm stands still meanwhile."""
        if not self._wait(lambda: self.viewer.hands.active):
            _say(f"help was asked for, and nobody came in {self.config.answer_s:.0f} s: the policy "
                 "goes on")  # fmt: skip
        self.viewer.tell(asked=False)

    def _wait(self, there: Callable[[], bool]) -> bool:
        """Wait until something is so, as long as is waited; return whether it is."""
        end = time.monotonic() + self.config.answer_s
        while not there() and time.monotonic() < end:
            time.sleep(PAUSE_S)
        return there()

    def _notice_(self) -> None:
        """Notice who comes and goes."""
        there = self.viewer.hands.there
        if there != self.there:
            _say("a person watches" if there else "nobody has the page open: the policy goes on "
                 "alone, as fast as it can")  # fmt: skip
        self.there = there

    def _show(self, now: Moment, row: int, asked: bool) -> None:
        progress = float(now.progress[0])
        self.viewer.show(np.asarray(now.obs.images)[row].copy(), {
            "task": now.obs.task[row], "time_s": float(now.obs.time_s[row]),
            "limit_s": now.limit_s, "progress": None if np.isnan(progress) else progress,
            "asked": asked and not self.waited, "acts": self.acts, "used": self.used(),
            "closes": self.closes,
        })  # fmt: skip


@dataclass
class Tally:
    """What a person has done so far."""

    episodes: int = 0
    decisions: int = 0
    helped: int = 0
    """Episodes in which the person acted."""
    acted: int = 0
    """Decisions in which the person did."""
    _decision: int = -1
    _helped: bool = False
    _acted: bool = False

    def begin_(self) -> None:
        """Count an episode."""
        self.episodes += 1
        self._decision, self._helped = -1, False

    def see_(self, decision: int) -> None:
        """Count a decision, unless it is the one that was seen last."""
        if decision != self._decision:
            self.decisions += 1
            self._decision, self._acted = decision, False

    def act_(self) -> None:
        """Count that in this decision the person acts."""
        self.acted += not self._acted
        self.helped += not self._helped
        self._acted = self._helped = True

    def sentence(self) -> str:
        """Return all of it in a sentence."""
        return (
            f"a person acted in {self.helped} of {self.episodes} episodes and in "
            f"{self.acted / max(1, self.decisions):.0%} of decisions"
        )


def plane(robot: RobotSpec) -> np.ndarray:
    """Return what is right and what is away on the table, as the first camera sees it: [2, 2].

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
    """Return a person's place, with the page open to one.

    Raises:
        ValueError: the port is taken.
    """
    return Human(config, robot)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
