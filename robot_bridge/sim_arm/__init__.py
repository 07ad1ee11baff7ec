"""The simulated arm: actuator, clock and settings; no ROS imports."""
