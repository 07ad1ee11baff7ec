"""A policy moves an arm whose driver and controllers run already; see docs/arms.md."""

from launch import LaunchDescription

from robot_bridge.launching import descriptions


def generate_launch_description() -> LaunchDescription:
    """Return it; `ros2 launch mneme_vla arm.launch.py --show-args` explains the arguments."""
    return descriptions.description("arm")
