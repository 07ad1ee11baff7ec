"""Policies, ours and baselines: each file is a plug-in, its name the key."""
