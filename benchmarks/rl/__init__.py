"""Benchmarks and studies of online RL."""
