"""Bags become data sets that stock LeRobot loads, with the numbers that were on the wire."""

import numpy as np
import pytest

from robot_bridge.recording import convert_bag
from robot_bridge.recording.convert_bag import ConvertConfig, convert_bags
from tests.robot_bridge import bags
from tests.robot_bridge.bags import COMMAND, FORWARD, MS, arm_bag, positions
from vla.data.check import fits_robot
from vla.data.reader import read_columns
from vla.data.store import load_episodes

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture
def converted(tmp_path):
    """Return a function: options -> (description, numbers, what was told)."""

    def run(*paths, **options):
        config = ConvertConfig(bags=paths, out=tmp_path / "set", **options)
        info, told = convert_bags(config)
        return info, read_columns(info), told

    return run


def test_stock_lerobot_loads_the_numbers_and_pictures_of_a_bag(tmp_path, converted):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    a = arm_bag(tmp_path / "a.mcap", tasks={0: "push", 12: "pull"})
    b = arm_bag(tmp_path / "b.mcap", tenths=9)
    info, _, told = converted(a, b)
    assert told == []
    stock = LeRobotDataset("local/bag", root=info.path, video_backend="pyav")
    assert (stock.num_episodes, stock.num_frames, stock.fps) == (3, 29, 10)
    expected = [(0, i, "push") for i in range(12)] + [(1, i, "pull") for i in range(12, 20)]
    expected += [(2, i, "push the cube") for i in range(9)]
    for row, (episode, i, task) in enumerate(expected):
        item = stock[row]
        assert (int(item["episode_index"]), item["task"]) == (episode, task)
        np.testing.assert_allclose(item["observation.state"], positions(i), atol=1e-6)
        # The command of this tenth came 20 ms after the pictures, before the next frame.
        np.testing.assert_allclose(item["action"], positions(i + 0.5), atol=1e-6)
        assert bool(item["intervention"]) == (5 <= i < 10)
        for camera in ("front", "wrist"):
            pixels = 255 * item[f"observation.images.{camera}"].numpy().reshape(3, -1).mean(1)
            np.testing.assert_allclose(pixels, [12 * i, 60, 200], atol=4)
    mean = np.mean([positions(i) for _, i, _ in expected], axis=0)
    np.testing.assert_allclose(stock.meta.stats["observation.state"]["mean"], mean, atol=1e-5)
    spread = np.std([positions(i) for _, i, _ in expected], axis=0)
    np.testing.assert_allclose(stock.meta.stats["observation.state"]["std"], spread, atol=1e-5)
    assert stock.meta.stats["observation.images.front"]["mean"].shape == (3, 1, 1)


def test_a_bag_of_an_earlier_release_has_its_instructions_on_task(tmp_path, converted):
    old = arm_bag(
        tmp_path / "a.mcap", tasks={0: "push", 12: "pull"},
        rename=lambda topic: topic.replace("/instruction", "/task"),
    )  # fmt: skip
    info, _, told = converted(old)
    assert told == []
    assert sorted(info.tasks) == ["pull", "push"]


def test_an_empty_instruction_ends_an_episode_and_begins_none(tmp_path, converted):
    bag = arm_bag(tmp_path / "a.mcap", tasks={0: "push", 8: "", 12: "pull", 18: ""})
    info, columns, told = converted(bag)
    assert told == []
    assert info.tasks == ("push", "pull")
    np.testing.assert_array_equal(np.diff(info.offsets), [8, 6])
    np.testing.assert_allclose(columns.state[8], positions(12), atol=1e-6)


def test_a_converted_set_is_one_that_training_takes(tmp_path, converted):
    info, _, _ = converted(arm_bag(tmp_path / "a.mcap"))
    store = load_episodes(info.path, image_hw=(96, 96))
    fits_robot(store, bags.ROBOT, info.path)
    assert info.recording == {
        "bags": ["a.mcap"], "episodes": [{"bag": "a.mcap", "begin_s": bags.BEGIN_NS / 1e9}],
    }  # fmt: skip


