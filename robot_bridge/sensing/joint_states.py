"""Merges joint states by name: an arm and its gripper may publish theirs in separate messages.

Each joint has the time of its own measurement. This module does not import ROS.
"""

from collections.abc import Sequence

import numpy as np


class JointStates:
    """The latest measurement of every joint.

    Args:
        names: Joints, in the order of poses.
        longest_ahead_s: How far in the future a stamp may be.
    """

    def __init__(self, names: tuple[str, ...], longest_ahead_s: float) -> None:
        self.names, self.longest_ahead_s = names, longest_ahead_s
        self.pose = np.full(len(names), np.nan)
        """f64 [u]; NaN for a joint that was never measured."""
        self.times_s = np.full(len(names), -np.inf)
        """f64 [u], monotonic."""
        self._place = {name: i for i, name in enumerate(names)}

    def take(
        self, now_s: float, age_s: float, names: Sequence[str], positions: Sequence[float]
    ) -> None:
        """Take the joints of a message that are among ours; others are ignored.

        Args:
            now_s: Time of its arrival.
            age_s: How long ago it was stamped.
            names: Its joints.
            positions: Their positions.

        Raises:
            ValueError: sizes differ, a joint is named twice or not finite, none is ours, or the
                stamp is in the future. Nothing of it is taken.
        """
        if len(names) != len(positions):
            raise ValueError(
                f"joint_states: got {len(names)} joint names and {len(positions)} positions"
            )
        if len(set(names)) != len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise ValueError(f"joint_states: joint {twice!r:.50} is named twice")
        ours = [(self._place[name], i) for i, name in enumerate(names) if name in self._place]
        if not ours:
            raise ValueError(
                f"joint_states: got {', '.join(names) or 'no joint'!s:.100}, expected some of "
                f"{', '.join(self.names)}"
            )
        if age_s < -self.longest_ahead_s:
            raise ValueError(
                f"joint_states: stamped {-age_s:.2f} s in the future, at most "
                f"{self.longest_ahead_s}; synchronise the clock of the arm's computer"
            )
        places, rows = (list(column) for column in zip(*ours, strict=True))
        values = np.array(positions, np.float64)[rows]
        if not np.isfinite(values).all():
            joint = self.names[places[int(np.argmin(np.isfinite(values)))]]
            raise ValueError(f"joint_states: the position of {joint} is not finite")
        at_s = now_s - max(age_s, 0.0)
        # A message that was overtaken on its way is older than what is known.
        newer = at_s >= self.times_s[places]
        kept = np.array(places)[newer]
        self.pose[kept], self.times_s[kept] = values[newer], at_s


def missing(names: tuple[str, ...], ages_s: np.ndarray, limit_s: float) -> str:
    """Return what joint states are older than a limit, by their ages f64 [u]; "" if none."""
    old = [name for name, age_s in zip(names, ages_s, strict=True) if not age_s <= limit_s]
    joints = "" if len(old) == len(names) else f" of {', '.join(old)}"
    return f"no joint states{joints} for {limit_s} s" if old else ""
