"""The recorded episodes that critics are trained, chosen and tested on: who, where, which seed."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sim.layout import COLOURS
from sim.vec_env import load_task
from training import demos
from training.critic.clips import Clips, composed, load_clips
from vla.contracts.config import check_least

TRAIN_SEED = 10
VALIDATION_SEED = 11
TEST_SEED = 12
"""Test splits use this one and those after it."""


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Which tasks a critic learns, is chosen by, and is tested on beside those it learned."""

    train: tuple[str, ...] = ("reach", "pick_place", "drawer", "cue_colour")
    """Learned, and tested in held-out layouts, camera poses, colours, compositions and robots."""
    validation: tuple[str, ...] = ("push",)
    """Never learned: with held-out layouts of the others, it decides which weights are kept."""
    test: tuple[str, ...] = ("put_back",)
    """Never learned and never validated on."""
    composition: tuple[str, ...] = ("reach:blue", "pick_place:red")
    """Task and colour that are never learned together, though each is learned apart."""
    robot: str = "so101"
    """The arm that is learned."""
    other_robot: str = "panda"
    """An arm that is never learned."""

    def __post_init__(self) -> None:
        """Refuse sets that overlap."""
        names = (*self.train, *self.validation, *self.test)
        if not self.train or len(set(names)) < len(names):
            raise ValueError(f"tasks: got {names}, expected some to train on and none twice")
        for name in names:
            load_task(name)
        for pair in self.composition:
            task, _, colour = pair.partition(":")
            load_task(task)
            if colour not in COLOURS:
                raise ValueError(
                    f"composition: got {pair!r}, expected a task and one of "
                    f"{', '.join(COLOURS)}, such as reach:blue"
                )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Episodes per task."""

    train: int = 600
    """To learn from."""
    instead: tuple[str, ...] = ("reach:1500", "cue_colour:1500")
    """Tasks of which other numbers are learned from: short ones, and what is to be remembered."""
    validation: int = 60
    """To choose weights and calibrate with."""
    test: int = 80
    """Of each test split."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, train=1, validation=1, test=1)
        for pair in self.instead:
            task, _, number = pair.partition(":")
            if not number.isdigit() or not int(number):
                raise ValueError(f"instead: got {pair!r}, expected a task and a number, reach:1500")
            load_task(task)

    def to_train(self, task: str) -> int:
        """Return how many episodes of a task are learned from."""
        own = dict(pair.split(":") for pair in self.instead)
        return int(own.get(task, self.train))


@dataclass(frozen=True, kw_only=True)
class Split:
    """A set of episodes by name."""

    name: str
    tasks: tuple[str, ...]
    episodes: tuple[int, ...]
    """Of each of the tasks."""
    seed: int
    looks: str = "usual"
    robot: str = "so101"
    composition: bool | None = None
    """Keep only held-out compositions (True), drop them (False), or keep all (None)."""


def splits(tasks: Tasks, sizes: Sizes) -> dict[str, Split]:
    """Return every set by name: train, validation, then the test splits."""
    validated = (*tasks.train, *tasks.validation)
    coloured = tuple(dict.fromkeys(pair.partition(":")[0] for pair in tasks.composition))
    found = [
        Split(
            name="train", tasks=tasks.train, seed=TRAIN_SEED, robot=tasks.robot,
            episodes=tuple(map(sizes.to_train, tasks.train)), composition=False,
        ),
        Split(
            name="validation", tasks=validated, episodes=(sizes.validation,) * len(validated),
            seed=VALIDATION_SEED, robot=tasks.robot, composition=False,
        ),
    ]  # fmt: skip
    own = Split(
        name="layout", tasks=tasks.train, episodes=(sizes.test,) * len(tasks.train),
        seed=TEST_SEED, robot=tasks.robot, composition=False,
    )  # fmt: skip
    found += [
        own,
        replace(own, name="camera", seed=TEST_SEED + 1, looks="camera"),
        replace(own, name="surface", seed=TEST_SEED + 2, looks="surface"),
        # One colour in four: four times as many give as many.
        replace(
            own, name="composition", seed=TEST_SEED + 3, tasks=coloured,
            episodes=(4 * sizes.test,) * len(coloured), composition=True,
        ),
        replace(
            own, name="task", seed=TEST_SEED + 4, tasks=tasks.test,
            episodes=(sizes.test,) * len(tasks.test), composition=None,
        ),
        replace(own, name="robot", seed=TEST_SEED + 5, robot=tasks.other_robot),
    ]  # fmt: skip
    return {split.name: split for split in found if split.tasks}


def record(split: Split, folder: Path) -> list[Path]:
    """Record what is missing of a split, a data set per task, and return their places.

    Raises:
        ValueError: a place holds another recording.
        vla.interrupted.Interrupted: Ctrl-C; what was saved is continued by the next call.
    """
    places = []
    for task, episodes in zip(split.tasks, split.episodes, strict=True):
        place = folder / f"{split.name}-{task}"
        config = demos.DemosConfig(
            out=place, task=load_task(task), robot=split.robot, episodes=episodes,
            behaviour="mixed", looks=split.looks, seed=split.seed,
        )  # fmt: skip
        demos.check(config)
        demos.record_demos(config)
        places.append(place)
    return places


def load(
    split: Split, folder: Path, tasks: Tasks, cameras: tuple[str, ...], stride_s: float, px: int
) -> Clips:
    """Record what is missing of a split and return its episodes.

    Raises:
        ValueError: no episode is left.
    """

    def wanted(task: np.ndarray, instruction: np.ndarray) -> np.ndarray:
        if split.composition is None:
            return np.ones(len(task), np.bool_)
        return composed(task, instruction, tasks.composition) == split.composition

    clips = load_clips(record(split, folder), cameras, stride_s, px, wanted)
    if not clips.episodes:
        raise ValueError(
            f"{split.name}: no episode of {sum(split.episodes)} is left for compositions "
            f"{', '.join(tasks.composition)}; record more episodes"
        )
    return clips
