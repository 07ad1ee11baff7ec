"""Arms that an environment announces of itself: channels, limits, rate and cameras."""

from typing import Any

from vla.contracts.specs import CameraSpec, Channel, Gripper, RobotSpec

SOURCE = "range: the environment's actions; rates: from end to end in one control step"


def arm(name: str, told: dict[str, Any]) -> RobotSpec:
    """Return the arm of a host that announces `told`; its last channel is taken for the gripper."""
    rate = told["control_hz"]
    channels = tuple(
        _channel(name, low, high, rate)
        for name, low, high in zip(told["channels"], told["low"], told["high"], strict=True)
    )
    _, height, width, _ = told["image_shape"]
    return RobotSpec(
        name=name,
        channels=channels,
        gripper=Gripper(channel=channels[-1].name, open=channels[-1].high, closed=channels[-1].low),
        home=tuple(min(max(0.0, c.low), c.high) for c in channels),
        # Where its cameras stand, the environment alone knows.
        cameras=tuple(
            CameraSpec(
                name=name, body="world", pos_m=(0.0, 0.0, 0.0), target_m=(0.0, 0.0, 0.0),
                fovy_deg=45.0, width_px=width, height_px=height,
            )
            for name in told["cameras"]
        ),
        control_hz=rate,
        mjcf="",
    )  # fmt: skip


def _channel(name: str, low: float, high: float, rate: float) -> Channel:
    velocity = (high - low) * rate
    return Channel(
        name=name, unit="1", low=low, high=high, velocity=velocity,
        acceleration=2.0 * velocity * rate, jerk=4.0 * velocity * rate**2, source=SOURCE,
    )  # fmt: skip
