"""Two arms in two namespaces, each with its own policy, limits and stop."""

from launch import LaunchDescription

from robot_bridge.launching import descriptions


def generate_launch_description() -> LaunchDescription:
    """Return it; `ros2 launch mneme_vla dual_arm.launch.py --show-args` explains the arguments."""
    return descriptions.description("dual_arm")
