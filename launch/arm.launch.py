"""A policy moves an arm whose driver and controllers run already; see docs/arms.md."""

from launch import LaunchDescription

from robot_bridge import launching


def generate_launch_description() -> LaunchDescription:
    """Return it; `ros2 launch mneme_vla arm.launch.py --show-args` explains the arguments."""
    return launching.description("arm")
