"""Damage to files, as JSON that can be stored and applied again.

An operation is {"file", "do", ...}. What cannot be applied any more, because an earlier operation
destroyed its place, is left out.
"""

import contextlib
import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.hardening.other_formats import record
from robot_bridge.recording.mcap_reader import open_bag
from robot_bridge.recording.mcap_writer import McapWriter
from vla.data import tfrecord

Op = dict[str, Any]
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 7, 255, 1 << 20, 2**31, 2**32 + 1, 2**62, -(2**63), 10**30,
    0.5, 1e-300, 1e300, float("nan"), float("inf"), "", " ", "x", "../x", "/etc/hostname", "a/b",
    "\0", "\ud800", "{0}", "{nope}", "{chunk_index:999999999d}", "{video_key.__class__}",
    "x" * 5000, [], {}, [[]], [[[1]]], [None], ["a", 1], {"type": "x"}, [1e300], [-1, 0],
    ["x"] * 300,
)  # fmt: skip
"""Values that replace others."""
DEEP = 100_000
"""Brackets within brackets: more than any parser's stack."""
MOST_NUMBERS = 1 << 20
"""Most numbers of a dataset that a mutation makes in memory."""


def apply(folder: Path, ops: list[Op]) -> None:
    """Damage the files of a folder."""
    for op in ops:
        # An operation after another may find nothing of what it was drawn for.
        with contextlib.suppress(Exception):
            OPERATIONS[op["do"]](folder / op["file"], op)


def draw(rng: np.random.Generator, folder: Path) -> list[Op]:
    """Return one to three random operations on the files of a folder."""
    return [_draw_one(rng, folder) for _ in range(int(rng.choice([1, 1, 1, 2, 3])))]


def _draw_one(rng: np.random.Generator, folder: Path) -> Op:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path = paths[int(rng.integers(len(paths)))]
    op: Op = {"file": path.relative_to(folder).as_posix()}
    if rng.random() < 0.04:
        return op | {"do": str(rng.choice(["delete", "empty", "folder", "link"]))}
    drawer = DRAWERS.get(path.suffix) or (_draw_json if path.name == "zarr.json" else None)
    if drawer is None and ".tfrecord" in path.name:
        drawer = _draw_tfrecord
    if drawer is not None and rng.random() < 0.75:
        return op | drawer(rng, path)
    return op | _draw_bytes(rng, path.stat().st_size)


# --- bytes and files -------------------------------------------------------------------------


def _draw_bytes(rng: np.random.Generator, size: int) -> Op:
    at = int(rng.integers(max(size, 1)))
    do = str(rng.choice(["flip", "flip", "write", "cut", "insert", "repeat"]))
    if do == "flip":
        return {"do": do, "at": at, "bit": int(rng.integers(8))}
    if do in ("write", "insert"):
        random = bytes(rng.integers(0, 256, int(rng.integers(1, 9)), np.uint8))
        edges = [random, b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 62), struct.pack("<i", -1)]
        return {"do": do, "at": at, "hex": edges[int(rng.integers(len(edges)))].hex()}
    return {"do": do, "at": at, "count": int(rng.integers(1, 64))}


def _bytes(change: Callable[[bytearray, Op], bytes | bytearray]) -> Callable[[Path, Op], None]:
    def act(path: Path, op: Op) -> None:
        path.write_bytes(change(bytearray(path.read_bytes()), op))

    return act


def _flip(data: bytearray, op: Op) -> bytearray:
    data[op["at"]] ^= 1 << op["bit"]
    return data


def _overwritten(data: bytearray, op: Op) -> bytearray:
    new = bytes.fromhex(op["hex"])
    data[op["at"] : op["at"] + len(new)] = new
    return data


def _inserted(data: bytearray, op: Op) -> bytearray:
    data[op["at"] : op["at"]] = bytes.fromhex(op["hex"])
    return data


def _folder(path: Path, op: Op) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path, op: Op) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


# --- JSON ------------------------------------------------------------------------------------


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in inner:
        yield from _places(part, (*at, key))


def _draw_place(rng: np.random.Generator, value: Any) -> Op:
    places = list(_places(value)) or [()]
    at = list(places[int(rng.integers(len(places)))])
    do = str(rng.choice(["set", "set", "set", "remove", "rename", "deep"]))
    op: Op = {"at": at, "how": do}
    if do == "set":
        op["value"] = json.dumps(HOSTILE[int(rng.integers(len(HOSTILE)))])
    return op


