"""Rerun recordings of data sets, policies in simulation, and online RL in progress."""
