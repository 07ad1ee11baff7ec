"""Overlay videos: the curves of an episode's labels, with a moving cursor, above its cameras."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from reward_models.label_report.read import Episode, Labelled
from vla.data.decode import FrameChoice, decode_views
from vla.utils import charts, video

VIEW_PX = 192
"""Height of a camera image in the video."""
CHART_PX, READOUT_PX, CAPTION_PX, MARGIN_PX = 132, 44, 44, 8
MIN_WIDTH_PX = 384
MAX_VIEWS = 3
SHARP = 3
"""Factor of supersampling of lines, which Pillow does not smooth."""
SOFT, LINE = (150, 156, 166), (58, 62, 70)
CURVES = ("progress", "done", "confidence", "truth")
"""In the order of `vla.utils.charts.COLOURS`."""


def write(labelled: Labelled, episode: Episode, out: Path) -> None:
    """Write the overlay video of an episode, at its frame rate: H.264 in MP4."""
    views = decode(labelled, episode)
    video.encode(images(episode, views), out, episode.fps, hold_s=1.0)


def decode(labelled: Labelled, episode: Episode) -> np.ndarray:
    """Return images of the first `MAX_VIEWS` cameras, u8 `t v h w 3`, at most `VIEW_PX` high."""
    cameras = labelled.info.cameras[:MAX_VIEWS]
    height, width = cameras[0].height_px, cameras[0].width_px
    shrink = max(1.0, height / VIEW_PX)
    size = (round(height / shrink), round(width / shrink))
    steps = np.arange(episode.frames)
    choice = FrameChoice(episode=np.full_like(steps, episode.index), step=steps)
    return decode_views(labelled.info, cameras, choice, size)


def images(episode: Episode, views: np.ndarray) -> Iterator[np.ndarray]:
    """Yield one image u8 `h w 3`, of even sides, for each frame of `views` u8 `t v h w 3`."""
    scale = 2 if 2 * views.shape[2] <= VIEW_PX else 1
    shown_h, shown_w = views.shape[2] * scale, views.shape[1] * views.shape[3] * scale
    width = max(MIN_WIDTH_PX, shown_w)
    width += width % 2
    height = CAPTION_PX + shown_h + CHART_PX + READOUT_PX
    base = Image.new("RGB", (width, height + height % 2), video.BACKGROUND)
    # Cameras at the bottom: the controls of a player cover it.
    base.paste(_caption(episode, width), (0, 0))
    base.paste(_chart(episode, width), (0, CAPTION_PX + READOUT_PX))
    below = CAPTION_PX + READOUT_PX + CHART_PX
    for t in range(episode.frames):
        image = base.copy()
        row = np.concatenate(list(views[t]), axis=1)
        row = video.upscale(row) if scale == 2 else row
        image.paste(Image.fromarray(row), ((width - shown_w) // 2, below))
        _draw_cursor(image, episode, t)
        yield np.asarray(image)


def _caption(episode: Episode, width: int) -> Image.Image:
    image = Image.new("RGB", (width, CAPTION_PX), video.BACKGROUND)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    columns = int((width - 2 * MARGIN_PX) / draw.textlength("n", font))
    text = f"{episode.index}: {episode.task}"
    lines = textwrap.wrap(text, columns, max_lines=2, placeholder=" ...")
    draw.multiline_text((MARGIN_PX, 5), "\n".join(lines), video.TEXT, font, spacing=3)
    return image


def _chart(episode: Episode, width: int) -> Image.Image:
    """Return the chart of the curves, from 0 to 1, without a cursor."""
    image = Image.new("RGB", (width * SHARP, CHART_PX * SHARP), video.BACKGROUND)
    draw = ImageDraw.Draw(image)
    for share in (0.0, 0.5, 1.0):
        y = _y(share) * SHARP
        ends = [(MARGIN_PX * SHARP, y), ((width - MARGIN_PX) * SHARP, y)]
        draw.line(ends, LINE, SHARP)
    series = (episode.progress, episode.done_prob, episode.confidence, episode.truth)
    for place, values in reversed(list(enumerate(series))):
        if values is None:
            continue
        pen = (3 if place == 0 else 2) * SHARP // 2
        for run in runs(values):
            points = [
                (_x(t, episode, width) * SHARP, _y(float(values[t])) * SHARP) for t in run.tolist()
            ]
            draw.line(points if len(points) > 1 else points * 2, charts.colour(place), pen, "curve")
    return image.resize((width, CHART_PX), Image.Resampling.LANCZOS)


def runs(values: np.ndarray) -> list[np.ndarray]:
    """Return the frames i64 of each unbroken run of values [t] that are not NaN."""
    valid = np.flatnonzero(~np.isnan(values))
    return [run for run in np.split(valid, np.flatnonzero(np.diff(valid) > 1) + 1) if len(run)]


def _draw_cursor(image: Image.Image, episode: Episode, t: int) -> None:
    """Draw the labels of a frame and its position in the chart."""
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(12)
    labels = readout(episode, t)
    column = (image.width - 2 * MARGIN_PX) / len(labels)
    for k, (name, value, place) in enumerate(labels):
        left = MARGIN_PX + k * column
        draw.text((left, CAPTION_PX), name, SOFT, font)
        colour = video.TEXT if place is None else charts.colour(place)
        draw.text((left, CAPTION_PX + 17), value, colour, ImageFont.load_default(15))
    x, top = _x(t, episode, image.width), CAPTION_PX + READOUT_PX
    draw.line([(x, top + 4), (x, top + CHART_PX - 4)], video.TEXT, 1)
    if not episode.abstained[t]:
        y = top + _y(float(episode.progress[t]))
        draw.ellipse([(x - 4, y - 4), (x + 4, y + 4)], charts.colour(0), video.TEXT)


def readout(episode: Episode, t: int) -> list[tuple[str, str, int | None]]:
    """Return the labels of a frame: name, value, and index of its curve's colour."""
    abstained = bool(episode.abstained[t])
    labels: list[tuple[str, str, int | None]] = [
        ("progress", "abstains" if abstained else f"{episode.progress[t]:.2f}", 0),
        ("delta", "–" if abstained else f"{episode.delta[t]:+.2f}", None),
        ("done", f"{episode.done_prob[t]:.2f}", 1),
        ("confidence", f"{episode.confidence[t]:.2f}", 2),
    ]
    if episode.truth is not None:
        labels.append(("truth", f"{episode.truth[t]:.2f}", 3))
    return labels


def _x(t: int, episode: Episode, width: int) -> float:
    return MARGIN_PX + (width - 2 * MARGIN_PX) * t / max(1, episode.frames - 1)


def _y(share: float) -> float:
    return MARGIN_PX + (CHART_PX - 2 * MARGIN_PX) * (1.0 - min(1.0, max(0.0, share)))
