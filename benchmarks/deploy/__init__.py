"""Benchmarks of decisions, servers and backbones."""
