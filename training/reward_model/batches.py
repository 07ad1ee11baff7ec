"""Samples the batches of reward model training: irregular frames, pairs, mismatched instructions,
references.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from reward_models.losses.pairwise import RewardModelBatch
from sim.core.layout import COLOURS
from training.data.augment import shift_and_brighten
from training.reward_model.clips import COLOUR, Clips, colour_of
from vla.contracts.config import validate_min
from vla.contracts.types import Frames

ORDERS = tuple(itertools.permutations(range(3)))
"""Orders of the colour channels, the identity first."""
MAX_COLOUR_DISTANCE = 0.3
"""Largest distance in RGB at which a colour takes the name of another."""
STARTED = 0.01
"""Progress above which work has started."""


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """How batches are sampled; a probability of 0 is the ablation of its augmentation."""

    batch_episodes: int = 36
    """Episodes per batch, spread over the tasks."""
    memory_frames: int = 9
    """Frames per episode that only update the memory, one from each of as many stretches."""
    anchor_frames: int = 2
    """Scored frames per episode, one from each stretch with an equal amount of change."""
    pair_frames: int = 2
    """Further scored frames per episode, each shortly after an anchor frame."""
    static_frame_weight: float = 0.1
    """Sampling weight of a frame without change; the average frame has 1."""
    max_pair_offset_s: float = 1.2
    """Largest time from an anchor frame to its pair frame, in seconds."""
    pairs: int = 14
    """Pairs of frames per episode, in either order."""
    mismatched_instruction_prob: float = 0.1
    """Share of episodes with the instruction of another task or colour."""
    rewind_prob: float = 0.5
    """Share of frames scored with a memory that holds later frames: rewinds, shuffled order."""
    reference_prob: float = 0.3
    """Share of episodes scored with a reference episode."""
    drop_instruction_prob: float = 0.2
    """Share of those with an empty instruction."""
    recolor_prob: float = 0.3
    """Share of episodes whose colour channels are permuted, in images and in the instruction, so
    that colours generalise."""
    view_dropout: float = 0.1
    """Share of views that are black for a whole episode."""
    random_shift_px: int = 4
    """Largest shift of a view in pixels, constant over an episode."""
    brightness_jitter: float = 0.15
    """Largest relative change of a view's brightness, constant over an episode."""

    def __post_init__(self) -> None:
        validate_min(
            self, batch_episodes=2, anchor_frames=1, pair_frames=0, pairs=1, random_shift_px=0
        )


def sample_batch(
    clips: Clips, config: SamplerConfig, rng: np.random.Generator, among: np.ndarray | None = None
) -> RewardModelBatch:
    """Return one batch of the episodes `among` (bool [n]; None for all)."""
    chosen = _sample_episodes(clips, config.batch_episodes, rng, among)
    sampled = [_sample_frames(clips, int(e), config, rng) for e in chosen]
    index, scored = (np.stack(part) for part in zip(*sampled, strict=True))
    episodes, size = index.shape
    matches = rng.random(episodes) >= config.mismatched_instruction_prob
    level = clips.level[chosen]
    reference = _sample_references(clips.task[chosen], level, matches, config.reference_prob, rng)
    original = tuple(
        _instruction(
            clips,
            int(e),
            bool(m),
            bool(r >= 0 and rng.random() < config.drop_instruction_prob),
            rng,
        )
        for e, m, r in zip(chosen, matches, reference, strict=True)
    )
    orders, task = zip(
        *(_recolor(text, config.recolor_prob, rng) for text in original), strict=True
    )
    images, offset = augment_episodes(clips.images[index], config, rng)
    for e, order in enumerate(orders):
        if order != ORDERS[0]:
            images[e] = images[e][..., list(order)]
    frames = Frames(
        images=torch.from_numpy(images.reshape(-1, *images.shape[2:])),
        image_ok=torch.ones(images.shape[0] * size, images.shape[2], dtype=torch.bool),
        time_s=torch.from_numpy(clips.time_s[index.ravel()]),
        episode_index=torch.from_numpy(np.repeat(np.arange(episodes), size)),
    )
    loss_index = np.flatnonzero(scored)
    per_episode = len(loss_index) // episodes
    begin = np.arange(episodes) * per_episode
    flat, truth = index[scored], np.repeat(matches, per_episode).astype(np.float32)
    told = clips.instruction[chosen] == np.array(original)
    offset = np.where(told[:, None, None], offset, np.float32(np.nan))
    referents = clips.referents[flat] + np.repeat(offset, per_episode, 0)[:, :, None]
    return RewardModelBatch(
        frames=frames,
        task=task,
        loss_index=torch.from_numpy(loss_index),
        memory_index=torch.from_numpy(_memory_index(loss_index, size, config.rewind_prob, rng)),
        first=torch.from_numpy(np.repeat(begin, per_episode)),
        last=torch.from_numpy(begin + per_episode - 1),
        progress=torch.from_numpy(clips.progress[flat] * truth),
        success=torch.from_numpy(clips.success[flat].astype(np.float32) * truth),
        matches=torch.from_numpy(matches.astype(np.float32)),
        goal=torch.from_numpy(_goals(clips, chosen, original)),
        referents=torch.from_numpy(referents),
        goal_weight=torch.from_numpy(_remaining_work(clips, chosen, index)[scored]),
        pairs=torch.from_numpy(_sample_pairs(begin, per_episode, config.pairs, rng)),
        reference=torch.from_numpy(reference),
        preferences=torch.from_numpy(_preferences(clips.task[chosen], level, matches)),
    )


