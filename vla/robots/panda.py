"""Franka Emika Panda: seven joints and the two-finger Franka Hand, whose fingers move together."""

from vla.contracts.specs import CameraSpec, Channel, Gripper, RobotSpec

_SOURCE = "Franka Emika Panda, control parameters: limits in joint space"


def _joint(
    name: str, low: float, high: float, velocity: float, acceleration: float, jerk: float
) -> Channel:
    return Channel(
        name=name,
        unit="rad",
        low=low,
        high=high,
        velocity=velocity,
        acceleration=acceleration,
        jerk=jerk,
        source=_SOURCE,
    )


SPEC = RobotSpec(
    name="panda",
    channels=(
        _joint("joint1", -2.8973, 2.8973, 2.175, 15.0, 7500.0),
        _joint("joint2", -1.7628, 1.7628, 2.175, 7.5, 3750.0),
        _joint("joint3", -2.8973, 2.8973, 2.175, 10.0, 5000.0),
        _joint("joint4", -3.0718, -0.0698, 2.175, 12.5, 6250.0),
        _joint("joint5", -2.8973, 2.8973, 2.61, 15.0, 7500.0),
        _joint("joint6", -0.0175, 3.7525, 2.61, 20.0, 10000.0),
        _joint("joint7", -2.8973, 2.8973, 2.61, 20.0, 10000.0),
        Channel(
            name="finger_joint",
            unit="m",
            low=0.0,
            high=0.04,
            velocity=0.05,
            acceleration=1.0,
            jerk=20.0,
            source="travel and 50 mm/s per finger: Franka Hand data sheet; acceleration and jerk: "
            "our choice, full speed within one control step",
        ),
    ),
    gripper=Gripper(channel="finger_joint", open=0.04, closed=0.0),
    home=(0.0, -0.607, 0.0, -2.835, 0.0, 2.228, 0.7854, 0.03),
    cameras=(
        CameraSpec(
            name="front",
            body="world",
            pos_m=(1.16, 0.0, 0.62),
            target_m=(0.47, 0.0, 0.09),
            fovy_deg=40.0,
        ),
        CameraSpec(
            name="wrist",
            body="hand",
            pos_m=(0.08, 0.0, 0.02),
            target_m=(0.01, 0.0, 0.14),
            fovy_deg=70.0,
        ),
    ),
    control_hz=10.0,
    mjcf="panda.xml",
    reach_m=(0.42, 0.62),
)
