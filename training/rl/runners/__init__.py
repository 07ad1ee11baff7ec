"""The iterations of online RL and the base of its algorithms."""
