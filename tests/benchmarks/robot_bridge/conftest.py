"""Fixtures of the bridge's tests, for its benchmarks."""

from tests.robot_bridge.conftest import arm_policy, domain

__all__ = ["arm_policy", "domain"]
