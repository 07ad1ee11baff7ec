"""Scripted experts and the episodes that they record."""
