"""ROS 2 nodes: thin shells around the other folders' modules, and the only users of rclpy."""
