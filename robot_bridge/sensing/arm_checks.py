"""Judges what an arm's topics say before it is moved. This module does not import ROS."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from robot_bridge.motion.limits import Limits
from robot_bridge.sensing import convert
from vla.contracts import robot_file

Verdict = Literal["works", "wrong", "not checked"]
LEAST_HZ, LEAST_CAMERA_HZ = 20.0, 5.0
"""Rates below which joint states and images are too rare."""
MOST_AGE_S, MOST_AHEAD_S = 0.2, 0.01
"""How old a message may be on arrival, and how far in the future by the clock of its stamp."""
SLACK = 1e-3
"""By how much a limit may be beyond the URDF's: digits that were rounded."""
WANTED: dict[str, tuple[Any, ...]] = {
    "allow_trajectory_replacement": (False,),
    "interpolation_method": ("splines",),
}
"""Parameters of a joint_trajectory_controller, where it has them (docs/arms.md)."""


class Arrival(NamedTuple):
    """A message of a sensor."""

    arrived_s: float
    """ROS time of its arrival."""
    stamp_s: float
    """Its stamp; 0 if it has none."""
    content: Any
    """Names and positions of joints; or encoding, height and width of an image."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of a check."""

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""
    """What to do if it is wrong."""


def joint_states(
    arrivals: Sequence[Arrival], names: Sequence[str], low: np.ndarray, high: np.ndarray
) -> list[Finding]:
    """Return the findings about joint states of joints with a range f64 [u]."""
    if not arrivals:
        fix = "start the arm's driver; see `ros2 topic list` and the namespace"
        return [Finding(name="joint_states", verdict="wrong", detail="no message", fix=fix)]
    seen: dict[str, list[float]] = {}
    for arrival in arrivals:
        for name, position in zip(*arrival.content, strict=False):
            seen.setdefault(name, []).append(position)
    missing = [name for name in names if name not in seen]
    other = ", ".join(sorted(set(seen) - set(names))) or "none"
    first = _finding(
        "names of joints", "" if not missing else f"{missing[0]} is missing; others are {other}",
        f"all {len(names)}", "give joint_names or joint_prefix in a driver file (docs/arms.md)",
    )  # fmt: skip
    findings = [first, *_timing("joint_states", arrivals, LEAST_HZ)]
    if missing:
        return findings
    last = np.array([seen[name][-1] for name in names])
    outside = ~((last >= low) & (last <= high))
    wrong = [f"{names[i]} is at {last[i]:.3f}, not in {low[i]:g} to {high[i]:g}"
             for i in np.flatnonzero(outside)]  # fmt: skip
    findings.append(
        _finding(
            "positions", "; ".join(wrong), ", ".join(f"{value:.3f}" for value in last),
            "are they in rad (linear joints in m)? Is zero where the robot's file has it?",
        )
    )  # fmt: skip
    return findings


def camera(name: str, arrivals: Sequence[Arrival]) -> list[Finding]:
    """Return the findings about a camera."""
    title = f"camera {name}"
    if not arrivals:
        fix = f"remap its driver to cameras/{name}/image_raw, or give --compressed"
        return [Finding(name=title, verdict="wrong", detail="no image", fix=fix)]
    encoding, height, width = arrivals[-1].content
    known = not encoding or encoding in convert.ENCODINGS
    size = f"{width} x {height} {encoding}".strip()
    return [
        _finding(
            f"{title}: images", "" if known else f"encoding {encoding}", size,
            f"set the driver to one of {', '.join(convert.ENCODINGS)}",
        ),
        *_timing(title, arrivals, LEAST_CAMERA_HZ),
    ]  # fmt: skip


def controller(topic: str, listeners: int, publishers: Sequence[str]) -> list[Finding]:
    """Return the findings about a controller's topic.

    Args:
        topic: The topic.
        listeners: Number of subscribers, recorders left out.
        publishers: Nodes that publish there.
    """
    others = [node for node in publishers if not node.endswith("safety_node")]
    return [
        _finding(
            f"{topic}: listens", "" if listeners else "nobody listens", f"{listeners}",
            "activate the controller (ros2 control list_controllers), or name another topic",
        ),
        _finding(
            f"{topic}: one publisher", ", ".join(others), "the safety node at most",
            "end what else commands the arm",
        ),
    ]  # fmt: skip


