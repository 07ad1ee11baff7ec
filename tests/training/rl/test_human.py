"""A person in practice takes over, lets go, answers or does not; strangers move nothing."""

import http.client
import json
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.core.kinematics import kinematics
from tests.training.rl.fake_rollouts import control
from tests.training.rl.rollouts import collect_rollouts
from tests.training.small_policy import TASK, small_policy
from training.rl.intervention import viewer
from training.rl.intervention.intervention import InterventionController
from training.rl.intervention.source import InterventionContext, InterventionSource
from training.rl.intervention_sources.human import Human, table_axes
from vla.contracts.types import Observation
from vla.memory import bank, none
from vla.robots import so101

# The arm is quick here, so that a second of it passes in a tenth of one.
ROBOT = replace(so101.SPEC, control_hz=50.0)
HELP = control(
    intervention={"source": "human", "fraction": 1.0, "patience": 2, "response_timeout_s": 0.5}
)
STILL = [0.0, 0.0, 0.0, 0.0]
RIGHT = [1.0, 0.0, 0.0, 0.0]


@pytest.fixture
def place():
    """Return a person's place, with nobody there."""
    found = Human(HELP.intervention, ROBOT)
    yield found
    found.close()


class Person:
    """Somebody at a page, who says the same again every 30 ms as a page does."""

    def __init__(self, place: Human, name: str = "ann") -> None:
        self.place, self.name = place, name
        self.move, self.grips, self.gives = STILL, 0, False
        self.told: dict[str, Any] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._talk)

    def __enter__(self) -> "Person":
        self.say()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _talk(self) -> None:
        while not self._end.wait(0.03):
            self.say()

    def say(self) -> None:
        body = {"page": self.name, "move": self.move, "grips": self.grips, "gives": self.gives}
        status, told = ask(self.place, "input", body)
        assert status == 200
        self.told = json.loads(told)


