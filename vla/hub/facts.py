"""Facts of a run for its model card, read from the files of training and evaluation.

Paths of this machine are reduced to their last part.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla import checkpoint
from vla.contracts import config as configs

PRIVATE = ("wandb_project",)
"""Settings that are not published."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training data set."""

    name: str
    """Name of its folder."""
    episodes: int
    """Number of episodes."""
    frames: int
    """Number of frames."""
    fps: float
    """Frames per second."""
    sha256: str
    """Hash of the names and contents of its tables; excludes videos."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One evaluation in simulation."""

    task: dict[str, Any]
    """Configuration of the task."""
    seed: int
    """Seed of the episodes."""
    episodes: int
    """Number of episodes."""
    rate: float
    """Fraction of successful episodes."""
    interval: tuple[float, float]
    """Wilson interval, 95 %."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Contents of a model card."""

    folder: Path
    """Folder of the checkpoint."""
    policy: dict[str, Any]
    """The policy's configuration."""
    robot: dict[str, Any]
    """The robot."""
    parameters: int
    """Number of parameters."""
    origin: dict[str, Any]
    """Provenance, as `vla.checkpoint.Provenance`."""
    config: dict[str, Any]
    """Configuration of the run; empty if the folder has none."""
    results: tuple[Result, ...]
    """Evaluations of these weights."""
    left_out: tuple[str, ...]
    """Why evaluations in the folder are left out, one sentence each."""
    data: Data | None
    """The training data set; None if unknown."""
    places: tuple[str, ...]
    """Absolute paths of this machine in the checkpoint's description."""


def read(run: Path, data: Path | None = None) -> Facts:
    """Read a run, or a checkpoint in it; the data set is by default data-RUN next to the run, if it
    exists.

    Raises:
        ValueError: there is no checkpoint, or a file is damaged.
    """
    folder = checkpoint.find(run)
    policy, _ = checkpoint.load(folder)  # a policy that cannot be loaded is not published
    stored = checkpoint.read_json(folder / "policy.json")
    around = folder.parent if folder.name == "checkpoint" else folder
    config = _config(around) or _config(folder.parent)
    recorded = folder.parent.with_name(f"data-{folder.parent.name}")
    where = data or (recorded if recorded.is_dir() else None)
    results, left_out = _results(around, stored["provenance"]["step"])
    return Facts(
        folder=folder, policy=redact(configs.to_json(policy.config)), robot=stored["robot"],
        parameters=stored["parameters"], origin=redact(stored["provenance"]),
        config=redact(config), results=results, left_out=left_out,
        data=None if where is None else describe(where), places=tuple(_paths(stored)),
    )  # fmt: skip


def describe(path: Path) -> Data:
    """Return the facts of a data set; ValueError if it is damaged."""
    from vla.data.reader import open_dataset  # tables of a data set: not for `vla hub pull`

    info = open_dataset(path)
    digest = hashlib.sha256()
    for file in sorted([*path.glob("data/*/*.parquet"), *path.glob("meta/**/*.parquet")]):
        digest.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return Data(
        name=path.resolve().name, episodes=info.num_episodes, frames=info.num_frames,
        fps=info.fps, sha256=digest.hexdigest(),
    )  # fmt: skip


def redact(value: Any) -> Any:
    """Return JSON without private settings and with only the last part of absolute paths."""
    if isinstance(value, dict):
        return {k: redact(v) for k, v in value.items() if k not in PRIVATE}
    if isinstance(value, (list, tuple)):
        return [redact(v) for v in value]
    return Path(value).name if _is_path(value) else value


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute())


def _paths(value: Any) -> list[str]:
    """Return the absolute paths in JSON."""
    if isinstance(value, dict):
        return [path for v in value.values() for path in _paths(v)]
    if isinstance(value, list):
        return [path for v in value for path in _paths(v)]
    return [value] if _is_path(value) else []


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return checkpoint.read_json(path) if path.is_file() else {}


def _results(run: Path, step: int) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    results, left_out = [], []
    for path in [run / "evaluation.json", *sorted(run.glob("eval-*/evaluation.json"))]:
        if not path.is_file():
            continue
        value = checkpoint.read_json(path)
        if value.get("step", step) != step:
            left_out.append(
                f"{path.relative_to(run)} evaluates update {value['step']}, these weights are of "
                f"update {step}: left out"
            )
            continue
        results.append(_result(path, value))
    return tuple(results), tuple(left_out)


def _result(path: Path, value: dict[str, Any]) -> Result:
    try:
        low, high = map(float, value["interval"])
        return Result(
            task=dict(value["task"]), seed=int(value["seed"]), episodes=len(value["success"]),
            rate=float(value["rate"]), interval=(low, high),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: damaged ({error!r}); evaluate again with `vla eval`, or delete it"
        ) from error


def settings(value: dict[str, Any]) -> str:
    """Return a plug-in's configuration (JSON) without its name, in one line."""
    fields = {k: v for k, v in value.items() if k not in ("type", "name")}
    return ", ".join(f"{k} {json.dumps(v)}" for k, v in fields.items())
