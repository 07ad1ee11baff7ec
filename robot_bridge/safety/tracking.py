"""Whether every joint follows its command. This module does not import ROS."""

import numpy as np

from robot_bridge.motion.limits import Limits
from robot_bridge.safety.gate_config import GateConfig


class Tracking:
    """Compares commands with measurements, joint by joint.

    A joint may be apart by a tolerance and by its lag: by what its command moved in that time, at
    the highest speed of late. A gripper may be kept from its target by what it holds.
    """

    def __init__(self, config: GateConfig, limits: Limits, dt_s: float) -> None:
        """Set the tolerances; `dt_s` is a tick."""
        self.config, self.names, self.dt_s = config, limits.names, dt_s
        self.tolerance = config.max_tracking_error * limits.unit
        self.holds = np.array([name == limits.gripper for name in limits.names])
        self.fade = np.exp(-dt_s / max(config.max_lag_s, dt_s))
        self.begin()

    def begin(self) -> None:
        """Begin at rest."""
        self.speed = np.zeros(len(self.names))
        """Speed f64 [u] of the command, fading."""
        self.late_since_s: float | None = None

    def late(
        self, now_s: float, before: np.ndarray, present: np.ndarray, measured: np.ndarray
    ) -> str:
        """Return which joint does not follow, "" if all do or have time left.

        Args:
            now_s: Present time.
            before: Command f64 [u] of the tick before.
            present: Present command f64 [u].
            measured: Measured pose f64 [u].
        """
        config = self.config
        self.speed = np.maximum(np.abs(present - before) / self.dt_s, self.fade * self.speed)
        apart = np.abs(present - measured)
        late = (apart > self.tolerance + config.max_lag_s * self.speed) & ~self.holds
        if not late.any():
            self.late_since_s = None
            return ""
        if self.late_since_s is None:
            self.late_since_s = now_s
        if now_s - self.late_since_s < config.tracking_timeout_s:
            return ""
        worst = int(np.argmax(np.where(late, apart / self.tolerance, 0)))
        return f"{self.names[worst]} is {apart[worst]:.2f} from its command"
