"""What a slot memory holds during one episode, recorded and drawn as SVG; for the bank only.

Row by row: at each decision, the time line of the past cut into slots. A slot that holds few
decisions is dark, one that blurs many together is pale; between cue and go the cue must stay dark.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sim.render import Camera, shared_renderer
from sim.scene import compile_scene
from sim.world import MujocoWorld
from training.evaluate import Player
from training.video import strip
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.types import Observation
from vla.nn import bank_ops
from vla.policies.vla import VLAPolicy

LEFT_PX, TOP_PX, WIDTH_PX, ROW_PX = 84, 40, 640, 14


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """One episode as the memory lived it: T decisions, L slots."""

    episode: int
    """Number of the episode."""
    instruction: str
    """What the arm was told."""
    success: bool
    """How it ended."""
    now: np.ndarray
    """Control step of each decision, i64 [t]."""
    images: np.ndarray
    """Camera images of each decision, u8 [t, v, h, w, 3]."""
    share: np.ndarray
    """What each decision reads: share of each earlier one in each slot, f32 [t, l, t]."""
    count: np.ndarray
    """Decisions in each slot as each decision reads it, f32 [t, l]."""
    cue: tuple[int, int] | None
    """First control step of the cue and the first after it, if the task has one."""
    go: int | None
    """Control step at which the arm is let go, if the task has one."""
    control_hz: float
    """Control steps per second."""


def has_slots(policy: VLAPolicy) -> bool:
    """Return whether the policy's memory is one that this module can draw."""
    return configs.type_name(policy.config.memory) == "bank"


def record(policy: VLAPolicy, task: PluginConfig, *, seed: int, episode: int) -> Trace:
    """Play one episode, the same as in an evaluation of that seed, and follow the memory.

    Raises:
        ValueError: the policy's memory has no slots.
    """
    if not has_slots(policy):
        raise ValueError(
            f"memory {configs.type_name(policy.config.memory)!r} has no slots to draw: only a "
            "policy with memory 'bank' has"
        )
    scene = compile_scene(task, policy.robot)
    world = MujocoWorld(scene)
    camera = Camera(shared_renderer(scene), world)
    world.reset(seed, episode)
    player, number = Player(policy, 1, seed), np.array([episode])
    now, images, tokens = [], [], []
    for obs in _decisions(world, camera, player, number):
        now.append(world.steps)
        images.append(obs.images[0])
        # The newest entry is never merged in the write that appends it.
        tokens.append(player.state.tokens[0, -1])
    share, count = mixed(policy, torch.stack(tokens), np.array(now))
    schedule = getattr(world.episode, "schedule", None)
    return Trace(
        episode=episode, instruction=world.instruction, success=world.succeeded,
        now=np.array(now), images=np.stack(images), share=share, count=count,
        cue=(schedule.cue_start, schedule.cue_end) if schedule else None,
        go=schedule.go if schedule else None, control_hz=policy.robot.control_hz,
    )  # fmt: skip


