"""An incomplete iteration: each episode and each score is on disk as soon as it is there.

Both appear by one rename, so that a kill loses nothing that was finished. Once all episodes are
scored the folder becomes, by one rename as well, an iteration like any other
(`training.rl.experience.episode_store`).
"""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from training.rl.experience import episode_store
from training.rl.experience.episode import Episode
from training.rl.experience.rewards import EpisodeReward
from training.rl.rollout.reward_source import EpisodeScore


def write_episode(folder: Path, name: str, episode: Episode) -> None:
    """Write a finished episode of iteration `name` of a store."""
    episode_store.write_iteration(_parts(folder, name), _episode(episode.number), [episode])


def read_episode(folder: Path, name: str, number: int) -> Episode:
    """Return a finished episode; ValueError if it is not there, or damaged."""
    (episode,) = episode_store.read_iteration(_parts(folder, name), _episode(number))
    return episode


def write_score(folder: Path, name: str, number: int, score: EpisodeScore) -> None:
    """Write the rewards of a finished episode; the names in the file are those of format 1."""
    rewards = {"own": score.reward}
    if score.mismatched:
        rewards["foreign"] = score.mismatched
    arrays = {}
    for prefix, reward in rewards.items():
        arrays[f"{prefix}.reward"], arrays[f"{prefix}.potential"] = reward.reward, reward.potential
        arrays[f"{prefix}.success"] = np.array(reward.success)
    path = _score(_parts(folder, name), number)
    staged = path.with_name(f".{path.name}.new")
    safetensors.numpy.save_file(arrays, staged)
    staged.replace(path)


def read_score(folder: Path, name: str, number: int) -> EpisodeScore:
    """Return what `write_score` wrote; ValueError if it is not there, or damaged."""
    return _read(_score(_parts(folder, name), number))


def read_scores(folder: Path, name: str, episodes: Sequence[Episode]) -> list[EpisodeScore] | None:
    """Return the scores of the episodes of a complete iteration; None unless all are there,
    ValueError if one is damaged.
    """
    paths = [_score(folder / name, e.number) for e in episodes]
    return [_read(path) for path in paths] if all(path.exists() for path in paths) else None


def _read(path: Path) -> EpisodeScore:
    try:
        arrays = safetensors.numpy.load_file(path)
        reward, mismatched = (
            EpisodeReward(
                reward=arrays[f"{prefix}.reward"], potential=arrays[f"{prefix}.potential"],
                success=bool(arrays[f"{prefix}.success"]),
            ) if f"{prefix}.reward" in arrays else None
            for prefix in ("own", "foreign")
        )  # fmt: skip
        if reward is None:
            raise LookupError("no reward in it")
    except (OSError, LookupError, SafetensorError) as error:
        raise ValueError(
            f"{path}: damaged score ({error}); delete it to have it computed again"
        ) from error
    return EpisodeScore(reward=reward, mismatched=mismatched)


def progress(folder: Path, name: str) -> tuple[set[int], set[int]]:
    """Return the numbers of the finished episodes and of the scored ones."""
    try:
        names = os.listdir(_parts(folder, name))
    except FileNotFoundError:  # nothing yet, or no longer
        names = []
    episodes, scores = (
        {int(match[1]) for match in (re.fullmatch(pattern, n) for n in names) if match}
        for pattern in (r"episode-(\d+)", r"verdict-(\d+)\.safetensors")
    )
    return episodes, scores


def publish(folder: Path, name: str) -> None:
    """Make the parts an iteration of the store, by one rename."""
    for unfinished in _parts(folder, name).glob(".*"):  # left by a process that was killed
        shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()
    _parts(folder, name).rename(folder / name)


def drop(folder: Path, name: str) -> None:
    """Drop the parts of a complete iteration, if there are any."""
    shutil.rmtree(_parts(folder, name), ignore_errors=True)


def _parts(folder: Path, name: str) -> Path:
    return folder / f".{name}.parts"


def _episode(number: int) -> str:
    return f"{episode_store.EPISODE}{number:06d}"


def _score(folder: Path, number: int) -> Path:
    return folder / f"verdict-{number:06d}.safetensors"
