"""What the simulated arm may be set to."""

import pytest

from robot_bridge.sim_arm.realtime_clock import LinkModel
from robot_bridge.sim_arm.settings import Settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lag_s": -1.0}, "lag_s: got -1.0, expected 0.0 to 10.0"),
        ({"interface": "none"}, "interface: got 'none', expected both or trajectory or forward"),
        ({"physics_hz": 50}, "joint_state_hz: got 100, expected at most physics_hz, 50"),
        ({"log_commands": "nowhere/log.npz"}, "expected a .npz file in an existing folder"),
        ({"log_commands": "log.npy"}, "expected a .npz file in an existing folder"),
        ({"camera_width_px": 640}, "camera size: got 640 x 0, expected both sides or neither"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Settings(**given)


def test_one_value_is_for_all_cameras_and_a_faster_clock_shortens_delays():
    found = Settings(camera_latency_s=(0.2,), camera_drop=(0.0, 0.5), rate=2.0).images(2)
    assert found == [LinkModel(latency_s=0.1), LinkModel(latency_s=0.1, drop=0.5)]


def test_neither_one_value_nor_as_many_as_cameras_is_refused():
    with pytest.raises(ValueError, match="camera_drop: got 3 values, expected 1 or 2"):
        Settings(camera_drop=(0.0, 0.0, 0.0)).images(2)
