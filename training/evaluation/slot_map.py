"""Plot of the contents of a slot memory during one episode.

Each row is a decision and shows the past time line divided into slots. A slot with few decisions is
dark, a slot that averages many is pale; from cue to go the cue must stay dark.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from training.evaluation.evaluate import Player
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.types import Observation
from vla.policies.vla import VLAPolicy
from vla.utils import charts

WIDTH_PX, MOMENTS_PX, AXES_PX, ROW_PX = 800, 190, 80, 14
"""Width of the plot, and heights of the images, of the axes and of a row."""
GAP = 0.14
"""Gap between bars, as a fraction of the row height and of the decision period."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Memory contents during one episode: T decisions, L slots."""

    episode: int
    instruction: str
    success: bool
    step_index: np.ndarray
    """Control step of each decision, i64 [t]."""
    images: np.ndarray
    """Camera images of each decision, u8 [t, v, h, w, 3]."""
    share: np.ndarray
    """Weight of each earlier decision in each slot at each decision, f32 [t, l, t]."""
    count: np.ndarray
    """Decisions in each slot at each decision, f32 [t, l]."""
    cue: tuple[int, int] | None
    """First control step of the cue and the first after it, if the task has one."""
    go: int | None
    """Control step at which the arm is released, if the task has one."""
    control_hz: float
    """Control steps per second."""

    @property
    def in_cue(self) -> np.ndarray:
        """Which decisions were made while the cue was shown, bool [t]."""
        start, end = self.cue or (0, 0)
        return (self.step_index >= start) & (self.step_index < end)


def has_slots(policy: VLAPolicy) -> bool:
    """Return whether the policy has a memory that this module can plot."""
    return hasattr(policy.memory, "mixing")


def record(policy: VLAPolicy, task: PluginConfig, *, seed: int, episode: int) -> Trace:
    """Run one episode of an evaluation seed and record the memory.

    Raises:
        ValueError: the policy's memory has no slots.
    """
    if not has_slots(policy):
        raise ValueError(
            f"memory {configs.type_name(policy.config.memory)!r} has no slots to plot: take a "
            "policy with memory 'bank'"
        )
    scene = compile_scene(task, policy.robot)
    world = MujocoWorld(scene)
    camera = Camera(shared_renderer(scene), world)
    world.reset(seed, episode)
    player, number = Player(policy, 1, seed), np.array([episode])
    steps, images, tokens = [], [], []
    for obs in _decisions(world, camera, player, number):
        steps.append(world.steps)
        images.append(obs.images[0])
        # The newest entry is never merged in the write that appends it.
        tokens.append(player.state["slot_tokens"][0, -1])
    share, count = slot_weights(policy, torch.stack(tokens), np.array(steps))
    schedule = getattr(world.episode, "schedule", None)
    return Trace(
        episode=episode, instruction=world.instruction, success=world.succeeded,
        step_index=np.array(steps), images=np.stack(images), share=share, count=count,
        cue=(schedule.cue_start, schedule.cue_end) if schedule else None,
        go=schedule.go if schedule else None, control_hz=policy.robot.control_hz,
    )  # fmt: skip