def ask(place: Human, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """Send a request for a path behind the token (or, with a leading slash, for that path)."""
    server = place.viewer
    whole = path if path.startswith("/") else f"/{server.token}/{path}"
    sent = {"Content-Type": "application/json", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", whole, data, sent)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def moment(step: int, asked: bool = False, proprio=ROBOT.home) -> InterventionContext:
    """Return control step `step` of an episode with decisions of four."""
    return InterventionContext(
        obs=Observation(
            images=np.full((1, 2, 8, 8, 3), step, np.uint8), image_ok=np.ones((1, 2), np.bool_),
            proprio=np.array([proprio], np.float32), task=("push <it>",),
            time_s=np.array([step / ROBOT.control_hz]),
        ),
        rows=np.zeros(1, np.int64), requested=np.array([asked]), decision=np.array([step // 4]),
        time_limit_s=9.0, progress=np.array([0.25], np.float32),
    )  # fmt: skip


def tool_m(position) -> np.ndarray:
    arm = kinematics(ROBOT)
    q = arm.configuration.model.qpos0.copy()
    q[arm.joint_qpos] = position
    arm.configuration.update(q)
    return arm.configuration.data.site_xpos[arm.site].copy()


def acts(place: Human, step: int) -> bool:
    return bool(place.act(moment(step)).active[0])


def until(there) -> None:
    end = time.monotonic() + 5
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_who_holds_a_key_takes_over_unasked_and_the_tool_goes_there(place) -> None:
    assert isinstance(place, InterventionSource)
    with Person(place) as ann:
        assert not acts(place, 0)
        ann.move = RIGHT
        until(lambda: ann.told["moves_arm"])
        measured, moves = np.array(ROBOT.home), []
        for step in range(1, 21):
            move = place.act(moment(step, proprio=measured))
            assert move.active[0]
            assert move.actions.shape == (1, 1, 6)
            measured = np.asarray(move.actions[0, 0], np.float64)  # an arm that follows at once
            moves.append(tool_m(measured))
        assert ann.told["acts"]
    way = moves[-1] - moves[0]
    # To the right as the front camera sees it, which looks back at the arm: along +y.
    np.testing.assert_allclose(way[[0, 2]], 0, atol=2e-3)
    assert way[1] == pytest.approx(19 * 0.5 * 0.28 / 50, rel=0.3)
    assert measured[-1] == pytest.approx(ROBOT.home[-1], abs=1e-6)


def test_letting_go_for_a_second_gives_back_and_so_does_the_key(place, monkeypatch) -> None:
    monkeypatch.setattr(viewer, "RELEASE_S", 0.3)
    with Person(place) as ann:
        acts(place, 0)
        ann.move = RIGHT
        until(lambda: acts(place, 1))
        ann.move = STILL
        until(lambda: ann.told["moves_arm"])
        place.act(moment(2))
        held = [place.act(moment(step)).actions[0, 0] for step in (3, 4)]
        np.testing.assert_allclose(*held, atol=1e-6)
        until(lambda: not acts(place, 4))
        ann.move = RIGHT
        until(lambda: acts(place, 5))
        ann.gives = True
        until(lambda: not acts(place, 6))
        # What is still held down counts again once it has been released.
        ann.gives = False
        ann.say()
        assert not acts(place, 7)
        ann.move = STILL
        ann.say()
        ann.move = RIGHT
        until(lambda: acts(place, 8))


def test_a_browser_that_has_fallen_silent_moves_nothing(place) -> None:
    with Person(place) as ann:
        acts(place, 0)
        ann.move = RIGHT
        until(lambda: acts(place, 1))
    first = place.act(moment(2)).actions[0, 0]
    assert np.abs(first - ROBOT.home).max() > 1e-3
    time.sleep(viewer.INPUT_TIMEOUT_S)
    still = [place.act(moment(step, proprio=first)).actions[0, 0] for step in (3, 4)]
    np.testing.assert_allclose(still[0], still[1], atol=1e-6)
    time.sleep(viewer.RELEASE_S - viewer.INPUT_TIMEOUT_S)
    assert not acts(place, 5)


def test_nor_does_it_move_the_hand(place) -> None:
    measured = np.array([*ROBOT.home[:-1], 0.2])
    with Person(place) as ann:
        acts(place, 0)
        ann.move = RIGHT
        until(lambda: acts(place, 1))
        place._keep_gripper(measured)
        ann.move = STILL
        ann.grips += 1
        until(lambda: place.act(moment(2, proprio=measured)).actions[0, 0, -1] > 0.2)
    time.sleep(viewer.INPUT_TIMEOUT_S)
    still = []
    for step in (3, 4):
        move = place.act(moment(step, proprio=measured))
        assert move.active[0]
        measured = np.asarray(move.actions[0, 0], np.float64)  # an arm that follows at once
        still.append(measured)
    np.testing.assert_allclose(*still, atol=1e-6)


def test_the_hand_is_toggled_and_a_grasp_is_kept(place) -> None:
    half = np.array([*ROBOT.home[:-1], 0.2])
    with Person(place) as ann:
        acts(place, 0)
        ann.move = RIGHT
        until(lambda: acts(place, 1))
        # Closed on something, it goes on closing.
        place._keep_gripper(half)
        assert place.act(moment(2, proprio=half)).actions[0, 0, -1] < 0.2
        ann.grips += 1
        until(lambda: place.act(moment(3, proprio=half)).actions[0, 0, -1] > 0.2)
        ann.grips += 1
        until(lambda: place.act(moment(4, proprio=half)).actions[0, 0, -1] < 0.2)


def test_a_key_pressed_for_a_moment_is_not_lost(place) -> None:
    with Person(place) as ann:
        acts(place, 0)
        ann.move = RIGHT
        ann.say()
        ann.move = STILL
        ann.say()
        move = place.act(moment(1))
        assert move.active[0]
        assert tool_m(move.actions[0, 0])[1] > tool_m(ROBOT.home)[1] + 1e-3


def test_only_one_page_moves_the_arm(place) -> None:
    with Person(place) as ann, Person(place, "bob") as bob:
        acts(place, 0)
        ann.move = RIGHT
        until(lambda: ann.told["moves_arm"])
        bob.move, bob.gives = [-1.0, 0.0, 0.0, 0.0], True
        bob.say()
        assert not bob.told["moves_arm"]
        assert acts(place, 1)
        assert place.viewer.input.read().move.tolist() == RIGHT


def test_what_one_page_holds_does_not_count_again_because_another_lets_go() -> None:
    hands = viewer.PageInput()

    def says(page: str, move: list[float]) -> bool:
        return hands.receive({"page": page, "move": move, "grips": 0, "gives": False})

    assert says("ann", RIGHT)
    hands.reset()
    assert says("bob", RIGHT)
    assert says("bob", STILL)
    hands.reset()
    assert not says("ann", RIGHT)
    assert not hands.read().move.any()
    assert not hands.active
    assert not says("ann", STILL)
    assert says("ann", RIGHT)
    assert hands.read().move.tolist() == RIGHT


def test_who_is_asked_is_waited_for_and_then_the_policy_goes_on(place, capsys) -> None:
    with Person(place) as ann:
        acts(place, 0)
        begun = time.monotonic()
        assert not place.act(moment(4, asked=True)).active[0]
        assert time.monotonic() - begun >= HELP.intervention.response_timeout_s
        assert "nobody responded in 0 s: the policy continues" in capsys.readouterr().err
        # Asked once: in this episode nobody is waited for again.
        begun = time.monotonic()
        place.act(moment(5, asked=True))
        assert time.monotonic() - begun < HELP.intervention.response_timeout_s
        ann.say()
        assert not ann.told["requested"]
        acts(place, 0)
        press = threading.Timer(0.05, setattr, (ann, "move", RIGHT))
        press.start()
        assert place.act(moment(4, asked=True)).active[0]
    assert place.summary() == (
        "a person acted in 1 of 2 episodes and in 25% of decisions; interventions are requested in "
        "up to 100% of episodes"
    )


def test_where_nobody_is_there_the_policy_goes_on_at_full_speed(place, capsys) -> None:
    acts(place, 0)
    assert "no page is open" in capsys.readouterr().err
    begun = time.monotonic()
    for step in range(1, 51):
        assert not place.act(moment(step, asked=True)).active[0]
    assert time.monotonic() - begun < 50 / ROBOT.control_hz
    assert capsys.readouterr().err == ""


def test_with_a_person_the_arm_keeps_its_own_pace(place) -> None:
    with Person(place):
        acts(place, 0)
        begun = time.monotonic()
        for step in range(1, 26):
            acts(place, step)
        assert time.monotonic() - begun > 24 / ROBOT.control_hz


def test_the_page_tells_how_it_stands(place) -> None:
    with Person(place) as ann:
        acts(place, 3)
        ann.say()
        told = {
            k: ann.told[k]
            for k in ("task", "time_s", "time_limit_s", "progress", "requested", "moves_arm")
        }
    assert told == {"task": "push <it>", "time_s": pytest.approx(0.06), "time_limit_s": 9.0,
                    "progress": 0.25, "requested": False, "moves_arm": False}  # fmt: skip
    status, page = ask(place, "")
    assert status == 200
    assert b"Rollouts with a person" in page
    assert b"http" not in page
    status, picture = ask(place, "views.jpg")
    assert (status, picture[:2]) == (200, b"\xff\xd8")


HANDS = {"page": "eve", "move": RIGHT, "grips": 0, "gives": False}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 404),
        ("/input", {}, 404),
        ("/wrong-token/input", {}, 404),
        ("input", {"Host": "evil.example"}, 403),
        ("input", {"Host": "127.0.0.1"}, 403),
        ("input", {"Origin": "http://evil.example"}, 403),
        ("input", {"Content-Type": "text/plain"}, 415),
        ("elsewhere", {}, 404),
    ],
)
def test_strangers_neither_move_nor_see_anything(place, path, headers, status) -> None:
    assert place.viewer.server_address[0] == "127.0.0.1"
    assert ask(place, path, HANDS, **headers)[0] == status
    if status != 415:
        assert ask(place, path, **headers)[0] in (403, 404)
    assert not place.viewer.input.page_open
    assert not place.viewer.input.read().move.any()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"move": [1, 2]}, "expected 4 numbers"),
        ({"move": [1, 0, 0, True]}, "expected 4 numbers"),
        ({"move": [1, 0, 0, float("nan")]}, "expected 4 numbers"),
        ({"move": [10**400, 0, 0, 0]}, "expected 4 numbers"),
        ({"grips": "1"}, "expected a name, a whole number and true or false"),
        ({"more": 1}, "expected page, move, grips, gives"),
    ],
)
def test_what_no_page_says_is_refused_with_a_sentence(place, wrong, sentence) -> None:
    status, told = ask(place, "input", {**HANDS, **wrong})
    assert status == 400
    assert sentence in json.loads(told)["error"]
    assert not place.viewer.input.read().move.any()


