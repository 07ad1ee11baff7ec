"""Inference targets: each file runs an exported policy; its name is the key."""
