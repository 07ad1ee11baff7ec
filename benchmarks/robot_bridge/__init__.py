"""Benchmarks and fault injection of the ROS 2 bridge."""
