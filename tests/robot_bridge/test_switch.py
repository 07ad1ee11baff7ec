"""`vla safety` arms and stops an arm, and says what the safety node says."""

import pytest

from robot_bridge import graph, switch
from robot_bridge.bench import running

pytestmark = pytest.mark.ros


def test_who_has_no_ros2_command_arms_stops_and_clears(tmp_path, capsys):
    use = graph.SimArm(task="reach", use_sim_time=False, namespace="left")
    with running(graph.sim_arm(use), {"safety_node": {"blind_s": 5.0}}, tmp_path / "nodes.log"):

        def said(what):
            assert switch.main([what, "--namespace", "left"]) == 0
            return capsys.readouterr().out.splitlines()

        assert said("status") == ["disarmed"]
        assert said("enable") == ["holding"]
        assert said("disable") == ["disarmed"]
        assert said("estop") == ["latched: asked for by service", "  e-stop: 1"]
        with pytest.raises(ValueError, match="latched by e-stop: asked for by service; clear it"):
            switch.main(["enable", "--namespace", "left"])
        said("reset")
        assert said("enable") == ["holding: asked for by service", "  e-stop: 1"]
