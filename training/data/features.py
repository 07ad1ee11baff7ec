"""Keeps what a frozen backbone makes of a data set's pictures: it looks once, not every epoch.

A zarr store beside the data, whole or absent, named by a hash of everything that decides what is in
it: another weight, picture, size or instruction is another store. A run that was killed on the way
goes on where it was.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from rich.progress import track
from zarr.codecs import Crc32cCodec

from vla.contracts import config as configs
from vla.contracts.config import type_name
from vla.data.store import EpisodeStore, content_hash
from vla.nn.context import Cacheable
from vla.policies.vla import VLAPolicy

VERSION = 1
BLOCK = 64
"""Frames that are looked at, and stored, at once."""


def load(policy: VLAPolicy, store: EpisodeStore, folder: Path) -> dict[str, np.ndarray]:
    """Return what a policy's frozen backbone makes of all frames of a store, by name: f32 [f, ...].

    Args:
        policy: On its device.
        store: The frames, and the instruction of each.
        folder: Where features are kept.

    Raises:
        ValueError: the backbone has nothing frozen, or its features do not fit into memory.
    """
    backbone = policy.backbone
    if not (isinstance(backbone, Cacheable) and backbone.frozen):
        raise ValueError(
            f"features: backbone {type_name(policy.config.backbone)!r} has no frozen part to "
            "keep; freeze it (tiny: --policy.backbone.frozen True, pretrained ones: "
            "--policy.backbone.tune frozen), or take --features encode"
        )
    place = folder / f"features-{name(policy, store)}.zarr"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / f".{place.name}.lock"):
        found = _read(place, len(store.frames))
        if found is None:
            shutil.rmtree(place, ignore_errors=True)
            _write(policy, store, place)
            found = _read(place, len(store.frames))
    if found is None:
        raise ValueError(f"{place}: damaged while it was written; is the disk full?")
    return found


def name(policy: VLAPolicy, store: EpisodeStore) -> str:
    """Return a hash of everything that decides what `load` returns."""
    digest = hashlib.blake2b(digest_size=16)
    learned = {n for n, p in policy.backbone.named_parameters() if p.requires_grad}
    for key, value in policy.backbone.state_dict().items():
        if key not in learned:
            whole = value.detach().cpu().contiguous()
            digest.update(f"{key} {whole.dtype} {tuple(whole.shape)} ".encode())
            digest.update(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
    key = {
        "version": VERSION, "backbone": configs.to_json(policy.config.backbone),
        "data": content_hash(store.info), "cameras": list(store.cameras),
        "tasks": list(store.tasks),  # a language model sees pictures in the light of what is asked
        "frames": list(store.frames.shape), "words": policy.text.tokenizer.to_str(),
        "device": policy.device.type,
    }  # fmt: skip
    digest.update(json.dumps(key, sort_keys=True).encode())
    digest.update(store.frame_episode.tobytes() + store.frame_time.tobytes())
    return digest.hexdigest()


def _write(policy: VLAPolicy, store: EpisodeStore, place: Path) -> None:
    """Look at every frame, block by block, under another name until all is there."""
    part = place.with_name(f".{place.name}.part")
    done, count = _done(part), len(store.frames)
    arrays: dict[str, Any] = {}
    for begin in track(range(0, count, BLOCK), "looking once", transient=True):
        if begin < done:
            continue
        rows = np.arange(begin, min(begin + BLOCK, count))
        found = {k: v.float().cpu().numpy() for k, v in look(policy, store, rows).items()}
        if not arrays:
            _check_fits(found, count)
            arrays = {k: _array(part / k, v, count, begin > 0) for k, v in found.items()}
        for key, value in found.items():
            arrays[key][begin : begin + len(rows)] = value
        _set_done(part, begin + len(rows), sorted(arrays))
    part.rename(place)


@torch.no_grad()
def look(policy: VLAPolicy, store: EpisodeStore, rows: np.ndarray) -> dict[str, torch.Tensor]:
    """Return what the frozen part makes of some frames, as training would."""
    device, before = policy.device, policy.training
    tasks = tuple(store.tasks[e] for e in store.frame_episode[rows])
    images = torch.from_numpy(store.frames[rows]).to(device)
    policy.eval()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        found: dict[str, torch.Tensor] = policy.backbone.frozen_features(
            images, policy.text(tasks, device)
        )
    policy.train(before)
    return found


def _array(place: Path, example: np.ndarray, count: int, begun: bool) -> Any:
    if begun:
        return zarr.open_array(place, mode="r+")
    return zarr.create_array(
        place, shape=(count, *example.shape[1:]), dtype="float32", overwrite=True,
        chunks=(min(BLOCK, count), *example.shape[1:]), compressors=[Crc32cCodec()],
        config={"write_empty_chunks": True},
    )  # fmt: skip


def _check_fits(found: dict[str, np.ndarray], count: int) -> None:
    """Raise ValueError unless the features of all frames fit into what memory is free."""
    wanted = sum(value[0].nbytes for value in found.values()) * count
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > free:
        raise ValueError(
            f"features: {count} frames take {wanted / 1e9:.1f} GB, {free / 1e9:.1f} GB of memory "
            "are free; learn from fewer episodes, or take --features encode"
        )


def _done(part: Path) -> int:
    """Return the frames that an earlier run has looked at."""
    path = part / "done.json"
    try:
        return int(json.loads(path.read_text())["frames"])
    except (OSError, ValueError, LookupError, TypeError):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        return 0


def _set_done(part: Path, count: int, names: list[str]) -> None:
    fresh = part / ".done.json.new"
    fresh.write_text(json.dumps({"frames": count, "names": names}))
    fresh.replace(part / "done.json")


def _read(place: Path, count: int) -> dict[str, np.ndarray] | None:
    """Return kept features, or None if there are none or they are damaged."""
    found = {}
    try:
        for key in json.loads((place / "done.json").read_text())["names"]:
            array = zarr.open_array(place / key, mode="r")
            # zarr reads a missing chunk as zeros; a damaged one fails its checksum.
            if array.shape[0] != count or array.nchunks_initialized != array.nchunks:
                return None
            found[key] = np.asarray(array[:])
    except (ValueError, OSError, LookupError, TypeError, RuntimeError):
        return None
    return found


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time look; the others find what it kept."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
