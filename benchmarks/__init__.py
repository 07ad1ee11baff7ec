"""Benchmarks, studies and fault injectors; never installed with the product."""
