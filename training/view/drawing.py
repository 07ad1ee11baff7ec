"""Writes arrays as entities of a Rerun recording.

Rerun is imported only when a recording is opened.
"""

import colorsys
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

APPLICATION = "mneme-vla"
QUALITY = 92
"""JPEG quality: at 96 pixels no visible difference, at a tenth of the size."""

Times = Mapping[str, np.ndarray]
"""Values by timeline: seconds as floats or counts as integers, of equal length."""


@contextmanager
def recording(path: Path) -> Iterator[Any]:
    """Write a recording to a file atomically."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        stream = new_stream(path.stem)
        stream.save(temporary)
        yield stream
        stream.flush()
        stream.disconnect()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def new_stream(name: str) -> Any:
    """Return a recording without a destination."""
    import rerun

    stream = rerun.RecordingStream(APPLICATION)
    stream.send_recording_name(name)
    return stream


def scalars(
    stream: Any, path: str, times: Times, values: np.ndarray, names: Sequence[str] = ()
) -> None:
    """Log time series [t] or [t, n] at T times, with the names of the N; NaN is a gap."""
    import rerun

    table = np.asarray(values, np.float64).reshape(len(values), -1)
    if names:
        stream.log(path, rerun.SeriesLines(names=list(names)), static=True)
    columns = rerun.Scalars.columns(scalars=table.ravel())
    stream.send_columns(path, _indexes(times), columns.partition([table.shape[1]] * len(table)))


def images(stream: Any, path: str, times: Times, values: np.ndarray) -> None:
    """Log images u8 [t, h, w, 3], one per time."""
    import rerun

    blobs = [jpeg(image) for image in values]
    columns = rerun.EncodedImage.columns(blob=blobs, media_type=["image/jpeg"] * len(blobs))
    stream.send_columns(path, _indexes(times), columns)


def jpeg(image: np.ndarray) -> bytes:
    """Return an image u8 [h, w, 3] as JPEG."""
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=QUALITY, subsampling=0)
    return out.getvalue()


def text(stream: Any, path: str, content: str) -> None:
    """Log a text that holds for all times."""
    import rerun

    stream.log(path, rerun.TextDocument(content), static=True)


def log_line(stream: Any, path: str, times: Times, content: str) -> None:
    """Append a line to a log at one time."""
    import rerun

    _set_time(stream, times, 0)
    stream.log(path, rerun.TextLog(content))
    stream.reset_time()


def tensors(
    stream: Any, path: str, times: Times, values: Sequence[np.ndarray], axes: Sequence[str]
) -> None:
    """Log an array per time; their shapes may differ."""
    import rerun

    for i, value in enumerate(values):
        _set_time(stream, times, i)
        stream.log(path, rerun.Tensor(np.asarray(value, np.float32), dim_names=list(axes)))
    stream.reset_time()


def lines(stream: Any, path: str, times: Times, values: np.ndarray, names: Sequence[str]) -> None:
    """Log N lines of K points each per time, [t, k, n], with the names of the N; [0, 1] is visible,
    larger values are drawn higher.
    """
    import rerun

    count = values.shape[1]
    along = np.arange(count, dtype=np.float32)
    shades = [colorsys.hsv_to_rgb(n / len(names), 0.7, 0.8) for n in range(len(names))]
    for i, chunk in enumerate(values):
        _set_time(stream, times, i)
        # The y axis of 2D views points down, and both axes have the same scale.
        strips = [np.stack([along, -count * chunk[:, n] / 2], 1) for n in range(chunk.shape[1])]
        stream.log(
            path, rerun.LineStrips2D(strips, labels=list(names), show_labels=False, colors=shades)
        )
    stream.reset_time()


def _set_time(stream: Any, times: Times, i: int) -> None:
    for name, values in times.items():
        if np.issubdtype(values.dtype, np.integer):
            stream.set_time(name, sequence=int(values[i]))
        else:
            stream.set_time(name, duration=float(values[i]))


def _indexes(times: Times) -> list[Any]:
    import rerun

    return [
        rerun.TimeColumn(name, sequence=values)
        if np.issubdtype(values.dtype, np.integer)
        else rerun.TimeColumn(name, duration=values)
        for name, values in times.items()
    ]