def controller_parameters(topic: str, values: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about a controller's parameters; empty ones could not be read."""
    if not values:
        detail = "its node has no parameters here; see the table of docs/arms.md"
        return [Finding(name=f"{topic}: parameters", verdict="not checked", detail=detail)]
    wrong = [
        f"{name} is {values[name]}, expected {allowed[0]}"
        for name, allowed in WANTED.items()
        if values.get(name) is not None and values[name] not in allowed
    ]
    fix = "set it in the controller's parameter file"
    return [_finding(f"{topic}: parameters", "; ".join(wrong), "as docs/arms.md asks", fix)]


def description(text: str, names: Sequence[str], limits: Limits) -> list[Finding]:
    """Return the findings about the URDF of topic robot_description, which may be none ("").

    Args:
        text: The URDF.
        names: The driver's names of joints, in the order of the limits.
        limits: What the safety node allows.
    """
    title = "robot_description"
    if not text:
        detail = "nobody publishes one; robot_state_publisher does"
        return [Finding(name=title, verdict="not checked", detail=detail)]
    try:
        joints = robot_file.urdf(text, title)
    except ValueError as error:
        return [_finding(title, str(error), "", "see what publishes it")]
    wrong = [f"{name} is not in it" for name in names if name not in joints]
    for i, name in enumerate(names):
        urdf = joints.get(name, {})
        for key, allowed, sign in (("low", limits.low, -1), ("high", limits.high, 1),
                                   ("velocity", limits.velocity, 1)):  # fmt: skip
            bound = urdf.get(key)
            if bound is not None and sign * (allowed[i] - bound) > SLACK:
                wrong.append(f"{key} of {name} is {allowed[i]:.4g} here, {bound:.4g} there")
    fix = "narrow the joint in the limits file (docs/arms.md)"
    return [_finding(title, "; ".join(wrong), "names and limits agree", fix)]


def motion(
    joint: str, wanted: float, before: np.ndarray, after: np.ndarray, at: int, unit: np.ndarray
) -> Finding:
    """Return whether a joint moved as it was asked to, and no other joint did.

    Args:
        joint: Its name.
        wanted: Change that was asked for.
        before: Pose f64 [u].
        after: Pose f64 [u].
        at: Place of the joint.
        unit: What counts as one rad, f64 [u].
    """
    moved = after - before
    others = np.abs(moved / unit)
    others[at] = 0.0
    why = ""
    if moved[at] * np.sign(wanted) < 0.5 * abs(wanted):
        why = f"moved by {moved[at]:+.3f} instead of {wanted:+.3f}"
    elif others.max() > 0.3 * abs(wanted / unit[at]):
        why = f"joint {int(others.argmax())} moved as well"
    return _finding(
        f"motion of {joint}", why, f"{moved[at]:+.3f} of {wanted:+.3f}",
        "are sign, zero and unit those of the robot's file? Does the controller take the joint?",
    )  # fmt: skip


def _timing(name: str, arrivals: Sequence[Arrival], least_hz: float) -> list[Finding]:
    """Return the findings about rate and stamps; of joint states in parts, of the message rate."""
    arrived = np.array([one.arrived_s for one in arrivals])
    stamps = np.array([one.stamp_s for one in arrivals])
    spans = np.diff(arrived)
    hz = float((len(arrived) - 1) / (arrived[-1] - arrived[0])) if len(arrived) > 1 else 0.0
    gap_s = float(spans.max()) if len(spans) else np.inf
    rate = _finding(
        f"{name}: rate", "" if hz >= least_hz else f"{hz:.1f} Hz, expected at least {least_hz:g}",
        f"{hz:.1f} Hz, longest gap {1e3 * gap_s:.0f} ms", "raise the driver's rate",
    )  # fmt: skip
    if not stamps.any():
        detail = "none: their age is not known"
        return [rate, Finding(name=f"{name}: stamps", verdict="not checked", detail=detail)]
    ages = arrived - stamps
    why = ""
    if ages.min() < -MOST_AHEAD_S:
        why = f"{-1e3 * ages.min():.0f} ms in the future"
    elif np.percentile(ages, 95) > MOST_AGE_S:
        why = f"up to {ages.max():.2f} s old"
    elif (np.diff(stamps) < 0).any():
        why = "some go back"
    stated = _finding(
        f"{name}: stamps", why, f"{1e3 * np.median(ages):.1f} ms old, at most "
        f"{1e3 * ages.max():.1f}", "synchronise the clocks of the computers (chrony)",
    )  # fmt: skip
    return [rate, stated]


def _finding(name: str, why: str, detail: str, fix: str) -> Finding:
    """Return a finding that is wrong if there is a reason."""
    if why:
        return Finding(name=name, verdict="wrong", detail=why, fix=fix)
    return Finding(name=name, verdict="works", detail=detail)
