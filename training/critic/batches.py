"""Draws what a critic learns from: irregular frames, pairs, foreign instructions, references."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from reward_models.pairs import CriticBatch
from sim.layout import COLOURS
from training.critic.clips import COLOUR, Clips, colour_of
from training.data.augment import shaken
from vla.contracts.config import check_least
from vla.contracts.types import Frames

ORDERS = tuple(itertools.permutations(range(3)))
"""Orders of the colour channels, the usual one first."""
ALIKE = 0.3
"""Distance in RGB up to which a colour is taken for one that has a name."""
BEGUN = 0.01
"""Progress from which something was done."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How batches are drawn; setting a share to 0 is the ablation of what it does."""

    episodes: int = 36
    """Episodes per batch, spread over the tasks."""
    past: int = 9
    """Frames of each episode that are only remembered, one from each stretch of it."""
    spots: int = 2
    """Frames of each episode that are judged: one from each stretch in which as much happens."""
    mates: int = 2
    """Further judged frames, each shortly after one of those."""
    idle: float = 0.1
    """Weight of a stretch in which nothing happens, where the average is 1."""
    mate_s: float = 1.2
    """How much later at most."""
    pairs: int = 14
    """Pairs of frames per episode, in either order."""
    foreign: float = 0.1
    """Share of episodes with an instruction that is not theirs."""
    rewound: float = 0.5
    """Share of frames judged as if later ones had been seen before: rewinds, shuffled order."""
    shown: float = 0.3
    """Share of episodes judged beside a reference episode."""
    untold: float = 0.2
    """Share of those that are not told the instruction."""
    recoloured: float = 0.3
    """Share of episodes whose colour channels change places, in pictures and in words: what is
    learned of one colour then holds of the others."""
    dark: float = 0.1
    """Share of views that are dark for a whole episode."""
    shift_px: int = 4
    """Largest shift of a view, the same for a whole episode."""
    gain: float = 0.15
    """Largest change of a view's brightness, the same for a whole episode."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=2, spots=1, mates=0, pairs=1, shift_px=0)


def draw(
    clips: Clips, drawing: Drawing, rng: np.random.Generator, among: np.ndarray | None = None
) -> CriticBatch:
    """Return one batch.

    Args:
        clips: Episodes.
        drawing: How many, and what of them.
        rng: Source of randomness.
        among: Episodes to draw from, bool [n]; all if not given.
    """
    chosen = _episodes(clips, drawing.episodes, rng, among)
    drawn = [_spots(clips, int(e), drawing, rng) for e in chosen]
    spots, judged = np.stack([d[0] for d in drawn]), np.stack([d[1] for d in drawn])
    episodes, size = spots.shape
    own = rng.random(episodes) >= drawing.foreign
    level = clips.level[chosen]
    shown = _references(clips.task[chosen], level, own, drawing.shown, rng)
    task = tuple(
        _instruction(clips, int(e), bool(o), bool(s >= 0 and rng.random() < drawing.untold), rng)
        for e, o, s in zip(chosen, own, shown, strict=True)
    )
    own_words = task
    turns, task = zip(*(_turn(text, drawing.recoloured, rng) for text in task), strict=True)
    images = augmented(clips.images[spots], drawing, rng)
    for e, order in enumerate(turns):
        if order != ORDERS[0]:
            images[e] = images[e][..., list(order)]
    frames = Frames(
        images=torch.from_numpy(images.reshape(-1, *images.shape[2:])),
        image_ok=torch.ones(images.shape[0] * size, images.shape[2], dtype=torch.bool),
        time_s=torch.from_numpy(clips.time_s[spots.ravel()]),
        row=torch.from_numpy(np.repeat(np.arange(episodes), size)),
    )
    query = np.flatnonzero(judged)
    asked = len(query) // episodes
    begin = np.arange(episodes) * asked
    flat, truth = spots[judged], np.repeat(own, asked).astype(np.float32)
    return CriticBatch(
        frames=frames,
        task=task,
        query=torch.from_numpy(query),
        history=torch.from_numpy(_history(query, size, drawing.rewound, rng)),
        first=torch.from_numpy(np.repeat(begin, asked)),
        last=torch.from_numpy(begin + asked - 1),
        progress=torch.from_numpy(clips.progress[flat] * truth),
        success=torch.from_numpy(clips.success[flat].astype(np.float32) * truth),
        own=torch.from_numpy(own.astype(np.float32)),
        goal=torch.from_numpy(_goals(clips, chosen, own_words)),
        aim=torch.from_numpy(_left(clips, chosen, spots)[judged]),
        pairs=torch.from_numpy(_pairs(begin, asked, drawing.pairs, rng)),
        shown=torch.from_numpy(shown),
        better=torch.from_numpy(_better(clips.task[chosen], level, own)),
    )


def _episodes(
    clips: Clips, count: int, rng: np.random.Generator, among: np.ndarray | None
) -> np.ndarray:
    """Draw episodes; a task's share grows as the root of its frames, and none is left out."""
    pool = np.arange(clips.episodes) if among is None else np.flatnonzero(among)
    names, which = np.unique(clips.task[pool], return_inverse=True)
    owned = np.bincount(which, np.diff(clips.offsets)[pool])
    share = np.sqrt(owned) / np.sqrt(owned).sum()
    # Systematic sampling: shares are met as closely as whole numbers can.
    spots = (rng.random() + np.arange(count)) / count
    drawn = rng.permutation(
        names[np.searchsorted(np.cumsum(share), spots).clip(max=len(names) - 1)]
    )
    return np.array([rng.choice(pool[clips.task[pool] == name]) for name in drawn])


