"""A node in a thread of a program that is no node."""

import time

import pytest

pytest.importorskip("rclpy")

from robot_bridge.nodes.threaded import Threaded
from tests.robot_bridge import ros_graph

pytestmark = pytest.mark.ros


@pytest.mark.parametrize("lived_s", [0.0, 0.001, 0.2])
def test_the_thread_of_a_node_that_hears_nothing_ends_with_it(monkeypatch, lived_s):
    monkeypatch.setenv("ROS_DOMAIN_ID", str(ros_graph.domain()))
    with Threaded("", "idle") as node:
        time.sleep(lived_s)
        closed_s = time.monotonic()
    # Else it is still in native code when the interpreter ends, which then aborts.
    assert not node.thread.is_alive()
    assert time.monotonic() - closed_s < 4.0
