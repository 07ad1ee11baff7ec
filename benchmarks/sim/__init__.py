"""Benchmarks of simulation."""
