"""The `RobotSpec` of an arm whose simulator brings its own model, rules and cameras."""

import dataclasses
from typing import Any

from vla.contracts.specs import CameraSpec, Channel, Gripper, RobotSpec, Unit

SOURCE = (
    "range: the suite's action space; rates: the suite sets none, so any command may follow any "
    "other at its control rate"
)
ANNOUNCED = "range: the environment's actions; rates: from end to end in one control step"


def channels(
    names: tuple[str, ...], control_hz: float, low: float = -1.0, high: float = 1.0,
    unit: Unit = "1",
) -> tuple[Channel, ...]:  # fmt: skip
    """Return channels of one range for commands without limits of rate.

    Args:
        names: One per channel.
        control_hz: Commands per second.
        low: Least command.
        high: Greatest command.
        unit: Unit of the command; "1" for shares of a greatest movement.
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
    size_px: tuple[int, int] = (96, 96),
) -> RobotSpec:  # fmt: skip
    """Return the description of a suite's arm.

    The suite's model places its cameras: their poses are zeros here.

    Args:
        name: Suite and arm.
        channels: Channels of its actions.
        control_hz: Commands per second, a whole number.
        gripper: Its hand.
        cameras: Name -> vertical field of view in degrees, in view order.
        home: The command that keeps it still with an open hand; None: zeros.
        size_px: Height and width of images.
    """
    rest = tuple(gripper.open if c.name == gripper.channel else 0.0 for c in channels)
    return RobotSpec(
        name=name, channels=channels, gripper=gripper, home=rest if home is None else home,
        cameras=tuple(
            CameraSpec(
                name=camera, body="world", pos_m=(0.0,) * 3, target_m=(0.0,) * 3, fovy_deg=fovy,
                height_px=size_px[0], width_px=size_px[1],
            )
            for camera, fovy in cameras.items()
        ),
        control_hz=control_hz, mjcf="",
    )  # fmt: skip


def panda(name: str) -> RobotSpec:
    """Return a Panda that robosuite moves by its hand, 20 times a second."""
    names = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "grip")
    hand = Gripper(channel="grip", open=-1.0, closed=1.0)
    cameras = {"agentview": 45.0, "robot0_eye_in_hand": 75.0}
    return arm(name, channels(names, 20.0), 20.0, hand, cameras)


def announced(name: str, description: dict[str, Any]) -> RobotSpec:
    """Return the arm that an adapter describes; its last channel counts as the gripper.

    Args:
        name: Name of the arm.
        description: From the adapter: channels, limits, rate, cameras and size of images.
    """
    rate = description["control_hz"]
    arm_channels = tuple(
        dataclasses.replace(channels((channel,), rate, low, high)[0], source=ANNOUNCED)
        for channel, low, high in zip(
            description["channels"], description["low"], description["high"], strict=True
        )
    )
    last = arm_channels[-1]
    hand = Gripper(channel=last.name, open=last.high, closed=last.low)
    cameras = dict.fromkeys(description["cameras"], 45.0)
    home = tuple(min(max(0.0, c.low), c.high) for c in arm_channels)
    size_px = tuple(description["image_shape"][1:3])
    return arm(name, arm_channels, rate, hand, cameras, home, size_px)
