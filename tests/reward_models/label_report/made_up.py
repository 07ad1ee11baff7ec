"""Labelled data sets made by hand, as `vla label` writes them: columns, figures, provenance."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fake_episodes import fake_episode, fake_robot
from vla.data.writer import write_shard

DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
FPS = 10
BEHAVIOURS = ("expert", "freeze", "drop", "random")


def write_labelled(
    folder: Path, *, episodes: int = 4, frames: int = 40, truth: bool = True, size_px: int = 32
) -> Path:
    """Write a data set with labels of four kinds in turn, on two instructions.

    Right (the truth, confident); slow (the arm froze after a second, the labels go on); unsure
    (confidence 0.3, abstains on the second half); conflicting (progress 1 at the end, no success).
    """
    robot = fake_robot(size_px)
    made = [_episode(k, frames, size_px) for k in range(episodes)]
    write_shard(folder, robot, made, {})
    table = pq.read_table(folder / DATA)
    labels = [_labels(k, one.progress, one.success) for k, one in enumerate(made)]
    for name in labels[0]:
        if name.startswith("progress") and name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array(np.concatenate([row[name] for row in labels])))
    kept = {"source.progress": "progress", "source.success": "success"}
    if truth:
        for name, field in kept.items():
            values = np.concatenate([getattr(one, field) for one in made])
            table = table.append_column(name, pa.array(values))
        table = table.append_column("source.behaviour", table["behaviour"])
    table = table.drop_columns(["success", "behaviour"])
    pq.write_table(table, folder / DATA)
    _describe(folder, table)
    _write_figures(folder, labels)
    provenance = {"reward_model": "made_up", "source": "fake", "scorer": {"horizon_s": 1.0}}
    (folder / "meta/labels.json").write_text(json.dumps(provenance))
    return folder


def _episode(k: int, frames: int, size_px: int):
    base = fake_episode("push the block", 3, k, BEHAVIOURS[k % 4], fake_robot(size_px))
    rise = np.linspace(0, 1, frames, dtype=np.float32)
    progress = np.minimum(rise, rise[FPS]) if k % 4 in (1, 3) else rise
    images = np.full((frames, 2, size_px, size_px, 3), 60, np.uint8)
    side = size_px // 8
    for t in range(frames):
        left = int(rise[t] * (size_px - side))
        images[t, :, size_px // 2 : size_px // 2 + side, left : left + side] = (220, 40, 40)
    channels = np.zeros((frames, 2), np.float32)
    return replace(
        base, images=images, proprio=channels, action=channels, progress=progress,
        success=progress >= 1.0, instruction=f"push the block {'left' if k % 2 else 'right'}",
    )  # fmt: skip


def _labels(k: int, truth: np.ndarray, success: np.ndarray) -> dict[str, np.ndarray]:
    frames = len(truth)
    rise = np.linspace(0, 1, frames, dtype=np.float32)
    progress = truth.copy() if k % 4 == 0 else rise.copy()
    confidence = np.full(frames, 0.3 if k % 4 == 2 else 0.9, np.float32)
    if k % 4 == 2:
        progress[frames // 2 :] = np.nan
    delta = np.diff(progress, prepend=progress[:1]) * FPS
    return {
        "progress": progress,
        "progress.delta": delta.astype(np.float32),
        "progress.trend": np.sign(np.nan_to_num(delta)).astype(np.int8),
        "progress.done_prob": np.where(success, 0.9, 0.1).astype(np.float32),
        "progress.match": np.full(frames, 0.9, np.float32),
        "progress.confidence": confidence,
        "progress.scored": (np.arange(frames) % 2 == 0) | (np.arange(frames) == frames - 1),
        "next.reward": np.zeros(frames, np.float32),
        "next.done": np.arange(frames) == frames - 1,
        "next.success": success,
    }


def _describe(folder: Path, table: pa.Table) -> None:
    """Tell meta/info.json of the new columns."""
    info = json.loads((folder / "meta/info.json").read_text())
    kinds = {"float": "float32", "int8": "int8", "bool": "bool", "string": "string"}
    told = {k: v for k, v in info["features"].items() if k in table.column_names or "images" in k}
    for field in table.schema:
        if field.name not in told:
            told[field.name] = {"dtype": kinds[str(field.type)], "shape": [1], "names": None}
    (folder / "meta/info.json").write_text(json.dumps({**info, "features": told}))


def _write_figures(folder: Path, labels: list[dict[str, np.ndarray]]) -> None:
    table = pq.read_table(folder / EPISODES)
    done = [np.flatnonzero(row["progress.done_prob"] > 0.5) for row in labels]
    columns = {
        "success_prob": [float(row["progress.done_prob"][-1]) for row in labels],
        "voc": [1.0] * len(labels),
        "negative_rate": [0.0] * len(labels),
        "max_regression": [0.0] * len(labels),
        "stagnation_ratio": [0.25] * len(labels),
        "first_done_frame": [int(at[0]) if len(at) else -1 for at in done],
        "review": [k % 4 == 2 for k in range(len(labels))],
    }
    for name, values in columns.items():
        table = table.append_column(f"labels/{name}", pa.array(values))
    pq.write_table(table, folder / EPISODES)
