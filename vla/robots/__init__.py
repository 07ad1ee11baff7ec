"""Robots, one file each; the file name is the robot's name.

To add one, copy `so101.py` and change what it says:

1. `SPEC`, a `RobotSpec`: channels in action order with limits and where these come from, the
   gripper, the home pose, cameras of one size, the control rate.
2. An MJCF under `sim/assets`, or the absolute path of your own: joints and position actuators
   named as the channels, a site "tool" between the fingertips (z out of the hand, y along the
   opening direction), gravity compensated.
3. Run `pytest tests/conformance/test_robots.py` and `python -m benchmarks.sim.expert_study --robot
NAME`.
"""
