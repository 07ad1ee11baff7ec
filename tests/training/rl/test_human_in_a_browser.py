"""The page of practice in a real headless browser: keys and buttons move the tool, and stop."""

import numpy as np
import pytest

from tests.reward_models.review.browser import binary, browser
from training.rl.viewer import Viewer

pytestmark = pytest.mark.skipif(binary() is None, reason="no chromium or google-chrome on PATH")

TOLD = {
    "task": "put <it> there", "time_s": 2.0, "limit_s": 8.0, "progress": 0.5, "asked": False,
    "acts": False, "closes": False, "used": "not at all",
}  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def viewer(page):
    found = Viewer(0)
    page.open(found.url)
    yield found
    found.close()


def key(page, kind: str, name: str) -> None:
    page.call("Input.dispatchKeyEvent", type=kind, key=name)


def held(page, viewer, wanted: list[float]) -> None:
    page.wait("!busy && tapped.size == 0")
    viewer.hands.look()  # what was held down before
    page.value("say()")
    page.wait("!busy")
    assert viewer.hands.look().move.tolist() == wanted


def test_keys_and_buttons_move_the_tool_for_as_long_as_they_are_held(page, viewer) -> None:
    page.wait('at("state").textContent == "No episode has begun yet"')
    held(page, viewer, [0, 0, 0, 0])
    key(page, "keyDown", "ArrowUp")
    key(page, "keyDown", "D")
    held(page, viewer, [1, 1, 0, 0])
    assert page.value('document.querySelectorAll("button.down").length') == 2
    key(page, "keyUp", "d")
    held(page, viewer, [0, 1, 0, 0])
    page.value('window.dispatchEvent(new Event("blur"))')
    held(page, viewer, [0, 0, 0, 0])
    for event, wanted in (("pointerdown", -1), ("pointerup", 0)):
        page.value(
            f"document.querySelector('[data-key=f]').dispatchEvent(new PointerEvent('{event}'))"
        )
        held(page, viewer, [0, 0, 0, wanted])


def test_space_toggles_the_hand_and_enter_gives_back(page, viewer) -> None:
    page.wait("frame == 0")
    page.press(" ")
    page.wait("!busy")
    assert viewer.hands.look().toggles
    assert viewer.hands.active
    page.press("Enter")
    page.wait("!busy")
    assert not viewer.hands.active


def test_it_shows_pictures_what_is_to_be_done_and_who_acts(page, viewer) -> None:
    def shows(text: str) -> None:
        page.wait(f'at("state").textContent == "{text}"')

    viewer.show(np.full((2, 24, 24, 3), 200, np.uint8), TOLD)
    shows("The policy acts")
    assert page.value('at("task").textContent') == "put <it> there"
    assert page.value('at("left").textContent') == "6.0"
    assert page.wait('at("views").complete && at("views").naturalWidth') == 50
    viewer.tell(asked=True)
    shows("The policy asks for help: press a key to take over")
    viewer.tell(asked=False, acts=True)
    shows("Somebody acts at another page")
    key(page, "keyDown", "q")
    shows("You act")
    key(page, "keyUp", "q")
    viewer.close()
    shows("Practice has ended, or was stopped")
    viewer.close()
