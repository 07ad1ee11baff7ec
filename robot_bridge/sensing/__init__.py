"""From messages to observations, and the progress monitor; no ROS imports."""
