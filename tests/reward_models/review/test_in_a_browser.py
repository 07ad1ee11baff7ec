"""A person's work in a real headless browser: look, press keys, come back."""

from pathlib import Path

import pytest

from reward_models.core import overrides
from tests.reward_models.label_report.made_up import write_labelled
from tests.reward_models.review.browser import binary, browser
from tests.reward_models.review.served import serving

pytestmark = pytest.mark.skipif(binary() is None, reason="no chromium or google-chrome on PATH")

FRAMES, SIZE_PX = 40, 96
READY = "document.body.dataset.ready"
# Where the red square begins in the picture on the screen, in pixels of the left camera.
SQUARE = """(() => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [film.videoWidth, film.videoHeight];
  const context = canvas.getContext("2d");
  context.drawImage(film, 0, 0);
  const row = context.getImageData(0, film.videoHeight / 2 + 6, film.videoWidth, 1).data;
  let x = 0;
  while (x < film.videoWidth && row[4 * x] < 140) x++;
  return x / 2;
})()"""


def square_at(frame: int) -> float:
    """Return where `made_up` draws the square."""
    return frame / (FRAMES - 1) * (SIZE_PX - SIZE_PX // 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_labelled(tmp_path / "data", frames=FRAMES, size_px=SIZE_PX)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def at(page, frame: int) -> None:
    """Wait until a frame is on the screen."""
    page.wait(f'document.body.dataset.frame == "{frame}" && !film.seeking')


def told(page, number: int) -> None:
    page.wait(f"corrections.length == {number}")


def test_keys_make_corrections_that_are_there_when_the_page_is_opened_again(folder, page):
    with serving(folder) as first:
        page.open(first.url)
        assert page.wait(READY) == "2"
        assert "confidence 0.30" in page.value('key("why").textContent')
        for _ in range(7):
            page.press("ArrowRight")
        at(page, 7)
        page.press("j")
        told(page, 1)
        page.press("ArrowRight")
        page.press("k")
        page.press("ArrowRight")
        page.press("L")
        page.press("f")
        told(page, 4)
        page.press("n")
        page.wait(f'{READY} == "1"')
        page.press("s")
        told(page, 5)
        page.press("s")
        told(page, 6)
        page.press("u")
        told(page, 5)
        assert page.value('key("trouble").hidden')
    said = [(o.episode, o.frame, o.kind, o.value) for o in overrides.read(folder)]
    assert said == [
        (2, 7, "trend", -1), (2, 8, "trend", 0), (2, 9, "trend", 1), (2, None, "success", False),
        (1, None, "success", True),
    ]  # fmt: skip
    with serving(folder, author="bob") as second:
        page.open(second.url)
        # The first without a correction; then back to those that have some.
        page.wait(f'{READY} == "3"')
        assert page.value('key("queue").innerText.match(/✓/g).length') == 2
        page.press("p")
        page.press("p")
        page.wait(f'{READY} == "2"')
        marks = page.value('key("marks").innerText').split("\n")
    assert marks == [
        "failure (ann)", "frame 7: regress (ann)", "frame 8: stagnate (ann)",
        "frame 9: progress (ann)",
    ]  # fmt: skip


def test_the_picture_is_that_of_the_frame_under_the_cursor(folder, page):
    with serving(folder) as found:
        page.open(found.url)
        page.wait(READY)
        for frame in (0, 1, 13, 38, 39, 20):
            page.value(f"seek({frame})")
            at(page, frame)
            page.value("new Promise(requestAnimationFrame)")
            # A frame moves the square by 2.2 px.
            assert page.value(SQUARE) == pytest.approx(square_at(frame), abs=1.1)


def test_the_cursor_follows_the_video_as_it_plays(folder, page):
    with serving(folder) as found:
        page.open(found.url)
        page.wait(READY)
        page.press(" ")
        page.wait("frame >= 5")
        page.press(" ")
        page.wait("film.paused")
        frame = page.value("new Promise(requestAnimationFrame).then(() => frame)")
        assert page.value("film.currentTime") * 10 == pytest.approx(frame, abs=1.5)
        assert page.value(SQUARE) == pytest.approx(square_at(frame), abs=3)
        share = page.value(
            '(chart.querySelector(".cursor").getAttribute("x1") - 34) / (chart.clientWidth - 42)'
        )
        assert share == pytest.approx(frame / (FRAMES - 1), abs=0.001)


def test_trouble_is_shown_and_passes(folder, page):
    with serving(folder) as found:
        page.open(found.url)
        page.wait(READY)
        damaged = folder / "meta/overrides.json"
        damaged.write_text("{")
        page.press("s")
        text = page.wait('!key("trouble").hidden && key("trouble").textContent')
        assert "damaged, not JSON" in text
        damaged.unlink()
        page.press("s")
        told(page, 1)
        page.wait('key("trouble").hidden')
