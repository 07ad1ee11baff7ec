"""An arm whose ways are judged touches nothing: neither itself nor its table, for any chunk."""

from functools import lru_cache

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_bridge.motion import limits
from robot_bridge.motion.workspace import Workspace
from robot_bridge.safety.arm_model import ASSETS
from robot_bridge.safety.clearance import Clearance
from robot_bridge.safety.collision import Collision
from robot_bridge.safety.gate import Gate
from robot_bridge.safety.gate_config import GateConfig
from tests.robot_bridge.test_braking import DT_S, assert_kept
from vla.contracts import registry

MARGIN = 0.005
CONFIG = GateConfig(
    rate_hz=1 / DT_S,
    max_chunk_age_s=0.5,
    command_timeout_s=0.3,
    joint_state_timeout_s=0.2,
    max_start_deviation=10.0,
    max_tracking_error=10.0,
    rest_position_tolerance=0.05,
)
ROBOTS = ("so101", "panda")
TABLE = Workspace(table=0.0)
FOLDED = {  # the forearm leans on the shoulder; the flange is turned back into the forearm
    "so101": (0.0, -1.7, 1.3, 0.0, 0.0, 0.4),
    "panda": (0.0, -0.607, 0.0, -2.835, 0.0, -0.0175, 0.7854, 0.03),
}
LOW = {  # through the table in front of the arm
    "so101": (0.0, 0.9, 0.6, 0.6, 0.0, 0.4),
    "panda": (0.0, 0.6, 0.0, -2.2, 0.0, 2.9, 0.7854, 0.03),
}


def spec_of(robot):
    return registry.load("vla.robots", robot).SPEC


@lru_cache
def clearance_of(robot, workspace=TABLE, margin=MARGIN):
    return Clearance(spec_of(robot), workspace, margin)


def said(clearance, pose, below=0.0):
    """Return the pairs of names that are said to be closer than something."""
    rows = np.flatnonzero(clearance.at(np.array(pose)) < below)
    words = (clearance.describe(int(row)).replace("the ", "") for row in rows)
    return {frozenset(one.split(" would touch ")) for one in words}


class Witness:
    """Says what touches by the contacts of MuJoCo, of a model in which all may touch."""

    def __init__(self, robot, table=0.0):
        spec = mujoco.MjSpec.from_file(str(ASSETS / spec_of(robot).mjcf))
        for geom in spec.geoms:
            geom.contype = geom.conaffinity = 1
            geom.margin = geom.gap = 0.0
        spec.worldbody.add_geom(
            name="table", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(1, 1, 1), pos=(0, 0, table)
        )
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)

    def touching(self, pose):
        self.data.qpos[: len(pose)] = pose
        self.data.qpos[len(pose) :] = pose[-1]  # the other finger
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_collision(self.model, self.data)
        found = set()
        for one in self.data.contact:
            pair = frozenset(self.name(geom) for geom in one.geom)
            fingers = all("jaw" in name or "finger" in name for name in pair)
            fixed = pair in (
                {"base", "shoulder"},
                {"base", "table"},
                {"link0", "link1"},
                {"link0", "table"},
            )
            if one.dist < 0 and not fingers and not fixed:
                found.add(pair)
        return found

    def name(self, geom):
        body = self.model.geom_bodyid[geom]
        return self.model.body(body).name if body else self.model.geom(geom).name


