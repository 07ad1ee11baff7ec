"""Episodes on disk: what is closed stays, and what a kill left open is mended."""

import hashlib
import json

import pytest
from rclpy.serialization import serialize_message

from robot_bridge.recording.mcap_reader import open_bag
from robot_bridge.recording.recorder import INDEX, Recording, Topic, heal, read_index
from robot_bridge.sensing.convert import stamp_ns
from tests.robot_bridge import bags

TOPICS = (
    Topic(name="/task", type_name="std_msgs/msg/Header", kind="latched"),
    Topic(name="/joint_states", type_name="sensor_msgs/msg/JointState", kind="sensor"),
)
NOW = bags.BEGIN_NS
SECOND = 10**9


def task(text, at=NOW):
    return serialize_message(bags.header(at, text))


def state(i, at=NOW):
    return serialize_message(bags.state(at, bags.positions(i)))


@pytest.fixture
def recording(tmp_path):
    found = Recording(tmp_path, TOPICS, 0)
    yield found
    found.end(NOW)
    found.close()


def messages(path):
    """Return (topic, log time, publish time) of a file."""
    bag = open_bag(path)
    return [(bag.channels[m.channel_id].topic, m.log_time, m.publish_time) for m in bag.messages()]


def test_an_episode_holds_what_came_between_its_begin_and_its_end(recording, tmp_path):
    recording.receive("/joint_states", state(0), NOW)  # before it began
    recording.receive("/task", task("push", NOW - 5), NOW)
    recording.begin("push", NOW + 1)
    assert recording.running.file == "episode-000001.mcap"
    recording.receive("/joint_states", state(1, NOW + 2), NOW + 3)
    recording.set_source("policy", NOW + 3)
    recording.set_source("policy", NOW + 4)
    recording.set_source("teleop", NOW + SECOND)
    recording.set_success(True)
    entry = recording.end(NOW + 2 * SECOND)
    recording.receive("/joint_states", state(2), NOW + 3 * SECOND)  # after it ended
    assert messages(tmp_path / entry.file) == [
        ("/task", NOW + 1, NOW - 5),  # a latched message opens the episode, with its own stamp
        ("/joint_states", NOW + 3, NOW + 2),
    ]
    assert (entry.task, entry.success, entry.messages, entry.cut) == ("push", True, 2, False)
    assert [who for _, who in entry.sources] == ["policy", "teleop"]
    assert entry.sources[1][0] == (NOW + SECOND) / 1e9
    assert read_index(tmp_path) == [entry]


def test_who_led_the_arm_before_is_known_when_the_next_episode_begins(recording):
    recording.set_source("teleop", NOW)
    recording.begin("push", NOW + 5)
    assert recording.running.sources == [((NOW + 5) / 1e9, "teleop")]


def test_an_empty_stamp_becomes_the_time_of_receipt(recording, tmp_path):
    recording.begin("push", NOW)
    recording.receive("/joint_states", state(0, 0), NOW + 7)
    recording.end(NOW + 8)
    assert messages(tmp_path / "episode-000001.mcap") == [("/joint_states", NOW + 7, NOW + 7)]


def test_stamps_are_read_whichever_end_comes_first():
    assert stamp_ns(task("push", NOW + 123)) == NOW + 123
    big = b"\0\0\0\0" + (7).to_bytes(4, "big") + (9).to_bytes(4, "big")
    assert stamp_ns(big) == 7 * SECOND + 9


def test_numbers_go_on_and_closed_episodes_are_never_touched_again(tmp_path):
    hashes = {}
    for round_ in range(3):
        recording = Recording(tmp_path, TOPICS, 0)
        for _ in range(2):
            recording.begin(f"task {round_}", NOW)
            recording.receive("/joint_states", state(round_), NOW)
        recording.end(NOW)
        recording.close()
        files = {path.name: path.read_bytes() for path in tmp_path.glob("*.mcap")}
        now = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        assert {name: now[name] for name in hashes} == hashes
        hashes = now
    assert sorted(hashes) == [f"episode-{i:06d}.mcap" for i in range(1, 7)]
    assert [entry.file for entry in read_index(tmp_path)] == sorted(hashes)


def killed(folder, count=3):
    """Leave a folder as a killed recorder does: one closed episode, one with `count` messages."""
    recording = Recording(folder, TOPICS, 0)
    recording.begin("push", NOW)
    recording.receive("/joint_states", state(0), NOW)
    recording.begin("pull", NOW + SECOND)
    for i in range(count):
        recording.receive("/joint_states", state(i), NOW + SECOND + i)
    recording._writer._flush()
    recording._writer.abandon()
    recording.close()


def test_what_a_kill_left_open_is_closed_when_the_next_recording_begins(tmp_path):
    killed(tmp_path)
    assert [path.name for path in tmp_path.glob("*.part")] == ["episode-000002.mcap.part"]
    recording = Recording(tmp_path, TOPICS, 0)
    recording.close()
    assert list(tmp_path.glob("*.part")) == []
    assert open_bag(tmp_path / "episode-000002.mcap").closed
    assert [(e.task, e.messages, e.cut) for e in recording.entries] == [
        ("push", 1, False), ("pull", 3, True),
    ]  # fmt: skip
    assert recording.entries[1].end_s == (NOW + SECOND + 2) / 1e9
    assert read_index(tmp_path) == recording.entries


def test_an_episode_that_the_index_missed_is_taken_in(tmp_path):
    killed(tmp_path)
    before = heal(tmp_path)
    (tmp_path / INDEX).unlink()
    assert heal(tmp_path) == before


def test_a_file_of_which_nothing_reached_the_disk_is_cleared_away(tmp_path):
    (tmp_path / "episode-000001.mcap.part").write_bytes(b"")
    assert heal(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_index_is_named(tmp_path):
    (tmp_path / INDEX).write_text(json.dumps({"episodes": [{"file": "x"}]}))
    with pytest.raises(ValueError, match=r"episodes\.json: damaged .* delete it"):
        Recording(tmp_path, TOPICS, 0)


def test_two_recorders_do_not_share_a_folder(recording, tmp_path):
    with pytest.raises(ValueError, match="another recorder writes there"):
        Recording(tmp_path, TOPICS, 0)


def test_an_episode_needs_a_task(recording, tmp_path):
    with pytest.raises(ValueError, match="no instruction yet: publish one on `instruction`"):
        recording.begin("", NOW)
    assert recording.end(NOW) is None
    assert list(tmp_path.glob("*.mcap*")) == []


def test_a_disk_with_too_little_room_is_told_before_anything_is_written(tmp_path):
    recording = Recording(tmp_path, TOPICS, 10**18)
    with pytest.raises(ValueError, match=r"GB free, expected at least 1e\+09 GB; free space or"):
        recording.begin("push", NOW)
    recording.close()
    assert list(tmp_path.glob("*.mcap*")) == []


def test_a_disk_that_runs_full_keeps_what_it_has(recording, tmp_path, monkeypatch):
    recording.begin("push", NOW)
    recording.receive("/joint_states", state(0), NOW)
    monkeypatch.setattr(recording, "_least_free_bytes", 10**18)
    with pytest.raises(ValueError, match="GB free"):
        recording.settle()
    entry = recording.end(NOW + 1)
    assert messages(tmp_path / entry.file) == [("/joint_states", NOW, NOW)]
