"""`vla safety` arms and stops an arm, and says what the safety node says."""

import pytest

from benchmarks.robot_bridge.ros_latency import running
from robot_bridge import safety_cli
from robot_bridge.launching import graph

pytestmark = pytest.mark.ros


def test_who_has_no_ros2_command_arms_stops_and_clears(tmp_path, capsys):
    use = graph.SimArm(task="reach", use_sim_time=False, namespace="left")
    with running(
        graph.sim_arm(use), {"safety_node": {"joint_state_timeout_s": 5.0}}, tmp_path / "nodes.log"
    ):

        def said(what):
            assert safety_cli.main([what, "--namespace", "left"]) == 0
            return capsys.readouterr().out.splitlines()

        assert said("status") == ["disabled"]
        assert said("enable") == ["holding"]
        assert said("disable") == ["disabled"]
        assert said("estop") == ["latched_fault: requested by service", "  e-stop: 1"]
        with pytest.raises(ValueError, match="latched by e-stop: requested by service; clear it"):
            safety_cli.main(["enable", "--namespace", "left"])
        said("reset")
        assert said("enable") == ["holding: requested by service", "  e-stop: 1"]
