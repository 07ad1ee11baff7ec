"""Reads TFRecord files of `tf.train.Example` without TensorFlow.

The layout of a file is documented at tensorflow.org/tutorials/load_data/tfrecord: length u64, its
checksum u32, data, its checksum u32, little-endian; checksums are CRC-32C, rotated and shifted. The
message is declared here field by field and parsed by protobuf's own library.
"""

import struct
from functools import cache
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

_HEADER = struct.Struct("<QI")
_MASK = 0xA282EAD8
MAX_BYTES = 2**31
"""Largest message that protobuf parses."""
LISTS = {"bytes_list": None, "float_list": np.float32, "int64_list": np.int64}
"""Kinds of a feature, with the type of their values."""


def record_offsets(path: Path) -> list[int]:
    """Return where each record of a file begins; reads only lengths.

    Raises:
        ValueError: the file is truncated or no TFRecord file.
    """
    size, at, offsets = path.stat().st_size, 0, []
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            offsets.append(at)
            at += _HEADER.size + _length(file.read(_HEADER.size), path, at) + 4
    if at != size:
        raise ValueError(
            f"{path}: is truncated ({size} bytes, its last record ends at {at}); copy it again"
        )
    return offsets


def read_record(path: Path, at: int) -> bytes:
    """Return the data of the record that begins at a byte; ValueError if it is damaged."""
    with path.open("rb") as file:
        file.seek(at)
        length = _length(file.read(_HEADER.size), path, at)
        data, check = file.read(length), file.read(4)
    if len(check) < 4 or struct.unpack("<I", check)[0] != masked_checksum(data):
        raise ValueError(f"{path}: the record at byte {at} is damaged (checksum); copy it again")
    return data


def masked_checksum(data: bytes) -> int:
    """Return the checksum that follows data in a file."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def parse_example(data: bytes) -> dict[str, Any]:
    """Return the features of an example: lists of bytes, or arrays f32 or i64, by name.

    Raises:
        ValueError: the data is no example.
    """
    example = example_class()()
    try:
        example.ParseFromString(data)
    except message.DecodeError as error:
        raise ValueError(f"got no tf.train.Example ({error})") from error
    features: dict[str, Any] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            values, dtype = getattr(feature, kind).value, LISTS[kind]
            features[name] = list(values) if dtype is None else np.array(values, dtype)
    return features


@cache
def example_class() -> Any:
    """Return the message class of `tf.train.Example`."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tf_example")
    file.syntax = "proto3"
    single, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED

    def add(owner: Any, name: str, number: int, kind: int, **more: Any) -> None:
        owner.field.add(name=name, number=number, type=kind, **{"label": single, **more})

    of_list = {
        "bytes_list": field.TYPE_BYTES, "float_list": field.TYPE_FLOAT,
        "int64_list": field.TYPE_INT64,
    }  # fmt: skip
    for name, kind in of_list.items():
        add(file.message_type.add(name=f"List_{name}"), "value", 1, kind, label=many)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(of_list, 1):
        inside = {"type_name": f".tf_example.List_{name}", "oneof_index": 0}
        add(feature, name, number, field.TYPE_MESSAGE, **inside)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, field.TYPE_MESSAGE, type_name=".tf_example.Feature")
    place = ".tf_example.Features.FeatureEntry"
    add(features, "feature", 1, field.TYPE_MESSAGE, label=many, type_name=place)
    example = file.message_type.add(name="Example")
    add(example, "features", 1, field.TYPE_MESSAGE, type_name=".tf_example.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf_example.Example"))


def _length(header: bytes, path: Path, at: int) -> int:
    if len(header) < _HEADER.size:
        raise ValueError(f"{path}: is truncated at byte {at}; copy it again")
    length, check = _HEADER.unpack(header)
    if masked_checksum(header[:8]) != check or length > MAX_BYTES:
        raise ValueError(f"{path}: holds no record at byte {at} (checksum); copy it again")
    return length
