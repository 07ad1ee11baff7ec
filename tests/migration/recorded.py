"""Reads the fixtures of format 1 and compares what is loaded from them with what was recorded.

Comparisons go by value and by order, not by name, so that a rename leaves the tests as they are.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from training.rl.experience import episode_store
from vla.contracts import renames
from vla.contracts.types import Frames, Observation, Prefix
from vla.data.reader import open_dataset, read_columns

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format_1"
RENAMED: tuple[tuple[Any, Any], ...] = (
    ("critic", "reward_model"), ("critic", "learned"),
    ("critic+sparse", "learned+sparse"), ("oracle", "dense_oracle"),
    ("expert", True), ("all", False),
    ("encode", False), ("cache", True), ("episodes", "sequence"), ("windows", "frame"),
    *renames.STAGES.items(), *renames.AXES.items(),
    *((old, new) for ports in renames.PORTS.values() for old, new in ports.items()),
)  # fmt: skip
"""Values that have another name now, such as registry keys: old and new."""
DECISIONS = 3
"""Decisions that are recorded of every policy, one period apart."""


def machine() -> dict[str, str]:
    """Return what the last bits of a result depend on: engines, their kernels, the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line for line in lines if line.startswith("model name")), "")
    return {
        "torch": torch.__version__,
        "onnxruntime": metadata.version("onnxruntime"),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": hashlib.sha256(model.encode()).hexdigest()[:12],
    }


def same_machine() -> bool:
    """Return whether results are equal to the bit here, because they were recorded on the same."""
    return json.loads((FORMAT_1 / "machine.json").read_text()) == machine()


def same_kernels() -> bool:
    """Return whether the engines and their instruction set are those of the record."""
    recorded = json.loads((FORMAT_1 / "machine.json").read_text())
    return {**recorded, "processor": ""} == {**machine(), "processor": ""}


def same_to_the_bit(a: Any, b: Any) -> bool:
    """Return whether two arrays have one shape, one dtype and the same bytes (NaN equals NaN)."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def assert_same(got: Any, expected: Any, atol: float = 1e-6) -> None:
    """Assert that a computed array is the recorded one: within `atol`, here to the bit.

    Other kernels than the record's (AVX2 for AVX-512, another ONNX Runtime) round otherwise: with
    them it is within ten times `atol`.
    """
    kernels = same_kernels()
    np.testing.assert_allclose(
        np.asarray(got), expected, rtol=0, atol=atol * (1 if kernels else 10)
    )
    if same_machine():
        assert same_to_the_bit(got, expected), "equal within the tolerance, but not to the bit"


def read(path: Path) -> dict[str, np.ndarray]:
    """Return what was recorded in an .npz file."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def copied(tmp_path: Path, *names: str) -> Path:
    """Return a folder with copies of some folders of the fixtures, which a test may change."""
    for name in names:
        shutil.copytree(FORMAT_1 / name, tmp_path / Path(name).name)
    return tmp_path


