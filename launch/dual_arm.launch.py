"""Two arms in two namespaces, each with its own policy, limits and stop."""

from launch import LaunchDescription

from robot_bridge import launching


def generate_launch_description() -> LaunchDescription:
    """Return it; `ros2 launch mneme_vla dual_arm.launch.py --show-args` explains the arguments."""
    return launching.description("dual_arm")
