"""Writes data sets of other formats in their documented layouts, from one recorded by ours."""

import io
import json
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vla.data import tfrecord
from vla.data.decode import FrameChoice, decode_views
from vla.data.info import DatasetInfo
from vla.data.reader import open_dataset, read_columns

V2_FILE = "chunk-{episode_chunk:03d}/episode_{episode_index:06d}"
FLAT = {"qp": "19", "g": "2", "preset": "ultrafast"}
B_FRAMES = {"crf": "18", "g": "5", "bf": "2", "preset": "medium"}
"""H.264 whose frames are not stored in the order in which they are shown."""


def frames_of(info: DatasetInfo, episode: int) -> np.ndarray:
    """Return the pictures of an episode, u8 `t v h w 3`."""
    steps = np.arange(info.lengths[episode])
    choice = FrameChoice(episode=np.full(len(steps), episode), step=steps)
    size = (info.cameras[0].height_px, info.cameras[0].width_px)
    return decode_views(info, info.cameras, choice, size)


def encode(
    path: Path, frames: np.ndarray, fps: float, options: dict[str, str], codec: str = "libx264"
) -> None:
    """Write pictures as H.264 or another codec, 4:2:0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, Fraction(fps), options=options)
        stream.pix_fmt = "yuv420p"
        stream.height, stream.width = frames.shape[1:3]
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def decoded(path: Path) -> np.ndarray:
    """Return every picture of a video."""
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def lerobot_v2(source: Path, out: Path, options: dict[str, str] = FLAT) -> Path:
    """Write a LeRobotDataset v2.1 with the episodes of a version 3."""
    info, columns = open_dataset(source), read_columns(open_dataset(source))
    described = json.loads((source / "meta/info.json").read_text())
    tasks = list(dict.fromkeys(info.tasks))
    lines: dict[str, list[Any]] = {"episodes": [], "episodes_stats": []}
    lines["tasks"] = [{"task_index": i, "task": text} for i, text in enumerate(tasks)]
    for e, task in enumerate(info.tasks):
        rows, length = slice(info.offsets[e], info.offsets[e + 1]), int(info.lengths[e])
        frame = np.arange(length)
        table = pa.table({
            "observation.state": pa.array(list(columns.state[rows])),
            "action": pa.array(list(columns.action[rows])),
            "success": columns.scalars["success"][rows].astype(bool),
            "progress": columns.scalars["progress"][rows],
            "behaviour": ["expert"] * length,
            "timestamp": (frame / info.fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(length, e),
            "index": int(info.offsets[e]) + frame,
            "task_index": np.full(length, tasks.index(task)),
        })  # fmt: skip
        (out / "data/chunk-000").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, out / f"data/chunk-000/episode_{e:06d}.parquet")
        stats = {}
        for view, camera in enumerate(info.cameras):
            pictures = frames_of(info, e)[:, view]
            encode(v2_video(out, camera.key, e), pictures, info.fps, options)
            flat = pictures.reshape(-1, 3) / 255
            stats[camera.key] = {
                name: getattr(flat, name)(0).reshape(3, 1, 1).tolist()
                for name in ("min", "max", "mean", "std")
            } | {"count": [length]}
        lines["episodes"].append({"episode_index": e, "tasks": [task], "length": length})
        lines["episodes_stats"].append({"episode_index": e, "stats": stats})
    described |= {
        "codebase_version": "v2.1", "total_chunks": 1, "total_videos": 2 * info.num_episodes,
        "data_path": f"data/{V2_FILE}.parquet",
        "video_path": f"videos/{V2_FILE.replace('/', '/{video_key}/')}.mp4",
    }  # fmt: skip
    (out / "meta").mkdir()
    (out / "meta/info.json").write_text(json.dumps(described))
    for name, rows_ in lines.items():
        (out / f"meta/{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows_))
    return out


def v2_video(out: Path, key: str, episode: int) -> Path:
    """Return where a version 2 keeps a video."""
    return out / f"videos/chunk-000/{key}/episode_{episode:06d}.mp4"


def robomimic(source: Path, out: Path, env_args: dict[str, Any] | None = None) -> Path:
    """Write the episodes as a robomimic file: the state is cut into two columns."""
    info, columns = open_dataset(source), read_columns(open_dataset(source))
    with h5py.File(out, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(env_args or {"env_kwargs": {"control_freq": 20}})
        for e in range(info.num_episodes):
            rows = slice(info.offsets[e], info.offsets[e + 1])
            demo = data.create_group(f"demo_{e}")
            demo.attrs["num_samples"] = int(info.lengths[e])
            demo["actions"] = columns.action[rows].astype(np.float64)
            demo["rewards"] = columns.scalars["success"][rows].astype(np.float64)
            demo["dones"] = columns.scalars["success"][rows].astype(np.int64)
            demo["states"] = np.zeros((int(info.lengths[e]), 9))
            obs = demo.create_group("obs")
            obs["robot0_joint_pos"] = columns.state[rows, :1].astype(np.float64)
            obs["robot0_gripper_qpos"] = columns.state[rows, 1:].astype(np.float64)
            obs["object"] = np.ones((int(info.lengths[e]), 4))
            obs["agentview_depth"] = np.zeros((int(info.lengths[e]), 8, 8, 1), np.float32)
            for view, name in enumerate(("agentview_image", "robot0_eye_in_hand_image")):
                obs[name] = frames_of(info, e)[:, view]
        file["mask/train"] = np.array([b"demo_3", b"demo_0"])
    return out


def example(features: dict[str, Any]) -> bytes:
    """Return a `tf.train.Example`: bytes, floats or whole numbers by name."""
    made = tfrecord.example_class()()
    for name, values in features.items():
        kinds = {bytes: "bytes_list", float: "float_list", int: "int64_list"}
        getattr(made.features.feature[name], kinds[type(values[0])]).value.extend(values)
    return made.SerializeToString()


def record(data: bytes) -> bytes:
    """Return data as it stands in a TFRecord file."""
    length = struct.pack("<Q", len(data))
    checks = [struct.pack("<I", tfrecord.masked_checksum(part)) for part in (length, data)]
    return length + checks[0] + data + checks[1]


def _tensor(kind: str, *shape: int) -> dict[str, Any]:
    dimensions = {"dimensions": [str(n) for n in shape]} if shape else {}
    return {"tensor": {"dtype": kind, "encoding": "none", "shape": dimensions}}


def rlds(source: Path, out: Path) -> Path:
    """Write the episodes as RLDS in two files, as tensorflow_datasets 4.9 does."""
    info, columns = open_dataset(source), read_columns(open_dataset(source))
    size = info.cameras[0].height_px
    picture = {"image": {"dtype": "uint8", "encodingFormat": "png",
                         "shape": {"dimensions": [str(size), str(size), "3"]}}}  # fmt: skip
    described = {
        "action": _tensor("float32", columns.action.shape[1]), "reward": _tensor("float32"),
        "is_first": _tensor("bool"), "is_last": _tensor("bool"),
        "is_terminal": _tensor("bool"), "discount": _tensor("float32"),
        "language_instruction": {"text": {}},
        "observation": {"featuresDict": {"features": {
            "image": picture, "wrist": picture, "state": _tensor("float32", columns.state.shape[1]),
            "words": _tensor("float32", -1),
        }}},
    }  # fmt: skip
    records = []
    for e, task in enumerate(info.tasks):
        rows, length = slice(info.offsets[e], info.offsets[e + 1]), int(info.lengths[e])
        views = frames_of(info, e)
        done = columns.scalars["success"][rows]
        records.append(record(example({
            "episode_metadata/file_path": [b"raw"],
            "steps/action": columns.action[rows].ravel().tolist(),
            "steps/reward": done.tolist(),
            "steps/is_terminal": done.astype(int).tolist(),
            "steps/language_instruction": [task.encode()] * length,
            "steps/observation/image": [png(p) for p in views[:, 0]],
            "steps/observation/wrist": [png(p) for p in views[:, 1]],
            "steps/observation/state": columns.state[rows].ravel().tolist(),
        })))  # fmt: skip
    out.mkdir(parents=True)
    top = {"featuresDict": {"features": {"steps": {"sequence": {"feature": {
        "featuresDict": {"features": described}}, "length": "-1"}}}}}  # fmt: skip
    (out / "features.json").write_text(json.dumps(top))
    for i, part in enumerate((records[:3], records[3:])):
        (out / f"arm-train.tfrecord-0000{i}-of-00002").write_bytes(b"".join(part))
    (out / "arm-val.tfrecord-00000-of-00001").write_bytes(records[0])
    return out


def png(pixels: np.ndarray) -> bytes:
    """Return a picture as PNG, which loses nothing."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()
