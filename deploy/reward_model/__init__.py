"""Reward models without torch: export, run and verify."""
