"""Arrays as entities of a Rerun recording; what they mean is the business of who calls.

Rerun is imported where a recording is opened, so that nothing else needs it.
"""

import colorsys
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

APPLICATION = "mneme-vla"
QUALITY = 92
"""Of JPEG: at 96 pixels an eye sees no difference, and a picture is a tenth as large."""

Times = Mapping[str, np.ndarray]
"""By timeline: seconds as floats, or counts as integers; all equally long."""


@contextmanager
def recording(path: Path) -> Iterator[Any]:
    """Write a recording to a file that appears once it is whole."""
    fresh = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        stream = opened(path.stem)
        stream.save(fresh)
        yield stream
        stream.flush()
        stream.disconnect()
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def opened(name: str) -> Any:
    """Return a recording that goes nowhere yet."""
    import rerun

    stream = rerun.RecordingStream(APPLICATION)
    stream.send_recording_name(name)
    return stream


def scalars(
    stream: Any, path: str, times: Times, values: np.ndarray, names: Sequence[str] = ()
) -> None:
    """Draw time series.

    Args:
        stream: The recording.
        path: Entity.
        times: Of T moments.
        values: [t] or [t, n]; NaN is a gap.
        names: Of the N series.
    """
    import rerun

    table = np.asarray(values, np.float64).reshape(len(values), -1)
    if names:
        stream.log(path, rerun.SeriesLines(names=list(names)), static=True)
    columns = rerun.Scalars.columns(scalars=table.ravel())
    stream.send_columns(path, _indexes(times), columns.partition([table.shape[1]] * len(table)))


def pictures(stream: Any, path: str, times: Times, images: np.ndarray) -> None:
    """Show pictures u8 [t, h, w, 3], one at each moment."""
    import rerun

    blobs = [jpeg(image) for image in images]
    columns = rerun.EncodedImage.columns(blob=blobs, media_type=["image/jpeg"] * len(blobs))
    stream.send_columns(path, _indexes(times), columns)


def jpeg(image: np.ndarray) -> bytes:
    """Return a picture u8 [h, w, 3] as JPEG."""
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=QUALITY, subsampling=0)
    return out.getvalue()


def text(stream: Any, path: str, words: str) -> None:
    """Show words that hold all the time."""
    import rerun

    stream.log(path, rerun.TextDocument(words), static=True)


def remark(stream: Any, path: str, times: Times, words: str) -> None:
    """Add a line to a log, at one moment."""
    import rerun

    _at(stream, times, 0)
    stream.log(path, rerun.TextLog(words))
    stream.reset_time()


def tables(
    stream: Any, path: str, times: Times, values: Sequence[np.ndarray], axes: Sequence[str]
) -> None:
    """Show an array at each moment; their shapes may differ."""
    import rerun

    for i, value in enumerate(values):
        _at(stream, times, i)
        stream.log(path, rerun.Tensor(np.asarray(value, np.float32), dim_names=list(axes)))
    stream.reset_time()


def lines(stream: Any, path: str, times: Times, values: np.ndarray, names: Sequence[str]) -> None:
    """Show N lines of K points each at every moment.

    Args:
        stream: The recording.
        path: Entity.
        times: Of T moments.
        values: [t, k, n], in [0, 1] where they are to be seen; up is more.
        names: Of the N lines.
    """
    import rerun

    count = values.shape[1]
    along = np.arange(count, dtype=np.float32)
    shades = [colorsys.hsv_to_rgb(n / len(names), 0.7, 0.8) for n in range(len(names))]
    for i, chunk in enumerate(values):
        _at(stream, times, i)
        # Pictures of two dimensions count downwards, and are shown with equal scales.
        strips = [np.stack([along, -count * chunk[:, n] / 2], 1) for n in range(chunk.shape[1])]
        stream.log(
            path, rerun.LineStrips2D(strips, labels=list(names), show_labels=False, colors=shades)
        )
    stream.reset_time()


def _at(stream: Any, times: Times, i: int) -> None:
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