def test_frames_at_another_rate_take_the_latest_message_and_the_newest_command(tmp_path, converted):
    info, columns, _ = converted(arm_bag(tmp_path / "a.mcap"), fps=20)
    # Frames at 0, 50, 100 ms: states of tenths 0, 0, 1. The command of tenth 0, sent at 20 ms, is
    # the newest before the frames at 50 and 100 ms.
    assert info.num_frames == 39  # the last message, a command, is at 1.92 s
    np.testing.assert_allclose(columns.state[:5, 0], [0, 0, 1, 1, 2])
    np.testing.assert_allclose(columns.action[:5, 0], [0.5, 0.5, 1.5, 1.5, 2.5])


def test_the_episode_begins_when_everything_has_come(tmp_path, converted):
    late = arm_bag(tmp_path / "a.mcap", skip=lambda topic, i: topic == COMMAND and i < 4)
    _, columns, told = converted(late)
    # The first command is that of tenth 4, and what was seen before it is left out.
    np.testing.assert_allclose(columns.state[:2, 0], [4, 5])
    np.testing.assert_allclose(columns.action[:2, 0], [4.5, 5.5])
    assert told == []


def test_an_episode_is_cut_where_a_camera_stopped_and_that_is_said(tmp_path, converted):
    gap = arm_bag(tmp_path / "a.mcap", skip=lambda topic, i: "wrist" in topic and 8 <= i < 12)
    info, _, told = converted(gap)
    # The picture of tenth 7 is 0.2 s old at frame 9 and 0.3 s at frame 10; 0.25 s are allowed.
    assert info.num_frames == 10
    assert len(told) == 1
    assert "cut at frame 10 of 20, 1.0 s: the camera wrist" in told[0]


def test_a_bag_that_was_cut_off_is_converted_as_far_as_it_is_whole(tmp_path, converted):
    path = arm_bag(tmp_path / "a.mcap", close=False)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-900:-400])  # and the begin of what came next
    info, columns, told = converted(path)
    assert info.num_frames == 20
    np.testing.assert_allclose(columns.state[:, 0], np.arange(20))
    assert "was cut off" in told[0]


def test_compressed_pictures_and_forwarded_commands_are_taken(tmp_path, converted):
    bag = bags.Bag(tmp_path / "a.mcap")
    for i in range(12):
        at = bags.BEGIN_NS + 100 * MS * i
        bag.add("/left/joint_states", at, bags.state(at, positions(i)))
        bag.add("/left/cameras/front/image_raw/compressed", at, bags.jpeg(at, 5 * i))
        bag.add(f"/left{FORWARD}", at + 20 * MS, bags.forward(positions(i + 0.5)))
    bag.writer.close()
    options = dict(namespace="left", cameras=("front",), task="push", size=(48, 64))
    info, columns, told = converted(tmp_path / "a.mcap", **options)
    # A forwarded command has no stamp: it counts from when it was received, 3 ms after it was sent.
    assert info.tasks == ("push",)
    assert (info.camera("front").height_px, info.camera("front").width_px) == (48, 64)
    np.testing.assert_allclose(columns.state[:, 0], np.arange(12))
    np.testing.assert_allclose(columns.action[:, 0], np.arange(12) + 0.5)
    assert told == [
        f"{tmp_path / 'a.mcap'}: nothing says who led the arm: no frame is an intervention"
    ]
    store = load_episodes(info.path, image_hw=(48, 64))
    np.testing.assert_allclose(store.frames[3, 0].mean((0, 1)), [15, 60, 200], atol=5)


def test_of_a_trajectory_that_ends_at_rest_the_action_is_the_next_pose(tmp_path, converted):
    def moving(topic, tenth, said):
        if topic != COMMAND:
            return said
        ahead = [positions(tenth + 0.5 + k) for k in (-2, -1, 0, 1, 2)]
        said.points = [
            bags.JointTrajectoryPoint(positions=one, velocities=[0.0] * 6) for one in ahead
        ]
        for k, point in enumerate(said.points):
            point.time_from_start.nanosec = 10 * MS * k
        return said

    _, columns, told = converted(arm_bag(tmp_path / "a.mcap", tenths=12, swap=moving))
    assert told == []
    np.testing.assert_allclose(columns.action[:, 0], np.arange(12) + 0.5)


