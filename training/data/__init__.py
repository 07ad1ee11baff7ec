"""Demonstrations, samplers, batches and cached features."""