def test_a_taken_port_is_told(place) -> None:
    port = place.viewer.server_port
    with pytest.raises(ValueError, match="give another --intervention.port"):
        replace(HELP.intervention, port=port).make_source(ROBOT)


def test_away_is_where_the_arm_points_if_no_camera_stands_still() -> None:
    np.testing.assert_allclose(table_axes(ROBOT) @ [0, 1], [-1, 0], atol=1e-9)
    wrist = replace(ROBOT, cameras=ROBOT.cameras[1:])
    np.testing.assert_allclose(table_axes(wrist), [[0, 1], [-1, 0]], atol=1e-9)


class Helpful(Person):
    """Acts for less than half a second, unasked."""

    def say(self) -> None:
        time_s = self.told.get("time_s", 0.0)
        self.move = [0.0, 0.0, 1.0, 0.0] if 0.3 < time_s < 0.7 else STILL
        self.gives = time_s >= 0.7
        super().say()


@pytest.mark.parametrize("memory", [none.Config(), bank.Config(slots=7)], ids=["none", "bank"])
def test_interventions_of_a_person_are_stored_as_the_experts_are(memory) -> None:
    policy = small_policy(memory)
    policy.robot = ROBOT
    (alone,) = collect_rollouts(policy, TASK, episodes=1, seed=5, version=0, num_envs=1)
    place = HELP.intervention.make_source(ROBOT)
    config = control(intervention={"source": "human"})
    helper = InterventionController(
        config, seed=5, remaining=1.0, scorer=None, views=(), source=place
    )
    with Helpful(place):
        (found,) = collect_rollouts(
            policy, TASK, episodes=1, seed=5, version=0, num_envs=1, controller=helper
        )
    place.close()
    acted = np.flatnonzero(found.is_intervention)
    assert 0 < acted[0] <= acted[-1] < len(found) - 1
    assert (np.diff(acted) == 1).all()
    assert found.is_policy_action.sum() + len(acted) == len(found)
    # Seen, decided and executed at the same moments as if nobody had been there.
    assert np.array_equal(found.decision_index[: len(alone)], alone.decision_index[: len(found)])
    assert (found.executed[:-1] == policy.config.n_action_steps).all()
    assert found.steps == round(found.time_s[-1] * ROBOT.control_hz)
    assert np.array_equal(found.actions[0], alone.actions[0])
    up = [tool_m(position)[2] for position in found.actions[acted].reshape(-1, 6)]
    assert max(up) > up[0] + 0.01
    assert found.bc_indices(success=False)[0] == found.decision_index[acted[0]]
