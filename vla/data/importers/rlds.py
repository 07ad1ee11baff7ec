"""RLDS as tensorflow_datasets writes it (TFRecord and features.json), read without TensorFlow.

An episode is one record; entries under `steps` hold the values of all its steps in order. Columns
of varying shape, embeddings and columns that were not requested are dropped.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vla.data import tfrecord
from vla.data.decode import decode_image
from vla.data.episode import EpisodeData, episode_data, feature_table
from vla.data.limits import MAX_CHANNELS
from vla.data.source import ImportOptions, Source, channel_names, fingerprint

FEATURES = "features.json"
STATES = ("observation/state", "observation/proprio")
"""Names of the state; the first that exists is used."""
TEXTS = (
    "language_instruction",
    "observation/natural_language_instruction",
    "observation/language_instruction",
)
SCALARS = {"reward": ("next.reward", "float32"), "is_terminal": ("next.done", "bool")}
SHARD = re.compile(r"(?P<split>[^-]+)\.tfrecord-(?P<at>\d{5})-of-(?P<of>\d{5})$")


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    """A column of the steps."""

    kind: str
    """image, tensor or text."""
    shape: tuple[int, ...]
    numeric: bool


def recognizes(path: Path) -> bool:
    """Return whether a folder holds RLDS, or one version of it that does."""
    return path.is_dir() and _home(path) is not None


def open_source(path: Path, options: ImportOptions) -> Source:
    """Describe an RLDS data set; ValueError says what is missing or damaged, and what to give."""
    home = _home(path)
    assert home is not None
    leaves = _leaves(home / FEATURES)
    files, notes = _shards(home, options.split)
    if options.fps is None:
        raise ValueError(f"{path}: RLDS defines no rate; give it with --fps")
    state = _chosen(path, leaves, options.state, STATES, "state", "observation/")
    action = _chosen(path, leaves, options.action, ("action",), "action", "action/")
    text = "" if options.task else next((name for name in TEXTS if name in leaves), "")
    if not text and not options.task:
        raise ValueError(f"{path}: has none of {', '.join(TEXTS)}; give --task TEXT")
    cameras = {
        name: leaf.shape
        for name, leaf in leaves.items()
        if leaf.kind == "image" and leaf.shape[-1:] == (3,)
    }
    records = [(file, at) for file in files for at in tfrecord.record_offsets(file)]
    if not records or not cameras:
        raise ValueError(
            f"{path}: has {len(records)} episodes and {len(cameras)} cameras, expected at least "
            "one of each; copy it again"
        )
    views = {_short(name).replace("/", "_"): name for name in cameras}
    sizes = _sizes(records[0], cameras)
    scalars = {key: kind for name, (key, kind) in SCALARS.items() if name in leaves}
    used = {*views.values(), *state, *action, text, *SCALARS, *TEXTS, "is_first", "is_last"}
    dropped = [name for name in leaves if name not in used]
    return Source(
        format="rlds", fps=options.fps, robot=None,
        features=feature_table(
            {camera: sizes[name] for camera, name in views.items()},
            channel_names({_short(n): _width(leaves[n]) for n in state}),
            channel_names({_short(n): _width(leaves[n]) for n in action}), scalars,
        ),
        names=[f"{file.name}, episode at byte {at}" for file, at in records],
        read=partial(_read, _Plan(
            records=records, leaves=leaves, state=state, action=action, text=text,
            task=options.task, fps=options.fps, views=views, sizes=sizes,
        )),
        fingerprint=fingerprint([*files, home / FEATURES]),
        notes=(*notes, *([f"dropped: {', '.join(dropped)}"] if dropped else [])),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is read of each record."""

    records: list[tuple[Path, int]]
    leaves: Mapping[str, _Leaf]
    state: tuple[str, ...]
    action: tuple[str, ...]
    text: str
    task: str
    fps: int
    views: Mapping[str, str]
    sizes: Mapping[str, tuple[int, int]]


def _read(plan: _Plan, number: int) -> EpisodeData:
    file, at = plan.records[number]
    where = f"{file}, episode at byte {at}"
    try:
        values = tfrecord.parse_example(tfrecord.read_record(file, at))
    except ValueError as error:
        raise ValueError(f"{where}: {error}; copy it again") from error
    first = next(iter(plan.views.values()))
    length = len(values.get(f"steps/{first}", ()))

    def column(name: str) -> np.ndarray:
        leaf, found = plan.leaves[name], values.get(f"steps/{name}")
        if found is None or isinstance(found, list) or len(found) != length * _width(leaf):
            got = "nothing" if found is None else f"{len(found)} values"
            raise ValueError(f"{where}: {name!r} has {got} for {length} steps; copy it again")
        return np.asarray(found).reshape(length, _width(leaf))

    columns: dict[str, np.ndarray] = {
        "observation.state": np.concatenate([column(n) for n in plan.state], axis=1),
        "action": np.concatenate([column(n) for n in plan.action], axis=1),
    }
    for name, (key, kind) in SCALARS.items():
        if name in plan.leaves:
            columns[key] = column(name)[:, 0].astype(kind)
    task = plan.task or _text(values.get(f"steps/{plan.text}"), where)
    images = {
        f"observation.images.{camera}": _images(
            values.get(f"steps/{name}", []), where, plan.sizes[name]
        )
        for camera, name in plan.views.items()
    }
    return episode_data(columns, task, plan.fps, images)


def _text(texts: Any, where: str) -> str:
    """Return the instruction of the first step; steps repeat it."""
    if texts is None or not len(texts):
        return ""
    try:
        if not isinstance(texts[0], bytes):
            raise ValueError(f"it is {texts[0]}")
        return texts[0].decode()
    except ValueError as error:
        raise ValueError(f"{where}: the instruction is no text ({error}); give --task") from error


