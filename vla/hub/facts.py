"""What a model card tells of a run, read from what training and tests wrote; it computes no figure.

Folders of this machine are named by their last part alone.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla import checkpoint
from vla.contracts.config import title

UNTOLD = ("wandb_project",)
"""Settings that are nobody else's business."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """The demonstrations."""

    name: str
    """Of its folder."""
    episodes: int
    """How many."""
    frames: int
    """Over all episodes."""
    fps: float
    """Frames per second."""
    sha256: str
    """Of its tables, by name and content; videos are not among them."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One test in simulation."""

    task: dict[str, Any]
    """Configuration of the task."""
    seed: int
    """Of the episodes."""
    episodes: int
    """How many."""
    rate: float
    """Share that succeeded."""
    interval: tuple[float, float]
    """Wilson's, 95 %."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a card tells."""

    folder: Path
    """The checkpoint."""
    policy: dict[str, Any]
    """The policy's configuration."""
    robot: dict[str, Any]
    """The arm."""
    parameters: int
    """How many numbers the policy has."""
    origin: dict[str, Any]
    """Its provenance, as `vla.checkpoint.Provenance`."""
    config: dict[str, Any]
    """Of the run; empty if the folder has none."""
    results: tuple[Result, ...]
    """Tests of these weights."""
    left_out: tuple[str, ...]
    """Why tests found beside it are not told, a sentence each."""
    data: Data | None
    """None where nobody knows."""
    places: tuple[str, ...]
    """Folders of this machine that the checkpoint's own description names."""


def read(run: Path, data: Path | None = None) -> Facts:
    """Read a run, or a checkpoint's folder.

    Args:
        run: Of `vla train`, `vla train rl` or `vla train distill`, or a checkpoint in it.
        data: The data set that it was cloned from; data-RUN beside the run if that is there.

    Raises:
        ValueError: there is no checkpoint, or a file is damaged.
    """
    folder = checkpoint.find(run)
    told = checkpoint.read_json(folder / "policy.json")
    checkpoint.load(folder)  # what cannot be loaded is not handed on
    around = folder.parent if folder.name == "checkpoint" else folder
    config = _config(around) or _config(folder.parent)
    recorded = folder.parent.with_name(f"data-{folder.parent.name}")
    where = data or (recorded if recorded.is_dir() else None)
    results, left_out = _results(around, told["provenance"]["step"])
    return Facts(
        folder=folder, policy=discreet(told["policy"]), robot=told["robot"],
        parameters=told["parameters"], origin=discreet(told["provenance"]),
        config=discreet(config), results=results, left_out=left_out,
        data=None if where is None else describe(where), places=tuple(_places(told)),
    )  # fmt: skip


def describe(path: Path) -> Data:
    """Return what is told of a data set.

    Raises:
        ValueError: it is damaged.
    """
    from vla.data.reader import open_dataset  # tables of a data set: not for `vla hub pull`

    info = open_dataset(path)
    digest = hashlib.sha256()
    for file in sorted([*path.glob("data/*/*.parquet"), *path.glob("meta/**/*.parquet")]):
        digest.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb") as opened:
            while chunk := opened.read(2**20):
                digest.update(chunk)
    return Data(
        name=path.resolve().name, episodes=info.num_episodes, frames=info.num_frames,
        fps=info.fps, sha256=digest.hexdigest(),
    )  # fmt: skip


def discreet(value: Any) -> Any:
    """Return JSON without what names this machine: of a path only its last part."""
    if isinstance(value, dict):
        return {k: discreet(v) for k, v in value.items() if k not in UNTOLD}
    if isinstance(value, (list, tuple)):
        return [discreet(v) for v in value]
    return Path(value).name if _is_place(value) else value


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute())


def _places(value: Any) -> list[str]:
    """Return the absolute paths in JSON."""
    if isinstance(value, dict):
        return [found for v in value.values() for found in _places(v)]
    if isinstance(value, list):
        return [found for v in value for found in _places(v)]
    return [value] if _is_place(value) else []


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return checkpoint.read_json(path) if path.is_file() else {}


def _results(run: Path, step: int) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    found, left_out = [], []
    for path in [run / "evaluation.json", *sorted(run.glob("eval-*/evaluation.json"))]:
        if not path.is_file():
            continue
        value = checkpoint.read_json(path)
        if value.get("step", step) != step:
            left_out.append(
                f"{path.relative_to(run)} is of update {value['step']}, these weights are of "
                f"{step}: not told"
            )
            continue
        found.append(_result(path, value))
    return tuple(found), tuple(left_out)


def _result(path: Path, value: dict[str, Any]) -> Result:
    try:
        low, high = map(float, value["interval"])
        return Result(
            task=dict(value["task"]), seed=int(value["seed"]), episodes=len(value["success"]),
            rate=float(value["rate"]), interval=(low, high),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: damaged ({error!r}); test anew with `vla eval`, or delete it"
        ) from error


def settings(value: dict[str, Any]) -> str:
    """Return what a plug-in's configuration in JSON says beside its name, in one line."""
    known = {k: v for k, v in value.items() if k not in ("type", "name")}
    return ", ".join(f"{k} {json.dumps(v)}" for k, v in known.items())


def named(value: dict[str, Any]) -> str:
    """Return the name of a task or part."""
    return title(value)
