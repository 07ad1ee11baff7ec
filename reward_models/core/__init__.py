"""The reward model interface, progress curves, calibration, shaping and checkpoints."""
