"""Benchmarks of labelling."""
