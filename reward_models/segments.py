"""Sub-tasks of a successful demonstration, found in its own motion: no images and no truth.

Cut where the hand is told to open or close, as VLA-RL does for its process labels, and settle each
cut on the frame where the arm comes to rest. Labels made of that are an alternative to t/T, not to
a simulator's oracle.
"""

import itertools

import numpy as np

LEAST_TRAVEL = 0.2
"""Share of the hand's travel that counts as opening or closing it."""
HAND_STOPPED = 0.3
"""Speed in travels per second below which the hand has stopped closing: it holds something."""
REST = 0.1
"""Share of an episode's usual speed below which the arm is at rest."""
CLOSE_S = 1.0
"""Time within which the hand closes once it is told to, in seconds."""
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

    A sub-task ends when the hand has stopped closing, for then it holds, and when it is told to
    open again, for then it lets go; or a little later, when the arm has come to rest. To open
    before anything was taken ends nothing.

    Args:
        state: Measured channel positions, f32 [t, u].
        action: Position targets, f32 [t, u].
        fps: Frames per second.
        gripper_index: The hand's channel.
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
    # From here on 0 is closed and 1 wide open, whichever way the channel turns.
    hand, told = ((x[:, gripper_index] - closed) / (wide - closed) for x in (state, action))
    rest = resting(state, fps=fps, gripper_index=gripper_index)
    moving = np.abs(np.diff(hand, prepend=hand[0])) * fps > HAND_STOPPED
    cuts = turns(told, LEAST_TRAVEL)
    found = []
    for cut, direction in cuts[1:] if cuts and cuts[0][1] > 0 else cuts:
        end = cut if direction > 0 else _stopped(cut, moving, round(CLOSE_S * fps))
        found.append(_first(rest, end, round(SETTLE_S * fps), end))
    return np.array(found, np.int64)


def turns(signal: np.ndarray, least: float) -> list[tuple[int, int]]:
    """Return where a signal [t] has gone by `least` against its last direction, and which way.

    At first any direction counts; drifting on in the same direction is no turn.
    """
    found: list[tuple[int, int]] = []
    low = high = signal[0]
    direction = 0
    for t, value in enumerate(signal):
        if direction <= 0 and value - low > least:
            direction, high = 1, value
            found.append((t, direction))
        elif direction >= 0 and high - value > least:
            direction, low = -1, value
            found.append((t, direction))
        low, high = min(low, value), max(high, value)
    return found


def resting(state: np.ndarray, *, fps: float, gripper_index: int) -> np.ndarray:
    """Return whether the arm, its hand left out, is at rest at each frame, bool [t]."""
    speed = arm_speed(state, fps=fps, gripper_index=gripper_index)
    return speed <= REST * np.percentile(speed, 90)


def key_frames(state: np.ndarray, *, fps: float, gripper_index: int) -> np.ndarray:
    """Return the first frame of each rest of the arm, i64 [k]; VLA-RL's positive frames."""
    rest = resting(state, fps=fps, gripper_index=gripper_index)
    return np.flatnonzero(rest & ~np.concatenate([[False], rest[:-1]]))


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
    """Return progress f32 [t] from 0 to 1: sub-tasks count alike, and within one its way counts.

    Unlike t/T it stands still while the arm does. It takes for granted that the episode succeeds.

    Args:
        state: Measured channel positions, f32 [t, u].
        boundaries: What `segments` returned, i64 [k], in [0, t).
        fps: Frames per second.
        gripper_index: The hand's channel.
    """
    step = arm_speed(state, fps=fps, gripper_index=gripper_index) / fps
    way = np.concatenate([[0.0], np.cumsum(0.5 * (step[1:] + step[:-1]))])
    inner = [int(b) for b in boundaries if 0 < b < len(state) - 1]
    knots = np.array([0, *inner, len(state) - 1])
    progress = np.zeros(len(state), np.float32)
    for i, (start, end) in enumerate(itertools.pairwise(knots)):
        done = way[start : end + 1] - way[start]
        # A sub-task without any way (the hand alone moves) goes by time.
        share = done / done[-1] if done[-1] > 1e-6 else np.linspace(0.0, 1.0, end - start + 1)
        progress[start : end + 1] = (i + share) / (len(knots) - 1)
    return progress


def _stopped(cut: int, moving: np.ndarray, window: int) -> int:
    """Return the first frame after the cut at which the hand moves no more, having moved."""
    begin = _first(moving, cut, window, cut)
    return _first(~moving, begin, window, begin) if moving[begin] else cut


def _first(true: np.ndarray, start: int, window: int, otherwise: int) -> int:
    """Return the first true frame in [start, start + window], or something else."""
    found = np.flatnonzero(true[start : start + window + 1])
    return start + int(found[0]) if len(found) else otherwise


def _check(state: np.ndarray, gripper_index: int) -> None:
    if state.ndim != 2 or len(state) < 2:
        raise ValueError(f"state: got shape {state.shape}, expected two frames or more of channels")
    if not 0 <= gripper_index < state.shape[1]:
        raise ValueError(
            f"gripper_index: got {gripper_index}, expected 0 to {state.shape[1] - 1}: name the hand"
        )