def _changed(value: Any, op: Op) -> str:
    """Return JSON with one place changed."""
    *way, last = op["at"]
    inner = value
    for key in way:
        inner = inner[key]
    if op["how"] == "set":
        inner[last] = json.loads(op["value"])
    elif op["how"] == "remove":
        del inner[last]
    elif op["how"] == "rename":
        inner[f"{last}x"] = inner.pop(last)
    else:
        inner[last] = "@deep@"
    return json.dumps(value).replace('"@deep@"', "[" * DEEP + "]" * DEEP)


def _draw_json(rng: np.random.Generator, path: Path) -> Op:
    return {"do": "json"} | _draw_place(rng, json.loads(path.read_text()))


def _json(path: Path, op: Op) -> None:
    path.write_text(_changed(json.loads(path.read_text()), op))


def _draw_lines(rng: np.random.Generator, path: Path) -> Op:
    lines = path.read_text().splitlines()
    row = int(rng.integers(len(lines)))
    return {"do": "lines", "row": row} | _draw_place(rng, json.loads(lines[row]))


def _lines(path: Path, op: Op) -> None:
    lines = path.read_text().splitlines()
    lines[op["row"]] = _changed(json.loads(lines[op["row"]]), op)
    path.write_text("\n".join(lines) + "\n")


def _draw_safetensors(rng: np.random.Generator, path: Path) -> Op:
    return {"do": "safetensors"} | _draw_place(rng, _header(path.read_bytes())[0])


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _safetensors(path: Path, op: Op) -> None:
    header, rest = _header(path.read_bytes())
    text = _changed(header, op).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + rest)


# --- frames of the policy server ---------------------------------------------------------------


def _draw_frame(rng: np.random.Generator, path: Path) -> Op:
    return {"do": "frame"} | _draw_place(rng, _frame(path.read_bytes())[1])


