"""The safety gate and collision checks; no ROS imports."""
