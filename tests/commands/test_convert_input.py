"""What a user of `vla convert` can get wrong: one sentence, an exit code, nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.robot_bridge import bags
from tests.robot_bridge.bags import COMMAND, FORWARD, arm_bag
from vla import cli

CONVERT = "convert {bag} --out {new}"
WRONG_WORDS = {
    "no bag": ("convert --out {new}", "got no bag, expected vla convert BAG.mcap"),
    "no out": ("convert {bag}", "--out"),
    "nowhere": ("convert {new}.mcap --out {new}", "does not exist, expected an MCAP file"),
    "an empty folder": ("convert {empty} --out {new}", "holds no *.mcap"),
    "text": ("convert {text} --out {new}", "begins with b'", "expected an MCAP file"),
    "nothing": ("convert {nothing} --out {new}", "is empty, expected an MCAP file"),
    "robot": (CONVERT + " --robot so102", "unknown robot 'so102': did you mean so101"),
    "fps": (CONVERT + " --fps 0", "fps: got 0, expected at least 1"),
    "age": (CONVERT + " --max-age-s=-1", "max_age_s: got -1.0, expected above 0"),
    "out is there": ("convert {bag} --out {empty}", "is there already; choose another --out"),
    "flag": (CONVERT + " --topic x", "unrecognized options: --topic"),
    "other arm": (CONVERT + " --robot panda --cameras front", "expected joint1", "--robot"),
    "camera": (CONVERT + " --cameras top", "camera 'top' is none of so101's", "--size"),
    "camera not there": (
        CONVERT + " --cameras top --size 96 96", "no message of the camera top on",
        "/cameras/top/image_raw", "the bag has", "name the topic",
    ),
    "state topic": (CONVERT + " --state-topic x", "no message of the state on /x; the bag has"),
    "state is a picture": (
        CONVERT + " --state-topic cameras/front/image_raw",
        "topic /cameras/front/image_raw is named for two things",
    ),
    "state is a status": (
        CONVERT + " --state-topic safety_node/status --status-topic x",
        "/safety_node/status is diagnostic_msgs/msg/DiagnosticArray, expected sensor_msgs/msg/Jo",
    ),
    "namespace": (CONVERT + " --namespace left", "no message of the state on /left/joint_states"),
    "task topic": (CONVERT + " --instruction-topic x", "no message on /x", "--task TEXT"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_WORDS)
def test_wrong_words_are_answered_and_nothing_is_written(case, tmp_path, refuse) -> None:
    line, *words = WRONG_WORDS[case]
    places = {"bag": arm_bag(tmp_path / "bag.mcap", tenths=3), "new": tmp_path / "new"}
    places |= {"empty": tmp_path / "empty", "text": tmp_path / "a.mcap", "nothing": tmp_path / "b"}
    places["empty"].mkdir()
    places["text"].write_text("a bag of words")
    places["nothing"].touch()
    before = sorted(tmp_path.rglob("*"))
    refuse(line.format(**places), *words)
    assert sorted(tmp_path.rglob("*")) == before


def swapped(topic: str, change: Callable[[int], Any]) -> dict[str, Any]:
    """Return what makes message 7 of a topic another one."""
    return {"swap": lambda name, i, said: change(i) if topic in name and i == 7 else said}


def without(topic: str) -> dict[str, Any]:
    """Return what leaves a topic out."""
    return {"skip": lambda name, i: topic in name}


def cut_jpeg(i: int) -> Any:
    said = bags.jpeg(AT, i)
    said.data = bytes(said.data)[:-200]
    return said


def no_gripper(name: str, i: int, said: Any) -> Any:
    """Return joint states without the gripper."""
    at = bags.BEGIN_NS + i * 100 * bags.MS
    return bags.state(at, bags.positions(i)[:5], FIRST[:5]) if "states" in name else said


AT = bags.BEGIN_NS + 7 * 100 * bags.MS
FIRST = tuple(bags.ROBOT.names)
DAMAGED: dict[str, tuple[Any, ...]] = {
    "no states": (without("joint_states"), "no message of the state on /joint_states; the bag has"),
    "no commands": (without("trajectory"), "no message of the command on", "--help"),
    "no pictures": (without("wrist"), "no message of the camera wrist on"),
    "no task": (without("instruction"), "no message on /instruction", "--task TEXT"),
    "joint missing": (
        {"swap": no_gripper},
        "/joint_states: joint 'gripper' is missing; got elbow_flex", "--robot",
    ),
    "joint not a number": (
        swapped("states", lambda i: bags.state(AT, [float("nan"), 0.0, 0.0, 0.0, 0.0, 0.0])),
        "joint 'shoulder_pan' is nan", "leave the bag out",
    ),
    "chunk for a command": (
        swapped("trajectory", lambda i: bags.command(AT + 1, bags.positions(i), 3)),
        "got 3 points without velocities in a command, expected one", "--command-topic",
    ),
    "picture of depth": (
        swapped("front", lambda i: bags.image(AT, 9, "16UC1")), "encoding '16UC1' is depth",
        "the camera's colour topic",
    ),
    "picture cut": (swapped("front", lambda i: short(bags.image(AT, 9))), "bytes for 96 rows"),
}  # fmt: skip


def short(said: Any) -> Any:
    said.data = bytes(said.data)[:-5]
    return said


@pytest.mark.parametrize("case", DAMAGED)
def test_a_bag_that_does_not_fit_is_named_and_nothing_is_written(case, tmp_path, refuse) -> None:
    how, *words = DAMAGED[case]
    path = arm_bag(tmp_path / "a.mcap", **how)
    refuse(f"convert {path} --out {tmp_path / 'new'}", str(path), *words)
    assert list(tmp_path.iterdir()) == [path]


def small(path: Path, **more: Any) -> Path:
    """Write a bag of one camera with compressed pictures."""
    bag = bags.Bag(path)
    for i in range(12):
        at = bags.BEGIN_NS + 100 * bags.MS * i
        bag.add("/joint_states", at, bags.state(at, bags.positions(i)))
        picture = more["picture"](i) if "picture" in more and i == 7 else bags.jpeg(at, i)
        bag.add("/cameras/front/image_raw/compressed", at, picture)
        bag.add(FORWARD, at, bags.forward(bags.positions(i)[: more.get("joints", 6)]))
        if more.get("both"):
            bag.add(COMMAND, at, bags.command(at, bags.positions(i)))
    bag.writer.close()
    return path


SMALL: dict[str, tuple[Any, ...]] = {
    "jpeg cut": ({"picture": cut_jpeg}, "/cameras/front/image_raw/compressed at", "damaged image"),
    "no jpeg": ({"picture": lambda i: text()}, "begins with b'text', expected jpeg or png"),
    "five joints": ({"joints": 5}, "joint 'gripper' is missing", "--robot"),
    "two commands": ({"both": True}, "messages on both", "--command-topic"),
}


def text() -> Any:
    said = bags.jpeg(AT, 0)
    said.data = b"text"
    return said


@pytest.mark.parametrize("case", SMALL)
def test_compressed_pictures_and_forwarded_commands_are_checked(case, tmp_path, refuse) -> None:
    how, *words = SMALL[case]
    path = small(tmp_path / "a.mcap", **how)
    refuse(f"convert {path} --out {tmp_path / 'new'} --cameras front --task push", *words)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_closed_bag_that_was_half_copied_is_converted_as_far_as_it_goes_or_refused(
    share, tmp_path, refuse, capsys
) -> None:
    path = arm_bag(tmp_path / "a.mcap")
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    code = cli.main(["convert", str(path), "--out", str(tmp_path / "new")])
    said = capsys.readouterr()
    assert "was cut off" in said.out + said.err
    assert (tmp_path / "new").exists() == (code == 0)
