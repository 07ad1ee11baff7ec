"""Recorded rollouts, their storage, rewards and advantages."""
