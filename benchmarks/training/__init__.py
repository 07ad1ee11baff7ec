"""Benchmarks and studies of training."""
