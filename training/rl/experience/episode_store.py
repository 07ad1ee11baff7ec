"""Experience on disk: one zarr group per iteration, written whole or not at all.

An iteration that an actor process collected is a folder of such groups, one per episode. Rollouts
are stored with policy version, instruction and outcome. A later run can learn from the newest of
them as well, with the rewards of its own reward model.
"""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from training.rl.experience.episode import Episode
from vla.contracts import renames
from vla.utils import files

FRAMES = ("images", "proprio", "time_s", "progress", "step")
DECISIONS = (
    "actions", "action_source", "decision_index", "latents", "log_prob", "reward",
)  # fmt: skip
OPTIONAL = ("features", "simulator_state")
"""Of decisions as well, where the algorithm keeps them."""
OPTIONAL_FRAMES = ("referents",)
"""Of frames as well, where the algorithm keeps them."""
SINGLE = ("terminated", "success", "task", "number", "seed", "version")
FORMAT = 4
READABLE = (2, 3, 4)
"""Formats that can be read. 2 stored whether an intervention acted, not who acted; up to 3 arrays
had the names that `vla.contracts.renames` knows."""
_WRONG = (
    OSError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError,
)  # fmt: skip
"""What zarr and NumPy raise for what is damaged."""
MAX_ROW_BYTES = 1 << 27
"""Most bytes of a frame or decision in one array."""
EPISODE = "episode-"
"""Prefix of the groups of single episodes."""


def iteration_name(iteration: int) -> str:
    """Return the name of an iteration's folder, the same in every format."""
    return f"round-{iteration:06d}"


def write_iteration(folder: Path, name: str, episodes: Sequence[Episode]) -> None:
    """Write episodes as iteration `name` of a store; a kill leaves the old one or the new one.

    Raises:
        ValueError: no episodes.
    """
    if not episodes:
        raise ValueError(f"{folder}: nothing to store, got 0 episodes")
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / f".{name}.new"  # one process writes; the next run replaces leftovers
    shutil.rmtree(staged, ignore_errors=True)
    group = zarr.create_group(store=staged)
    group.attrs["format"] = FORMAT
    group.attrs["episodes"] = [
        {"decisions": len(e), "moments": len(e.step), **{k: getattr(e, k) for k in SINGLE}}
        for e in episodes
    ]
    kept = tuple(key for key in OPTIONAL + OPTIONAL_FRAMES if getattr(episodes[0], key).size)
    for key in FRAMES + DECISIONS + kept:
        values = np.concatenate([getattr(e, key) for e in episodes])
        group.create_array(
            key, data=values, chunks=(min(256, len(values)), *values.shape[1:]),
            compressors=[BloscCodec(cname="zstd", clevel=1), Crc32cCodec()],
        )  # fmt: skip
    shutil.rmtree(folder / name, ignore_errors=True)
    staged.rename(folder / name)


def read_iteration(folder: Path, name: str) -> list[Episode]:
    """Return the episodes of an iteration.

    Raises:
        ValueError: there is no such iteration, or it is damaged.
    """
    single = sorted(path.name for path in (folder / name).glob(f"{EPISODE}*"))
    if single:
        return [episode for part in single for episode in read_iteration(folder / name, part)]
    try:
        group = zarr.open_group(folder / name, mode="r")
        version = group.attrs["format"]
        if version not in READABLE:
            raise ValueError(f"format {version}, expected {READABLE[0]} to {FORMAT}")
        rows: Any = group.attrs["episodes"]
        frames, decisions = (
            np.cumsum([row[key] for row in rows]) for key in ("moments", "decisions")
        )
        total = dict.fromkeys(FRAMES, int(frames[-1])) | dict.fromkeys(
            DECISIONS, int(decisions[-1])
        )
        arrays = {k: _array(group, _stored_name(k, version), n) for k, n in total.items()}
        arrays["action_source"] = arrays["action_source"].astype(np.int8)  # format 2: bool
        columns: dict[str, Any] = {k: np.split(arrays[k], frames[:-1]) for k in FRAMES}
        columns |= {k: np.split(arrays[k], decisions[:-1]) for k in DECISIONS}
        for names, ends in ((OPTIONAL, decisions), (OPTIONAL_FRAMES, frames)):
            kept = [key for key in names if key in group]
            columns |= {k: np.split(_array(group, k, int(ends[-1])), ends[:-1]) for k in kept}
        return [
            Episode(
                **{k: columns[k][e] for k in columns},
                **{k: row[_stored_name(k, version)] for k in SINGLE},
            )
            for e, row in enumerate(rows)
        ]
    except _WRONG as error:
        raise ValueError(
            f"{folder / name}: damaged experience ({error}); delete it to resume without it"
        ) from error


