"""A critic that runs without torch: an exported one, driven from numpy through an engine.

It satisfies `vla.contracts.protocols.RewardModel`. Curves, confidence and abstention are those of
`reward_models.curves`, as in training; the networks are the engine's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from deploy.critic.artefact import COMPARE, EMBED, JUDGE, CriticArtefact
from deploy.policy import Engine, Words, group
from reward_models.curves import (
    Judged,
    Past,
    advance,
    compare,
    labels,
    look_back,
    nothing,
)
from vla.contracts.types import Example, Frames, Progress


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """What is kept of B running episodes; `step` returns a new one."""

    memory: np.ndarray
    """f32 [b, m], the critic's own."""
    embeddings: np.ndarray
    """f32 [b, r, d], the latest moments, newest last."""
    first: np.ndarray
    """f32 [b, d], the first moment of each episode."""
    past: Past
    """What was made of them."""
    shown: dict[str, np.ndarray]
    """The reference episode, encoded, as the graphs take it."""


class DeployedCritic:
    """See the module's sentence.

    Args:
        artefact: What was exported.
        engine: Runs its graphs.
    """

    def __init__(self, artefact: CriticArtefact, engine: Engine) -> None:
        self.manifest, self.engine = artefact.manifest, engine
        self.config, self.calibration = artefact.manifest.scorer, artefact.manifest.calibration
        self.text = Words(artefact.tokenizer)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Cameras it looks through, in view order."""
        return self.manifest.cameras

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the images it works on."""
        return self.manifest.image_hw

    # --- moment by moment ----------------------------------------------------------------------

    def start(self, batch: int, example: Example | None = None, task: str = "") -> Stream:
        """Return the empty state of `batch` streams, told of a reference episode of `task`.

        Raises:
            ValueError: the reference has no frames, more than one row, or images that do not fit.
        """
        width = self.manifest.embedding
        return Stream(
            memory=np.zeros((batch, self.manifest.memory), np.float32),
            embeddings=np.zeros((batch, 0, width), np.float32),
            first=np.zeros((batch, width), np.float32), past=nothing(batch),
            shown=self._show(example, task),
        )  # fmt: skip

    def step(self, state: Stream, frames: Frames, task: tuple[str, ...]) -> tuple[Progress, Stream]:
        """Judge the next moment of each of B streams; see `RewardModel.step`.

        Raises:
            ValueError: images of another shape or type than its cameras have, not one frame for
                each stream in order, or a time that runs backwards.
        """
        time_s = np.asarray(frames.time_s, np.float64)
        images = np.asarray(frames.images)
        self._check_images(images)
        self._check_rows(np.asarray(frames.row), task, state)
        self._check_time(time_s, state.past)
        look = look_back(state.past, time_s, self.config)
        now, memory = self._embed(images, task, state.memory, look.fresh)
        first = np.where(look.fresh[:, None], now, state.first)
        known = np.concatenate([first[:, None], state.embeddings, now[:, None]], 1)
        seen = {"embedding": now, "first": first}
        earlier = np.take_along_axis(known, look.at[:, :, None], 1)
        found = self._run(COMPARE, {"earlier": earlier, **seen}, state.shown)
        judged = Judged(**self._run(JUDGE, seen, state.shown))
        compared = compare(found["difference"], found["trend"])
        curves, past, old = advance(state.past, look, judged, compared, self.config)
        after = replace(
            state, memory=memory, embeddings=known[:, 1 + old :], first=first, past=past
        )
        return labels(curves, self.config, self.calibration), after

    # --- all at once ---------------------------------------------------------------------------

    def score(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Progress:
        """Judge every moment of B whole episodes, as streams side by side: see `RewardModel.score`.

        Raises:
            ValueError: frames are out of order, or images of another shape than its cameras have.
        """
        row, time_s = np.asarray(frames.row), np.asarray(frames.time_s)
        backwards = np.any((np.diff(row) == 0) & (np.diff(time_s) <= 0)) or np.any(np.diff(row) < 0)
        if not len(row) or backwards:
            raise ValueError(
                f"got {len(row)} frames, expected some, in order of episode and, within it, of time"
            )
        rows, begin, count = np.unique(row, return_index=True, return_counts=True)
        names = tuple(task[r] for r in rows)
        state, place = self.start(len(rows), example, task[0]), np.arange(len(rows))
        said: dict[str, np.ndarray] = {}
        for step in range(int(count.max(initial=0))):
            at = begin + np.minimum(step, count - 1)  # episodes that have ended stand still
            now = Frames(
                images=np.asarray(frames.images)[at], image_ok=np.asarray(frames.image_ok)[at],
                time_s=time_s[at], row=place,
            )  # fmt: skip
            progress, state = self.step(state, now, names)
            here = step < count
            for name, value in vars(progress).items():
                whole = said.setdefault(name, np.empty((len(row), *value.shape[1:]), np.float32))
                whole[at[here]] = value[here]
        return Progress(**said)

    # --- what both share -----------------------------------------------------------------------

    def _show(self, example: Example | None, task: str) -> dict[str, np.ndarray]:
        """Encode a reference episode, frame by frame."""
        width = self.manifest.embedding
        if example is None:
            none = np.full(1, np.nan, np.float32)
            return {"shown": np.zeros((1, width), np.float32), "shown_progress": none}
        images, row = np.asarray(example.frames.images), np.asarray(example.frames.row)
        progress = np.asarray(example.progress, np.float32)
        self._check_images(images)
        if not 0 < len(images) == len(progress) or row.any():
            raise ValueError(
                f"example: got {len(images)} frames of rows {sorted(set(row.tolist()))} and "
                f"{len(progress)} numbers of progress; give one of them for each frame of row 0"
            )
        memory, found = np.zeros((1, self.manifest.memory), np.float32), []
        for i, image in enumerate(images):
            fresh = np.array([i == 0 or example.frames.time_s[i] == 0])
            now, memory = self._embed(image[None], (example.task or task,), memory, fresh)
            found.append(now)
        return {"shown": np.concatenate(found), "shown_progress": progress}

    def _embed(
        self, images: np.ndarray, task: tuple[str, ...], memory: np.ndarray, fresh: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return embeddings [b, d] and the memory after them."""
        known = {"images": images, "words": self.text(task), "memory": memory, "fresh": fresh}
        found = self._run(EMBED, known, {})
        return found["embedding"], found["new_memory"]

    def _run(
        self, name: str, known: Mapping[str, np.ndarray], shared: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Run a graph on rows, in groups of its batch; `shared` is the same for all of them."""
        graph, batch = self.manifest.graphs[name], self.manifest.batch
        rows = len(next(iter(known.values())))
        parts = []
        for begin in range(0, rows, batch):
            given = {**shared, **{k: group(v, begin, batch) for k, v in known.items()}}
            found = self.engine.run(name, {p.name: given[p.name] for p in graph.inputs})
            parts.append({k: np.array(v) for k, v in found.items()})  # the next run may overwrite
        return {k: np.concatenate([part[k] for part in parts])[:rows] for k in parts[0]}

    def _check_images(self, images: np.ndarray) -> None:
        expected = (len(self.cameras), *self.image_hw, 3)
        if images.dtype != np.uint8 or images.shape[1:] != expected:
            raise ValueError(
                f"images: got {images.dtype} {images.shape}, expected uint8 "
                f"{('f', *expected)}: cameras {', '.join(self.cameras)} in this order; choose and "
                "resize them"
            )

    def _check_rows(self, row: np.ndarray, task: tuple[str, ...], state: Stream) -> None:
        streams = len(state.memory)
        if not streams == len(task) == len(row) or not np.array_equal(row, np.arange(streams)):
            raise ValueError(
                f"got frames of rows {row.tolist()} and {len(task)} instructions for {streams} "
                "streams; give one frame and one instruction for each, in order"
            )

    def _check_time(self, time_s: np.ndarray, past: Past) -> None:
        """Only at 0 does an episode begin: NaN, or a clock that was set back, is no time."""
        last = past.time_s[:, -1] if past.begun else np.zeros(len(time_s))
        wrong = np.flatnonzero(~((time_s >= last) | (time_s == 0)) | np.isinf(time_s))
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(
                f"time_s: stream {i} is at {time_s[i]} s after {last[i]} s; give seconds since "
                "its episode began, which never run backwards, and exactly 0 where one begins"
            )
