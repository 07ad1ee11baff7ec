"""Joint velocities that move an arm's tool as a twist says. This module does not import ROS."""

import mujoco
import numpy as np

from robot_bridge.safety.arm_model import ArmModel
from vla.contracts.specs import RobotSpec

DAMPING = 0.03
"""Of the least squares, in m: what keeps joints slow near a singularity."""
ROTATION_M = 0.05
"""Metres that count as much as a radian: an arm of five joints cannot do both."""


class Servo(ArmModel):
    """Velocity of the site "tool" of one arm, by damped least squares.

    v = J^T (J J^T + damping^2 I)^-1 t, Wampler 1986 (doi 10.1109/TSMC.1986.289285), eq. 10. The
    gripper's channel never moves.
    """

    def __init__(self, robot: RobotSpec) -> None:
        """Read the model.

        Raises:
            ValueError: the model is missing or cannot be used.
        """
        super().__init__(robot)
        self._site = self._tool()
        self._moves = np.array([name != robot.gripper.channel for name in robot.names], float)
        self._limits = np.array([channel.velocity for channel in robot.channels])
        self._low, self._high = np.array(robot.low), np.array(robot.high)
        self._jacobian = np.zeros((6, self._model.nv))

    def velocity(
        self, pose: np.ndarray, linear: np.ndarray, angular: np.ndarray, *, in_tool: bool = False
    ) -> np.ndarray:
        """Return the velocities f64 [u] of the channels, within their limits.

        Args:
            pose: Where the arm is, f64 [u].
            linear: Of the tool, f64 [3], m/s.
            angular: Of the tool, f64 [3], rad/s.
            in_tool: Whether they are in the tool's frame; else in the world of the arm's MJCF.
        """
        self._set(pose)
        mujoco.mj_comPos(self._model, self._data)
        linear_rows, angular_rows = self._jacobian[:3], self._jacobian[3:]
        mujoco.mj_jacSite(self._model, self._data, linear_rows, angular_rows, self._site)
        if in_tool:
            frame = self._data.site_xmat[self._site].reshape(3, 3)
            linear, angular = frame @ linear, frame @ angular
        weights = np.repeat([1.0, ROTATION_M], 3)[:, None]
        jacobian = weights * (self._jacobian @ self._shares(pose)) * self._moves
        wanted = np.concatenate([linear, ROTATION_M * np.asarray(angular)])
        square = jacobian @ jacobian.T + DAMPING**2 * np.eye(6)
        velocity = jacobian.T @ np.linalg.solve(square, wanted)
        # All joints are slowed by the same share, so the tool keeps its direction.
        return velocity / max(1.0, float((np.abs(velocity) / self._limits).max()))

    def _shares(self, pose: np.ndarray) -> np.ndarray:
        """Return how much each joint of the model moves per unit of each channel, f64 [j, u]."""
        # Hinges and slides alone: the address of a position is also that of a velocity.
        share = np.zeros((self._model.nv, len(pose)))
        share[self._address, np.arange(len(pose))] = 1.0
        for at, k, polynomial in self._follow:
            share[at, k] = polynomial.deriv()(pose[k] - self._model.qpos0[self._address[k]])
        return share

    def ahead(self, pose: np.ndarray, velocity: np.ndarray, times_s: np.ndarray) -> np.ndarray:
        """Return poses f64 [k, u] within the joints' ranges at times f64 [k] from a pose on."""
        return np.clip(pose + np.outer(times_s, velocity), self._low, self._high)