def _images(
    encoded: Any, where: str, size_hw: tuple[int, int] | None = None
) -> Iterator[np.ndarray]:
    for step, data in enumerate(encoded):
        try:
            pixels = decode_image(data, size_hw)
        except ValueError as error:
            raise ValueError(
                f"{where}: image {step} is damaged ({error}); copy it again"
            ) from error
        yield pixels


def _home(path: Path) -> Path | None:
    """Return the folder with features.json: `path`, or its only version."""
    places = [p for p in (path, *sorted(path.glob("*"))) if (p / FEATURES).is_file()]
    return places[0] if len(places) == 1 or (places and places[0] == path) else None


def _leaves(file: Path) -> dict[str, _Leaf]:
    """Return the columns of the steps by name, with / between names, or raise ValueError."""
    try:
        top = json.loads(file.read_text())["featuresDict"]["features"]["steps"]
        steps = top["sequence"]["feature"]["featuresDict"]["features"]
        return dict(_flat("", steps))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{file}: describes no steps of RLDS ({error!r}); copy it again"
        ) from error


def _flat(place: str, features: Mapping[str, Any]) -> Iterator[tuple[str, _Leaf]]:
    for name, feature in features.items():
        if "featuresDict" in feature:
            yield from _flat(f"{place}{name}/", feature["featuresDict"]["features"])
        elif "image" in feature:
            yield (
                f"{place}{name}",
                _Leaf(kind="image", shape=_shape(feature["image"]), numeric=False),
            )
        elif "text" in feature:
            yield f"{place}{name}", _Leaf(kind="text", shape=(), numeric=False)
        elif "tensor" in feature:
            spec = feature["tensor"]
            kind, shape = spec.get("dtype", ""), _shape(spec)
            plain = spec.get("encoding", "none") == "none" and all(n > 0 for n in shape)
            numeric = plain and kind.startswith(("float", "int", "uint", "bool"))
            # Text of older sets is a tensor of strings.
            word = "text" if kind == "string" and not shape else "tensor"
            yield f"{place}{name}", _Leaf(kind=word, shape=shape, numeric=numeric)


def _shape(spec: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(n) for n in spec.get("shape", {}).get("dimensions", ()))


def _width(leaf: _Leaf) -> int:
    width = math.prod(leaf.shape)
    if not 0 <= width <= MAX_CHANNELS:
        raise ValueError(
            f"features.json: a tensor of shape {str(leaf.shape)[:200]}, expected at most "
            f"{MAX_CHANNELS:,} numbers in a state or an action"
        )
    return width


def _chosen(
    path: Path, leaves: Mapping[str, _Leaf], asked: tuple[str, ...], usual: tuple[str, ...],
    what: str, place: str,
) -> tuple[str, ...]:  # fmt: skip
    """Return the columns of a vector: those asked for, a usual one, or all numbers inside."""
    numeric = [name for name, leaf in leaves.items() if leaf.numeric]
    for name in asked:
        if name not in numeric:
            raise ValueError(
                f"{path}: no column of numbers {name!r} for the {what}; it has {', '.join(numeric)}"
            )
    columns = asked or tuple(name for name in usual if name in numeric)[:1]
    columns = columns or tuple(sorted(name for name in numeric if name.startswith(place)))
    if not columns:
        raise ValueError(
            f"{path}: found no {what}; name its columns with --{what}: {', '.join(numeric)}"
        )
    return columns


def _short(name: str) -> str:
    return name.removeprefix("observation/")


def _shards(home: Path, split: str) -> tuple[list[Path], list[str]]:
    """Return the files of a split in order, and notes for the user."""
    splits: dict[str, dict[int, Path]] = {}
    count: dict[str, int] = {}
    for file in sorted(home.iterdir()):
        name = SHARD.search(file.name)
        if name:
            splits.setdefault(name["split"], {})[int(name["at"])] = file
            count[name["split"]] = int(name["of"])
    if not splits:
        raise ValueError(
            f"{home}: has no file NAME-SPLIT.tfrecord-00000-of-00001; only TFRecord is read: copy "
            "it again, or write it as tfrecord"
        )
    chosen = split or ("train" if "train" in splits or len(splits) > 1 else next(iter(splits)))
    if chosen not in splits:
        raise ValueError(f"{home}: no split {chosen!r}; name one with --split: {', '.join(splits)}")
    missing = set(range(count[chosen])) - set(splits[chosen])
    if missing:
        raise ValueError(
            f"{home}: file {min(missing)} of {count[chosen]} of split {chosen!r} is missing "
            f"({len(missing)} in all); copy them again"
        )
    other = [name for name in splits if name != chosen]
    notes = [f"left out: split {', '.join(other)} (--split)"] if other else []
    return [file for _, file in sorted(splits[chosen].items())], notes


def _sizes(
    record: tuple[Path, int], cameras: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, int]]:
    """Return height and width of each camera; a shape that leaves them open asks an image."""
    values: dict[str, Any] = {}
    sizes = {}
    for name, shape in cameras.items():
        if len(shape) == 3 and min(shape) > 0:
            sizes[name] = shape[:2]
            continue
        values = values or tfrecord.parse_example(tfrecord.read_record(*record))
        first = next(_images(values.get(f"steps/{name}", []), str(record[0])), None)
        if first is None:
            raise ValueError(f"{record[0]}: its first episode has no image {name!r}; copy it again")
        sizes[name] = first.shape[:2]
    return {name: (int(h), int(w)) for name, (h, w) in sizes.items()}
