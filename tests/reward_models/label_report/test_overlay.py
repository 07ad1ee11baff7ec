"""Overlay videos: labels of every frame beside what the cameras saw."""

from pathlib import Path

import av
import numpy as np
import pytest

from reward_models.label_report import overlay
from reward_models.label_report.read import read
from tests.reward_models.label_report.made_up import write_labelled


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> Path:
    return write_labelled(tmp_path_factory.mktemp("overlay") / "data", size_px=96)


def test_a_file_holds_every_frame_at_the_pace_of_the_recording(labelled: Path, tmp_path: Path):
    data = read(labelled)
    overlay.write(data, data.episode(2), tmp_path / "film.mp4")
    with av.open(str(tmp_path / "film.mp4")) as file:
        stream = file.streams.video[0]
        assert (stream.pix_fmt, stream.average_rate) == ("yuv420p", 10)
        # 40 frames and the last one for a second more.
        assert sum(1 for _ in file.decode(video=0)) == 40 + 10
    assert (tmp_path / "film.mp4").stat().st_size < 100_000


def test_the_cursor_moves_and_the_cameras_stand_below(labelled: Path):
    data = read(labelled)
    e = data.episode(0)
    views = overlay.decode(data, e)
    shown = list(overlay.images(e, views))
    below = overlay.CAPTION_PX + overlay.READOUT_PX + overlay.CHART_PX
    assert views.shape == (40, 2, 96, 96, 3)
    # Two views of 96 px, twice as large.
    assert shown[0].shape == (below + 192, 384, 3)
    np.testing.assert_array_equal(shown[7][below::2, :192:2], views[7, 0])
    top = overlay.CAPTION_PX + overlay.READOUT_PX
    # Where progress and its dot are not: above at the beginning, below at the end.
    assert shown[0][top + 5].sum(1).argmax() == 8
    assert shown[-1][below - 5].sum(1).argmax() == 384 - 8


def test_the_readout_tells_labels_and_abstaining(labelled: Path):
    e = read(labelled).episode(2)
    told = {name: value for name, value, _ in overlay.readout(e, 10)}
    # Progress rises from 0 to 1 over 39 steps of 0.1 s.
    assert told["progress"] == f"{10 / 39:.2f}"
    assert told["delta"] == f"{10 / 39:+.2f}"
    assert overlay.readout(e, 39)[0][:2] == ("progress", "abstains")


def test_curves_break_where_the_reward_model_abstained():
    nan = np.nan
    runs = overlay.runs(np.array([nan, 0.1, 0.2, nan, nan, 0.3]))
    assert [run.tolist() for run in runs] == [[1, 2], [5]]


def test_large_pictures_are_shrunk(tmp_path: Path):
    data = read(write_labelled(tmp_path / "large", episodes=1, frames=12, size_px=256))
    assert overlay.decode(data, data.episode(0)).shape == (12, 2, 192, 192, 3)
