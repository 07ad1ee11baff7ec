"""A round that is not whole yet: each episode, and each verdict, is on disk as soon as it is there.

Both appear by one rename, so that a kill loses nothing that was finished. Once all of a round has
been judged it becomes, by one rename as well, a round as any other (`training.rl.store`).
"""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from training.rl import store
from training.rl.experience import Episode
from training.rl.judge import Verdict
from training.rl.rewards import Worth


def keep(folder: Path, name: str, episode: Episode) -> None:
    """Write a finished episode of round `name` of a store."""
    store.write_round(_place(folder, name), _episode(episode.number), [episode])


def read(folder: Path, name: str, number: int) -> Episode:
    """Return a finished episode.

    Raises:
        ValueError: it is not there, or damaged.
    """
    (episode,) = store.read_round(_place(folder, name), _episode(number))
    return episode


def judge(folder: Path, name: str, number: int, verdict: Verdict) -> None:
    """Write what a finished episode is worth."""
    told = {"own": verdict.worth} | ({"foreign": verdict.foreign} if verdict.foreign else {})
    arrays = {f"{whose}.reward": worth.reward for whose, worth in told.items()}
    arrays |= {f"{whose}.potential": worth.potential for whose, worth in told.items()}
    arrays |= {f"{whose}.success": np.array(worth.success) for whose, worth in told.items()}
    path = _verdict(folder, name, number)
    fresh = path.with_name(f".{path.name}.new-{os.getpid()}")
    safetensors.numpy.save_file(arrays, fresh)
    fresh.replace(path)


def read_verdict(folder: Path, name: str, number: int) -> Verdict:
    """Return what `judge` wrote.

    Raises:
        ValueError: it is not there, or damaged.
    """
    return _read(_verdict(folder, name, number))


def told(folder: Path, name: str, episodes: Sequence[Episode]) -> list[Verdict] | None:
    """Return what a scorer judged of the episodes of a whole round; None unless it is all there.

    Raises:
        ValueError: a verdict is damaged.
    """
    paths = [folder / name / _verdict(folder, name, e.number).name for e in episodes]
    return [_read(path) for path in paths] if all(path.exists() for path in paths) else None


def _read(path: Path) -> Verdict:
    try:
        arrays = safetensors.numpy.load_file(path)
        own, foreign = (
            Worth(
                reward=arrays[f"{whose}.reward"], potential=arrays[f"{whose}.potential"],
                success=bool(arrays[f"{whose}.success"]),
            ) if f"{whose}.reward" in arrays else None
            for whose in ("own", "foreign")
        )  # fmt: skip
        if own is None:
            raise LookupError("no worth in it")
    except (OSError, LookupError, SafetensorError) as error:
        raise ValueError(
            f"{path}: damaged verdict ({error}); delete it to have it judged anew"
        ) from error
    return Verdict(worth=own, foreign=foreign)


def there(folder: Path, name: str) -> tuple[set[int], set[int]]:
    """Return the numbers of the episodes that are finished, and of those that are judged."""
    try:
        names = os.listdir(_place(folder, name))
    except FileNotFoundError:  # nothing yet, or no longer
        names = []
    episodes, verdicts = (
        {int(found[1]) for found in (re.fullmatch(pattern, n) for n in names) if found}
        for pattern in (r"episode-(\d+)", r"verdict-(\d+)\.safetensors")
    )
    return episodes, verdicts


def finish(folder: Path, name: str) -> None:
    """Make a round of the store of what is there, by one rename."""
    for begun in _place(folder, name).glob(".*"):  # left by a process that was killed
        shutil.rmtree(begun) if begun.is_dir() else begun.unlink()
    _place(folder, name).rename(folder / name)


def drop(folder: Path, name: str) -> None:
    """Drop the parts of a round that is whole, if there are any."""
    shutil.rmtree(_place(folder, name), ignore_errors=True)


def _place(folder: Path, name: str) -> Path:
    return folder / f".{name}.parts"


def _episode(number: int) -> str:
    return f"{store.EPISODE}{number:06d}"


def _verdict(folder: Path, name: str, number: int) -> Path:
    return _place(folder, name) / f"verdict-{number:06d}.safetensors"
