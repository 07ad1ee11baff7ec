"""Intervention sources: the file name is the registry key."""