def _sample_episodes(
    clips: Clips, count: int, rng: np.random.Generator, among: np.ndarray | None
) -> np.ndarray:
    """Sample episodes; a task's share grows with the square root of its number of frames."""
    pool = np.arange(clips.episodes) if among is None else np.flatnonzero(among)
    names, task_index = np.unique(clips.task[pool], return_inverse=True)
    frames = np.bincount(task_index, np.diff(clips.offsets)[pool])
    share = np.sqrt(frames) / np.sqrt(frames).sum()
    # Systematic sampling: shares are met as closely as whole numbers can.
    points = (rng.random() + np.arange(count)) / count
    tasks = rng.permutation(
        names[np.searchsorted(np.cumsum(share), points).clip(max=len(names) - 1)]
    )
    return np.array([rng.choice(pool[clips.task[pool] == name]) for name in tasks])


def _sample_frames(
    clips: Clips, episode: int, config: SamplerConfig, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Sample frames of an episode; return their indices in order and which of them are scored.

    Scored are the first, the last, the last before work starts (after it the motion of the arm
    shows the goal), the anchor frames and their pair frames. Anchor frames are rare where nothing
    changes: such frames are all alike.
    """
    begin, end = int(clips.offsets[episode]), int(clips.offsets[episode + 1])
    change = np.abs(np.diff(clips.progress[begin:end], prepend=clips.progress[begin]))
    weight = change / max(float(change.mean()), 1e-9) + config.static_frame_weight
    passed = np.concatenate([[0.0], np.cumsum(weight)])
    edges = np.linspace(0.0, passed[-1], config.anchor_frames + 1)
    anchors = begin + np.searchsorted(passed, rng.uniform(edges[:-1], edges[1:]), side="right") - 1
    later_s = clips.time_s[rng.choice(anchors, config.pair_frames)]
    later_s = later_s + config.max_pair_offset_s * rng.random(config.pair_frames)
    pairs = begin + np.searchsorted(clips.time_s[begin:end], later_s)
    memory_edges = np.linspace(begin, end, config.memory_frames + 1)
    memory = np.floor(rng.uniform(memory_edges[:-1], memory_edges[1:]))
    frames = np.concatenate(
        [[begin, _start(clips, episode)], anchors, pairs, [end - 1], memory]
    ).astype(np.int64)
    frames = np.minimum(frames, end - 1)
    order = np.argsort(frames, kind="stable")
    scored = np.arange(len(frames)) < len(frames) - config.memory_frames
    order = np.concatenate([[0], order[order != 0]])
    return frames[order], scored[order]


def _memory_index(
    index: np.ndarray, size: int, rewind_prob: float, rng: np.random.Generator
) -> np.ndarray:
    """Sample the last frame that the memory of each scored frame holds: itself, or a later one."""
    left = size - index % size
    later = index + np.floor(rng.random(len(index)) * left).astype(np.int64)
    # The memory is empty before the first frame of an episode.
    is_later = (rng.random(len(index)) < rewind_prob) & (index % size > 0)
    return np.where(is_later, later, index)


def _sample_pairs(begin: np.ndarray, size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Sample pairs of each episode: half of them near in time, half anywhere, in either order."""
    near = count // 2
    a = rng.integers(size, size=(len(begin), count))
    b = rng.integers(size, size=(len(begin), count))
    step = rng.choice((-2, -1, 1, 2), size=(len(begin), near))
    b[:, :near] = np.clip(a[:, :near] + step, 0, size - 1)
    return (np.stack([a, b], 2) + begin[:, None, None]).reshape(-1, 2)


def _sample_references(
    task: np.ndarray, level: np.ndarray, matches: np.ndarray, share: float,
    rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """Sample for some episodes another successful one of the same task; -1 for none."""
    reference = np.full(len(task), -1)
    for e in range(len(task)):
        good = (task == task[e]) & (level == 2) & matches
        good[e] = False
        if good.any() and matches[e] and rng.random() < share:
            reference[e] = rng.choice(np.flatnonzero(good))
    return reference


def _goals(clips: Clips, chosen: np.ndarray, task: Sequence[str]) -> np.ndarray:
    """Return the goals [b, s] of episodes; NaN where the instruction is not the episode's."""
    matches = clips.instruction[chosen] == np.array(task)
    return np.where(matches[:, None], clips.goal[chosen], np.float32(np.nan))


def _start(clips: Clips, episode: int) -> int:
    """Return the last frame before work starts; the first if it never does."""
    begin, end = int(clips.offsets[episode]), int(clips.offsets[episode + 1])
    return begin + max(0, int((clips.progress[begin:end] > STARTED).argmax()) - 1)


def _remaining_work(clips: Clips, chosen: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return 1 - progress, f32 [b, t], at frames [b, t]; 0 before work starts.

    Before that the goal may be out of view, and at the end of the work it is no prediction.
    """
    start = np.array([_start(clips, int(e)) for e in chosen])
    return np.where(index >= start[:, None], 1.0 - clips.progress[index], 0.0).astype(np.float32)


def _preferences(task: np.ndarray, level: np.ndarray, matches: np.ndarray) -> np.ndarray:
    """Return all pairs (better, worse) of episodes of one task, by how they ended, i64 [q, 2]."""
    same = (task[:, None] == task) & matches[:, None] & matches
    return np.argwhere(same & (level[:, None] > level))


def _instruction(
    clips: Clips, episode: int, matches: bool, dropped: bool, rng: np.random.Generator
) -> str:
    """Return the episode's instruction, a mismatched one, or "" if it is dropped."""
    if not matches:
        swap = str(clips.behaviour[episode]) != "wrong_object"
        return mismatched_instruction(clips.instruction[episode], clips, rng, colours=swap)
    return "" if dropped else str(clips.instruction[episode])


def mismatched_instruction(
    instruction: str, clips: Clips, rng: np.random.Generator, *, colours: bool = True,
    pool: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return an instruction of another task, or, as often, the same with another colour.

    With one task and no colour there is no other instruction: the result is "".

    Args:
        instruction: That of an episode of `clips`.
        clips: Source of other instructions.
        rng: Source of randomness.
        colours: Whether colours may be swapped; False where the arm went to another colour.
        pool: Further instructions, all of other tasks.
    """
    task = clips.task[np.flatnonzero(clips.instruction == instruction)[:1]]
    colour = COLOUR.search(instruction)
    if colour and colours and rng.random() < 0.5:
        # A held-out composition must not be learned as a mismatch.
        seen = {colour_of(text) for text in clips.instruction[np.isin(clips.task, task)]}
        if seen - {colour.group(1), None}:
            return swap_colour(instruction, rng, seen)
    elsewhere = [*clips.instruction[~np.isin(clips.task, task)], *pool]
    return str(rng.choice(elsewhere)) if elsewhere else ""


def swap_colour(
    instruction: str, rng: np.random.Generator, among: Collection[str | None] = tuple(COLOURS)
) -> str:
    """Return an instruction with another colour than the one it names, or names first."""
    colour = COLOUR.search(instruction)
    others = [c for c in COLOURS if colour and c != colour.group(1) and c in among]
    return COLOUR.sub(str(rng.choice(others)), instruction, count=1)


def _recolor(
    instruction: str, share: float, rng: np.random.Generator
) -> tuple[tuple[int, ...], str]:
    """Sample an order of the colour channels; return it and the instruction in its colours.

    The order stays the identity where a named colour would become one without a name.
    """
    order = ORDERS[rng.integers(1, len(ORDERS)) if rng.random() < share else 0]
    names = {}
    for colour in COLOUR.findall(instruction):
        permuted = np.array(COLOURS[colour])[list(order)]
        distance = {name: float(np.linalg.norm(permuted - rgb)) for name, rgb in COLOURS.items()}
        names[colour] = min(distance, key=distance.__getitem__)
        if distance[names[colour]] > MAX_COLOUR_DISTANCE:
            return ORDERS[0], instruction
    return order, COLOUR.sub(lambda found: names[found.group(1)], instruction)


def augment_episodes(
    images: np.ndarray, config: SamplerConfig, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return images u8 [b, t, v, h, w, 3], shifted, brightened and dropped episode by episode, and
    by how much in image coordinates each view was moved, f32 [b, v, 2]; NaN where it was dropped.
    """
    episodes, frames, views = images.shape[:3]
    dropped = rng.random((episodes, views)) < config.view_dropout
    dropped &= ~dropped.all(1, keepdims=True)
    episode_index = np.repeat(np.arange(episodes), frames)
    flat, moved = shift_and_brighten(
        images.reshape(-1, *images.shape[2:]), episode_index, shift_px=config.random_shift_px,
        brightness=config.brightness_jitter, rng=rng,
    )  # fmt: skip
    out = flat.reshape(images.shape)
    out[np.broadcast_to(dropped[:, None], out.shape[:3])] = 0
    height, width = images.shape[3:5]
    offset = 2.0 * moved / np.array([width, height], np.float32)
    return out, np.where(dropped[:, :, None], np.float32(np.nan), offset)


def all_instructions(clips: Clips) -> Sequence[str]:
    """Return every instruction in every colour, sorted."""
    texts = set(clips.instruction.tolist())
    return sorted(texts | {COLOUR.sub(c, text) for text in texts for c in COLOURS})
