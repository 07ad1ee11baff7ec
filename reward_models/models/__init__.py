"""Reward model plug-ins: the file name is the registry key."""
