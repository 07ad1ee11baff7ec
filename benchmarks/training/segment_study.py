"""Measures how well sub-tasks are found from motion alone, against contacts in the simulator.

`python -m benchmarks.training.segment_study --task pick_place --robot so101 --seeds 200`
"""

import sys
from dataclasses import dataclass

import numpy as np

from benchmarks import harness
from reward_models.core import segments
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts import behaviours
from sim.vec_env import load_robot, load_task
from vla import cli
from vla.contracts import registry
from vla.contracts.config import validate_min

OBJECTS = {"drawer": "handle", "pick_place": "cube", "put_back": "block"}
"""Tasks with sub-tasks, and the geom that is grasped and released in each."""
FIRST_SEED = 2000
"""Seeds below were used while the method was developed."""
WITHIN = 3
"""A boundary found at most this many frames from the true one is a hit."""
BAR = 0.9
"""Share of demonstrations whose boundaries must all be hit."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Measure whether sub-tasks are found from motion."""

    task: str | None = None
    """Task; every task with an object if not given."""
    robot: str | None = None
    """Robot; every robot if not given."""
    seeds: int = 200
    """Demonstrations of each task and robot."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range."""
        validate_min(self, seeds=1)
        if self.task is not None and self.task not in OBJECTS:
            raise ValueError(f"task: got {self.task}, expected one of {', '.join(sorted(OBJECTS))}")
        if self.robot is not None:
            registry.check("vla.robots", self.robot)


@dataclass(frozen=True, kw_only=True, eq=False)
class Demonstration:
    """What motion shows of an episode, and what the simulator knows of it."""

    state: np.ndarray
    """Measured channel positions, f32 [t, u]."""
    action: np.ndarray
    """Position targets, f32 [t, u]."""
    held: np.ndarray
    """Whether two bodies of the hand touch the object, bool [t]."""
    progress: np.ndarray
    """The oracle's, f32 [t]."""
    success: bool
    """How it ended."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was measured of a task and a robot."""

    demonstrations: int
    """Successful ones."""
    missed: tuple[int, ...]
    """Seeds of those with a boundary missed, or one too many."""
    offset: float
    """Mean distance of a boundary that was found from the true one, in frames."""
    error: float
    """Mean absolute error of the pseudo-progress against the oracle's."""
    error_time: float
    """That of t/T."""


def play(world: MujocoWorld, geom: str, seed: int) -> Demonstration:
    """Run the expert and record the contacts of a geom, which episodes do not store."""
    world.reset(seed, 0)
    state, actions, gripping, progress = [], [], [], []
    action = np.array(world.robot.home)
    ended = False
    stream = behaviours.act_stream(world, world.task, "expert", np.random.default_rng(seed))
    while not ended:
        following = next(stream, None)
        ended = following is None or world.succeeded or world.steps >= world.time_limit
        action = action if following is None or ended else following
        state.append(world.proprio)
        actions.append(np.asarray(action, np.float32))
        gripping.append(world.as_batch.touching(geom)[0] >= 2)
        progress.append(world.progress())
        if not ended:
            world.step(actions[-1])
    return Demonstration(
        state=np.stack(state), action=np.stack(actions), held=np.array(gripping),
        progress=np.array(progress, np.float32), success=world.succeeded,
    )  # fmt: skip


def true_boundaries(gripping: np.ndarray) -> np.ndarray:
    """Return the frame of the first hold and, if it was let go, the first after the last, i64."""
    at = np.flatnonzero(gripping)
    if not len(at):
        return np.zeros(0, np.int64)
    ends = [at[0]] if gripping[-1] else [at[0], at[-1] + 1]
    return np.array(ends, np.int64)


def all_hit(boundaries: np.ndarray, true: np.ndarray) -> bool:
    """Return whether there is one boundary for each true one, close to it."""
    return len(boundaries) == len(true) and bool((np.abs(boundaries - true) <= WITHIN).all())


def measure(task: str, robot: str, seeds: int) -> Result:
    """Run one demonstration per seed; those in which the expert fails are left out."""
    spec = load_robot(robot)
    world = MujocoWorld(compile_scene(load_task(task, None), spec))
    hand = spec.names.index(spec.gripper.channel)
    opening = (spec.gripper.closed, spec.gripper.open)
    missed, offsets, errors = [], [], []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        demo = play(world, OBJECTS[task], seed)
        if not demo.success:
            continue
        fps, true = spec.control_hz, true_boundaries(demo.held)
        boundaries = segments.segments(
            demo.state, demo.action, fps=fps, gripper_index=hand, opening=opening
        )
        if all_hit(boundaries, true):
            offsets.append(np.abs(boundaries - true).mean())
        else:
            missed.append(seed)
        guess = segments.pseudo_progress(demo.state, boundaries, fps=fps, gripper_index=hand)
        time = np.linspace(0, 1, len(guess))
        errors.append([np.abs(curve - demo.progress).mean() for curve in (guess, time)])
    pseudo, clock = np.mean(errors, axis=0) if errors else (np.nan, np.nan)
    return Result(
        demonstrations=len(errors), missed=tuple(missed),
        offset=float(np.mean(offsets)) if offsets else float("nan"),
        error=float(pseudo), error_time=float(clock),
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Print a line per task and robot; exit code 1 if any falls below the bar."""
    args = harness.read(Study, argv, "training.segment_study")
    worst = 1.0
    for task in [args.task] if args.task else sorted(OBJECTS):
        for robot in [args.robot] if args.robot else registry.names("vla.robots"):
            result = measure(task, robot, args.seeds)
            if not result.demonstrations:
                raise ValueError(f"the expert of {task} failed on all seeds; use more --seeds")
            hits = result.demonstrations - len(result.missed)
            share = hits / result.demonstrations
            print(
                f"{task:12} {robot:8} all boundaries within {WITHIN} frames: {share:.1%} of "
                f"{result.demonstrations} (95 % interval "
                f"{harness.interval(hits, result.demonstrations)}), mean offset "
                f"{result.offset:.2f} frames; error of pseudo-progress {result.error:.3f}, of t/T "
                f"{result.error_time:.3f}; missed seeds {list(result.missed[:10])}",
                flush=True,
            )
            worst = min(worst, share)
    return 0 if worst >= BAR else 1


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.segment_study:main", sys.argv[1:]))
