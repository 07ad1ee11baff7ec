"""The `RobotSpec` of an arm whose simulator brings its own model, rules and cameras."""

import dataclasses
from typing import Any

from vla.contracts.specs import CameraSpec, Channel, Gripper, RobotSpec, Unit

SOURCE = (
    "range: the suite's action space; rates: the suite sets none, so they let any command follow "
    "any other at its control rate"
)
ANNOUNCED = "range: the environment's actions; rates: from end to end in one control step"


def channels(
    names: tuple[str, ...], control_hz: float, low: float = -1.0, high: float = 1.0,
    unit: Unit = "1",
) -> tuple[Channel, ...]:  # fmt: skip
    """Return channels of one range for commands whose rate nobody limits.

    Args:
        names: One per channel.
        control_hz: Commands per second.
        low: Least command.
        high: Greatest command.
        unit: Of the command; "1" for shares of a greatest movement.
    """
    velocity = (high - low) * control_hz
    return tuple(
        Channel(
            name=name, unit=unit, low=low, high=high, velocity=velocity,
            acceleration=2 * velocity * control_hz, jerk=4 * velocity * control_hz**2,
            source=SOURCE,
        )
        for name in names
    )  # fmt: skip


def arm(
    name: str, channels: tuple[Channel, ...], control_hz: float, gripper: Gripper,
    cameras: dict[str, float], home: tuple[float, ...] | None = None,
) -> RobotSpec:  # fmt: skip
    """Return the description of a suite's arm.

    Where its cameras stand, the suite's own model knows: zeros here, and nobody reads them.

    Args:
        name: Suite and arm.
        channels: Of its actions.
        control_hz: Commands per second, a whole number.
        gripper: Its hand.
        cameras: Name -> vertical field of view in degrees, in view order.
        home: The command that keeps it still with an open hand; None: zeros.
    """
    rest = tuple(gripper.open if c.name == gripper.channel else 0.0 for c in channels)
    return RobotSpec(
        name=name, channels=channels, gripper=gripper, home=rest if home is None else home,
        cameras=tuple(
            CameraSpec(
                name=camera, body="world", pos_m=(0.0,) * 3, target_m=(0.0,) * 3, fovy_deg=fovy
            )
            for camera, fovy in cameras.items()
        ),
        control_hz=control_hz, mjcf="",
    )  # fmt: skip


def announced(name: str, told: dict[str, Any]) -> RobotSpec:
    """Return the arm that a host announces; its last channel is taken for the gripper.

    Args:
        name: Of the arm.
        told: What the host announces: channels, limits, rate, cameras and size of pictures.
    """
    rate = told["control_hz"]
    made = tuple(
        dataclasses.replace(channels((channel,), rate, low, high)[0], source=ANNOUNCED)
        for channel, low, high in zip(told["channels"], told["low"], told["high"], strict=True)
    )
    _, height, width, _ = told["image_shape"]
    return RobotSpec(
        name=name,
        channels=made,
        gripper=Gripper(channel=made[-1].name, open=made[-1].high, closed=made[-1].low),
        home=tuple(min(max(0.0, c.low), c.high) for c in made),
        # Where its cameras stand, the environment alone knows.
        cameras=tuple(
            CameraSpec(
                name=camera, body="world", pos_m=(0.0,) * 3, target_m=(0.0,) * 3, fovy_deg=45.0,
                width_px=width, height_px=height,
            )
            for camera in told["cameras"]
        ),
        control_hz=rate,
        mjcf="",
    )  # fmt: skip
