"""Diagnostics of a training run with alarm thresholds."""
