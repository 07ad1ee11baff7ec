"""A small conforming stand-in for Isaac Gym Preview 4, for tests; NVIDIA's own is not to be had."""

import sys

if "torch" in sys.modules:
    raise ImportError("PyTorch was imported before isaacgym modules; import isaacgym first")
