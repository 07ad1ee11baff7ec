"""A simulated arm with the safety node and a policy."""

from launch import LaunchDescription

from robot_bridge import launching


def generate_launch_description() -> LaunchDescription:
    """Return it; `ros2 launch mneme_vla sim_arm.launch.py --show-args` explains the arguments."""
    return launching.description("sim_arm")