class Arm:
    """A gate with obstacles, and an arm that is where it is told to be."""

    def __init__(self, robot, start=None, workspace=TABLE, speed=1.0, margin=MARGIN):
        spec = spec_of(robot)
        self.limits = limits.of_spec(spec).scaled(speed)
        self.obstacles = Collision(clearance_of(robot, workspace, margin), margin)
        self.gate = Gate(CONFIG, self.limits, self.obstacles)
        self.now_s, self.pose = 100.0, np.array(spec.home if start is None else start, np.float64)
        self.path = [self.pose]
        self.tick()
        assert self.gate.enable(self.now_s, True) == ""

    def tick(self, count=1):
        for _ in range(count):
            self.now_s += DT_S
            self.gate.measure(self.now_s, self.pose)
            command = self.gate.tick(self.now_s)
            if command is not None:
                self.pose = command
                self.path.append(command)

    def offer(self, positions, hz=10.0):
        times_s = self.now_s + np.arange(1, len(positions) + 1) / hz
        return self.gate.offer(self.now_s, "policy", times_s, np.array(positions), 0.0)

    def go(self, target, seconds=4.0, share=0.4):
        """Send chunks on the straight way to a pose, whatever is said of them."""
        target = np.array(target, np.float64)
        for _ in range(round(10 * seconds)):
            step = share * self.limits.velocity * np.arange(1, 9)[:, None] / 10
            self.offer(self.pose + np.clip(target - self.pose, -step, step))
            self.tick(10)

    def assert_free(self, witness):
        """Nothing was touched at any command, and between them."""
        path = np.array(self.path)
        moved = np.flatnonzero(np.diff(path, axis=0, prepend=path[:1] - 1).any(1))
        for k in moved:
            for share in (0.0, 0.3, 0.6):
                before = path[max(k - 1, 0)]
                assert not witness.touching(path[k] + share * (before - path[k])), k
        assert_kept(path, self.limits)


# --- what touches in a pose -------------------------------------------------------------------


@pytest.mark.parametrize("robot", ROBOTS)
def test_at_home_everything_is_apart_and_nothing_had_to_be_left_out(robot):
    clearance = clearance_of(robot)
    found = clearance.at(np.array(spec_of(robot).home))
    assert found.min() > 0.01
    assert clearance.left_out == ()
    assert clearance.rates.shape == (len(found), len(spec_of(robot).channels))


@pytest.mark.parametrize(
    ("robot", "pair"), [("so101", {"forearm", "shoulder"}), ("panda", {"link5", "link7"})]
)
def test_a_folded_arm_touches_itself_and_the_links_are_named(robot, pair):
    assert pair in said(clearance_of(robot), FOLDED[robot])


@pytest.mark.parametrize("robot", ROBOTS)
def test_what_is_said_to_touch_is_what_the_physics_has_contacts_of(robot):
    spec, clearance, witness = spec_of(robot), clearance_of(robot), Witness(robot)
    rng, seen = np.random.default_rng(0), 0
    for _ in range(400):
        pose = rng.uniform(spec.low, spec.high)
        theirs = witness.touching(pose)
        assert said(clearance, pose, -1e-6) <= theirs <= said(clearance, pose, 1e-6)
        seen += len(theirs)
    assert seen > 100


@pytest.mark.parametrize("robot", ROBOTS)
def test_distances_change_no_faster_than_is_said(robot):
    spec, rng = spec_of(robot), np.random.default_rng(1)
    box = Workspace(low=(-0.1, -0.2, 0.0), high=(0.3, 0.2, 0.5), table=0.0)
    clearance = clearance_of(robot, box)
    low, high = np.array(spec.low), np.array(spec.high)
    for scale in (0.3, 0.03):
        for _ in range(300):
            here = rng.uniform(low, high)
            there = np.clip(here + scale * rng.normal(size=len(low)) * (high - low) / 4, low, high)
            one = rng.random(len(low)) < 0.4  # some channels alone: no slack of the others
            there = np.where(one, there, here)
            a, b = clearance.at(here), clearance.at(there)
            bound = clearance.rates @ np.abs(there - here)
            assert (np.abs(a - b) <= bound + 1e-5)[(a > 0) & (b > 0)].all()


# --- ways ------------------------------------------------------------------------------------


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize(("to", "word"), [(LOW, "the table"), (FOLDED, "would touch")])
def test_an_arm_stands_before_it_touches_and_then_follows_a_better_chunk(robot, to, word):
    arm = Arm(robot)
    arm.go(to[robot])
    assert arm.gate.stage == "collision"
    assert word in arm.gate.why
    nearest = min(arm.obstacles.clearance.at(pose).min() for pose in arm.path)
    assert MARGIN - 1e-5 <= nearest < 4 * MARGIN
    counted = arm.gate.counts["collision"]
    away = np.array(spec_of(robot).home)
    if to is LOW:  # straight up
        away[2:] = arm.pose[2:]
    arm.go(away)
    assert arm.gate.counts["collision"] == counted
    np.testing.assert_allclose(arm.pose, away, atol=0.02)
    arm.assert_free(Witness(robot))


