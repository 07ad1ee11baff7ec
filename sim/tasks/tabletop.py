"""Tabletop: one scene, dozens of things to do; the instruction alone tells which.

Two cubes and two cans stand on an arc in front of the arm, between two trays. Each can be touched,
lifted, put on either tray, pushed away, or set down in front of or behind each other one: 44
instructions are valid at once. Front is towards the arm.
"""

import dataclasses
from collections.abc import Iterator

import mujoco
import numpy as np

from sim.core import layout, rewards
from sim.core.task import Unlocked, World, Worlds
from sim.experts import skills
from sim.experts.motions import Motion
from sim.tasks import _language
from sim.tasks._language import ACTS, RELATIONS, Goal, Split
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

THINGS = (("cube0", "cube"), ("can0", "can"), ("cube1", "cube"), ("can1", "can"))
"""Body and shape of each thing; a scene with distractors has the first of them only."""
DISTRACTORS = ("slab", "egg")
WIDTH_M = 0.018
"""Half the width of a cube, and the height at which a thing is pushed."""
CAN_M = (0.017, 0.027)
"""Radius and half the height of a can."""
SPACING_M = 0.09
TRAY_HALF_M = 0.042
TRAY_ASIDE_M = 0.205
"""Distance of a tray's centre from the middle of the arc."""
BESIDE_M = 0.055
"""Distance of a thing in front of another one, or behind it, from that one."""
PUSH_M = 0.055
LIFT_M = 0.04
CLEAR_M = 0.08
"""How high a thing is lifted to be carried over others."""
OTHER_M = 0.04
"""Largest distance by which any other thing may be moved."""
YAW_RAD = 0.3
STAGES = (0.2, 0.15, 0.15, 0.3, 0.1)
"""Weights of reach, grasp, lift, transport and place; the rest is release."""
POINTS = ("thing", "place", "thing_to_tool", "place_to_thing")
GOAL_STATE = (*(f"{point}/{axis}" for point in POINTS for axis in "xyz"), *ACTS)
"""What `Tabletop.goal_state` tells: positions in metres, and 1 for the act."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Which of the instructions it draws from."""

    compositions: Split = "train"
    """Combinations of act, colour and shape: train, held_out (never asked for in training), all."""
    wordings: Split = "train"
    """Wordings: train, held_out or all."""
    distractors: int = 0
    """Things of unknown colour and shape in place of as many others, 0 to 2."""
    goals: tuple[int, ...] = ()
    """Numbers of the goals to draw from, as far as the split has them; empty for all. What is named
    twice is drawn twice as often. With one goal and compositions "all", the same scenes can meet
    every instruction."""

    def build(self, robot: RobotSpec) -> "Tabletop":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        if not 0 <= self.distractors <= len(DISTRACTORS):
            raise ValueError(f"distractors: got {self.distractors}, expected 0, 1 or 2")
        return Tabletop(self, robot)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happens in one episode; in many, with a leading axis on every field."""

    goal: Array
    """Index of the goal in `Tabletop.goals`."""
    act: Array
    """Index of the act in `ACTS`."""
    thing: Array
    """Index of the thing to act on."""
    reference: Array
    """Index of the thing of reference; -1 for none."""
    start_m: np.ndarray
    """Where the things stood, shape (things, 3)."""
    goal_m: np.ndarray
    """Where on the table the thing has to go, shape (3,)."""
    tray_m: np.ndarray
    """Centres of the left and the right tray, shape (2, 3)."""
    touched: np.ndarray
    """Things that the arm has touched, bool, shape (things,)."""
    reach_m: Array
    """Distance of the tool from the thing at the start."""
    carry_m: Array
    """Distance of the thing from `goal_m` at the start."""


class Tabletop(Unlocked[Config]):
    """Satisfies `sim.core.task.Task`, `HasGoals` and `HasReferents`."""

    max_episode_steps = 100
    variants = ("drop", "wrong_object", "near_miss", "hover")
    goal_state_names = GOAL_STATE

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot)
        things = THINGS[: len(THINGS) - config.distractors]
        self.things = tuple(name for name, _ in things)
        self.shapes = tuple(shape for _, shape in things)
        self._half_m = np.array([WIDTH_M if s == "cube" else CAN_M[1] for s in self.shapes])
        self.goals = _language.goals(len(things))
        self._drawn = _language.choose(config.goals, self.shapes, config.compositions)
        self.instructions = _language.instructions(config.compositions, config.wordings)
        near, far = robot.reach_m
        self._middle_m = near + 0.47 * (far - near)

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add the trays and the things."""
        box = mujoco.mjtGeom.mjGEOM_BOX
        for side in ("left", "right"):
            rim = TRAY_HALF_M + 0.005
            layout.add_mark(scene, f"{side}_rim", box, (rim, rim, 0.0008), rgba=(0.1, 0.1, 0.12, 1))
            size = (TRAY_HALF_M, TRAY_HALF_M, 0.002)
            layout.add_mark(scene, f"{side}_tray", box, size, rgba=(0.97, 0.97, 0.97, 1))
        for name, shape in zip(self.things, self.shapes, strict=True):
            if shape == "cube":
                layout.add_block(scene, name, WIDTH_M, 0.04)
            else:
                layout.add_can(scene, name, *CAN_M, 0.04)
        for name in DISTRACTORS[: self.config.distractors]:
            layout.add_oddity(scene, name, WIDTH_M, 0.04)

    def reset(self, world: World) -> None:
        """Draw places, colours, what to do and the wording, one independent of the other."""
        rng, config = world.rng, self.config
        places, angles = self._draw_places(rng)
        middle = angles.mean()
        trays = np.zeros((2, 3))
        for tray, sign, side in zip(trays, (1, -1), ("left", "right"), strict=True):
            angle = middle + sign * TRAY_ASIDE_M / self._middle_m
            radius = self._middle_m + rng.uniform(-0.01, 0.01)
            tray[:2] = radius * np.cos(angle), radius * np.sin(angle)
            layout.place(world, f"{side}_tray", tray, angle)
            layout.place(world, f"{side}_rim", tray, angle)
        order = rng.permutation(len(places))
        kinds = self._draw_kinds(rng)
        for name, (colour, _) in zip(self.things, kinds, strict=True):
            layout.paint(world, name, colour)
        bodies = (*self.things, *DISTRACTORS[: config.distractors])
        turns = rng.uniform(-YAW_RAD, YAW_RAD, size=len(bodies))
        half_m = [*self._half_m, *[WIDTH_M] * config.distractors]
        start = np.array([[*places[k], half] for k, half in zip(order, half_m, strict=True)])
        for name, pos, k, turn in zip(bodies, start, order, turns, strict=True):
            layout.place(world, name, pos, angles[k] + turn)
        mujoco.mj_forward(world.model, world.data)
        goal = self._draw_goal(rng, kinds)
        wordings = _language.wordings(goal.act, config.wordings)
        number = int(rng.integers(len(wordings)))
        named = [kinds[k] for k in (goal.thing, goal.reference) if k is not None]
        world.instruction = _language.instruction(wordings[number], number, *named)
        goal_m = self._goal_m(goal, start, trays)
        tool = world.data.site_xpos[world.tool_site]
        world.episode = Episode(
            goal=self.goals.index(goal),
            act=ACTS.index(goal.act),
            thing=goal.thing,
            reference=-1 if goal.reference is None else goal.reference,
            start_m=start[: len(self.things)],
            goal_m=goal_m,
            tray_m=trays,
            touched=np.zeros(len(self.things), np.bool_),
            reach_m=float(np.linalg.norm(tool - start[goal.thing])),
            carry_m=max(float(np.linalg.norm((goal_m - start[goal.thing])[:2])), 1e-3),
        )

    def _draw_places(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return places (4, 2) on an arc around the arm, and their azimuths (4,)."""
        near, far = self.robot.reach_m
        step = SPACING_M / self._middle_m
        angles = (np.arange(len(THINGS)) - 1.5) * step + rng.uniform(-0.15, 0.15) * step
        angles = angles + rng.uniform(-0.08, 0.08, size=len(angles)) * step
        radius = near + (far - near) * rng.uniform(0.3, 0.64, size=len(angles))
        return np.stack([radius * np.cos(angles), radius * np.sin(angles)], 1), angles

    def _draw_kinds(self, rng: np.random.Generator) -> list[tuple[str, str]]:
        """Draw colours, different for things of one shape, with which some goal is in the split."""
        while True:
            colours = [list(rng.permutation(_language.COLOURS)) for _ in _language.SHAPES]
            kinds = [(str(colours[s == "can"].pop()), s) for s in self.shapes]
            if any(self._is_allowed(goal, kinds) for goal in self._drawn):
                return kinds

    def _is_allowed(self, goal: Goal, kinds: list[tuple[str, str]]) -> bool:
        allowed = _language.is_allowed(goal.act, kinds[goal.thing], self.config.compositions)
        return allowed and goal in self._drawn

    def _draw_goal(self, rng: np.random.Generator, kinds: list[tuple[str, str]]) -> Goal:
        """Draw one of the goals that the split has in this scene, as often as each is named."""
        # Of all goals where none is named twice: so the seeds keep the episodes that they had.
        among = self._drawn if len(set(self._drawn)) < len(self._drawn) else self.goals
        order = [among[k] for k in rng.permutation(len(among))]
        return next(goal for goal in order if self._is_allowed(goal, kinds))

    def _goal_m(self, goal: Goal, start: np.ndarray, trays: np.ndarray) -> np.ndarray:
        if goal.act in ("left", "right"):
            return trays[int(goal.act == "right")].copy()
        base = start[goal.thing if goal.reference is None else goal.reference]
        out = base * (1, 1, 0) / np.linalg.norm(base[:2])
        along = {"push": PUSH_M, "front": -BESIDE_M, "behind": BESIDE_M}.get(goal.act, 0.0)
        return base * (1, 1, 0) + along * out

    def advance(self, worlds: Worlds) -> None:
        """Note which things the arm touches."""
        worlds.episode.touched[:] |= self._contacts(worlds) > 0

    def success(self, worlds: Worlds) -> np.ndarray:
        """True once the goal is reached and every other thing is about where it was."""
        episode = worlds.episode
        rows = np.arange(len(episode.act))
        done = self._reached(worlds)[rows, episode.act, episode.thing]
        return done & ~self._meddled(worlds)

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if another thing was moved, or touched where one is to be touched, or the thing is
        off the table.
        """
        episode = worlds.episode
        rows = np.arange(len(episode.act))
        fell = self._positions(worlds)[rows, episode.thing, 2] < -0.02
        return fell | self._meddled(worlds)

    def achieved(self, worlds: Worlds) -> np.ndarray:
        """Return the index in `goals` of what has been done, i64 [n]; -1 for nothing.

        Of the thing that moved most: where it is, else that it was lifted, or touched.
        """
        episode = worlds.episode
        reached = self._reached(worlds, any_reference=True)
        moved = rewards.length(self._positions(worlds) - episode.start_m)
        n = len(moved)
        result = np.full(n, -1)
        for row in range(n):
            thing = int(moved[row].argmax())
            if moved[row, thing] < 0.02:
                touched = np.flatnonzero(episode.touched[row])
                if len(touched) != 1:
                    continue
                thing = int(touched[0])
            order = ("left", "right", "front", "behind", "push", "lift", "touch")
            for act in order:
                if reached[row, ACTS.index(act), thing]:
                    result[row] = self._index(worlds, row, act, thing)
                    break
        return result

    def _index(self, worlds: Worlds, row: int, act: str, thing: int) -> int:
        if act not in RELATIONS:
            return self.goals.index(Goal(act, thing))
        start = worlds.episode.start_m[row]
        pos = self._positions(worlds)[row, thing]
        others = [k for k in range(len(self.things)) if k != thing]
        nearest = min(others, key=lambda k: float(np.linalg.norm((start[k] - pos)[:2])))
        return self.goals.index(Goal(act, thing, nearest))

    def goal_index(self, worlds: Worlds) -> np.ndarray:
        """Return the index in `goals` of the goal of each world, i64 [n]."""
        goal: np.ndarray = worlds.episode.goal
        return goal

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`."""
        rows, episode = np.arange(len(worlds.steps)), worlds.episode
        positions, reference = self._positions(worlds), np.asarray(episode.reference)
        # A thing is easier to find than an empty place; the words tell on which side of it.
        beside = (reference >= 0)[:, None]
        place = np.where(beside, positions[rows, reference], episode.goal_m)
        return np.stack([positions[rows, episode.thing], place], 1)

    def goal_state(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasGoals`."""
        rows, episode = np.arange(len(worlds.steps)), worlds.episode
        thing_m, place_m = self._positions(worlds)[rows, episode.thing], episode.goal_m
        points = (thing_m, place_m, thing_m - worlds.tool_m, place_m - thing_m)
        return np.concatenate([*points, np.eye(len(ACTS))[episode.act]], 1)

    def progress(self, worlds: Worlds) -> np.ndarray:
        """Reach, grasp, lift, transport, place, release, as far as the act has them; below 1 until
        success.
        """
        episode = worlds.episode
        rows = np.arange(len(episode.act))
        thing = self._positions(worlds)[rows, episode.thing]
        near = rewards.share_done(rewards.length(worlds.tool_m - thing), episode.reach_m)
        height = np.clip((thing[:, 2] - self._half_m[episode.thing]) / LIFT_M, 0.0, 1.0)
        left = rewards.length((thing - episode.goal_m)[:, :2])
        way = rewards.share_done(np.maximum(left - 0.02, 0.0), episode.carry_m)
        held = self._contacts(worlds)[rows, episode.thing] >= 2
        there = left < 0.025
        touch, lift, push = (episode.act == ACTS.index(act) for act in ("touch", "lift", "push"))
        grasped = np.where(there, 1.0, height), np.where(there, 1.0, height * way)
        down = np.where(there, 1.0 - height, 0.0)
        carried = rewards.staged((1.0, 1.0, *grasped, down), STAGES)
        part = np.where(held, carried, np.where(there, 0.9 + 0.05 * (1.0 - height), 0.2 * near))
        part = np.where(touch, 0.95 * near, part)
        part = np.where(lift, np.where(held, 0.35 + 0.6 * height, 0.35 * near), part)
        part = np.where(push, 0.3 * near + 0.65 * way, part)
        return np.where(self.success(worlds), 1.0, np.minimum(part, 0.99))

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Do what the goal says; the variants take another thing, or fail as their name says."""
        episode, rng = world.episode, world.rng
        motion = Motion(world)
        motion.wide = motion.opened(0.62)  # between neighbours
        act, number = ACTS[int(episode.act)], int(episode.thing)
        goal = episode.goal_m.copy()
        if variant == "wrong_object":
            number = (number + int(rng.integers(1, len(self.things)))) % len(self.things)
            if act == "push":
                goal = self._goal_m(Goal(act, number), episode.start_m, episode.tray_m)
        name = self.things[number]
        pos = layout.block_pos_m(world, name)
        if variant == "hover":
            yield from motion.hover(pos + (0.0, 0.0, rng.uniform(0.05, 0.06)))
        elif variant == "expert":
            for _ in range(skills.ATTEMPTS):
                yield from self._attempt(motion, act, number, goal)
        elif act == "touch":
            beside = pos / np.linalg.norm(pos[:2]) * (1, 1, 0) * (variant == "near_miss") * 0.045
            yield from self._touch(motion, number, beside)
        elif act == "push":
            share = {"near_miss": 0.35, "drop": 0.4}.get(variant, 1.0)
            yield from self._push(motion, name, pos + share * (goal - pos))
        else:
            yield from self._pick(motion, number)
            yield from self._finish(motion, act, variant, pos, goal)
        yield from motion.wait(4)

    def _attempt(
        self, motion: Motion, act: str, number: int, goal: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Do what the act says from where thing and hand are now."""
        name, half_m = self.things[number], self._half_m[number]
        if act == "touch":
            yield from self._touch(motion, number, np.zeros(3))
        elif act == "push":
            yield from self._push(motion, name, goal)
        elif act == "lift":
            yield from self._pick(motion, number)
        else:
            clearance = 0.03 + 2 * half_m
            yield from skills.put(
                motion, name, goal, half_m=half_m, lift_m=CLEAR_M, clearance_m=clearance
            )

    def _touch(self, motion: Motion, number: int, beside: np.ndarray) -> Iterator[np.ndarray]:
        pos = layout.block_pos_m(motion.world, self.things[number])
        yield from motion.press(pos + beside + (0.0, 0.0, self._half_m[number]))

    def _push(self, motion: Motion, name: str, goal: np.ndarray) -> Iterator[np.ndarray]:
        return skills.push(motion, name, goal[:2], half_m=WIDTH_M, behind_m=0.048, stride_m=0.022)

    def _pick(self, motion: Motion, number: int) -> Iterator[np.ndarray]:
        return skills.pick(
            motion, self.things[number], lift_m=CLEAR_M,
            clearance_m=0.03 + 2 * self._half_m[number],
        )  # fmt: skip

    def _finish(
        self, motion: Motion, act: str, variant: str, pos: np.ndarray, goal: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Do with a thing in the hand what the act says."""
        half_m = pos[2]
        on_table = pos * (1, 1, 0)
        if act == "lift":
            if variant in ("near_miss", "drop"):
                yield from skills.place(motion, on_table, half_m=half_m, up_m=CLEAR_M)
            else:
                yield from motion.move(pos + (0.0, 0.0, 1.5 * LIFT_M), max_steps=12)
            return
        if variant == "near_miss":
            way = (goal - on_table) / max(float(np.linalg.norm(goal - on_table)), 1e-6)
            goal = goal - way * (TRAY_HALF_M + 0.5 * WIDTH_M)
        if variant == "drop":
            goal = on_table + 0.4 * (goal - on_table)
        yield from skills.carry(motion, goal, height_m=half_m + CLEAR_M)
        if variant == "drop":
            yield from motion.grip(motion.wide)
            return
        yield from skills.place(motion, goal, half_m=half_m, up_m=CLEAR_M)

    def _positions(self, worlds: Worlds) -> np.ndarray:
        return np.stack([worlds.body_pos_m(name) for name in self.things], 1)

    def _contacts(self, worlds: Worlds) -> np.ndarray:
        return np.stack([worlds.touching(name) for name in self.things], 1)

    def _meddled(self, worlds: Worlds) -> np.ndarray:
        """Return where a thing other than the goal's was moved, or touched in place of it."""
        episode = worlds.episode
        other = np.arange(len(self.things)) != np.asarray(episode.thing)[:, None]
        moved = rewards.length(self._positions(worlds) - episode.start_m) > OTHER_M
        touch = (np.asarray(episode.act) == ACTS.index("touch"))[:, None]
        return (other & (moved | (touch & episode.touched))).any(1)

    def _reached(self, worlds: Worlds, *, any_reference: bool = False) -> np.ndarray:
        """Return bool [n, acts, things]: which thing is as each act leaves it.

        In relation to the episode's thing of reference, or to any other thing.
        """
        episode, pos = worlds.episode, self._positions(worlds)
        contacts = self._contacts(worlds)
        speed = np.stack([worlds.body_speed_m_s(name) for name in self.things], 1)
        rests = (pos[..., 2] < self._half_m + 0.008) & (pos[..., 2] > 0.0) & (speed < 0.03)
        left_alone = rests & (contacts == 0)
        start = episode.start_m
        out = start[..., :2] / rewards.length(start[..., :2])[..., None]
        way = (pos - start)[..., :2]
        along, across = _components(way, out)
        trays = np.abs(pos[:, None, :, :2] - episode.tray_m[:, :, None, :2]).max(-1) < TRAY_HALF_M
        # Of every thing from every other one, along the way from the arm and across it.
        ahead, beside = _components(pos[:, :, None, :2] - start[:, None, :, :2], out[:, None])
        close = np.abs(beside) < 0.03
        steady = (rewards.length(pos - start) < 0.02)[:, None, :]
        front = close & steady & (ahead > -0.085) & (ahead < -0.036)
        behind = close & steady & (ahead > 0.036) & (ahead < 0.085)
        count = len(self.things)
        wanted = np.broadcast_to(~np.eye(count, dtype=bool), front.shape)
        if not any_reference:
            named = np.arange(count) == np.asarray(episode.reference)[:, None]
            wanted = wanted & named[:, None, :]
        table = {
            "touch": episode.touched,
            "lift": (pos[..., 2] > self._half_m + LIFT_M) & (contacts >= 2),
            "left": left_alone & trays[:, 0],
            "right": left_alone & trays[:, 1],
            "push": rests & (along > 0.035) & (along < 0.09) & (np.abs(across) < 0.03),
            "front": left_alone & (front & wanted).any(2),
            "behind": left_alone & (behind & wanted).any(2),
        }
        return np.stack([table[act] for act in ACTS], 1)


def _components(offset: np.ndarray, axis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the components of offsets [..., 2] along unit vectors [..., 2] and across them."""
    return np.vecdot(offset, axis), offset[..., 1] * axis[..., 0] - offset[..., 0] * axis[..., 1]
