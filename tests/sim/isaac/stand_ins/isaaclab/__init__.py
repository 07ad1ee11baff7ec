"""A small conforming stand-in for Isaac Lab, for tests: 2.3, or 3 with MNEME_STAND_IN_LAB=3."""
