"""HDF5 as robomimic, robosuite and LIBERO write it: `data/demo_N` with `obs/*` and `actions`.

Images are arrays u8 `t h w 3`. States of the simulator, next_obs, depth and the columns that were
not requested are dropped.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vla.data.episode import EpisodeData, episode_data, feature_table
from vla.data.source import ImportOptions, Source, channel_names, fingerprint

DEFAULT_STATE = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""State of robomimic's own policies."""
SUFFIXES = (".hdf5", ".h5")
CHUNK = 64
"""Images per read."""
GIB = 2**30
LARGE, MOST_RATIO = GIB, 1000
"""Bytes from which a column is compared with what is stored, and how much more it may declare."""
FASTEST_HZ = 10_000
SCALARS = {"rewards": ("next.reward", "float32"), "dones": ("next.done", "bool")}


def recognizes(path: Path) -> bool:
    """Return whether `path` is an HDF5 file, or a folder of them."""
    files = _files(path)
    return bool(files) and all(h5py.is_hdf5(file) for file in files)


def open_source(path: Path, options: ImportOptions) -> Source:
    """Describe one or several robomimic files.

    Raises:
        ValueError: what is missing or damaged, and what to give.
    """
    files = _files(path)
    demos = [(file, name) for file in files for name in _demos(file, options.split)]
    if not demos:
        raise ValueError(f"{path}: holds no demonstration; copy it again")
    with _opened(demos[0][0]) as root:
        group = _group(root, demos[0])
        cameras, numbers, dropped = _columns(demos[0], group)
        state = _state(path, numbers, options.state)
        if not cameras:
            raise ValueError(f"{path}: has no images u8 `t h w 3` under obs; render them first")
        action = options.action or ("actions",)
        action_sizes = {name: _vector(group, name, demos[0]).shape[1] for name in action}
        scalars = {key: kind for name, (key, kind) in SCALARS.items() if name in group}
        fps = options.fps or _rate(path, root["data"].attrs)
        size = {_camera(name): shape for name, shape in cameras.items()}
    dropped += [name for name in numbers if name not in state]
    return Source(
        format="robomimic", fps=fps, robot=None,
        features=feature_table(
            size, channel_names({n: numbers[n] for n in state}),
            channel_names({n if n != "actions" else "action": w for n, w in action_sizes.items()}),
            scalars,
        ),
        names=[f"{file.name}, {name}" for file, name in demos],
        read=partial(_read, _Plan(
            demos=demos, cameras=cameras, state=state, action=tuple(action), scalars=scalars,
            task=options.task, fps=fps,
        )),
        fingerprint=fingerprint(files),
        notes=(f"dropped: {', '.join(f'obs/{n}' for n in dropped)}",) if dropped else (),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is read of each demonstration."""

    demos: Sequence[tuple[Path, str]]
    cameras: Mapping[str, tuple[int, int]]
    state: tuple[str, ...]
    action: tuple[str, ...]
    scalars: Mapping[str, str]
    task: str
    fps: int


def _read(plan: _Plan, number: int) -> EpisodeData:
    file, name = demo = plan.demos[number]
    with _opened(file) as root:
        data, group = root["data"], _group(root, demo)
        vectors = {
            "action": [_vector(group, key, demo) for key in plan.action],
            "observation.state": [_vector(group, f"obs/{key}", demo) for key in plan.state],
        }
        task = plan.task or _language(group.attrs, data.attrs)
        columns = {
            source: _numbers(group, source, demo).reshape(-1)
            for source, (key, _) in SCALARS.items()
            if key in plan.scalars and source in group
        }
    lengths = {len(v) for parts in vectors.values() for v in parts}
    lengths |= {len(values) for values in columns.values()}
    if len(lengths) != 1 or len(columns) != len(plan.scalars):
        raise ValueError(
            f"{file}, {name}: its columns have {sorted(lengths)} steps, or one is missing; leave "
            "it out or write it again"
        )
    found = {key: np.concatenate(parts, axis=1) for key, parts in vectors.items()}
    found |= {
        SCALARS[source][0]: values.astype(SCALARS[source][1]) for source, values in columns.items()
    }
    images = {
        f"observation.images.{_camera(key)}": _images(file, f"data/{name}/obs/{key}", lengths)
        for key in plan.cameras
    }
    if not task:
        raise ValueError(f"{file}, {name}: says no instruction; give one with --task TEXT")
    return episode_data(found, task, plan.fps, images)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    return [path] if path.is_file() and h5py.is_hdf5(path) else []


def _opened(file: Path) -> Any:
    try:
        return h5py.File(file, "r")
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error}); copy it again") from error


def _own(group: Any, name: str, where: object) -> Any:
    """Return what a file holds itself under a name; None if there is nothing.

    Links, external storage and virtual data sets are refused: they read other files of this machine
    into the new data set (CVE-2026-1669). So is what declares far more than it stores.

    Raises:
        ValueError: it is such.
    """
    for part in name.split("/"):
        if not isinstance(group, h5py.Group):
            return None
        link = group.get(part, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{where}: {name!r} is a link; copy what it points to into the file")
        group = group[part]
    if isinstance(group, h5py.Dataset):
        if group.external or group.is_virtual:
            raise ValueError(f"{where}: {name!r} is stored in another file; copy it into this one")
        bytes_stored = group.id.get_storage_size()
        if group.nbytes > LARGE and group.nbytes > MOST_RATIO * bytes_stored:
            raise ValueError(
                f"{where}: {name!r} declares {group.nbytes / GIB:,.0f} GiB and stores "
                f"{bytes_stored / GIB:.3f}; write it again"
            )
    return group


def _group(root: Any, demo: tuple[Path, str]) -> Any:
    """Return a demonstration."""
    group = _own(root, f"data/{demo[1]}", demo[0])
    if not isinstance(group, h5py.Group):
        raise ValueError(f"{demo[0]}, {demo[1]}: is no demonstration; leave it out")
    return group


def _demos(file: Path, mask: str) -> list[str]:
    """Return the demonstrations of a file in order of number, all or those of a mask."""
    with _opened(file) as root:
        if not isinstance(_own(root, "data", file), h5py.Group):
            raise ValueError(
                f"{file}: has no group `data` with demonstrations; expected robomimic's"
            )
        there = list(root["data"])
        if mask:
            masks = list(_own(root, "mask", file) or ())
            if mask not in masks:
                names = ", ".join(masks) or "no mask at all"
                raise ValueError(f"{file}: no mask {mask!r} for --split; it has {names}")
            chosen = _own(root, f"mask/{mask}", file)
            if not isinstance(chosen, h5py.Dataset) or chosen.ndim != 1:
                raise ValueError(f"{file}: mask {mask!r} is no list of names; write it again")
            rows = _read_rows(chosen, slice(None), f"{file}: mask {mask!r}")
            asked = [_as_text(name) for name in rows]
            unknown = set(asked) - set(there)
            if unknown:
                raise ValueError(f"{file}: mask {mask!r} names {min(unknown)!r}, which is missing")
            there = asked
    return sorted(there, key=lambda name: (int("".join(re.findall(r"\d+", name)) or 0), name))


def _columns(
    demo: tuple[Path, str], group: Any
) -> tuple[dict[str, tuple[int, int]], dict[str, int], list[str]]:
    """Return cameras with their size, columns of numbers with their width, and what is neither."""
    where = f"{demo[0]}, {demo[1]}"
    obs = _own(group, "obs", where)
    if not isinstance(obs, h5py.Group) or _own(group, "actions", where) is None:
        raise ValueError(f"{where}: has no obs or no actions; expected a file of robomimic's")
    cameras: dict[str, tuple[int, int]] = {}
    numbers: dict[str, int] = {}
    dropped: list[str] = []
    for name in obs:
        data = _own(obs, name, where)
        shape: tuple[int, ...] = getattr(data, "shape", ())
        if len(shape) == 4 and shape[-1] == 3 and data.dtype == np.uint8:
            cameras[name] = (shape[1], shape[2])
        elif len(shape) in (1, 2) and data.dtype.kind in "fiub":
            numbers[name] = shape[1] if len(shape) == 2 else 1
        else:
            dropped.append(name)
    return cameras, numbers, dropped


def _state(path: Path, numbers: Mapping[str, int], asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of the state: those asked for, the usual ones, or all but the objects'."""
    for name in asked:
        if name not in numbers:
            raise ValueError(
                f"{path}: no column of numbers {name!r} under obs for the state; it has "
                f"{', '.join(numbers)}"
            )
    usual = tuple(name for name in DEFAULT_STATE if name in numbers)
    rest = tuple(name for name in sorted(numbers) if not name.startswith("object"))
    columns = asked or (usual if len(usual) == len(DEFAULT_STATE) else rest)
    if not columns:
        raise ValueError(f"{path}: found no state under obs; name its columns with --state")
    return columns


def _vector(group: Any, name: str, demo: tuple[Path, str]) -> np.ndarray:
    """Return a column as f32 `t d`."""
    values = _numbers(group, name, demo).astype(np.float32)
    return values.reshape(len(values), -1)


def _numbers(group: Any, name: str, demo: tuple[Path, str]) -> np.ndarray:
    """Return a column of at least one row, as it is."""
    data = _own(group, name, f"{demo[0]}, {demo[1]}")
    if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "fiub" or not data.size:
        raise ValueError(
            f"{demo[0]}, {demo[1]}: has no numbers {name!r}; name others, or leave it out"
        )
    if not data.ndim:
        raise ValueError(f"{demo[0]}, {demo[1]}: {name!r} is one number, expected one per step")
    if data.nbytes > LARGE:
        raise ValueError(
            f"{demo[0]}, {demo[1]}: {name!r} has {data.nbytes / GIB:,.1f} GiB of numbers, expected "
            f"at most {LARGE / GIB:g}; leave it out"
        )
    return _read_rows(data, slice(None), f"{demo[0]}, {demo[1]}: {name!r}")


def _read_rows(data: Any, rows: slice, what: str) -> np.ndarray:
    try:
        return np.asarray(data[rows])
    except OSError as error:  # a chunk that cannot be unpacked
        raise ValueError(f"{what} cannot be read ({error}); copy it again") from error


def _images(file: Path, key: str, lengths: set[int]) -> Iterator[np.ndarray]:
    """Yield images; as many as the demonstration has steps."""
    with _opened(file) as root:
        data = _own(root, key, file)
        if not isinstance(data, h5py.Dataset) or data.ndim != 4 or data.dtype != np.uint8:
            raise ValueError(f"{file}: has no images {key}; leave the demonstration out")
        if {len(data)} != lengths:
            raise ValueError(
                f"{file}: {key} has {len(data)} images for {min(lengths)} steps; leave the "
                "demonstration out"
            )
        for start in range(0, len(data), CHUNK):
            yield from _read_rows(data, slice(start, start + CHUNK), f"{file}: {key}")


def _camera(name: str) -> str:
    return name.removesuffix("_image").removesuffix("_rgb")


def _rate(path: Path, attributes: Any) -> int:
    """Return the control rate that the environment was made with."""
    try:
        rate = json.loads(_as_text(attributes["env_args"]))["env_kwargs"]["control_freq"]
    except (KeyError, TypeError, RecursionError, json.JSONDecodeError):
        rate = None
    if not isinstance(rate, (int, float)) or not 1 <= rate <= FASTEST_HZ or rate != int(rate):
        raise ValueError(f"{path}: env_args says no whole control_freq ({rate}); give --fps")
    return int(rate)


def _language(demo: Any, data: Any) -> str:
    """Return the instruction: of the demonstration (robocasa) or of the file (LIBERO)."""
    for attributes, name, key in (
        (demo, "ep_meta", "lang"), (data, "problem_info", "language_instruction"),
    ):  # fmt: skip
        try:
            text = json.loads(_as_text(attributes[name]))[key]
        except (KeyError, TypeError, RecursionError, json.JSONDecodeError):
            continue
        if isinstance(text, str) and text.strip():
            return text.strip()
    return ""


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