def _spots(
    clips: Clips, episode: int, drawing: Drawing, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw frames of an episode, in order, and say which are judged.

    Judged are the first, the last, the last before anything is done (from there on, how the arm
    moves betrays where it goes), one from each of some stretches, and their mates. Stretches are
    long where nothing happens: frames that tell the same teach the same.
    """
    begin, end = int(clips.offsets[episode]), int(clips.offsets[episode + 1])
    change = np.abs(np.diff(clips.progress[begin:end], prepend=clips.progress[begin]))
    busy = change / max(float(change.mean()), 1e-9) + drawing.idle
    passed = np.concatenate([[0.0], np.cumsum(busy)])
    edges = np.linspace(0.0, passed[-1], drawing.spots + 1)
    spots = begin + np.searchsorted(passed, rng.uniform(edges[:-1], edges[1:]), side="right") - 1
    later_s = clips.time_s[rng.choice(spots, drawing.mates)]
    later_s = later_s + drawing.mate_s * rng.random(drawing.mates)
    mates = begin + np.searchsorted(clips.time_s[begin:end], later_s)
    past = np.floor(_one_of_each(begin, end, drawing.past, rng))
    frames = np.concatenate(
        [[begin, _start(clips, episode)], spots, mates, [end - 1], past]
    ).astype(np.int64)
    frames = np.minimum(frames, end - 1)
    order = np.argsort(frames, kind="stable")
    judged = np.arange(len(frames)) < len(frames) - drawing.past
    order = np.concatenate([[0], order[order != 0]])
    return frames[order], judged[order]


def _one_of_each(begin: int, end: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a number from each of `count` equal stretches from begin to end."""
    edges = np.linspace(begin, end, count + 1)
    return rng.uniform(edges[:-1], edges[1:])


def _history(query: np.ndarray, size: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw up to which frame of its episode each query's memory reaches: itself, or a later one."""
    left = size - query % size
    later = query + np.floor(rng.random(len(query)) * left).astype(np.int64)
    # Nothing was ever seen before the first frame of an episode.
    rewound = (rng.random(len(query)) < share) & (query % size > 0)
    return np.where(rewound, later, query)


def _pairs(begin: np.ndarray, size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw pairs of each episode: half of them near in time, half anywhere, in either order."""
    near = count // 2
    a = rng.integers(size, size=(len(begin), count))
    b = rng.integers(size, size=(len(begin), count))
    step = rng.choice((-2, -1, 1, 2), size=(len(begin), near))
    b[:, :near] = np.clip(a[:, :near] + step, 0, size - 1)
    return (np.stack([a, b], 2) + begin[:, None, None]).reshape(-1, 2)


def _references(
    task: np.ndarray, level: np.ndarray, own: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw for some episodes another of the same task that succeeded; -1 for none."""
    shown = np.full(len(task), -1)
    for e in range(len(task)):
        good = (task == task[e]) & (level == 2) & own
        good[e] = False
        if good.any() and own[e] and rng.random() < share:
            shown[e] = rng.choice(np.flatnonzero(good))
    return shown


def _goals(clips: Clips, chosen: np.ndarray, task: Sequence[str]) -> np.ndarray:
    """Return the goals [b, s] of episodes; NaN where not their own instruction is given."""
    told = clips.instruction[chosen] == np.array(task)
    return np.where(told[:, None], clips.goal[chosen], np.float32(np.nan))


def _start(clips: Clips, episode: int) -> int:
    """Return the last frame before anything is done; the first if nothing ever is."""
    begin, end = int(clips.offsets[episode]), int(clips.offsets[episode + 1])
    return begin + max(0, int((clips.progress[begin:end] > BEGUN).argmax()) - 1)


def _left(clips: Clips, chosen: np.ndarray, spots: np.ndarray) -> np.ndarray:
    """Return the work left f32 [b, t] at frames [b, t] of episodes; 0 before it can begin.

    Before that the goal may not be in sight, and an arm that has arrived tells nothing.
    """
    start = np.array([_start(clips, int(e)) for e in chosen])
    return np.where(spots >= start[:, None], 1.0 - clips.progress[spots], 0.0).astype(np.float32)


def _better(task: np.ndarray, level: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return all pairs of episodes of a task of which the first ended better, i64 [q, 2]."""
    same = (task[:, None] == task) & own[:, None] & own
    return np.argwhere(same & (level[:, None] > level))


def _instruction(
    clips: Clips, episode: int, own: bool, untold: bool, rng: np.random.Generator
) -> str:
    """Return the episode's instruction, a foreign one, or none."""
    if not own:
        right = str(clips.behaviour[episode]) != "wrong_object"
        return foreign(clips.instruction[episode], clips, rng, colours=right)
    return "" if untold else str(clips.instruction[episode])


def foreign(
    instruction: str, clips: Clips, rng: np.random.Generator, *, colours: bool = True,
    pool: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return an instruction of another task, or, as often, the same with another colour.

    Where only one task is known, and no colour, there is no other than none at all: "".

    Args:
        instruction: That of an episode of `clips`.
        clips: Where other instructions are taken from.
        rng: Source of randomness.
        colours: Whether colours may be swapped: not where the arm went to another colour.
        pool: Further instructions, all of other tasks.
    """
    own = clips.task[np.flatnonzero(clips.instruction == instruction)[:1]]
    found = COLOUR.search(instruction)
    if found and colours and rng.random() < 0.5:
        # To learn that a held-out composition is always foreign would be to learn it.
        seen = {colour_of(text) for text in clips.instruction[np.isin(clips.task, own)]}
        if seen - {found.group(1), None}:
            return recolour(instruction, rng, seen)
    elsewhere = [*clips.instruction[~np.isin(clips.task, own)], *pool]
    return str(rng.choice(elsewhere)) if elsewhere else ""


def recolour(
    instruction: str, rng: np.random.Generator, among: Collection[str | None] = tuple(COLOURS)
) -> str:
    """Return an instruction with another colour than the one it names."""
    found = COLOUR.search(instruction)
    others = [c for c in COLOURS if found and c != found.group(1) and c in among]
    return COLOUR.sub(str(rng.choice(others)), instruction)


def _turn(instruction: str, share: float, rng: np.random.Generator) -> tuple[tuple[int, ...], str]:
    """Draw an order of the colour channels, and say the instruction in the colours it makes.

    Where a named colour would become one that has no name, the order stays as it is.
    """
    order = ORDERS[rng.integers(1, len(ORDERS)) if rng.random() < share else 0]
    found = COLOUR.search(instruction)
    if not found:
        return order, instruction
    become = np.array(COLOURS[found.group(1)])[list(order)]
    distance = {name: float(np.linalg.norm(become - rgb)) for name, rgb in COLOURS.items()}
    nearest = min(distance, key=distance.__getitem__)
    if distance[nearest] > ALIKE:
        return ORDERS[0], instruction
    return order, COLOUR.sub(nearest, instruction)


def augmented(images: np.ndarray, drawing: Drawing, rng: np.random.Generator) -> np.ndarray:
    """Return images u8 [b, t, v, h, w, 3] shifted, brightened and darkened episode by episode."""
    episodes, frames, views = images.shape[:3]
    dark = rng.random((episodes, views)) < drawing.dark
    dark &= ~dark.all(1, keepdims=True)
    row = np.repeat(np.arange(episodes), frames)
    out = shaken(
        images.reshape(-1, *images.shape[2:]), row, shift_px=drawing.shift_px, gain=drawing.gain,
        rng=rng,
    ).reshape(images.shape)  # fmt: skip
    out[np.broadcast_to(dark[:, None], out.shape[:3])] = 0
    return out


def instructions(clips: Clips) -> Sequence[str]:
    """Return every instruction there is, and its words in every colour."""
    found = set(clips.instruction.tolist())
    return sorted(found | {COLOUR.sub(c, text) for text in found for c in COLOURS})
