"""Splits of recorded episodes for training, validation and tests of reward models."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sim.core.layout import COLOURS
from sim.vec_env import load_task
from training.data import demos
from training.reward_model.clips import Clips, composed, load_clips
from vla.contracts.config import validate_min

TRAIN_SEED = 10
VALIDATION_SEED = 11
TEST_SEED = 12
"""Seed of the first test split; the others use the next ones."""
HELD_OUT = "held_out"
"""Stands in `Tasks.composition` for the combinations that a task itself holds out of training."""


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Tasks of training, validation and tests."""

    train: tuple[str, ...] = ("reach", "pick_place", "drawer", "cue_colour")
    """Trained on; tested in held-out layouts, camera poses, surfaces, compositions and robots."""
    validation: tuple[str, ...] = ("push",)
    """Not trained on; validated together with held-out layouts of the training tasks."""
    test: tuple[str, ...] = ("put_back",)
    """Neither trained nor validated on."""
    composition: tuple[str, ...] = ("reach:blue", "pick_place:red")
    """Pairs of task and colour held out of training; each is trained on separately. TASK:held_out
    stands for what the task itself holds out (`tabletop`)."""
    robot: str = "so101"
    """Arm of training and validation."""
    other_robot: str = "panda"
    """Arm of test split `robot` alone."""

    def __post_init__(self) -> None:
        """Refuse unknown or overlapping tasks."""
        names = (*self.train, *self.validation, *self.test)
        if not self.train or len(set(names)) < len(names):
            raise ValueError(f"tasks: got {names}, expected some to train on and none twice")
        for name in names:
            load_task(name)
        for pair in self.composition:
            task, _, colour = pair.partition(":")
            holds_out = hasattr(load_task(task), "compositions")
            if colour not in COLOURS and not (holds_out and colour == HELD_OUT):
                raise ValueError(
                    f"composition: got {pair!r}, expected a task and one of "
                    f"{', '.join(COLOURS)}, such as reach:blue"
                )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of episodes per task."""

    train: int = 600
    """For training."""
    episodes_per_task: tuple[str, ...] = ("reach:1500", "cue_colour:1500")
    """Other numbers for training, TASK:NUMBER: short tasks and those that need memory."""
    validation: int = 60
    """For the choice of weights and the calibration."""
    test: int = 80
    """Of each test split."""

    def __post_init__(self) -> None:
        validate_min(self, train=1, validation=1, test=1)
        for pair in self.episodes_per_task:
            task, _, number = pair.partition(":")
            if not number.isdigit() or not int(number):
                raise ValueError(
                    f"episodes_per_task: got {pair!r}, expected a task and a number, reach:1500"
                )
            load_task(task)

    def training_episodes(self, task: str) -> int:
        """Return the number of training episodes of a task."""
        numbers = dict(pair.split(":") for pair in self.episodes_per_task)
        return int(numbers.get(task, self.train))


@dataclass(frozen=True, kw_only=True)
class Split:
    """A named set of episodes to record."""

    name: str
    tasks: tuple[str, ...]
    episodes: tuple[int, ...]
    """Number for each task."""
    seed: int
    visual_shift: str = "none"
    robot: str = "so101"
    composition: bool | None = None
    """True for held-out compositions only, False for all others, None for all."""
    held_out: tuple[str, ...] = ()
    """Tasks of which the split has what they hold out themselves."""


def splits(tasks: Tasks, sizes: Sizes) -> dict[str, Split]:
    """Return all splits by name: train, validation, then the test splits."""
    validated = (*tasks.train, *tasks.validation)
    pairs = [pair.partition(":")[::2] for pair in tasks.composition]
    composed_tasks = tuple(dict.fromkeys(task for task, _ in pairs))
    held_out = tuple(task for task, colour in pairs if colour == HELD_OUT)
    result = [
        Split(
            name="train", tasks=tasks.train, seed=TRAIN_SEED, robot=tasks.robot,
            episodes=tuple(map(sizes.training_episodes, tasks.train)), composition=False,
        ),
        Split(
            name="validation", tasks=validated, episodes=(sizes.validation,) * len(validated),
            seed=VALIDATION_SEED, robot=tasks.robot, composition=False,
        ),
    ]  # fmt: skip
    layout = Split(
        name="layout", tasks=tasks.train, episodes=(sizes.test,) * len(tasks.train),
        seed=TEST_SEED, robot=tasks.robot, composition=False,
    )  # fmt: skip
    result += [
        layout,
        replace(layout, name="camera", seed=TEST_SEED + 1, visual_shift="camera"),
        replace(layout, name="surface", seed=TEST_SEED + 2, visual_shift="colour"),
        # A quarter of the episodes has the colour: record four times as many.
        replace(
            layout, name="composition", seed=TEST_SEED + 3, tasks=composed_tasks, composition=True,
            episodes=tuple((1 if t in held_out else 4) * sizes.test for t in composed_tasks),
            held_out=held_out,
        ),
        replace(
            layout, name="task", seed=TEST_SEED + 4, tasks=tasks.test,
            episodes=(sizes.test,) * len(tasks.test), composition=None,
        ),
        replace(layout, name="robot", seed=TEST_SEED + 5, robot=tasks.other_robot),
    ]  # fmt: skip
    return {split.name: split for split in result if split.tasks}


def record(split: Split, folder: Path) -> list[Path]:
    """Record the missing data sets of a split, one per task, and return their folders.

    Raises:
        ValueError: a folder holds another recording.
        vla.utils.interrupted.Interrupted: Ctrl-C; the next call resumes.
    """
    folders = []
    for task, episodes in zip(split.tasks, split.episodes, strict=True):
        path = folder / f"{split.name}-{task}"
        config = demos.DemosConfig(
            out=path, task=_task(task, split), robot=split.robot, episodes=episodes,
            behaviour="mixed", visual_shift=split.visual_shift, seed=split.seed,
        )  # fmt: skip
        demos.check(config)
        demos.record_demos(config)
        folders.append(path)
    return folders


def _task(name: str, split: Split) -> Any:
    """Return a task's configuration for a split."""
    config: Any = load_task(name)
    return replace(config, compositions=HELD_OUT) if name in split.held_out else config


def load(
    split: Split, folder: Path, tasks: Tasks, cameras: tuple[str, ...], stride_s: float, px: int
) -> Clips:
    """Record the missing data sets of a split and return its episodes.

    Raises:
        ValueError: no episode is left.
    """

    def keep(task: np.ndarray, instruction: np.ndarray) -> np.ndarray:
        if split.composition is None:
            return np.ones(len(task), np.bool_)
        held_out = composed(task, instruction, tasks.composition) | np.isin(task, split.held_out)
        return held_out == split.composition

    clips = load_clips(record(split, folder), cameras, stride_s, px, keep)
    if not clips.episodes:
        raise ValueError(
            f"{split.name}: no episode of {sum(split.episodes)} is left for compositions "
            f"{', '.join(tasks.composition)}; record more episodes"
        )
    return clips