def test_a_hand_stays_inside_its_workspace():
    box = Workspace(low=(-0.4, -0.15, 0.0), high=(0.5, 0.15, 0.5))
    arm = Arm("so101", workspace=box)
    for pan, side in ((1.5, "+y"), (-1.5, "-y")):
        arm.go((pan, 0.3, 0.0, 0.3, 0.0, 0.4))
        assert arm.gate.why.endswith(f" would leave the workspace at {side}")
    rows = arm.obstacles.clearance.at(arm.pose)
    assert MARGIN - 1e-5 <= rows.min() < 4 * MARGIN
    assert abs(arm.pose[0]) > 0.2
    arm.assert_free(Witness("so101"))


@pytest.mark.parametrize("robot", ROBOTS)
def test_an_arm_that_touches_when_it_is_armed_may_leave_but_not_press_and_not_come_back(robot):
    near = Arm(robot)
    near.go(LOW[robot])
    start, up = near.pose, near.pose.copy()
    up[1] = spec_of(robot).home[1]
    arm = Arm(robot, start, workspace=Workspace(table=MARGIN + 0.004))

    def depth():
        return arm.obstacles.clearance.at(arm.pose).min()

    deepest = depth()
    assert deepest == pytest.approx(-0.004, abs=1e-3)
    arm.go(LOW[robot], seconds=1.0)
    assert arm.gate.counts["collision"] > 0
    assert "would touch the table" in arm.gate.why
    assert depth() >= deepest - 1e-5
    arm.go(up)
    np.testing.assert_allclose(arm.pose, up, atol=0.02)
    assert depth() > MARGIN
    left = len(arm.path)
    arm.go(LOW[robot])
    nearest = min(arm.obstacles.clearance.at(pose).min() for pose in arm.path[left:])
    assert MARGIN - 1e-5 <= nearest < 4 * MARGIN
    assert_kept(np.array(arm.path), arm.limits)


def test_who_is_too_fast_to_be_judged_is_refused_and_touches_nothing(monkeypatch):
    monkeypatch.setattr("robot_bridge.safety.collision.MOST", 1)
    arm = Arm("so101")
    arm.go(LOW["so101"], share=1.0)
    arm.assert_free(Witness("so101"))
    assert arm.gate.counts["collision"] > 0


@given(
    robot=st.sampled_from(ROBOTS),
    seed=st.integers(0, 2**32 - 1),
    speed=st.sampled_from([1.0, 0.5]),
    goals=st.lists(
        st.tuples(st.sampled_from(["any", "low", "folded", "home", "jumps"]), st.integers(1, 12)),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
@settings(max_examples=12)
def test_no_command_ever_touches_for_any_chunk_if_the_start_did_not(robot, seed, speed, goals):
    arm, spec, rng = Arm(robot, speed=speed), spec_of(robot), np.random.default_rng(seed)
    for kind, chunks in goals:
        near = {"low": LOW[robot], "folded": FOLDED[robot], "home": spec.home}.get(kind)
        goal = rng.uniform(spec.low, spec.high)
        if near is not None:
            goal = np.array(near) + rng.normal(size=len(near)) * 0.05
        for _ in range(chunks):
            if kind == "jumps":
                arm.offer(rng.uniform(spec.low, spec.high, (3, len(spec.low))), hz=5.0)
            else:
                step = arm.limits.velocity * np.arange(1, 9)[:, None] / 10
                arm.offer(arm.pose + np.clip(goal - arm.pose, -step, step))
            arm.tick(int(rng.integers(1, 15)))
    arm.assert_free(Witness(robot))
