"""Experience on disk: one zarr group per round of practice, written whole or not at all.

A round that was practised in a process of its own is a folder of such groups, one per episode.
What was practised is kept with its policy version, instruction and outcome. A later run can learn
from the newest of it as well, judged again by the critic of that day.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from training.rl.experience import Episode
from vla import files

MOMENTS = ("images", "proprio", "time_s", "progress", "step")
DECISIONS = ("actions", "by", "at", "latents", "log_prob", "reward")
SINGLE = ("terminated", "success", "task", "number", "seed", "version")
FORMAT = 3
BEFORE = 2
"""Format in which was kept whether somebody else acted, and nothing else of who acted."""
EPISODE = "episode-"
"""What the names of the groups of single episodes begin with."""


def name_of(number: int) -> str:
    """Return the name of a round of a run."""
    return f"round-{number:06d}"


def write_round(folder: Path, name: str, episodes: Sequence[Episode]) -> None:
    """Write episodes as round `name` of a store; a kill leaves the old round or the new one.

    Raises:
        ValueError: no episodes.
    """
    if not episodes:
        raise ValueError(f"{folder}: nothing to keep, got 0 episodes")
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{name}.new-{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    group = zarr.create_group(store=fresh)
    group.attrs["format"] = FORMAT
    group.attrs["episodes"] = [
        {"decisions": len(e), "moments": len(e.step), **{k: getattr(e, k) for k in SINGLE}}
        for e in episodes
    ]
    for key in MOMENTS + DECISIONS:
        values = np.concatenate([getattr(e, key) for e in episodes])
        group.create_array(
            key, data=values, chunks=(min(256, len(values)), *values.shape[1:]),
            compressors=[BloscCodec(cname="zstd", clevel=1), Crc32cCodec()],
        )  # fmt: skip
    shutil.rmtree(folder / name, ignore_errors=True)
    fresh.rename(folder / name)


def read_round(folder: Path, name: str) -> list[Episode]:
    """Return the episodes of a round.

    Raises:
        ValueError: there is no such round, or it is damaged.
    """
    single = sorted(path.name for path in (folder / name).glob(f"{EPISODE}*"))
    if single:
        return [episode for one in single for episode in read_round(folder / name, one)]
    try:
        group = zarr.open_group(folder / name, mode="r")
        found = group.attrs["format"]
        if found not in (BEFORE, FORMAT):
            raise ValueError(f"format {found}, expected {BEFORE} or {FORMAT}")
        told: Any = group.attrs["episodes"]
        moments, decisions = (
            np.cumsum([one[name] for one in told]) for name in ("moments", "decisions")
        )
        arrays = {k: np.asarray(group[_kept(k, found)]) for k in MOMENTS + DECISIONS}
        arrays["by"] = arrays["by"].astype(np.int8)  # before, 1 stood for somebody else as well
        columns: dict[str, Any] = {k: np.split(arrays[k], moments[:-1]) for k in MOMENTS}
        columns |= {k: np.split(arrays[k], decisions[:-1]) for k in DECISIONS}
        return [
            Episode(**{k: columns[k][e] for k in columns}, **{k: one[k] for k in SINGLE})
            for e, one in enumerate(told)
        ]
    except (OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{folder / name}: damaged experience ({error}); delete this round to go on without it"
        ) from error


def _kept(key: str, found: Any) -> str:
    """Return the name of a field of episodes in a format."""
    return "helped" if key == "by" and found == BEFORE else key


def rounds(folder: Path) -> list[str]:
    """Return the names of the rounds of a store, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def has(folder: Path, name: str) -> bool:
    """Return whether there is a round of that name."""
    return (folder / name).is_dir()


def read_newest(folder: Path, most: int) -> list[Episode]:
    """Return the newest episodes of a store, at most so many, oldest first.

    Raises:
        ValueError: there is no experience, or what is read of it is damaged.
    """
    names = rounds(folder)
    if not names:
        raise ValueError(f"{folder}: no experience there; give the folder `experience` of a run")
    found: list[Episode] = []
    for name in reversed(names):
        if len(found) >= most:
            break
        found = read_round(folder, name) + found
    return found[len(found) - min(most, len(found)) :]


def write_chunks(folder: Path, count: int, chunks: np.ndarray) -> None:
    """Keep chunks drawn after `count` rounds, beside them; those of the round before stay, too."""
    fresh = folder / f".chunks.new-{os.getpid()}"
    with fresh.open("wb") as file:
        np.save(file, chunks, allow_pickle=False)
    fresh.replace(_chunks(folder, count))
    _chunks(folder, count - 2).unlink(missing_ok=True)


def read_chunks(folder: Path, count: int) -> np.ndarray:
    """Return what `write_chunks` kept.

    Raises:
        ValueError: it is not there, or damaged.
    """
    path = _chunks(folder, count)
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}); start the run afresh") from error


def write_leads(folder: Path, number: int, leads: np.ndarray) -> None:
    """Keep how likely each lead is in round `number`, beside the rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(_leads(folder, number), leads.tolist())


def read_leads(folder: Path, number: int) -> np.ndarray:
    """Return what `write_leads` kept.

    Raises:
        ValueError: it is not there, or damaged.
    """
    path = _leads(folder, number)
    try:
        return np.array(json.loads(path.read_text()), np.float64)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}); start the run afresh") from error


def _leads(folder: Path, number: int) -> Path:
    return folder / f"leads-{number:06d}.json"


def _chunks(folder: Path, count: int) -> Path:
    return folder / f"chunks-{count:06d}.npy"