def slot_weights(
    policy: VLAPolicy, tokens: torch.Tensor, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return `share` and `count` of a `Trace` of T decisions at control steps i64 [t], each of
    which wrote tokens, f32 [t, n, d].
    """
    written = tokens[None]
    times = torch.as_tensor(steps, dtype=torch.float32, device=written.device)[None]
    plan = policy.memory.mixing(written, times, torch.ones_like(times))
    return plan.share[0].cpu().numpy(), plan.count[0].cpu().numpy()


def _decisions(
    world: MujocoWorld, camera: Camera, player: Player, number: np.ndarray
) -> Iterator[Observation]:
    """Yield the observation of each decision before its actions are executed."""
    over = False
    while not over:
        obs = Observation(
            images=camera.render()[None].copy(),
            image_ok=np.ones((1, len(camera.images)), np.bool_), proprio=world.proprio[None],
            task=(world.instruction,), time_s=np.array([world.time_s]),
        )  # fmt: skip
        actions = player.decide(obs, number)
        yield obs
        for action in actions[0]:
            _, terminated, truncated = world.step(action)
            over = terminated or truncated
            if over:
                break


def cue_share(trace: Trace) -> float | None:
    """Return the largest weight of the cue in a slot when the arm is released, in [0, 1].

    None if the task has no cue, the cue stays visible, or the episode ended before go.
    """
    if trace.cue is None or trace.go is None or trace.cue[1] > trace.go:
        return None
    at_go = np.flatnonzero(trace.step_index >= trace.go)
    if not len(at_go):
        return None
    return float(trace.share[at_go[0]][:, trace.in_cue].sum(1).max())


def summary(trace: Trace) -> dict[str, Any]:
    """Return a description of the plot as JSON types."""
    return {
        "episode": trace.episode, "instruction": trace.instruction, "success": trace.success,
        "decisions": len(trace.step_index), "slots": trace.count.shape[1], "cue": trace.cue,
        "go": trace.go, "cue_share_at_go": cue_share(trace),
    }  # fmt: skip


def draw(trace: Trace) -> charts.Figure:
    """Return the plot: images of the episode above the slots over time."""
    rows_px = ROW_PX * len(trace.step_index)
    with charts.style():
        size_px = (WIDTH_PX, MOMENTS_PX + AXES_PX + rows_px)
        drawing = charts.figure("memory slots over time", size_px)
        heights = [MOMENTS_PX, AXES_PX + rows_px]
        above, below = drawing.subfigures(2, height_ratios=heights)
        moments = _moments(trace)
        for place, (label, k) in enumerate(moments):
            axes = above.add_subplot(1, len(moments), place + 1)
            axes.imshow(trace.images[k, 0], interpolation="none")
            axes.set_title(f"{label}, {_seconds(trace, k)}", fontsize=12)
            axes.set_axis_off()
        _slots(trace, below.add_subplot())
    return drawing


def _moments(trace: Trace) -> list[tuple[str, int]]:
    """Return labels and decisions of the images to show."""
    moments = [("start", 0)]
    if trace.cue is not None and trace.go is not None:
        cue_decisions = np.flatnonzero(trace.in_cue)
        go = int(np.searchsorted(trace.step_index, trace.go))
        if len(cue_decisions) and cue_decisions[0] < go < len(trace.step_index):
            cue = int(cue_decisions[-1])
            moments = [("cue", cue), ("waiting", (cue + go + 1) // 2), ("go", go)]
    return [*moments, ("last decision", len(trace.step_index) - 1)]


def _slots(trace: Trace, axes: charts.Axes) -> None:
    """Draw one bar per slot and decision from its first to its last member; mark the cue as a
    column and go as a row.
    """
    from matplotlib.patches import Rectangle

    now = trace.step_index
    period = int(now[1] - now[0]) if len(now) > 1 else 1
    ends = np.append(now[1:], now[-1] + period)
    axes.set(
        xlim=(0, ends[-1]), ylim=(len(now), 0), ylabel="time of the decision",
        xlabel="time of what is remembered (dark: a slot of one decision, pale: many merged)",
    )  # fmt: skip
    for t, slots in enumerate(trace.share):
        filled = np.flatnonzero(slots.any(1))
        members = [np.flatnonzero(slots[slot]) for slot in filled]
        spans = [
            (now[k[0]] + period * GAP / 2, ends[k[-1]] - now[k[0]] - period * GAP) for k in members
        ]
        opacity = 0.12 + 0.88 / trace.count[t, filled]
        colours = [(charts.colour(0), float(share)) for share in opacity]
        axes.broken_barh(spans, (t + GAP / 2, 1 - GAP), facecolors=colours)
    shown = range(0, len(now), max(1, len(now) // 8))
    labels = [_seconds(trace, t) for t in shown]
    axes.set_xticks(now[shown], labels)
    axes.set_yticks([t + 0.5 for t in shown], labels)
    axes.grid(visible=False)
    mark: dict[str, Any] = {
        "fill": False, "edgecolor": charts.colour(1), "linewidth": 1.5, "clip_on": False,
    }  # fmt: skip
    if trace.cue is not None:
        start, end = np.minimum(trace.cue, ends[-1])
        axes.add_patch(Rectangle((start, -0.3), end - start, len(now) + 0.3, **mark))
        axes.text((start + end) / 2, -0.5, "cue", ha="center", color=charts.colour(1))
    if trace.go is not None and trace.go <= now[-1]:
        row = int(np.searchsorted(now, trace.go))
        axes.add_patch(Rectangle((0, row), ends[-1], 1, **mark))
        axes.text(1.01 * ends[-1], row + 0.5, "go", va="center", color=charts.colour(1))


def _seconds(trace: Trace, decision: int) -> str:
    return f"{trace.step_index[decision] / trace.control_hz:.1f} s"
