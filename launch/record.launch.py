"""A person or a policy moves an arm, and everything is recorded."""

from launch import LaunchDescription

from robot_bridge.launching import descriptions


def generate_launch_description() -> LaunchDescription:
    """Return it; `ros2 launch mneme_vla record.launch.py --show-args` explains the arguments."""
    return descriptions.description("record")