def _frame(data: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    """Return magic, head and body of a frame."""
    head, body = struct.unpack(">II", data[4:12])
    assert len(data) == 12 + head + body
    return data[:4], json.loads(data[12 : 12 + head]), data[12 + head :]


def _write_frame(path: Path, op: Op) -> None:
    magic, head, body = _frame(path.read_bytes())
    text = _changed(head, op).encode()
    path.write_bytes(magic + struct.pack(">II", len(text), len(body)) + text + body)


# --- tables ----------------------------------------------------------------------------------

CASTS: dict[str, Callable[[Any], Any]] = {
    "text": str, "list": lambda x: [x], "struct": lambda x: {"x": str(x)}, "null": lambda x: None,
    "bool": bool, "bytes": lambda x: str(x).encode(), "nested": lambda x: [[x]],
    "double": lambda x: float(np.mean(x)) if x is not None else x,
}  # fmt: skip
"""What makes a column of another type."""
CELLS: tuple[Any, ...] = (
    None,
    -1,
    0,
    1,
    2**31,
    3_000_000_000,
    2**62,
    float("nan"),
    float("inf"),
    1e300,
)


def _draw_table(rng: np.random.Generator, path: Path) -> Op:
    table = pq.read_table(path)
    how = str(
        rng.choice(["cast", "cell", "drop", "rename", "repeat", "shorten", "reverse", "metadata"])
    )
    op: Op = {"do": "table", "how": how, "column": str(rng.choice(table.column_names))}
    if how == "cast":
        op["kind"] = str(rng.choice(list(CASTS)))
    if how == "cell":
        op |= {
            "row": int(rng.integers(max(table.num_rows, 1))),
            "cell": int(rng.integers(len(CELLS))),
        }
    return op


def _table(path: Path, op: Op) -> None:
    table = pq.read_table(path)
    name, how = op["column"], op["how"]
    index = table.column_names.index(name)
    if how == "cast":
        values = [CASTS[op["kind"]](x) for x in table[name].to_pylist()]
        table = table.set_column(index, name, pa.array(values))
    elif how == "cell":
        values, cell = table[name].to_pylist(), CELLS[op["cell"]]
        old = values[op["row"]]
        values[op["row"]] = [cell, *old[1:]] if isinstance(old, list) else cell
        table = table.set_column(index, name, pa.array(values))
    elif how == "drop":
        table = table.drop_columns([name])
    elif how == "rename":
        table = table.rename_columns([f"{c}x" if c == name else c for c in table.column_names])
    elif how == "repeat":
        table = pa.concat_tables([table, table])
    elif how == "shorten":
        table = table.slice(0, table.num_rows // 2)
    elif how == "reverse":
        table = table.take(pa.array(range(table.num_rows - 1, -1, -1)))
    else:
        table = table.replace_schema_metadata({b"huggingface": b"[[[", b"pandas": b"\xff"})
    pq.write_table(table, path)


# --- HDF5 ------------------------------------------------------------------------------------


def _declare(rows: int, **how: Any) -> Callable[[h5py.File, str, tuple[int, ...]], object]:
    """Declare a data set of many rows of which none is stored."""
    return lambda file, name, shape: file.create_dataset(
        name, (rows, *shape[1:]), "f4", chunks=(1024, *shape[1:]), **how
    )


def _virtual(file: h5py.File, name: str, shape: tuple[int, ...]) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(Path(file.filename).name, "data/demo_0/rewards", (4,))
    file.create_virtual_dataset(name, layout)


def _value(make: Callable[[h5py.File, str, tuple[int, ...]], Any]) -> Any:
    def put(file: h5py.File, name: str, shape: tuple[int, ...]) -> None:
        file[name] = make(file, name, shape)

    return put


H5: dict[str, Callable[[h5py.File, str, tuple[int, ...]], object]] = {
    "delete": lambda file, name, shape: None,
    "text": _value(lambda file, name, shape: np.full(shape, b"x")),
    "compound": _value(lambda file, name, shape: np.zeros(shape, [("a", "f4"), ("b", "i4")])),
    "scalar": _value(lambda file, name, shape: 1.0),
    "wide": _value(lambda file, name, shape: np.zeros((*shape, 2))),
    "nan": _value(lambda file, name, shape: np.full(shape, np.nan)),
    "empty": _value(lambda file, name, shape: np.zeros((0, *shape[1:]))),
    "soft": _value(lambda file, name, shape: h5py.SoftLink("/data")),
    "self": _value(lambda file, name, shape: h5py.SoftLink(f"/{name}")),
    "external": _value(
        lambda file, name, shape: h5py.ExternalLink(Path(file.filename).name, "/data")
    ),
    "reference": lambda file, name, shape: file.create_dataset(
        name, data=np.full(shape, file.ref), dtype=h5py.ref_dtype
    ),
    "huge": _declare(2**40), "huge gzip": _declare(10**9, compression="gzip"),
    "storage": lambda file, name, shape: file.create_dataset(
        name, (8,), "u1", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]
    ),
    "virtual": _virtual, "group": lambda file, name, shape: file.create_group(name),
}  # fmt: skip
"""What takes the place of an object of that shape."""


def _draw_h5(rng: np.random.Generator, path: Path) -> Op:
    with h5py.File(path) as file:
        names: list[str] = []
        file.visit(names.append)
        name = names[int(rng.integers(len(names)))]
        attributes = list(file[name].attrs)
    op: Op = {"do": "h5", "name": name, "how": str(rng.choice([*H5, "attribute"]))}
    if attributes and rng.random() < 0.5:
        op["how"] = "attribute"
    if op["how"] == "attribute":
        values = [v for v in HOSTILE if v is not None and not isinstance(v, dict)]
        op["key"] = str(rng.choice(attributes or ["num_samples"]))
        op["value"] = json.dumps(values[int(rng.integers(len(values)))])
    return op


def _h5(path: Path, op: Op) -> None:
    """Change a file; one that cannot be changed is as it was: HDF5 would write on much later."""
    name, how = op["name"], op["how"]
    before = path.with_name(f".{path.name}")
    path.rename(before)
    shutil.copyfile(before, path)
    try:
        with h5py.File(path, "r+") as file:
            if how == "attribute":
                file[name].attrs[op["key"]] = json.loads(op["value"])
            else:
                shape = getattr(file[name], "shape", (4,))
                if math.prod(shape) > MOST_NUMBERS:  # this process would allocate it
                    shape = (4,)
                del file[name]
                H5[how](file, name, shape)
        before.unlink()
    except BaseException:
        before.replace(path)
        raise


# --- records of TFRecord, messages of MCAP -------------------------------------------------------


def _draw_tfrecord(rng: np.random.Generator, path: Path) -> Op:
    offsets = tfrecord.record_offsets(path)
    row = int(rng.integers(len(offsets)))
    data = tfrecord.read_record(path, offsets[row])
    if rng.random() < 0.5:
        return {"do": "record", "row": row, "inner": _draw_bytes(rng, len(data))}
    name = str(rng.choice(sorted(tfrecord.parse_example(data))))
    return {"do": "feature", "row": row, "name": name, "how": str(rng.choice(sorted(FEATURES)))}


FEATURES: dict[str, dict[str, list[Any]]] = {
    "none": {}, "no bytes": {"bytes_list": []}, "text": {"bytes_list": [b"x"]},
    "png": {"bytes_list": [b"\x89PNG\r\n\x1a\n"] * 12},
    "not text": {"bytes_list": [b"\xff\xfe"] * 12},
    "nan": {"float_list": [float("nan")] * 12}, "many": {"float_list": [1.0] * 10_007},
    "whole": {"int64_list": [2**62, -1]}, "one": {"float_list": [1.0]},
}  # fmt: skip


def _tfrecord(path: Path, op: Op) -> None:
    offsets = tfrecord.record_offsets(path)
    data = [tfrecord.read_record(path, at) for at in offsets]
    row = op["row"]
    if op["do"] == "record":
        data[row] = bytes(BYTES[op["inner"]["do"]](bytearray(data[row]), op["inner"]))
    else:
        example = tfrecord.example_class()()
        example.ParseFromString(data[row])
        feature = example.features.feature[op["name"]]
        feature.Clear()
        for kind, values in FEATURES[op["how"]].items():
            getattr(feature, kind).value.extend(values)
        data[row] = example.SerializeToString()
    path.write_bytes(b"".join(map(record, data)))


def _draw_mcap(rng: np.random.Generator, path: Path) -> Op:
    messages = list(open_bag(path).messages())
    row = int(rng.integers(len(messages)))
    if rng.random() < 0.2:
        return {"do": "stamp", "row": row, "ns": int(rng.choice([0, 1, 2**62, 2**63 + 1]))}
    return {"do": "message", "row": row, "inner": _draw_bytes(rng, len(messages[row].data))}


def _mcap(path: Path, op: Op) -> None:
    bag = open_bag(path)
    messages = list(bag.messages())
    path.unlink()
    writer, known = McapWriter(path), set()
    for row, message in enumerate(messages):
        channel = bag.channels[message.channel_id]
        data, stamp = message.data, message.publish_time
        if row == op["row"] and op["do"] == "message":
            data = bytes(BYTES[op["inner"]["do"]](bytearray(data), op["inner"]))
        elif row == op["row"]:
            stamp = op["ns"]
        if channel.topic not in known:
            known.add(channel.topic)
            writer.add_topic(channel.topic, bag.schemas[channel.schema_id].name)
        writer.write(channel.topic, data, message.log_time, stamp)
    writer.close()


BYTES: dict[str, Callable[[bytearray, Op], bytes | bytearray]] = {
    "flip": _flip, "write": _overwritten, "insert": _inserted,
    "cut": lambda data, op: data[: op["at"]],
    "repeat": lambda data, op: data + data[op["at"] : op["at"] + op["count"]] * 1000,
}  # fmt: skip
DRAWERS: dict[str, Callable[[np.random.Generator, Path], Op]] = {
    ".json": _draw_json, ".jsonl": _draw_lines, ".parquet": _draw_table, ".hdf5": _draw_h5,
    ".safetensors": _draw_safetensors, ".frame": _draw_frame, ".mcap": _draw_mcap,
}  # fmt: skip
OPERATIONS: dict[str, Callable[[Path, Op], object]] = {
    **{name: _bytes(change) for name, change in BYTES.items()},
    "delete": lambda path, op: path.unlink(), "empty": lambda path, op: os.truncate(path, 0),
    "folder": _folder, "link": _link, "json": _json, "lines": _lines, "safetensors": _safetensors,
    "frame": _write_frame, "table": _table, "h5": _h5, "record": _tfrecord, "feature": _tfrecord,
    "message": _mcap, "stamp": _mcap,
}  # fmt: skip
"""What does an operation to a file, by its "do"."""