def _array(group: zarr.Group, key: str, rows: int) -> np.ndarray:
    """Return an array of so many rows; its sizes are checked before anything is allocated."""
    array: Any = group[key]
    shape, chunks = array.shape, array.chunks
    if shape[0] != rows or chunks[0] > rows or chunks[1:] != shape[1:]:
        raise ValueError(f"{key} has shape {shape} in chunks of {chunks}, expected {rows} rows")
    row_bytes = math.prod(shape[1:]) * array.dtype.itemsize
    if row_bytes > MAX_ROW_BYTES:
        raise ValueError(f"{key} has rows of {row_bytes:,} bytes, at most {MAX_ROW_BYTES:,}")
    return np.asarray(array)


def _stored_name(key: str, version: Any) -> str:
    """Return the name of a field of episodes in a format."""
    if version == FORMAT:
        return key
    old = renames.EXPERIENCE.get(key, key)
    return "helped" if old == "by" and version == 2 else old


def iterations(folder: Path) -> list[str]:
    """Return the names of the iterations of a store, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def has(folder: Path, name: str) -> bool:
    """Return whether there is an iteration of that name."""
    return (folder / name).is_dir()


def read_newest(folder: Path, most: int) -> list[Episode]:
    """Return the newest episodes of a store, at most so many, oldest first.

    Raises:
        ValueError: there is no experience, or what is read of it is damaged.
    """
    names = iterations(folder)
    if not names:
        raise ValueError(f"{folder}: no experience there; give the folder `experience` of a run")
    episodes: list[Episode] = []
    for name in reversed(names):
        if len(episodes) >= most:
            break
        episodes = read_iteration(folder, name) + episodes
    return episodes[len(episodes) - min(most, len(episodes)) :]


def write_chunks(folder: Path, count: int, chunks: np.ndarray) -> None:
    """Store chunks sampled after `count` iterations; those of the iteration before stay, too."""
    staged = folder / ".chunks.new"
    with staged.open("wb") as file:
        np.save(file, chunks, allow_pickle=False)
    staged.replace(_chunks(folder, count))
    _chunks(folder, count - 2).unlink(missing_ok=True)


def read_chunks(folder: Path, count: int) -> np.ndarray:
    """Return what `write_chunks` stored; ValueError if it is not there, or damaged."""
    return _read(_chunks(folder, count), lambda path: np.load(path, allow_pickle=False))


def _chunks(folder: Path, count: int) -> Path:
    return folder / f"chunks-{count:06d}.npy"


def write_guide_step_probs(folder: Path, iteration: int, probs: np.ndarray) -> None:
    """Store how likely each length of a jump start is in an iteration."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(_guide_step_probs(folder, iteration), probs.tolist())


def read_guide_step_probs(folder: Path, iteration: int) -> np.ndarray:
    """Return what `write_guide_step_probs` stored; ValueError if it is not there, or damaged."""
    path = _guide_step_probs(folder, iteration)
    return _read(path, lambda path: np.array(json.loads(path.read_text()), np.float64))


def _guide_step_probs(folder: Path, iteration: int) -> Path:
    return folder / f"jump-start-{iteration:06d}.json"


def _read(path: Path, read: Callable[[Path], np.ndarray]) -> np.ndarray:
    try:
        return read(path)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}); start a new run") from error
