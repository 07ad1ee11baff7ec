"""An arm whose ways are judged touches nothing: neither itself nor its table, for any chunk."""

from dataclasses import replace
from functools import lru_cache

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_bridge import limits
from robot_bridge.clearance import ASSETS, Clearance
from robot_bridge.collision import Collision
from robot_bridge.gate import Gate, GateConfig
from robot_bridge.workspace import Workspace
from tests.robot_bridge.test_brake import DT_S, assert_kept
from vla.contracts import registry

MARGIN = 0.005
CONFIG = GateConfig(
    rate_hz=1 / DT_S, stale_s=0.5, silent_s=0.3, blind_s=0.2, jump=10.0, stuck=10.0, sag=0.05
)
ROBOTS = ("so101", "panda")
TABLE = Workspace(table=0.0)
FOLDED = {
    # The hand comes down on the shoulder; the hand turns back into the forearm.
    "so101": (0.0, -1.2, 1.69, 1.658, 0.0, 0.4),
    "panda": (0.0, -0.607, 0.0, -2.835, 0.0, -0.0175, 0.7854, 0.03),
}


def spec_of(robot):
    return registry.load("vla.robots", robot).SPEC


@lru_cache
def clearance_of(robot, workspace=TABLE, margin=MARGIN):
    return Clearance(spec_of(robot), workspace, margin)


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

    def assert_free(self, witness, margin=0.0):
        """Nothing was touched at any command, and between them."""
        path = np.array(self.path)
        for k, pose in enumerate(path):
            assert not witness.touching(pose), k
            if k:
                for share in (0.25, 0.5, 0.75):
                    assert not witness.touching(path[k - 1] + share * (pose - path[k - 1])), k
        assert_kept(path, self.limits)


# --- what touches in a pose ------------------------------------------------------------------------


@pytest.mark.parametrize("robot", ROBOTS)
def test_at_home_everything_is_apart_and_nothing_had_to_be_left_out(robot):
    clearance = clearance_of(robot)
    found = clearance.at(np.array(spec_of(robot).home))
    assert found.min() > 0.01
    assert clearance.left_out == ()
    assert clearance.rates.shape == (len(found), len(spec_of(robot).channels))


@pytest.mark.parametrize(
    ("robot", "says"),
    [("so101", "hand would touch shoulder"), ("panda", "hand would touch link5")],
)
def test_a_folded_arm_touches_itself_and_the_links_are_named(robot, says):
    clearance = clearance_of(robot)
    found = clearance.at(np.array(FOLDED[robot]))
    assert found.min() < 0
    assert says in {clearance.says(row) for row in np.flatnonzero(found < 0)}


@pytest.mark.parametrize("robot", ROBOTS)
def test_what_is_said_to_touch_is_what_the_physics_has_contacts_of(robot):
    spec, clearance, witness = spec_of(robot), clearance_of(robot), Witness(robot)
    rng, seen = np.random.default_rng(0), 0
    for _ in range(400):
        pose = rng.uniform(spec.low, spec.high)
        found = clearance.at(pose)
        mine = {
            frozenset(clearance.says(row).replace("the ", "").split(" would touch "))
            for row in np.flatnonzero(found < 0)
        }
        surely = {
            frozenset(clearance.says(row).replace("the ", "").split(" would touch "))
            for row in np.flatnonzero(found < -1e-6)
        }
        theirs = witness.touching(pose)
        assert surely <= theirs | {p for p in surely if False}, surely - theirs
        assert theirs <= mine, theirs - mine
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