def mixed(
    policy: VLAPolicy, tokens: torch.Tensor, now: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each of T decisions reads in L slots: shares and counts as `Trace` has them.

    Args:
        policy: One with a bank.
        tokens: What each decision wrote, f32 [t, n, d].
        now: Control step of each, i64 [t].
    """
    written = tokens[None]
    times = torch.as_tensor(now, dtype=torch.float32, device=written.device)[None]
    memory: Any = policy.config.memory
    plan = bank_ops.mixing(
        written, times, torch.ones_like(times), slots=memory.slots, recent=memory.recent,
        fifo=memory.eviction == "fifo",
    )  # fmt: skip
    return plan.share[0].cpu().numpy(), plan.count[0].cpu().numpy()


def _decisions(
    world: MujocoWorld, camera: Camera, player: Player, number: np.ndarray
) -> Iterator[Observation]:
    """Yield the observation of each decision, after it was taken and before it is carried out."""
    over = False
    while not over:
        obs = Observation(
            images=camera.shoot()[None].copy(),
            image_ok=np.ones((1, len(camera.images)), np.bool_),
            proprio=world.proprio[None],
            task=(world.instruction,),
            time_s=np.array([world.time_s]),
        )
        actions = player.decide(obs, number)
        yield obs
        for action in actions[0]:
            _, terminated, truncated = world.step(action)
            over = terminated or truncated
            if over:
                break


def cue_share(trace: Trace) -> float | None:
    """Return how much of the purest slot is the cue when the arm is let go, in [0, 1].

    None if the task has no cue, the cue stays visible, or the episode ended before go.
    """
    if trace.cue is None or trace.go is None or trace.cue[1] > trace.go:
        return None
    at_go = np.flatnonzero(trace.now >= trace.go)
    if not len(at_go):
        return None
    seen = (trace.now >= trace.cue[0]) & (trace.now < trace.cue[1])
    return float(trace.share[at_go[0]][:, seen].sum(1).max())


def summary(trace: Trace) -> dict[str, Any]:
    """Return what the picture shows, as JSON types."""
    return {
        "episode": trace.episode, "instruction": trace.instruction, "success": trace.success,
        "decisions": len(trace.now), "slots": trace.count.shape[1], "cue": trace.cue,
        "go": trace.go, "cue_share_at_go": cue_share(trace),
    }  # fmt: skip


def draw(trace: Trace) -> str:
    """Return the picture as SVG: moments of the episode, and below them the slots over time."""
    png, picture_px = _moments(trace)
    top, bottom = picture_px + TOP_PX, picture_px + TOP_PX + ROW_PX * len(trace.now)
    width, height = LEFT_PX + WIDTH_PX + 84, bottom + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#6b7280">',
        f'<image href="data:image/png;base64,{png}" x="{LEFT_PX}" width="{WIDTH_PX}" '
        f'height="{picture_px}"/>',
        *_cells(trace, top),
        *_marks(trace, top, bottom),
        *_axes(trace, top, bottom),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _moments(trace: Trace) -> tuple[str, int]:
    """Return a base64 PNG of the front view at telling moments, and its height in the drawing."""
    at, labels = [0], ["start"]
    if trace.cue is not None and trace.go is not None:
        seen = np.flatnonzero((trace.now >= trace.cue[0]) & (trace.now < trace.cue[1]))
        go = int(np.searchsorted(trace.now, trace.go))
        if len(seen) and seen[0] < go < len(trace.now):
            waiting = (int(seen[-1]) + go + 1) // 2
            at, labels = [int(seen[-1]), waiting, go], ["cue", "waiting", "go"]
    at, labels = [*at, len(trace.now) - 1], [*labels, "last decision"]
    labels = [
        f"{label}, {trace.now[k] / trace.control_hz:.1f} s"
        for k, label in zip(at, labels, strict=True)
    ]
    height, width = trace.images.shape[2:4]
    picture = strip([trace.images[k, 0] for k in at], labels)
    ratio = (2 * height + 22) / (2 * width * len(at))
    return base64.b64encode(picture).decode(), round(WIDTH_PX * ratio)


def _x(trace: Trace, step: int) -> float:
    """Return the place of a control step on the time axis."""
    period = trace.now[1] - trace.now[0] if len(trace.now) > 1 else 1
    return LEFT_PX + WIDTH_PX * min(float(step / (trace.now[-1] + period)), 1.0)


def _cells(trace: Trace, top: int) -> Iterator[str]:
    """Yield one bar per slot and decision, from its first to its last member."""
    ends = [*trace.now[1:], 2 * trace.now[-1] - trace.now[-2] if len(trace.now) > 1 else 1]
    for t, slots in enumerate(trace.share):
        for slot, members in enumerate(slots):
            held = np.flatnonzero(members > 0)
            if not len(held):
                continue
            x, until = _x(trace, int(trace.now[held[0]])), _x(trace, int(ends[held[-1]]))
            opacity = 0.12 + 0.88 / float(trace.count[t, slot])
            yield (
                f'<rect x="{x + 0.75:.1f}" y="{top + t * ROW_PX + 1:.1f}" '
                f'width="{until - x - 1.5:.1f}" height="{ROW_PX - 2}" rx="2" fill="#3b6fd4" '
                f'fill-opacity="{opacity:.2f}"/>'
            )


def _marks(trace: Trace, top: int, bottom: int) -> Iterator[str]:
    """Yield the cue as a column and go as a row."""
    if trace.cue is not None:
        x, until = _x(trace, trace.cue[0]), _x(trace, trace.cue[1])
        yield (
            f'<rect x="{x:.1f}" y="{top - 6}" width="{until - x:.1f}" height="{bottom - top + 6}" '
            'fill="none" stroke="#d97706" stroke-width="1.5"/>'
            f'<text x="{(x + until) / 2:.1f}" y="{top - 11}" text-anchor="middle" fill="#d97706">'
            "cue</text>"
        )
    if trace.go is not None and trace.go <= trace.now[-1]:
        y = top + int(np.searchsorted(trace.now, trace.go)) * ROW_PX
        yield (
            f'<rect x="{LEFT_PX}" y="{y:.1f}" width="{WIDTH_PX}" height="{ROW_PX}" fill="none" '
            'stroke="#d97706" stroke-width="1.5"/>'
            f'<text x="{LEFT_PX + WIDTH_PX + 6}" y="{y + ROW_PX - 3:.1f}" fill="#d97706">go</text>'
        )


def _axes(trace: Trace, top: int, bottom: int) -> Iterator[str]:
    """Yield the times of decisions, downward, and of what is remembered, to the right."""
    every = max(1, len(trace.now) // 8)
    for t in range(0, len(trace.now), every):
        seconds = f"{trace.now[t] / trace.control_hz:.1f}"
        y, x = top + t * ROW_PX + ROW_PX - 3, _x(trace, int(trace.now[t]))
        yield f'<text x="{LEFT_PX - 8}" y="{y:.1f}" text-anchor="end">{seconds} s</text>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}">{seconds} s</text>'
    yield (
        f'<text x="14" y="{(top + bottom) / 2:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {(top + bottom) / 2:.1f})">time of the decision</text>'
        f'<text x="{LEFT_PX + WIDTH_PX / 2}" y="{bottom + 36}" text-anchor="middle">'
        "time of what is remembered (dark: a slot of one decision, pale: many merged)</text>"
    )
