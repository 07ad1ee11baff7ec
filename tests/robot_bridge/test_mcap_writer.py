"""Files that stock readers open, cut off anywhere, and mended."""

from array import array

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory

from robot_bridge.recording.mcap_reader import open_bag, repair
from robot_bridge.recording.mcap_writer import McapWriter
from robot_bridge.recording.message_definitions import RULE, definition, fields, has_stamp
from tests.robot_bridge import bags


def plain(said):
    """Return what a message says as plain values, of rclpy's classes or of the stock decoder's."""
    if isinstance(said, (bytes, bytearray, array, np.ndarray)):
        return list(said)
    if isinstance(said, (list, tuple)):
        return [plain(one) for one in said]
    names = getattr(type(said), "get_fields_and_field_types", None)
    if names is not None:
        return {name: plain(getattr(said, name)) for name in names()}
    if hasattr(type(said), "__slots__") and not isinstance(said, (str, int, float)):
        return {name: plain(getattr(said, name)) for name in said.__slots__}
    return said


def read(path):
    """Return (topic, log time, publish time, message) of a closed file by the stock reader."""
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        found = reader.iter_decoded_messages(log_time_order=False)
        return [(c.topic, m.log_time, m.publish_time, plain(said)) for _, c, m, said in found]


def test_stock_readers_find_every_field_of_every_message(tmp_path):
    bag = bags.Bag(tmp_path / "a.mcap")
    at = bags.BEGIN_NS
    for topic, said in {
        "/joint_states": bags.state(at, bags.positions(1)),
        "/image": bags.image(at, 7, "bgr8", 8),
        "/jpeg": bags.jpeg(at, 7),
        "/command": bags.command(at, bags.positions(2), 3),
        "/forward": bags.forward(bags.positions(3)),
        "/status": bags.status(at, "teleop"),
        "/task": bags.header(at, "schiebe den Würfel"),
    }.items():
        bag.add(topic, at, said)
    bag.writer.close()
    found = read(tmp_path / "a.mcap")
    expected = [(topic, at + 3 * bags.MS, at, said) for topic, at, said in bag.sent]
    assert len(found) == len(expected) == 7
    for (topic, log, stamp, said), (topic_, log_, stamp_, said_) in zip(
        found, expected, strict=True
    ):
        assert (topic, log, stamp) == (topic_, log_, stamp_)
        assert same(said, plain(said_)), topic


def same(found, sent):
    """Return whether values agree; the stock decoder gives a byte as a number."""
    if isinstance(sent, dict):
        return found.keys() == sent.keys() and all(same(found[k], sent[k]) for k in sent)
    if isinstance(sent, list) and isinstance(found, list):
        return len(found) == len(sent) and all(
            same(*pair) for pair in zip(found, sent, strict=True)
        )
    return found == sent or [found] == sent


def test_the_file_is_what_rosbag2_writes(tmp_path):
    arm = bags.arm_bag(tmp_path / "a.mcap")
    with arm.open("rb") as file:
        reader = make_reader(file)
        summary = reader.get_summary()
        assert reader.get_header().profile == "ros2"
    assert summary.statistics.message_count == 20 * 5 + 1
    assert {schema.encoding for schema in summary.schemas.values()} == {"ros2msg"}
    assert {channel.message_encoding for channel in summary.channels.values()} == {"cdr"}
    assert all("offered_qos_profiles" in c.metadata for c in summary.channels.values())


def test_a_definition_holds_every_type_within_it_once():
    text = definition("diagnostic_msgs/msg/DiagnosticArray")
    assert [part.splitlines()[0] for part in text.split(f"{RULE}\n")[1:]] == [
        "MSG: std_msgs/Header", "MSG: diagnostic_msgs/DiagnosticStatus",
        "MSG: builtin_interfaces/Time", "MSG: diagnostic_msgs/KeyValue",
    ]  # fmt: skip
    assert fields("diagnostic_msgs/msg/DiagnosticStatus")[0] == ("byte", "level")  # no constants


def test_which_messages_begin_with_a_stamp_is_known():
    assert has_stamp("std_msgs/msg/Header")
    assert has_stamp("sensor_msgs/msg/Image")
    assert not has_stamp("std_msgs/msg/Float64MultiArray")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_msgs/msg/Such", "install the package no_msgs"),
        ("std_srvs/srv/Trigger", "is no message type"),
        ("Header", "is no message type"),
    ],
)
def test_a_type_that_is_not_installed_is_named(name, words):
    with pytest.raises(ValueError, match=words):
        definition(name)


def test_what_a_kill_leaves_is_mended_wherever_it_was_cut(tmp_path):
    whole = bags.Bag(tmp_path / "b.mcap")
    for i in range(3):  # three chunks, the last of them two messages
        for _ in range(i + 1):
            at = bags.BEGIN_NS + len(whole.sent) * bags.MS
            whole.add("/task", at, bags.header(at, f"task {len(whole.sent)}"))
        whole.writer._flush()
    whole.writer.abandon()
    data = whole.writer.path.read_bytes()
    counts = []
    for end in range(8, len(data) + 1):
        cut = tmp_path / "cut.mcap"
        cut.write_bytes(data[:end])
        count = repair(cut)
        found = read(cut)
        assert open_bag(cut).closed
        assert count == len(found)
        expected = [f"task {i}" for i in range(len(found))]
        assert [said["frame_id"] for *_, said in found] == expected
        counts.append(len(found))
    assert sorted(set(counts)) == [0, 1, 3, 6]
    assert counts == sorted(counts)


def test_zeros_that_a_power_cut_leaves_at_the_end_are_no_messages(tmp_path):
    path = bags.arm_bag(tmp_path / "a.mcap", tenths=4, close=False)
    before = len(list(open_bag(path).messages()))
    path.write_bytes(path.read_bytes() + bytes(5000))
    assert repair(path) == before == 4 * 5 + 1
    assert len(read(path)) == before


def test_a_closed_file_that_rots_is_refused_with_the_place(tmp_path):
    path = bags.arm_bag(tmp_path / "a.mcap")
    data = bytearray(path.read_bytes())
    data[1000:1050] = bytes(50)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.mcap: damaged at byte \d+ of"):
        list(open_bag(path).messages())


def test_a_file_that_is_there_is_never_written_over(tmp_path):
    path = bags.arm_bag(tmp_path / "a.mcap", tenths=1)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        McapWriter(path)
    assert path.read_bytes() == before


def test_messages_are_on_the_disk_a_second_after_they_came(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("robot_bridge.recording.mcap_writer.time.monotonic", lambda: now[0])
    bag = bags.Bag(tmp_path / "a.mcap")
    bag.add("/task", 1, bags.header(1, "push"))
    bag.writer.settle()
    assert len(list(open_bag(tmp_path / "a.mcap").messages())) == 0
    now[0] += 1.0
    bag.writer.settle()
    assert len(list(open_bag(tmp_path / "a.mcap").messages())) == 1
    bag.writer.close()
