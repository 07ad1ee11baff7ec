"""Sub-tasks of a successful demonstration, from its motion: without images or simulator state.

A cut is where the gripper is commanded to open or close, as in the process labels of VLA-RL, moved
to the next frame where the arm is at rest. Progress from such cuts is an alternative to t/T.
"""

import itertools

import numpy as np

MIN_TRAVEL = 0.2
"""Share of the gripper's travel that counts as opening or closing."""
HAND_STOPPED = 0.3
"""Speed in travels per second below which a closing gripper has stopped: it holds something."""
REST = 0.1
"""Share of an episode's 90th-percentile speed below which the arm is at rest."""
CLOSE_S = 1.0
"""Time within which the gripper closes after the command, in seconds."""
SETTLE_S = 0.3
"""Time after a cut within which the arm may still come to rest, in seconds."""


def segments(
    state: np.ndarray,
    action: np.ndarray,
    *,
    fps: float,
    gripper_index: int,
    opening: tuple[float, float],
) -> np.ndarray:
    """Return the frames at which a sub-task ends and the next begins, i64 [k], in order.

    A sub-task ends when the closing gripper has stopped (grasp) and when it is commanded to open
    again (release), or shortly after, when the arm is at rest. Opening before the first grasp is
    not an end.

    Args:
        state: Measured channel positions, f32 [t, u].
        action: Position targets, f32 [t, u].
        fps: Frames per second.
        gripper_index: The gripper's channel.
        opening: Positions of that channel when closed and when wide open.

    Raises:
        ValueError: shapes differ, or open and closed are the same.
    """
    _check(state, gripper_index)
    if action.shape != state.shape:
        raise ValueError(f"action: got shape {action.shape}, expected that of state {state.shape}")
    closed, wide = opening
    if closed == wide:
        raise ValueError(f"opening: got {opening}, expected different positions closed and open")
    # 0 is closed and 1 wide open, whatever the sign of the channel.
    hand, command = ((x[:, gripper_index] - closed) / (wide - closed) for x in (state, action))
    rest = resting(state, fps=fps, gripper_index=gripper_index)
    moving = np.abs(np.diff(hand, prepend=hand[0])) * fps > HAND_STOPPED
    cuts = turns(command, MIN_TRAVEL)
    ends = []
    for cut, direction in cuts[1:] if cuts and cuts[0][1] > 0 else cuts:
        end = cut if direction > 0 else _stopped(cut, moving, round(CLOSE_S * fps))
        ends.append(_first(rest, end, round(SETTLE_S * fps), end))
    return np.array(ends, np.int64)


def turns(signal: np.ndarray, threshold: float) -> list[tuple[int, int]]:
    """Return the frames at which a signal [t] has turned by `threshold`, and the new directions.

    The first direction counts as a turn, continuing in the same direction does not.
    """
    result: list[tuple[int, int]] = []
    low = high = signal[0]
    direction = 0
    for t, value in enumerate(signal):
        if direction <= 0 and value - low > threshold:
            direction, high = 1, value
            result.append((t, direction))
        elif direction >= 0 and high - value > threshold:
            direction, low = -1, value
            result.append((t, direction))
        low, high = min(low, value), max(high, value)
    return result


def resting(state: np.ndarray, *, fps: float, gripper_index: int) -> np.ndarray:
    """Return whether the arm without its gripper is at rest at each frame, bool [t]."""
    speed = arm_speed(state, fps=fps, gripper_index=gripper_index)
    return speed <= REST * np.percentile(speed, 90)


def arm_speed(state: np.ndarray, *, fps: float, gripper_index: int) -> np.ndarray:
    """Return the speed of the arm's joints at each frame, f32 [t], units of state per second.

    Raises:
        ValueError: there are fewer than two frames, or no such channel.
    """
    _check(state, gripper_index)
    arm = np.delete(state, gripper_index, axis=1)
    return (np.linalg.norm(np.gradient(arm, axis=0), axis=1) * fps).astype(np.float32)


def pseudo_progress(
    state: np.ndarray, boundaries: np.ndarray, *, fps: float, gripper_index: int
) -> np.ndarray:
    """Return progress f32 [t] from 0 to 1: equal for all sub-tasks, by joint travel within each.

    Unlike t/T it is constant while the arm is at rest. The episode must be a success. Boundaries
    are the result of `segments`, the other arguments the same.
    """
    step = arm_speed(state, fps=fps, gripper_index=gripper_index) / fps
    way = np.concatenate([[0.0], np.cumsum(0.5 * (step[1:] + step[:-1]))])
    inner = [int(b) for b in boundaries if 0 < b < len(state) - 1]
    knots = np.array([0, *inner, len(state) - 1])
    progress = np.zeros(len(state), np.float32)
    for i, (start, end) in enumerate(itertools.pairwise(knots)):
        done = way[start : end + 1] - way[start]
        # A sub-task without travel (only the gripper moves) is linear in time.
        share = done / done[-1] if done[-1] > 1e-6 else np.linspace(0.0, 1.0, end - start + 1)
        progress[start : end + 1] = (i + share) / (len(knots) - 1)
    return progress


def _stopped(cut: int, moving: np.ndarray, window: int) -> int:
    """Return the first frame after the cut at which the gripper has moved and stopped."""
    begin = _first(moving, cut, window, cut)
    return _first(~moving, begin, window, begin) if moving[begin] else cut


def _first(true: np.ndarray, start: int, window: int, otherwise: int) -> int:
    """Return the first true frame in [start, start + window], or something else."""
    hits = np.flatnonzero(true[start : start + window + 1])
    return start + int(hits[0]) if len(hits) else otherwise


def _check(state: np.ndarray, gripper_index: int) -> None:
    if state.ndim != 2 or len(state) < 2:
        raise ValueError(f"state: got shape {state.shape}, expected two frames or more of channels")
    if not 0 <= gripper_index < state.shape[1]:
        raise ValueError(f"gripper_index: got {gripper_index}, expected 0 to {state.shape[1] - 1}")
