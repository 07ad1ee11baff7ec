"""Keeps the speed of an arm's tool below a bound. This module does not import ROS."""

from dataclasses import replace

import mujoco
import numpy as np

from robot_bridge.motion import braking
from robot_bridge.motion.braking import Motion
from robot_bridge.motion.limits import Limits
from robot_bridge.safety.arm_model import ArmModel
from vla.contracts.specs import RobotSpec

SOFT, HARD = 0.9, 0.98
"""Shares of the bound: what is aimed at, and what no tick may exceed. The rest is for the curve
that the tool takes between two ticks."""
SLOWEST = 1e-6
"""Velocity that a joint may always have, so that its limit is positive."""


class ToolSpeed(ArmModel):
    """Bound on the speed of the site "tool" of one arm."""

    def __init__(self, robot: RobotSpec, bound_m_s: float, dt_s: float) -> None:
        """Read the model; `dt_s` is a tick.

        Raises:
            ValueError: the model is missing or cannot be used.
        """
        super().__init__(robot)
        self.bound_m_s, self.dt_s = bound_m_s, dt_s
        self._site = self._tool()
        self._jacobian = np.zeros((3, self._model.nv))

    def slowed(
        self, limits: Limits, motion: Motion, target: np.ndarray, speed: np.ndarray
    ) -> Limits:
        """Return limits with which joints that follow a target f64 [u] keep the tool slow enough.

        All joints are slowed by the same share, so the tool stays on its path.
        """
        v = braking.wanted_velocity(motion, target, speed, limits)
        self._set(motion.p)
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_jacSite(self._model, self._data, self._jacobian, None, self._site)
        tool = float(np.linalg.norm(self._jacobian @ (self._share @ v)))
        if tool <= SOFT * self.bound_m_s:
            return limits
        share = SOFT * self.bound_m_s / tool
        return replace(limits, velocity=np.maximum(share * np.abs(v), SLOWEST))

    def is_exceeded(self, way: np.ndarray) -> bool:
        """Return whether the tool is too fast somewhere on a way f64 [t, u], one pose per tick."""
        places = np.array([self.place(pose) for pose in way])
        speeds = np.linalg.norm(np.diff(places, axis=0), axis=1) / self.dt_s
        return bool((speeds > HARD * self.bound_m_s).any())

    def place(self, pose: np.ndarray) -> np.ndarray:
        """Return the position f64 [3] of the tool in m in a pose f64 [u]."""
        self._set(pose)
        place: np.ndarray = self._data.site_xpos[self._site].copy()
        return place
