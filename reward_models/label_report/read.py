"""Reads a labelled data set into arrays per episode: labels, and the truth where it was kept."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.data.info import DatasetInfo
from vla.data.reader import open_dataset, table_files

LABELS_FILE = "meta/labels.json"
"""Where the labels come from: critic, source, settings; LeRobot ignores the file."""
FRAME_COLUMNS = {
    "progress": np.float32,
    "progress.delta": np.float32,
    "progress.trend": np.int8,
    "progress.done_prob": np.float32,
    "progress.match": np.float32,
    "progress.confidence": np.float32,
    "progress.scored": np.bool_,
}
EPISODE_COLUMNS = (
    "success_prob",
    "voc",
    "negative_rate",
    "max_regression",
    "stagnation_ratio",
    "first_done_frame",
    "review",
)
"""Without the "labels/" in front of each."""
TRUTH_COLUMNS = ("source.progress", "source.success", "source.behaviour")
"""What the simulator knew, in data sets of our own; others lack some or all of them."""


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
    """f32 [t] in [0, 1]; NaN where the critic abstained."""
    delta: np.ndarray
    """f32 [t] in [-1, 1], over the labeller's horizon; NaN where it abstained."""
    trend: np.ndarray
    """i8 [t]: -1 regress, 0 stagnate, 1 progress."""
    done_prob: np.ndarray
    """f32 [t]."""
    match: np.ndarray
    """f32 [t]."""
    confidence: np.ndarray
    """f32 [t]."""
    scored: np.ndarray
    """bool [t]: measured there, not interpolated."""
    success_prob: float
    """Like the next four NaN if not known."""
    voc: float
    """Rank correlation of progress with time."""
    negative_rate: float
    """Share of steps back."""
    max_regression: float
    """Largest fall of progress below what had been reached."""
    stagnation_ratio: float
    """Share of frames that change nothing."""
    first_done_frame: int | None
    """None if never done."""
    review: bool
    """Whether the labeller wants a person to look."""
    truth: np.ndarray | None = None
    """f32 [t], the simulator's progress."""
    success: np.ndarray | None = None
    """bool [t], whether the task is solved."""
    behaviour: str | None = None
    """Who acted."""

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
        """Where no progress was given, bool [t]."""
        return np.isnan(self.progress)

    @property
    def final_progress(self) -> float:
        """The last progress given; NaN if there is none."""
        given = self.progress[~self.abstained]
        return float(given[-1]) if len(given) else float("nan")

    @property
    def mean_confidence(self) -> float:
        """Over the measured frames; NaN if there are none."""
        return mean(self.confidence[self.scored])


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """A labelled data set."""

    info: DatasetInfo
    """Its videos and instructions."""
    episodes: tuple[Episode, ...]
    """Those that have labels."""
    provenance: dict[str, Any]
    """What meta/labels.json says; empty if there is none."""

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

    Episodes of which no frame was measured count as unlabelled and are left out.

    Raises:
        ValueError: it is damaged (see `open_dataset`), or not labelled.
    """
    info = open_dataset(path)
    table = _frame_table(info)
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
    """Return the mean of what is not NaN; NaN if nothing is left."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")


def _frame_table(info: DatasetInfo) -> pa.Table:
    """Return labels and truth of every frame, in order of episode and time."""
    needed = ["episode_index", "frame_index", *FRAME_COLUMNS]
    tables = []
    for file in table_files(info.path, "data"):
        with pq.ParquetFile(file) as parquet:
            present = parquet.schema_arrow.names
            missing = [name for name in needed if name not in present]
            if missing:
                raise ValueError(
                    f"{info.path}: has no column {missing[0]!r}, so it is not labelled; label it "
                    "with `vla label` and give the folder that this writes"
                )
            truth = [name for name in TRUTH_COLUMNS if name in present]
            tables.append(parquet.read(columns=needed + truth))
    table = pa.concat_tables(tables, promote_options="permissive")
    return table.sort_by([("episode_index", "ascending"), ("frame_index", "ascending")])


def _episode_rows(info: DatasetInfo) -> list[dict[str, Any]]:
    """Return what meta/episodes says of each episode's labels; what it does not say is missing."""
    wanted = ["episode_index", *(f"labels/{name}" for name in EPISODE_COLUMNS)]
    rows: dict[int, dict[str, Any]] = {}
    for file in table_files(info.path, "meta/episodes"):
        with pq.ParquetFile(file) as parquet:
            present = [name for name in wanted if name in parquet.schema_arrow.names]
            for row in parquet.read(columns=present).to_pylist():
                rows[row["episode_index"]] = row
    return [rows[e] for e in range(info.num_episodes)]


def _episode(info: DatasetInfo, index: int, table: pa.Table, row: dict[str, Any]) -> Episode:
    columns: dict[str, Any] = {
        name.removeprefix("progress."): _array(table, name, dtype)
        for name, dtype in FRAME_COLUMNS.items()
    }
    told = {name: _one(row.get(f"labels/{name}")) for name in EPISODE_COLUMNS}
    first, review = told.pop("first_done_frame"), told.pop("review")
    numbers: dict[str, Any] = {
        name: float("nan") if value is None else float(value) for name, value in told.items()
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


def _one(value: Any) -> Any:
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
    return value
