"""A reward model that runs without torch: an exported one, driven from numpy.

It satisfies `vla.contracts.protocols.RewardModel`. Curves, confidence and abstention are those of
`reward_models.core.curves`, as in training; a `GraphRunner` computes the networks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from deploy.reward_model.artefact import COMPARE, EMBED, SCORE, RewardModelArtefact
from deploy.runtime.policy import GraphRunner, InstructionTokenizer, group
from reward_models.core import curves
from reward_models.core.curves import Past, Scored
from vla.contracts.types import Example, Frames, Progress


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """State of B running episodes; `step` returns a new one."""

    memory: np.ndarray
    """f32 [b, m], the reward model's memory."""
    embeddings: np.ndarray
    """f32 [b, r, d], embeddings of the latest frames, newest last."""
    first: np.ndarray
    """f32 [b, d], embedding of the first frame of each episode."""
    past: Past
    """What the scorer keeps of earlier frames."""
    reference: dict[str, np.ndarray]
    """The reference episode, encoded, as input of the graphs."""


class DeployedRewardModel:
    """An exported reward model.

    Args:
        artefact: The exported reward model.
        runner: Runs its graphs.
    """

    def __init__(self, artefact: RewardModelArtefact, runner: GraphRunner) -> None:
        self.manifest, self.runner = artefact.manifest, runner
        self.cameras, self.image_hw = artefact.manifest.cameras, artefact.manifest.image_hw
        self.config, self.calibration = artefact.manifest.scorer, artefact.manifest.calibration
        self.tokenize = InstructionTokenizer(artefact.tokenizer)

    def start(self, batch: int, example: Example | None = None, task: str = "") -> Stream:
        """Return the empty state of `batch` streams, with a reference episode of `task`.

        Raises:
            ValueError: the reference has no frames, more than one row, or images that do not fit.
        """
        width = self.manifest.embedding
        return Stream(
            memory=np.zeros((batch, self.manifest.memory), np.float32),
            embeddings=np.zeros((batch, 0, width), np.float32),
            first=np.zeros((batch, width), np.float32), past=curves.empty_past(batch),
            reference=self._encode_reference(example, task),
        )  # fmt: skip

    def step(self, state: Stream, frames: Frames, task: tuple[str, ...]) -> tuple[Progress, Stream]:
        """Score the next frame of each of B streams; see `RewardModel.step`.

        Raises:
            ValueError: images of another shape or type than its cameras have, not one frame for
                each stream in order, or a time that runs backwards.
        """
        time_s = np.asarray(frames.time_s, np.float64)
        images = np.asarray(frames.images)
        self._check_images(images)
        self._check_rows(np.asarray(frames.episode_index), task, state)
        self._check_time(time_s, state.past)
        look = curves.look_back(state.past, time_s, self.config)
        embedding, memory = self._embed(images, task, state.memory, look.is_first)
        first = np.where(look.is_first[:, None], embedding, state.first)
        history = np.concatenate([first[:, None], state.embeddings, embedding[:, None]], 1)
        inputs = {"embedding": embedding, "first_embedding": first}
        earlier = np.take_along_axis(history, look.at[:, :, None], 1)
        pairs = self._run(COMPARE, {"earlier_embeddings": earlier, **inputs}, state.reference)
        scored = Scored(**self._run(SCORE, inputs, state.reference))
        compared = curves.weigh_changes(pairs["difference"], pairs["trend"])
        now, past, old = curves.advance(state.past, look, scored, compared, self.config)
        after = replace(
            state, memory=memory, embeddings=history[:, 1 + old :], first=first, past=past
        )
        return curves.labels(now, self.config, self.calibration), after

    def score(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Progress:
        """Score every frame of B whole episodes, as parallel streams: see `RewardModel.score`.

        Raises:
            ValueError: frames are out of order, or images of another shape than its cameras have.
        """
        row, time_s = np.asarray(frames.episode_index), np.asarray(frames.time_s)
        backwards = np.any((np.diff(row) == 0) & (np.diff(time_s) <= 0)) or np.any(np.diff(row) < 0)
        if not len(row) or backwards:
            raise ValueError(
                f"got {len(row)} frames, expected some, in order of episode and, within it, of time"
            )
        rows, begin, count = np.unique(row, return_index=True, return_counts=True)
        names = tuple(task[r] for r in rows)
        state, place = self.start(len(rows), example, task[0]), np.arange(len(rows))
        scores: dict[str, np.ndarray] = {}
        for step in range(int(count.max(initial=0))):
            at = begin + np.minimum(step, count - 1)  # an ended episode repeats its last frame
            now = Frames(
                images=np.asarray(frames.images)[at], image_ok=np.asarray(frames.image_ok)[at],
                time_s=time_s[at], episode_index=place,
            )  # fmt: skip
            progress, state = self.step(state, now, names)
            here = step < count
            for name, value in vars(progress).items():
                column = scores.setdefault(name, np.empty((len(row), *value.shape[1:]), np.float32))
                column[at[here]] = value[here]
        return Progress(**scores)

    def _encode_reference(self, example: Example | None, task: str) -> dict[str, np.ndarray]:
        """Encode a reference episode, frame by frame."""
        width = self.manifest.embedding
        if example is None:
            none = np.full(1, np.nan, np.float32)
            empty = np.zeros((1, width), np.float32)
            return {"reference_embeddings": empty, "reference_progress": none}
        images, row = np.asarray(example.frames.images), np.asarray(example.frames.episode_index)
        progress = np.asarray(example.progress, np.float32)
        self._check_images(images)
        if not 0 < len(images) == len(progress) or row.any():
            raise ValueError(
                f"example: got {len(images)} frames of rows {sorted(set(row.tolist()))} and "
                f"{len(progress)} numbers of progress; give one of them for each frame of row 0"
            )
        memory, embeddings = np.zeros((1, self.manifest.memory), np.float32), []
        for i, image in enumerate(images):
            is_first = np.array([i == 0 or example.frames.time_s[i] == 0])
            part, memory = self._embed(image[None], (example.task or task,), memory, is_first)
            embeddings.append(part)
        return {"reference_embeddings": np.concatenate(embeddings), "reference_progress": progress}

    def _embed(
        self, images: np.ndarray, task: tuple[str, ...], memory: np.ndarray, is_first: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return embeddings [b, d] and the memory after them."""
        inputs = {
            "images": images, "token_ids": self.tokenize(task), "memory": memory,
            "is_first": is_first,
        }  # fmt: skip
        outputs = self._run(EMBED, inputs, {})
        return outputs["embedding"], outputs["new_memory"]

    def _run(
        self, name: str, inputs: Mapping[str, np.ndarray], shared: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Run a graph on rows, in groups of its batch; `shared` is the same for all of them."""
        graph, batch = self.manifest.graphs[name], self.manifest.batch
        rows = len(next(iter(inputs.values())))
        parts = []
        for begin in range(0, rows, batch):
            values = {**shared, **{k: group(v, begin, batch) for k, v in inputs.items()}}
            outputs = self.runner.run(name, {p.name: values[p.name] for p in graph.inputs})
            parts.append({k: np.array(v) for k, v in outputs.items()})  # a run may overwrite them
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
        """Refuse NaN and times that run backwards; an episode begins at exactly 0."""
        last = past.time_s[:, -1] if past.has_first else np.zeros(len(time_s))
        wrong = np.flatnonzero(~((time_s >= last) | (time_s == 0)) | np.isinf(time_s))
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(
                f"time_s: stream {i} is at {time_s[i]} s after {last[i]} s; give seconds since "
                "its episode began, which never run backwards, and exactly 0 where one begins"
            )
