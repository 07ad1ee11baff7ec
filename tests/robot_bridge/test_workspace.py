"""Where an arm may be is read strictly, and its model says what belongs together."""

from dataclasses import replace

import numpy as np
import pytest

from robot_bridge.launching import package_files
from robot_bridge.motion import limits
from robot_bridge.motion.workspace import Workspace
from robot_bridge.safety.arm_model import ASSETS
from robot_bridge.safety.clearance import Clearance
from vla.contracts import registry

SO101 = registry.load("vla.robots", "so101").SPEC
JOINTS = (package_files.params() / "so101_limits.yaml").read_text()


@pytest.fixture
def read(tmp_path):
    def read_(section):
        file = tmp_path / "limits.yaml"
        file.write_text(f"{JOINTS}\n{section}\n")
        return limits.read(file, SO101)

    return read_


def test_a_workspace_is_read_and_stays_at_any_speed(read):
    found = read("workspace:\n  low: [0.05, -0.3, 0]\n  high: [0.4, 0.3, 0.5]\n  table: -0.01")
    box = Workspace(low=(0.05, -0.3, 0.0), high=(0.4, 0.3, 0.5), table=-0.01)
    assert found.workspace == box
    assert found.scaled(0.1).workspace == box
    assert read("workspace: {table: 0}").workspace == Workspace(table=0.0)
    assert read("").workspace is None


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("workspace:", "workspace is None, expected low and high as [x, y, z], or table as z"),
        ("workspace: [0, 0, 0]", "workspace is [0, 0, 0], expected low and high as"),
        ("workspace: {tabel: 0}", "workspace: unknown key 'tabel'; it has low, high, table"),
        ("workspace: {low: [0, 0, 0]}", "workspace: low is given and high is not; give both"),
        ("workspace: {high: [0, 0, 0]}", "workspace: high is given and low is not; give both"),
        ("workspace: {low: [0, 0], high: [1, 1, 1]}", "low is [0, 0], expected three numbers"),
        ("workspace: {low: [0, 0, a], high: [1, 1, 1]}", "low is [0, 0, 'a'], expected three"),
        ("workspace: {low: [0, 0, .nan], high: [1, 1, 1]}", "expected three numbers [x, y, z]"),
        ("workspace: {low: [0, 0, true], high: [1, 1, 1]}", "expected three numbers [x, y, z]"),
        ("workspace: {low: [0, 1, 0], high: [1, 1, 1]}", "y has no room from 1 to 1; low has to"),
        ("workspace: {table: .inf}", "workspace: table is inf, expected its height z in metres"),
        ("workspaces: {table: 0}", "unknown section 'workspaces'; there may be joints and work"),
    ],
)
def test_a_wrong_workspace_is_named_in_one_sentence(read, section, said):
    with pytest.raises(ValueError, match="limits.yaml: ") as error:
        read(section)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# --- what the model says ---------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    def model_(*changes):
        text = (ASSETS / "so101.xml").read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "arm.xml"
        file.write_text(text)
        return replace(SO101, mjcf=str(file))

    return model_


def watched(clearance):
    return {clearance.describe(row) for row in range(len(clearance.rates))}


def test_what_belongs_together_is_not_watched(model):
    words = watched(Clearance(model(), Workspace(table=0.0), 0.005))
    assert "forearm would touch shoulder" in words
    assert "upper_arm would touch shoulder" not in words  # at a joint
    assert "jaw_right would touch jaw_left" not in words  # a gripper
    assert "jaw_right would touch hand" not in words
    assert "base would touch the table" not in words  # it stands there
    assert "hand would touch the table" in words


def test_the_hand_alone_has_sides_to_keep_from():
    box = Workspace(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))
    words = watched(Clearance(SO101, box, 0.005))
    sided = {one.split(" would leave ")[0] for one in words if "leave the workspace" in one}
    assert sided == {"hand", "jaw_left", "jaw_right"}
    assert "hand would leave the workspace at -x" in words


def test_pairs_that_the_model_excludes_or_that_touch_at_home_are_left_out_and_the_latter_told(
    model,
):
    excluded = '<contact><exclude body1="shoulder" body2="forearm"/></contact>'
    arm = model(("<equality>", excluded + "<equality>"))
    clearance = Clearance(arm, None, 0.005)
    assert "forearm would touch shoulder" not in watched(clearance)
    assert clearance.left_out == ()
    clearance = Clearance(SO101, None, 0.03)
    assert clearance.left_out == ("jaw_left would touch wrist", "jaw_right would touch wrist")
    assert len(clearance.rates) == len(Clearance(SO101, None, 0.005).rates) - 2


def test_a_shape_for_the_eye_alone_touches_nothing_and_one_must_be_there(model):
    arm = model(('<geom name="forearm"', '<geom name="forearm" contype="0" conaffinity="0"'))
    words = watched(Clearance(arm, Workspace(table=0.0), 0.005))
    assert not any("forearm" in one for one in words)
    arm = model(('contype="2" conaffinity="1"', 'contype="0" conaffinity="0"'))
    with pytest.raises(ValueError, match="no link has a shape that collides; give its geoms"):
        Clearance(arm, None, 0.005)


def test_a_finger_that_follows_is_where_its_equality_says(model):
    half = model(('polycoef="0 1 0 0 0"', 'polycoef="0.1 0.5 0.2 0 0"'))
    one, other = Clearance(half, None, 0.005), Clearance(SO101, None, 0.005)
    row = next(k for k in range(len(one.rates)) if one.describe(k) == "jaw_right would touch wrist")
    pose, same = np.array(SO101.home), np.array(SO101.home)
    pose[-1], same[-1] = 0.6, 0.1 + 0.5 * 0.6 + 0.2 * 0.6**2
    assert one.at(pose)[row] == pytest.approx(other.at(same)[row], abs=1e-9)
    # The fastest of 0.5 + 0.4 x for x up to 1.
    assert one.rates[row, -1] == pytest.approx(0.9 * other.rates[row, -1])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("<equality>", "<!--"), ("</equality>", "-->")], "joint 'gripper_mirror' is no channel"),
        ([('name="wrist_roll"', 'name="roll"'), ('joint="wrist_roll"', 'joint="roll"')],
         "no joint named 'wrist_roll', a channel of the arm"),
        ([('name="tool"', 'name="tip"')], "no site named 'tool'"),
        ([("</worldbody>", "</body>")], "cannot read it ("),
    ],
)  # fmt: skip
def test_a_model_that_does_not_say_enough_is_refused_in_one_sentence(model, changes, said):
    with pytest.raises(ValueError, match="robot 'so101'") as error:
        Clearance(model(*changes), None, 0.005)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no model there, which says what collides"):
        Clearance(replace(SO101, mjcf="/nowhere.xml"), None, 0.005)
