"""ROS 2 nodes: thin shells around the pure modules beside this folder, the only users of rclpy."""
