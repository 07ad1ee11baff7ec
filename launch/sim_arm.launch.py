"""A simulated arm with the safety node and a policy."""

from launch import LaunchDescription

from robot_bridge.launching import descriptions


def generate_launch_description() -> LaunchDescription:
    """Return it; `ros2 launch mneme_vla sim_arm.launch.py --show-args` explains the arguments."""
    return descriptions.description("sim_arm")
