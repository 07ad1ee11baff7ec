"""A small conforming stand-in for Isaac Gym Preview 4, for tests; NVIDIA's own is not to be had."""