def test_messages_whose_stamp_goes_back_are_left_out_and_counted(tmp_path, converted):
    def back(topic, i, said):
        return bags.state(bags.BEGIN_NS, positions(99)) if "states" in topic and i == 7 else said

    _, columns, told = converted(arm_bag(tmp_path / "a.mcap", swap=back))
    np.testing.assert_allclose(columns.state[6:9, 0], [6, 6, 8])
    assert "left out 1 messages of /joint_states" in told[0]


def test_a_folder_stands_for_its_bags_in_order(tmp_path, converted):
    (tmp_path / "bags").mkdir()
    for name in ("b", "a"):
        arm_bag(tmp_path / "bags" / f"{name}.mcap", tasks={0: name})
    info, _, _ = converted(tmp_path / "bags")
    assert info.tasks == ("a", "b")


def test_an_episode_without_a_single_frame_is_left_out(tmp_path, converted):
    tasks = {0: "push", 10: "pull"}
    path = arm_bag(tmp_path / "a.mcap", tasks=tasks, skip=lambda t, i: "front" in t and i > 6)
    info, _, told = converted(path)
    assert info.tasks == ("push",)
    assert "episode 1 ('pull'): cut at frame 0 of 10, 0.0 s: the camera front" in told[1]


def test_a_bag_that_was_stopped_before_anything_came_costs_the_others_nothing(tmp_path, converted):
    good = arm_bag(tmp_path / "a.mcap")
    short = arm_bag(tmp_path / "b.mcap", tenths=1, skip=lambda topic, i: "front" in topic)
    info, _, told = converted(good, short)
    assert info.num_episodes == 1
    assert f"{short}: no message of the camera front on" in told[0]
    assert told[0].endswith("left out")


def test_a_bag_of_which_nothing_is_left_is_refused_and_nothing_is_written(tmp_path, converted):
    path = arm_bag(tmp_path / "a.mcap", skip=lambda t, i: i > 3 if "front" in t else i < 8)
    with pytest.raises(ValueError, match=r"the camera front .* no episode is left"):
        converted(path, task="push")
    assert [place.name for place in tmp_path.iterdir()] == ["a.mcap"]


@pytest.mark.parametrize("size", [1, 0])
def test_sizes_that_are_none_are_refused(tmp_path, size):
    with pytest.raises(ValueError, match="size: got"):
        ConvertConfig(bags=(), out=tmp_path, size=(size, 8))


def test_the_command_prints_what_it_cut(tmp_path, capsys):
    path = arm_bag(tmp_path / "a.mcap", skip=lambda topic, i: "front" in topic and i > 9)
    assert convert_bag.main([str(path), "--out", str(tmp_path / "set")]) == 0
    said = capsys.readouterr().out
    assert "the camera front on /cameras/front/image_raw is older than 0.25 s" in said
    assert "1 episodes, 12 frames in" in said


@pytest.mark.parametrize(
    ("options", "tasks", "said"),
    [
        (
            {"cameras": ("../../x",), "size": (96, 96)},
            None,
            r"--cameras: got the feature name '\.\./\.\./x', expected a folder",
        ),
        ({}, {0: "  "}, "got the instruction '  ', expected text; give it with --task TEXT"),
    ],
)
def test_names_that_leave_the_set_and_empty_instructions_are_refused(
    options, tasks, said, tmp_path, converted
):
    bag = arm_bag(tmp_path / "a.mcap", tasks=tasks)
    with pytest.raises(ValueError, match=said):
        converted(bag, **options)
    assert [p.name for p in tmp_path.iterdir()] == ["a.mcap"]


def test_what_a_killed_conversion_began_is_deleted_by_the_next(tmp_path, converted):
    (tmp_path / ".set.4711.tmp/videos").mkdir(parents=True)
    (tmp_path / ".another.4711.tmp").mkdir()
    converted(arm_bag(tmp_path / "a.mcap"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [".another.4711.tmp", "a.mcap", "set"]
