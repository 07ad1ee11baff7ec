"""MCAP recordings and their conversion to LeRobot data sets; no ROS imports."""
