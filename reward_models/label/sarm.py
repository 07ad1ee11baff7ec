"""The sidecar by which stock LeRobot weights frames (RA-BC, `--use_rabc`) by our labels.

LeRobot gives a frame weight 1 if progress grows over the next action chunk, 0 if it falls, and,
against all caution, 1 where progress is NaN. What it reads is therefore written such that a frame
we abstained from always seems to lose progress.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILE = "sarm_progress.parquet"
ABOVE, STEP = 1.1, 0.1
"""Abstained frames lie between these two above the largest progress there is."""


def table(
    progress: np.ndarray, index: np.ndarray, episode: np.ndarray, frame: np.ndarray, critic: str
) -> pa.Table:
    """Return the sidecar's rows, in order of `index`.

    Where the critic abstained, progress is above 1 and falls from frame to frame, so that it falls
    to whatever comes later, too. A measured frame must not be compared with such a one: the rows
    are cut into pieces that LeRobot takes for episodes, each of which ends before the next
    abstained frame; it then compares with the piece's last, measured, frame. The first piece of an
    episode keeps its number. Without abstained frames the table is the one LeRobot writes itself.

    Args:
        progress: f32 [n] in [0, 1], NaN where abstained; in order of `index`.
        index: i64 [n], LeRobot's number of each frame.
        episode: i64 [n].
        frame: i64 [n], within the episode.
        critic: Who says so.
    """
    silent = np.isnan(progress)
    # A piece ends after a measured frame which an abstained one or another episode follows.
    ends = ~silent[:-1] & (silent[1:] | (np.diff(episode) != 0))
    begins = np.concatenate([[True], ends])
    piece = np.cumsum(begins) - 1
    number = _numbers(episode[begins], int(episode.max()) + 1)[piece]
    rank = np.arange(len(progress)) - np.flatnonzero(begins)[piece]
    share = rank / np.maximum(np.bincount(piece)[piece], 1)
    value = np.where(silent, ABOVE - STEP * share, progress)
    columns = [index, number, frame, value]
    if silent[-1]:  # something to fall to: a row beyond the data set, which nothing asks for
        beyond = (index[-1] + 1, number[-1], frame[-1] + 1, 0.0)
        columns = [np.append(column, last) for column, last in zip(columns, beyond, strict=True)]
    names = ("index", "episode_index", "frame_index", "progress_sparse")
    kinds = (np.int64, np.int64, np.int64, np.float32)
    built = {n: c.astype(k) for n, c, k in zip(names, columns, kinds, strict=True)}
    return pa.table(built).replace_schema_metadata({b"reward_model_path": critic.encode()})


def _numbers(episode: np.ndarray, count: int) -> np.ndarray:
    """Return a number for each piece: its episode's for the first one of it, else a fresh one."""
    first = np.concatenate([[True], np.diff(episode) != 0])
    fresh = count + np.cumsum(~first) - 1
    return np.where(first, episode, fresh)


def write(path: Path, rows: pa.Table) -> None:
    """Write the sidecar into a data set."""
    pq.write_table(rows, path / FILE)
