"""The sidecar file with which stock LeRobot weights frames (RA-BC, `--use_rabc`).

LeRobot gives a frame weight 1 if progress grows over the next action chunk, 0 if it falls, and 1
where progress is NaN. The file is therefore written such that abstained frames always fall.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from vla.data.parquet import write_table

FILE = "sarm_progress.parquet"
ABOVE, STEP = 1.1, 0.1
"""Abstained frames have progress from ABOVE down to ABOVE - STEP, above the largest real one."""


def table(
    progress: np.ndarray,
    index: np.ndarray,
    episode: np.ndarray,
    frame: np.ndarray,
    reward_model: str,
) -> pa.Table:
    """Return the sidecar's rows, in order of `index`.

    Progress of abstained frames is above 1 and falls from frame to frame, so that it also falls to
    any later one. A scored frame must not be compared with such a frame: the rows are cut into
    pieces that LeRobot takes for episodes, each of which ends before the next abstained frame. The
    first piece of an episode keeps its number. Without abstention the table is LeRobot's own.

    Progress f32 [n] is NaN where abstained, `index` i64 [n] is LeRobot's number of each frame,
    `frame` i64 [n] that within the episode; the name of the reward model goes into the metadata.
    """
    abstained = np.isnan(progress)
    # A piece ends at a scored frame before an abstained one or another episode.
    ends = ~abstained[:-1] & (abstained[1:] | (np.diff(episode) != 0))
    begins = np.concatenate([[True], ends])
    piece = np.cumsum(begins) - 1
    # The first piece of an episode has its number, others have new ones.
    first = np.concatenate([[True], np.diff(episode[begins]) != 0])
    new = int(episode.max()) + np.cumsum(~first)
    number = np.where(first, episode[begins], new)[piece]
    rank = np.arange(len(progress)) - np.flatnonzero(begins)[piece]
    share = rank / np.maximum(np.bincount(piece)[piece], 1)
    value = np.where(abstained, ABOVE - STEP * share, progress)
    columns = [index, number, frame, value]
    if abstained[-1]:  # to fall, it needs a row beyond the data set, which is never read
        beyond = (index[-1] + 1, number[-1], frame[-1] + 1, 0.0)
        columns = [np.append(column, last) for column, last in zip(columns, beyond, strict=True)]
    names = ("index", "episode_index", "frame_index", "progress_sparse")
    kinds = (np.int64, np.int64, np.int64, np.float32)
    built = {n: c.astype(k) for n, c, k in zip(names, columns, kinds, strict=True)}
    return pa.table(built).replace_schema_metadata({b"reward_model_path": reward_model.encode()})


def write(path: Path, rows: pa.Table) -> None:
    """Write the sidecar into a data set."""
    write_table(rows, path / FILE)
