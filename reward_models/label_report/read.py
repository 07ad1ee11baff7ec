"""Reads a labelled data set into arrays per episode: labels, and the simulator's truth if any."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.contracts import migrate
from vla.data.info import DatasetInfo
from vla.data.reader import open_dataset, table_files

LABELS_FILE = "meta/labels.json"
"""Reward model, source and settings of the labels; LeRobot ignores the file."""
FRAME_COLUMNS = {
    "progress": np.float32,
    "progress.delta": np.float32,
    "progress.trend": np.int8,
    "progress.done_prob": np.float32,
    "progress.match": np.float32,
    "progress.confidence": np.float32,
    "progress.scored": np.bool_,
}
EPISODE_COLUMNS = {
    "success_prob": np.float32,
    "voc": np.float32,
    "negative_rate": np.float32,
    "max_regression": np.float32,
    "stagnation_ratio": np.float32,
    "first_done_frame": np.int64,
    "review": np.bool_,
}
"""Without the prefix "labels/"."""
TRUTH_COLUMNS = ("source.progress", "source.success", "source.behaviour")
"""The simulator's truth, in data sets of `vla demos`; others lack some or all of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """One labelled episode of T frames."""

    index: int
    """Its number in the data set."""
    task: str
    """Instruction."""
    fps: float
    """Frames per second."""
    progress: np.ndarray
    """f32 [t] in [0, 1]; NaN where the reward model abstained."""
    delta: np.ndarray
    """f32 [t] in [-1, 1], over the labeller's horizon; NaN where the reward model abstained."""
    trend: np.ndarray
    """i8 [t]: -1 regress, 0 stagnate, 1 progress."""
    done_prob: np.ndarray
    """f32 [t]."""
    match: np.ndarray
    """f32 [t]."""
    confidence: np.ndarray
    """f32 [t]."""
    scored: np.ndarray
    """bool [t]: scored there, not interpolated."""
    success_prob: float
    """NaN if unknown, as the next four."""
    voc: float
    """Rank correlation of progress with time."""
    negative_rate: float
    """Share of negative deltas."""
    max_regression: float
    """Largest fall of progress below its maximum so far."""
    stagnation_ratio: float
    """Share of frames with trend 0."""
    first_done_frame: int | None
    """None if never done."""
    review: bool
    """Whether the labeller marked it for review."""
    truth: np.ndarray | None = None
    """f32 [t], the simulator's progress."""
    success: np.ndarray | None = None
    """bool [t], the simulator's success."""
    behaviour: str | None = None
    """Behaviour that acted."""

    @property
    def frames(self) -> int:
        """T."""
        return len(self.progress)

    @property
    def time_s(self) -> np.ndarray:
        """Seconds since the episode began, f64 [t]."""
        return np.arange(self.frames) / self.fps

    @property
    def abstained(self) -> np.ndarray:
        """Frames with abstention, bool [t]."""
        return np.isnan(self.progress)

    @property
    def final_progress(self) -> float:
        """The last progress that is not NaN; NaN without any."""
        valid = self.progress[~self.abstained]
        return float(valid[-1]) if len(valid) else float("nan")

    @property
    def mean_confidence(self) -> float:
        """Over the scored frames; NaN without any."""
        return mean(self.confidence[self.scored])


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """A labelled data set."""

    info: DatasetInfo
    """Its videos and instructions."""
    episodes: tuple[Episode, ...]
    """Those that have labels."""
    provenance: dict[str, Any]
    """Content of meta/labels.json; empty without the file."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.info.path.resolve().name

    def episode(self, index: int) -> Episode:
        """Return the episode of a number.

        Raises:
            ValueError: there is none, or it has no labels.
        """
        for episode in self.episodes:
            if episode.index == index:
                return episode
        raise ValueError(
            f"{self.info.path}: got episode {index}, expected one of the {len(self.episodes)} "
            f"labelled ones, such as {self.episodes[0].index}"
        )


def read(path: Path) -> Labelled:
    """Read a labelled data set.

    Episodes without a scored frame count as unlabelled and are left out.

    Raises:
        ValueError: it is damaged (see `open_dataset`), or not labelled.
    """
    info = open_dataset(path)
    table = frame_table(path, list(FRAME_COLUMNS), TRUTH_COLUMNS)
    rows = _episode_rows(info)
    episodes = [
        _episode(info, e, table.slice(int(info.offsets[e]), int(info.lengths[e])), rows[e])
        for e in range(info.num_episodes)
    ]
    labelled = tuple(episode for episode in episodes if episode.scored.any())
    if not labelled:
        raise ValueError(f"{path}: no frame of it is scored; label it with `vla label`")
    return Labelled(info=info, episodes=labelled, provenance=_provenance(path))


def mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN without any."""
    valid = np.asarray(values, np.float64)
    valid = valid[~np.isnan(valid)]
    return float(valid.mean()) if len(valid) else float("nan")


