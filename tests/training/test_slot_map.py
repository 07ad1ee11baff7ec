"""The picture of the memory shows what the policy's memory really holds."""

import dataclasses
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from tests.training.small_policy import SLOTS, TASK, small_policy
from training.evaluation import slot_map
from training.evaluation.evaluate import Player, evaluate
from training.evaluation.slot_map import Trace
from vla.memory import bank, none
from vla.utils import charts


@pytest.fixture(scope="module", params=["ward", "fifo"])
def recorded(request):
    """Return a policy and the trace of one of its episodes."""
    policy = small_policy(bank.Config(slots=SLOTS, eviction=request.param))
    return policy, slot_map.record(policy, TASK, seed=5, episode=2)


def test_shares_rebuild_the_memory_that_the_policy_carries(recorded):
    policy, trace = recorded
    scene = compile_scene(TASK, policy.robot)
    world = MujocoWorld(scene)
    world.reset(5, 2)
    camera = Camera(shared_renderer(scene), world)
    player = Player(policy, 1, 5)
    written, held = [], []
    for _ in slot_map._decisions(world, camera, player, np.array([2])):
        written.append(player.state["slot_tokens"][0, -1].numpy())
        held.append(player.state)
    # More decisions than slots: something was merged, or dropped.
    assert len(written) == len(trace.step_index) > SLOTS + 1
    tokens = np.stack(written)
    for t in range(1, len(tokens)):
        before = held[t - 1]
        assert np.array_equal(trace.count[t], before["slot_count"][0].numpy())
        rebuilt = np.einsum("lt,tnd->lnd", trace.share[t], tokens)
        np.testing.assert_allclose(rebuilt, before["slot_tokens"][0].numpy(), atol=1e-5)


def test_the_trace_is_the_episode_of_the_evaluation(recorded):
    policy, trace = recorded
    result = evaluate(policy, TASK, episodes=3, seed=5)
    assert trace.success == result.success[2]
    assert trace.step_index.tolist() == list(range(0, result.steps[2], 8))
    assert trace.go is not None
    assert trace.go % 8 == 0


def test_the_first_decision_reads_an_empty_memory(recorded):
    _, trace = recorded
    assert not trace.count[0].any()
    assert trace.count[1].sum() == 1


def hand_made() -> Trace:
    """Four decisions at steps 0, 8, 16, 24; the cue shows at 8; go is at 24; two slots."""
    share = np.zeros((4, 2, 4), np.float32)
    share[1, 1, 0] = 1
    share[2, 0, 0] = share[2, 1, 1] = 1
    share[3, 0, :2] = 0.5
    share[3, 1, 2] = 1
    return Trace(
        episode=3, instruction="press", success=True, step_index=np.array([0, 8, 16, 24]),
        images=np.zeros((4, 2, 8, 80, 3), np.uint8), share=share,
        count=np.array([[0, 0], [0, 1], [1, 1], [2, 1]], np.float32),
        cue=(8, 16), go=24, control_hz=10.0,
    )  # fmt: skip


def test_the_share_of_the_cue_is_that_of_the_purest_slot_at_go():
    trace = hand_made()
    # At go one slot holds the decisions 0 and 1 in equal parts, the other decision 2.
    assert slot_map.cue_share(trace) == 0.5
    assert slot_map.cue_share(dataclasses.replace(trace, go=16, cue=(8, 16))) == 1.0
    assert slot_map.cue_share(dataclasses.replace(trace, go=100)) is None
    assert slot_map.cue_share(dataclasses.replace(trace, cue=(8, 10**9))) is None
    assert slot_map.cue_share(dataclasses.replace(trace, cue=None, go=None)) is None


def texts(drawing) -> set[str]:
    root = ET.fromstring(charts.svg(drawing))
    return {element.text for element in root.iter() if element.tag.endswith("text")}


def test_the_drawing_has_one_bar_per_filled_slot_and_decision():
    drawing = slot_map.draw(hand_made())
    *moments, axes = drawing.axes
    assert len(moments) == 4
    # No slot is filled at the first decision, one at the second, two at the third and the fourth.
    assert [len(row.get_paths()) for row in axes.collections] == [0, 1, 2, 2]
    # The slot that merged two decisions: paler, and two of four periods wide but for the gap.
    merged, single = axes.collections[3].get_paths()
    left, top, right, bottom = merged.get_extents().extents
    assert (left, right) == pytest.approx((0, 16), abs=slot_map.GAP * 8)
    assert 3 < top < bottom < 4
    assert single.get_extents().x0 > right
    opacity = axes.collections[3].get_facecolors()[:, 3]
    assert opacity.tolist() == pytest.approx([0.12 + 0.88 / 2, 1.0])
    assert {"cue", "go", "cue, 0.8 s", "waiting, 1.6 s", "go, 2.4 s"} <= texts(drawing)
    column, row = axes.patches
    assert (column.get_x(), column.get_width()) == (8, 8)
    assert (row.get_y(), row.get_height()) == (3, 1)


def test_a_cue_that_stays_visible_ends_with_the_drawing():
    *_, axes = slot_map.draw(dataclasses.replace(hand_made(), cue=(8, 10**9))).axes
    assert axes.patches[0].get_x() + axes.patches[0].get_width() == axes.get_xlim()[1] == 32


def test_an_episode_without_cue_or_of_one_decision_is_drawn_too():
    trace = hand_made()
    short = dataclasses.replace(
        trace, step_index=trace.step_index[:1], images=trace.images[:1],
        share=trace.share[:1, :, :1], count=trace.count[:1], cue=None, go=None,
    )  # fmt: skip
    for one in (short, dataclasses.replace(trace, cue=None, go=None)):
        words = texts(slot_map.draw(one))
        assert "cue" not in words
        assert "0.0 s" in words


def test_a_policy_without_slots_is_refused_in_one_sentence():
    policy = small_policy(none.Config())
    assert not slot_map.has_slots(policy)
    with pytest.raises(ValueError, match="memory 'none' has no slots"):
        slot_map.record(policy, TASK, seed=0, episode=0)
