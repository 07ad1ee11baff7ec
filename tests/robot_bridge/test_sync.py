"""An observation is made of what belongs together and is fresh, or of nothing."""

import numpy as np
import pytest

from robot_bridge.sensing.sync import Sync, SyncConfig, SyncedObservation

CAMERAS = ("front", "wrist")
CONFIG = SyncConfig(max_observation_age_s=0.2, max_sync_interval_s=0.05, frozen_image_timeout_s=1.0)


def picture(shade: int):
    return lambda: np.full((4, 4, 3), shade, np.uint8)


def filled(front_s: float, wrist_s: float, joints_s: list[float]) -> Sync:
    sync = Sync(CONFIG, CAMERAS)
    sync.add_image("front", front_s, picture(10))
    sync.add_image("wrist", wrist_s, picture(20))
    for time_s in joints_s:
        sync.add_joints(time_s, np.array([time_s, 0.0]))
    return sync


def test_the_joint_state_nearest_to_the_pictures_belongs_to_them():
    seen = filled(5.0, 5.005, [4.98, 5.0, 5.02, 5.04]).look(5.05)
    assert isinstance(seen, SyncedObservation)
    assert seen.images[:, 0, 0, 0].tolist() == [10, 20]
    assert seen.proprio[0] == np.float32(5.0)
    assert seen.proprio.dtype == np.float32
    assert seen.time_s == 5.0


@pytest.mark.parametrize(
    ("front_s", "wrist_s", "joints_s", "now_s", "why"),
    [
        (5.0, 5.0, [], 5.0, "no joint states yet"),
        (5.0, 5.0, [5.0], 5.3, "0.30 s old, at most 0.2"),
        (5.0, 4.7, [5.0], 5.0, "image of camera wrist 0.30 s old"),
        (5.0, 5.0, [4.7], 5.0, "joint states 0.30 s old"),
        (5.0, 4.9, [5.0], 5.0, "parts 0.10 s apart, at most 0.05"),
        (5.4, 5.4, [5.4], 5.0, "a part is stamped 0.40 s in the future, at most 0.2; synchronise"),
    ],
)
def test_what_is_old_or_does_not_belong_together_is_not_decided_on(
    front_s, wrist_s, joints_s, now_s, why
):
    found = filled(front_s, wrist_s, joints_s).look(now_s)
    assert isinstance(found, str)
    assert why in found


def test_a_camera_that_never_came_is_named():
    sync = Sync(CONFIG, CAMERAS)
    sync.add_joints(5.0, np.zeros(2))
    sync.add_image("front", 5.0, picture(1))
    assert sync.look(5.0) == "no image of camera wrist yet"


def test_messages_out_of_order_change_nothing():
    sync = filled(5.0, 5.0, [5.0])
    sync.add_image("front", 4.9, picture(99))
    sync.add_joints(4.9, np.array([9.0, 9.0]))
    seen = sync.look(5.0)
    assert isinstance(seen, SyncedObservation)
    assert (seen.images[0, 0, 0, 0], seen.proprio[0]) == (10, 5.0)


def test_measurements_that_are_not_finite_are_not_decided_on():
    sync = filled(5.0, 5.0, [])
    sync.add_joints(5.0, np.array([np.nan, 0.0]))
    assert sync.look(5.0) == "joint states are not finite"


def test_a_camera_that_shows_the_same_while_the_arm_moves_is_frozen():
    sync = Sync(CONFIG, CAMERAS)
    for k in range(40):
        now_s = 5.0 + 0.1 * k
        sync.add_joints(now_s, np.array([0.1 * max(0, k - 20), 0.0]))
        sync.add_image("front", now_s, picture(7))
        sync.add_image("wrist", now_s, picture(k))
        found = sync.look(now_s)
        if k <= 20:  # nothing moves: there is nothing new to show
            assert isinstance(found, SyncedObservation), k
    assert found == "camera front shows the same for 1.0 s while the arm moves"
    sync.add_image("front", 9.0, picture(8))
    sync.add_image("wrist", 9.0, picture(8))
    sync.add_joints(9.0, np.zeros(2))
    assert isinstance(sync.look(9.0), SyncedObservation)
