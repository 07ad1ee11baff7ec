"""SO-101, the five-joint hobby arm most LeRobot users own; the hand is simplified to two jaws.

Zero is the middle of each joint's travel, as in LeRobot's calibration: upper arm up, forearm and
hand forward. Positive lift, elbow and wrist angles bend the arm forward and down.
"""

from vla.contracts.specs import CameraSpec, Channel, Gripper, RobotSpec

_SOURCE = (
    "position: SO-101 URDF (TheRobotStudio); velocity: Feetech STS3215 data sheet, 0.222 s per "
    "60 deg unloaded; acceleration and jerk: our choice, about half of what 2.94 N m of stall "
    "torque gives with the arm stretched out"
)


def _servo(name: str, low: float, high: float, source: str = _SOURCE) -> Channel:
    return Channel(
        name=name,
        unit="rad",
        low=low,
        high=high,
        velocity=4.71,
        acceleration=20.0,
        jerk=400.0,
        source=source,
    )


SPEC = RobotSpec(
    name="so101",
    channels=(
        _servo("shoulder_pan", -1.92, 1.92),
        _servo("shoulder_lift", -1.745, 1.745),
        _servo("elbow_flex", -1.69, 1.69),
        _servo("wrist_flex", -1.658, 1.658),
        _servo("wrist_roll", -2.744, 2.841),
        _servo("gripper", -0.1, 1.0, "our two-jaw hand: 0 is closed, 0.8 opens 115 mm; " + _SOURCE),
    ),
    gripper=Gripper(channel="gripper", open=0.7, closed=0.0),
    home=(0.0, -1.2, 0.5, 1.6, 0.0, 0.4),
    cameras=(
        CameraSpec(
            name="front",
            body="world",
            pos_m=(0.62, 0.0, 0.52),
            target_m=(0.14, 0.0, 0.05),
            fovy_deg=38.0,
        ),
        CameraSpec(
            name="wrist",
            body="hand",
            pos_m=(0.0, 0.0, 0.07),
            target_m=(0.11, 0.0, 0.005),
            fovy_deg=70.0,
        ),
    ),
    control_hz=10.0,
    mjcf="so101.xml",
    reach_m=(0.15, 0.28),
)
