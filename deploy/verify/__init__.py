"""Comparison of an exported policy with its checkpoint."""
