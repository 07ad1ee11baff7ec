"""The page of practice in a real headless browser: keys and buttons move the tool, and stop."""

import numpy as np
import pytest

from tests.reward_models.review.browser import binary, browser
from training.rl.intervention import viewer as viewer_module
from training.rl.intervention.viewer import Viewer

pytestmark = pytest.mark.skipif(binary() is None, reason="no chromium or google-chrome on PATH")

TOLD = {
    "task": "put <it> there", "time_s": 2.0, "time_limit_s": 8.0, "progress": 0.5,
    "requested": False, "acts": False, "closes": False, "summary": "not at all",
}  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def viewer(page, monkeypatch):
    # A busy machine may take seconds for a step here; `test_human` tests what a silence does.
    for name in ("INPUT_TIMEOUT_S", "RELEASE_S"):
        monkeypatch.setattr(viewer_module, name, 60.0)
    found = Viewer(0)
    page.open(found.url)
    yield found
    found.close()


def key(page, kind: str, name: str, code: str) -> None:
    page.call("Input.dispatchKeyEvent", type=kind, key=name, code=code)


def mouse(page, kind: str, at: tuple[float, float], button: str = "left") -> None:
    page.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button=button, clickCount=1)


def middle(page, code: str) -> tuple[float, float]:
    """Return where on the page a button is."""
    found = f"document.querySelector('[data-key={code}]')"
    page.value(f"{found}.scrollIntoView()")
    box = page.value(f"{found}.getBoundingClientRect().toJSON()")
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def held(page, viewer, wanted: list[float]) -> None:
    page.wait("!busy && tapped.size == 0")
    viewer.input.read()  # what was held down before
    page.value("send()")
    page.wait("!busy")
    assert viewer.input.read().move.tolist() == wanted


def test_keys_and_buttons_move_the_tool_for_as_long_as_they_are_held(page, viewer) -> None:
    page.wait('at("state").textContent == "No episode has begun yet"')
    held(page, viewer, [0, 0, 0, 0])
    key(page, "keyDown", "ArrowUp", "ArrowUp")
    key(page, "keyDown", "D", "KeyD")
    held(page, viewer, [1, 1, 0, 0])
    assert page.value('document.querySelectorAll("button.down").length') == 2
    key(page, "keyUp", "d", "KeyD")
    held(page, viewer, [0, 1, 0, 0])
    key(page, "keyUp", "ArrowUp", "ArrowUp")
    held(page, viewer, [0, 0, 0, 0])
    button = middle(page, "KeyF")
    mouse(page, "mousePressed", button)
    held(page, viewer, [0, 0, 0, -1])
    # It ends where the pointer is let go of, even if that is elsewhere.
    mouse(page, "mouseMoved", (2, 2))
    held(page, viewer, [0, 0, 0, -1])
    mouse(page, "mouseReleased", (2, 2))
    held(page, viewer, [0, 0, 0, 0])
    mouse(page, "mousePressed", button, "middle")
    held(page, viewer, [0, 0, 0, 0])
    mouse(page, "mouseReleased", button, "middle")


@pytest.mark.parametrize(
    ("name", "code"),
    [("AltGraph", "AltRight"), ("Alt", "AltLeft"), ("Control", "ControlLeft"),
     ("Meta", "MetaLeft")],
)  # fmt: skip
def test_no_key_sticks_whose_release_has_another_name_or_never_comes(
    page, viewer, name, code
) -> None:
    key(page, "keyDown", "q", "KeyQ")
    held(page, viewer, [0, 0, 1, 0])
    key(page, "keyDown", name, code)
    held(page, viewer, [0, 0, 0, 0])
    key(page, "keyUp", "@", "KeyQ")
    key(page, "keyUp", name, code)
    held(page, viewer, [0, 0, 0, 0])
    # Shift changes the name of a key, too, and nothing else.
    key(page, "keyDown", "q", "KeyQ")
    key(page, "keyDown", "Shift", "ShiftLeft")
    held(page, viewer, [0, 0, 1, 0])
    key(page, "keyUp", "@", "KeyQ")
    held(page, viewer, [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("target", "event"),
    [("window", "blur"), ("document", "visibilitychange"), ("document", "contextmenu")],
)
def test_who_turns_away_holds_nothing_down(page, viewer, target, event) -> None:
    key(page, "keyDown", "q", "KeyQ")
    held(page, viewer, [0, 0, 1, 0])
    page.value(f'{target}.dispatchEvent(new Event("{event}", {{ bubbles: true }}))')
    held(page, viewer, [0, 0, 0, 0])
    key(page, "keyUp", "q", "KeyQ")


def test_space_toggles_the_hand_and_enter_gives_back(page, viewer) -> None:
    page.wait("frame == 0")
    for kind in ("keyDown", "keyUp"):
        key(page, kind, " ", "Space")
    page.wait("!busy")
    page.value("send()")  # whatever the page has not sent yet
    page.wait("!busy")
    assert viewer.input.read().toggles
    assert viewer.input.active
    for kind in ("keyDown", "keyUp"):
        key(page, kind, "Enter", "Enter")
    page.wait("!busy")
    page.value("send()")
    page.wait("!busy")
    assert not viewer.input.active


def test_it_shows_pictures_what_is_to_be_done_and_who_acts(page, viewer) -> None:
    def shows(text: str) -> None:
        page.wait(f'at("state").textContent == "{text}"')

    viewer.show(np.full((2, 24, 24, 3), 200, np.uint8), TOLD)
    shows("The policy acts")
    assert page.value('at("task").textContent') == "put <it> there"
    assert page.value('at("left").textContent') == "6.0"
    page.wait('at("views").complete && at("views").naturalWidth == 50')
    viewer.update(requested=True)
    shows("An intervention is requested: press a key to take over")
    viewer.update(requested=False, acts=True)
    shows("A person acts at another page")
    key(page, "keyDown", "q", "KeyQ")
    shows("You act")
    key(page, "keyUp", "q", "KeyQ")
    viewer.close()
    shows("The run has ended, or was stopped")
    viewer.close()


def test_a_picture_that_comes_while_another_loads_is_shown_after_it(page, viewer) -> None:
    page.wait("frame == 0")
    page.value('Object.defineProperty(at("views"), "complete", { configurable: true, value: 0 })')
    viewer.show(np.full((2, 24, 24, 3), 200, np.uint8), TOLD)
    page.wait("frame == 1")
    assert page.value("drawn") == 0
    page.value('delete at("views").complete')
    page.wait('at("views").complete && at("views").naturalWidth == 50')
