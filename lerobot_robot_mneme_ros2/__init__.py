"""Plug-in of stock LeRobot: an arm behind our bridge, and a leader arm on a ROS 2 topic.

LeRobot finds it by the name of this package, and looks for the classes right here.
"""

from lerobot_robot_mneme_ros2.robot import MnemeRos2, MnemeRos2Config
from lerobot_robot_mneme_ros2.teleoperator import MnemeRos2Joints, MnemeRos2JointsConfig

__all__ = ["MnemeRos2", "MnemeRos2Config", "MnemeRos2Joints", "MnemeRos2JointsConfig"]
