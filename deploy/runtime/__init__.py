"""Exported policies at run time, without torch."""
