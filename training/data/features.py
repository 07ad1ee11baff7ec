"""Cache of a frozen backbone's features of a data set: images are encoded once, not every epoch.

The cache is a zarr store next to the data set, written atomically and named by a hash of all that
determines its content: weights, images, sizes and instructions. A killed run resumes writing it.
"""

import fcntl
import hashlib
import json
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
from vla.nn.devices import half_precision
from vla.policies.vla import VLAPolicy
from vla.utils import files
from vla.utils.memory import available_bytes

VERSION = 1
BLOCK = 64
"""Frames that are encoded and stored at once."""


def load(policy: VLAPolicy, store: EpisodeStore, folder: Path) -> dict[str, np.ndarray]:
    """Return the frozen features of all frames of a store by name, f32 [f, ...]; `folder` holds
    the cache.

    Raises:
        ValueError: the backbone has no frozen part, or the features do not fit into memory.
    """
    backbone = policy.backbone
    if not (isinstance(backbone, Cacheable) and backbone.frozen):
        raise ValueError(
            f"cache_frozen_features: backbone {type_name(policy.config.backbone)!r} has no frozen "
            "part; freeze it (tiny: --policy.backbone.frozen True, pretrained ones: "
            "--policy.backbone.finetune_mode frozen), or leave --cache-frozen-features out"
        )
    place = folder / f"features-{name(policy, store)}.zarr"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f".{place.name}.lock"):
        cached = _read(place, len(store.frames))
        if cached is None:
            shutil.rmtree(place, ignore_errors=True)
            _write(policy, store, place)
            cached = _read(place, len(store.frames))
    if cached is None:
        raise ValueError(f"{place}: damaged while it was written; is the disk full?")
    return cached


def name(policy: VLAPolicy, store: EpisodeStore) -> str:
    """Return a hash of all that determines what `load` returns."""
    digest = hashlib.blake2b(digest_size=16)
    trained = {n for n, p in policy.backbone.named_parameters() if p.requires_grad}
    for key, value in policy.backbone.state_dict().items():
        if key not in trained:
            tensor = value.detach().cpu().contiguous()
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    key = {
        "version": VERSION, "backbone": configs.to_json(policy.config.backbone),
        "data": content_hash(store.info), "cameras": list(store.cameras),
        # A language model encodes images together with the instruction.
        "tasks": [*store.tasks, *store.info.texts],
        "frames": list(store.frames.shape), "words": policy.text.tokenizer.to_str(),
        "device": policy.device.type,
    }  # fmt: skip
    digest.update(json.dumps(key, sort_keys=True).encode())
    digest.update(store.frame_episode.tobytes() + store.frame_time.tobytes())
    return digest.hexdigest()


def _write(policy: VLAPolicy, store: EpisodeStore, place: Path) -> None:
    """Encode all frames block by block, under a temporary name until the cache is complete."""
    part = place.with_name(f".{place.name}.part")
    done, count = _frames_done(part), len(store.frames)
    arrays: dict[str, Any] = {}
    for begin in track(range(0, count, BLOCK), "encoding images", transient=True):
        if begin < done:
            continue
        rows = np.arange(begin, min(begin + BLOCK, count))
        values = {k: v.float().cpu().numpy() for k, v in encode(policy, store, rows).items()}
        if not arrays:
            _check_memory(values, count)
            arrays = {k: _array(part / k, v, count, begin > 0) for k, v in values.items()}
        for key, value in values.items():
            arrays[key][begin : begin + len(rows)] = value
        files.write_json(part / "done.json", {"frames": begin + len(rows), "names": sorted(arrays)})
    part.rename(place)


@torch.no_grad()
def encode(policy: VLAPolicy, store: EpisodeStore, rows: np.ndarray) -> dict[str, torch.Tensor]:
    """Return the frozen features of some frames, computed as in training."""
    device, before = policy.device, policy.training
    tasks = store.instructions_at(store.frame_episode[rows], store.frame_time[rows])
    images = torch.from_numpy(store.images(rows)).to(device)
    policy.eval()
    with half_precision(device.type):
        features: dict[str, torch.Tensor] = policy.backbone.frozen_features(
            images, policy.text(tasks, device)
        )
    policy.train(before)
    return features


def _array(place: Path, example: np.ndarray, count: int, exists: bool) -> Any:
    if exists:
        return zarr.open_array(place, mode="r+")
    return zarr.create_array(
        place, shape=(count, *example.shape[1:]), dtype="float32", overwrite=True,
        chunks=(min(BLOCK, count), *example.shape[1:]), compressors=[Crc32cCodec()],
        config={"write_empty_chunks": True},
    )  # fmt: skip


def _check_memory(values: dict[str, np.ndarray], count: int) -> None:
    """Raise ValueError unless the features of all frames fit into free memory."""
    needed = sum(value[0].nbytes for value in values.values()) * count
    free = available_bytes()
    if needed > free:
        raise ValueError(
            f"cache_frozen_features: {count} frames need {needed / 1e9:.1f} GB, {free / 1e9:.1f} "
            "GB of memory are free; learn from fewer episodes, or leave --cache-frozen-features out"
        )


def _frames_done(part: Path) -> int:
    """Return the number of frames that an earlier run has encoded."""
    path = part / "done.json"
    try:
        return int(json.loads(path.read_text())["frames"])
    except (OSError, ValueError, LookupError, TypeError):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        return 0


def _read(place: Path, count: int) -> dict[str, np.ndarray] | None:
    """Return cached features, or None if there are none or they are damaged."""
    features = {}
    try:
        for key in json.loads((place / "done.json").read_text())["names"]:
            array = zarr.open_array(place / key, mode="r")
            # zarr reads a missing chunk as zeros; a damaged one fails its checksum.
            if array.shape[0] != count or array.nchunks_initialized != array.nchunks:
                return None
            features[key] = np.asarray(array[:])
    except (ValueError, OSError, LookupError, TypeError, RuntimeError):
        return None
    return features


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file, so that one process at a time fills the cache."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
