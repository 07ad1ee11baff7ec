"""The report is one offline page that shows what is wrong with labels."""

import re
import shutil
from pathlib import Path

import pytest

from reward_models.core import overrides
from reward_models.label_report import page
from reward_models.label_report.gates import Gates
from tests.reward_models.label_report.made_up import write_labelled


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> Path:
    return write_labelled(tmp_path_factory.mktemp("page") / "data")


@pytest.fixture(scope="module")
def written(labelled: Path, tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("out") / "pages" / "report.html"
    page.write(labelled, out, videos=2)
    return out.read_text()


def test_the_page_loads_and_runs_nothing(written: str):
    assert "<script" not in written
    assert "default-src 'none'" in written
    sources = re.findall(r'(?:src|href)="([^"#][^"]{0,20})', written)
    assert len(sources) == 2
    assert all(source.startswith("data:video/mp4;") for source in sources)


def test_charts_that_differ_share_no_ids_and_refer_to_their_own(written: str):
    drawings = set(re.findall(r"<svg.*?</svg>", written, re.DOTALL))
    ids = [re.findall(r' id="([^"]+)"', drawing) for drawing in drawings]
    assert len(drawings) > 4
    assert len({name for names in ids for name in names}) == sum(map(len, ids)) > 0
    for drawing, names in zip(drawings, ids, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawing)) <= set(names)


def test_tables_stand_per_instruction_and_behaviour_with_the_truth_beside(written: str):
    for text in ("push the block left", "By behaviour", "freeze", "outcome AUROC", "2 of 2"):
        assert text in written
    # 4 episodes of 40 frames, 20 abstained.
    assert "4 episodes of 2 instructions, 160 frames: progress is given for 87.5%" in written


def test_flagged_episodes_stand_with_their_reasons(written: str):
    assert "success 0.10, but progress ends at 1.00" in written
    assert "confidence 0.30 on average; abstained on 50% of the frames" in written
    assert "3 episodes should be reviewed by a person." in written


def test_the_worst_by_error_are_shown_first(written: str):
    captions = re.findall(r"<figcaption>(Episode \d+)", written)
    # Episodes 1 and 3 say 1 where the truth is a quarter; then curves of all four.
    assert captions[:2] == ["Episode 1", "Episode 3"]
    assert len(captions) == 2 + 4


def test_calibration_and_histograms_are_drawn(written: str):
    for label in ("predicted probability", "histogram of progress", "histogram of delta"):
        assert label in written
    assert "Expected calibration error: done 0.100, confidence 0.393." in written


def test_without_truth_the_page_says_so(tmp_path: Path):
    out = tmp_path / "report.html"
    blind = write_labelled(tmp_path / "data", truth=False)
    summary = page.write(blind, out, videos=0)
    text = out.read_text()
    assert "holds no truth, so the labels cannot be verified here" in text
    assert "simulator's truth" not in text
    assert "not checked" in text
    assert summary.whole.truth is None


def test_the_summary_holds_the_figures_of_the_page(labelled: Path, tmp_path: Path):
    summary = page.write(labelled, tmp_path / "r.html", bounds=Gates(coverage=0.9), videos=0)
    assert summary.missed[0] == "coverage: 0.875, expected at least 0.9"
    left, right = summary.tasks
    # Both episodes that end in failure are of the one instruction, successes of the other.
    assert (left.truth.successes, right.truth.successes) == (0, 2)
    assert summary.whole.truth.outcome_auroc == 1.0


def test_videos_beyond_the_room_of_the_page_are_named(labelled: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(page, "MAX_VIDEOS_BYTES", 10)
    page.write(labelled, tmp_path / "r.html", videos=2)
    text = (tmp_path / "r.html").read_text()
    assert "<video" not in text
    assert "No room on this page for the videos of episodes 1, 3." in text


def test_corrections_are_counted_and_names_cannot_break_the_page(labelled: Path, tmp_path: Path):
    copy = shutil.copytree(labelled, tmp_path / "data")
    said = {"episode": 1, "frame": None, "kind": "success", "value": False}
    one = overrides.Override(**said, author="<b>ann", time=overrides.now())
    overrides.append(copy, one)
    page.write(copy, tmp_path / "r.html", videos=0)
    assert "1 correction by &lt;b&gt;ann" in (tmp_path / "r.html").read_text()