def frame_table(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> pa.Table:
    """Return columns of every frame, in order of episode and time.

    Raises:
        ValueError: it lacks a needed one.
    """
    needed = ["episode_index", "frame_index", *needed]
    tables = []
    for file in table_files(path, "data"):
        with pq.ParquetFile(file) as parquet:
            present = parquet.schema_arrow.names
            missing = [name for name in needed if name not in present]
            if missing:
                raise ValueError(
                    f"{path}: has no column {missing[0]!r}, so it is not labelled; label it "
                    "with `vla label` and give its --out"
                )
            further = [name for name in optional if name in present]
            tables.append(parquet.read(columns=needed + further))
    table = pa.concat_tables(tables, promote_options="permissive")
    return table.sort_by([("episode_index", "ascending"), ("frame_index", "ascending")])


def _episode_rows(info: DatasetInfo) -> list[dict[str, Any]]:
    """Return the labels of each episode in meta/episodes."""
    columns = ["episode_index", *(f"labels/{name}" for name in EPISODE_COLUMNS)]
    rows: dict[int, dict[str, Any]] = {}
    for file in table_files(info.path, "meta/episodes"):
        with pq.ParquetFile(file) as parquet:
            present = [name for name in columns if name in parquet.schema_arrow.names]
            for row in parquet.read(columns=present).to_pylist():
                rows[row["episode_index"]] = row
    return [rows[e] for e in range(info.num_episodes)]


def _episode(info: DatasetInfo, index: int, table: pa.Table, row: dict[str, Any]) -> Episode:
    columns: dict[str, Any] = {
        name.removeprefix("progress."): _array(table, name, dtype)
        for name, dtype in FRAME_COLUMNS.items()
    }
    labels = {name: _scalar(row.get(f"labels/{name}")) for name in EPISODE_COLUMNS}
    first, review = labels.pop("first_done_frame"), labels.pop("review")
    numbers: dict[str, Any] = {
        name: float("nan") if value is None else float(value) for name, value in labels.items()
    }
    has = table.column_names
    return Episode(
        index=index,
        task=info.tasks[index],
        fps=info.fps,
        **columns,
        **numbers,
        first_done_frame=None if first is None or not first >= 0 else int(first),
        review=bool(review),
        truth=_array(table, "source.progress", np.float32) if "source.progress" in has else None,
        success=_array(table, "source.success", np.bool_) if "source.success" in has else None,
        behaviour=str(table["source.behaviour"][0]) if "source.behaviour" in has else None,
    )


def _array(table: pa.Table, name: str, dtype: type) -> np.ndarray:
    column = table[name].combine_chunks()
    if not pa.types.is_primitive(column.type) and not pa.types.is_boolean(column.type):
        column = column.flatten()  # one value per frame, as a list
    return column.to_numpy(zero_copy_only=False).astype(dtype)


def _scalar(value: Any) -> Any:
    """Return a scalar that may be stored as a list of one."""
    return (value[0] if value else None) if isinstance(value, list) else value


def _provenance(path: Path) -> dict[str, Any]:
    try:
        value = json.loads((path / LABELS_FILE).read_text())
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path / LABELS_FILE}: damaged ({error}); label the set again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path / LABELS_FILE}: damaged (no JSON object); label the set again")
    return migrate.labels(value)
