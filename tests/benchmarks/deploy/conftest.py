"""Fixtures of the deployment's tests, for its benchmarks."""

from tests.deploy.conftest import exported

__all__ = ["exported"]
