"""Runs a policy on observations at control rate and logs its decisions; no ROS imports."""