# --- JSON and weights, by value -------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every leaf of JSON types but those of a noise actor, which was
    removed; an empty list or object is a leaf.
    """
    if isinstance(value, dict) and value:
        for key, part in value.items():
            if key not in renames.NOISE_ACTOR:
                yield from leaves(part, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value:
        for i, part in enumerate(value):
            yield from leaves(part, f"{path}[{i}]")
    else:
        yield path, value


def lost(stored: Any, loaded: Any) -> list[str]:
    """Return the leaf values of `stored` that `loaded` lacks, whatever their names: none is lost
    in a round trip, and fields that are new may add theirs.
    """
    before, after = (Counter(repr(v) for _, v in leaves(one)) for one in (stored, loaded))
    missing, added = before - after, after - before
    for old, new in RENAMED:
        missing[repr(old)] -= min(missing[repr(old)], added[repr(new)])
    return sorted(missing.elements())


def changed(stored: Any, loaded: Any) -> list[str]:
    """Return the paths that both have, with another value: a rename that swapped two fields."""
    before, after = dict(leaves(stored)), dict(leaves(loaded))
    both = [path for path in before if path in after and before[path] != after[path]]
    return [path for path in both if (before[path], after[path]) not in RENAMED]


def weights(tensors: dict[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """Return shape, dtype and bytes of every tensor, in an order that their names do not decide."""
    return sorted(
        (tuple(value.shape), str(value.dtype), value.detach().cpu().contiguous().numpy().tobytes())
        for value in tensors.values()
    )


def stored_weights(file: Path) -> list[tuple[Any, ...]]:
    """Return the same of a safetensors file."""
    return weights(safetensors.torch.load_file(file))


# --- what goes in, what comes out -----------------------------------------------------------------


def observation(saved: dict[str, np.ndarray], decision: int) -> Observation:
    """Return what was seen at a decision."""
    images = saved["images"][decision]
    return Observation(
        images=images, image_ok=np.ones(images.shape[:2], bool), proprio=saved["proprio"][decision],
        task=tuple(saved["task"].tolist()), time_s=saved["time_s"][decision],
    )  # fmt: skip


def tensors(state: Any) -> list[np.ndarray]:
    """Return the arrays of a state in their order."""
    return [np.asarray(value) for value in state.tensors.values()]


def decide(
    policy: Any, saved: dict[str, np.ndarray], prefix: int = 0
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Return the actions of every recorded decision, and the state before the first and after each.

    With a prefix, each decision goes on from so many recorded actions.
    """
    rows = saved["proprio"].shape[1]
    state = policy.initial_state(rows)
    actions, states = [], [tensors(state)]
    for t in range(DECISIONS):
        settled = _prefix(saved, prefix) if prefix else None
        chunk, state = policy.act(observation(saved, t), state, saved["noise"][t], settled)
        actions.append(np.asarray(chunk.values))
        states.append(tensors(state))
    return actions, states


def _prefix(saved: dict[str, np.ndarray], count: int) -> Prefix:
    values = saved["prefix"]
    weight = np.zeros(values.shape[:2], np.float32)
    weight[:, :count] = 1.0
    return Prefix(values=values, mask=weight)


def frames(saved: dict[str, np.ndarray]) -> Frames:
    """Return the recorded moments that reward models judge."""
    images = saved["images"]
    return Frames(
        images=images, image_ok=np.ones(images.shape[:2], bool), time_s=saved["time_s"],
        episode_index=saved["row"], end_s=saved["end_s"], truth=saved["truth"],
    )  # fmt: skip


def experience(folder: Path) -> list[list[Any]]:
    """Return the fields of every episode of a run's experience, in order: of an array its dtype,
    shape and hash, of anything else the value.
    """
    rounds = episode_store.iterations(folder)
    episodes = [
        episode for name in rounds for episode in episode_store.read_iteration(folder, name)
    ]
    later = episode_store.OPTIONAL + episode_store.OPTIONAL_FRAMES  # no run kept them in format 1
    return [
        [_digest(part) for name, part in vars(episode).items() if name not in later]
        for episode in episodes
    ]


def columns(data: Path) -> list[Any]:
    """Return what a data set's columns hold, by place, and what is known of the set."""
    info = open_dataset(data)
    found = read_columns(info)
    arrays = [found.state, found.action, *found.scalars.values()]
    return [*map(_digest, arrays), list(info.tasks), info.fps, info.robot, info.offsets.tolist()]


def _digest(part: Any) -> Any:
    if not isinstance(part, np.ndarray):
        return part
    return [str(part.dtype), list(part.shape), hashlib.sha256(part.tobytes()).hexdigest()]


def judge(reward_model: Any, saved: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return a reward model's progress of the recorded episodes, field by field."""
    progress = reward_model.score(frames(saved), tuple(saved["task"].tolist()))
    return [np.asarray(value) for value in vars(progress).values()]
