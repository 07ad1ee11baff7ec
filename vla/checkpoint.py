"""Policies on disk: a folder of safetensors and JSON that is checked before it is trusted.

`policy.json` holds configuration, robot, statistics, task and provenance; `tokenizer.json` the
tokenizer; `model.safetensors` the weights. No code from the folder is ever run.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from tokenizers import Tokenizer

from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec
from vla.hub import names
from vla.normalize import Statistics
from vla.opening import Opened
from vla.policies.vla import VLAPolicy

FORMAT = 1
FILES = ("policy.json", "tokenizer.json", "model.safetensors")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a checkpoint comes from."""

    task: dict[str, Any]
    """Configuration of the task it was trained on; "type" is its registry key."""
    instructions: tuple[str, ...]
    """Instructions it was trained on."""
    step: int
    """Updates so far."""
    revision: str
    """Git revision of the code, "unknown" outside a repository."""
    versions: dict[str, str]
    """Versions of the packages that matter."""
    pretrained: dict[str, Any] = field(default_factory=dict)
    """Name, revision, licence and hash of a pretrained backbone's weights; empty for none."""


def provenance(task: dict[str, Any], instructions: tuple[str, ...], step: int) -> Provenance:
    """Return the provenance of weights made here and now."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    packages = {name: metadata.version(name) for name in ("torch", "safetensors", "tokenizers")}
    return Provenance(
        task=task, instructions=instructions, step=step,
        revision=found.stdout.strip() or "unknown", versions=packages,
    )  # fmt: skip


def save(
    policy: Any,
    origin: Provenance,
    folder: Path,
    weights: dict[str, torch.Tensor],
    also: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a checkpoint by atomic rename: the folder is either the old one, or wholly the new.

    Args:
        policy: What to describe: an `ArmPolicy` of a file in `vla/policies`.
        origin: Where it comes from.
        folder: Where to write; replaced if it exists.
        weights: The state dict to store, such as an exponential average of the policy's.
        also: Writes further files (a trainer's state) that must appear together with the weights.
    """
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        description = {
            "format": FORMAT,
            "parameters": sum(p.numel() for p in policy.parameters()),
            "policy": configs.to_json(policy.config),
            "robot": configs.to_json(policy.robot),
            "statistics": configs.to_json(policy.statistics),
            "provenance": configs.to_json(replace(origin, pretrained=policy.config.source)),
        }
        (fresh / "policy.json").write_text(json.dumps(description, indent=1) + "\n")
        policy.text.tokenizer.save(str(fresh / "tokenizer.json"))
        tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
        safetensors.torch.save_file(tensors, fresh / "model.safetensors")
        also(fresh)
        replace_folder(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def replace_folder(fresh: Path, folder: Path) -> None:
    """Put `fresh` in the place of `folder` such that a kill leaves one of the two, complete."""
    flush(fresh)
    old = old_place(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def flush(folder: Path) -> None:
    """Have everything in a folder written to the disk before it gets its name."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def recover_folder(folder: Path) -> None:
    """Finish a replacement that was killed and clear away its rest; for the writer alone."""
    if old_place(folder).exists() and not folder.exists():
        old_place(folder).rename(folder)
    for begun in folder.parent.glob(f".{folder.name}.new-*"):
        shutil.rmtree(begun)


def old_place(folder: Path) -> Path:
    """Where the old checkpoint is while a new one takes its place."""
    return folder.with_name(f".{folder.name}.old")


def load(
    folder: Path, robot: RobotSpec | None = None, device: str = "cpu"
) -> tuple[Any, Provenance]:
    """Read and validate a checkpoint.

    Args:
        folder: What `save` wrote, or a run folder with such a folder named "checkpoint" in it.
        robot: The arm it will drive; checked against the arm it was trained for.
        device: Where to put the weights.

    Returns:
        The policy, an `ArmPolicy` in evaluation mode, and its provenance.

    Raises:
        ValueError: a file is missing or damaged, weights do not fit, or the robot is another.
    """
    folder = find(folder)
    config, trained_on, statistics, origin = _read_description(folder / "policy.json")
    if robot is not None:
        check_robot(trained_on, robot)
    check_described(config, folder / "policy.json")
    policy = config.build(trained_on, statistics, read_tokenizer(folder / "tokenizer.json"))
    load_weights_(policy, folder / "model.safetensors")
    return policy.to(device).eval(), origin


def check_described(config: PluginConfig, path: Path) -> None:
    """Raise ValueError if a policy leaves it to a model elsewhere to say what it is made of.

    Building it would look for that model, and download it if its name asks for that.
    """
    for part in (config, getattr(config, "backbone", None)):
        if getattr(part, "given", {}) is None:
            raise ValueError(
                f"{path}: does not say how its pretrained model is built (given is null); restore "
                "the checkpoint, or train again"
            )


def load_ours(folder: Path, what: str, device: str = "cpu") -> tuple[VLAPolicy, Provenance]:
    """Read a checkpoint of our own policy; `what` is what it is read for, such as "export".

    Raises:
        ValueError: as `load`, or the policy is a baseline, which can be trained and tested alone.
    """
    policy, origin = load(folder, device=device)
    if not isinstance(policy, VLAPolicy):
        raise ValueError(
            f"{folder}: {what} got a policy of type {configs.type_name(policy.config)!r}, expected "
            "one of type 'vla'; baselines are for `vla train`, `vla eval` and `vla bench compare`"
        )
    return policy, origin


def open_(folder: Path, threads: int, device: str = "cpu") -> Opened:
    """Return the policy of a checkpoint as `vla.opening` does.

    Raises:
        ValueError: as `load`.
    """
    torch.set_num_threads(threads)
    place = find(folder)
    policy, origin = load(place, device=device)
    return Opened(policy=policy, folder=place, task=origin.task, step=origin.step, target="torch")


def find(folder: Path) -> Path:
    """Return the checkpoint folder at `folder`, which may be the run folder around it.

    Raises:
        ValueError: there is none.
    """
    run = folder.resolve() / "checkpoint"
    for place in (folder.resolve(), old_place(folder.resolve()), run, old_place(run)):
        if (place / "policy.json").is_file():
            missing = [name for name in FILES if not (place / name).is_file()]
            if missing:
                raise ValueError(
                    f"{place}: checkpoint lacks {', '.join(missing)}; copy the whole folder"
                )
            return place
    raise ValueError(
        f"{folder}: no checkpoint there (expected a folder with {', '.join(FILES)}); "
        f"give the folder that `vla train --out` wrote{names.hint(folder)}"
    )


def check_robot(trained_on: RobotSpec, robot: RobotSpec) -> None:
    """Raise ValueError, naming the first difference, unless the arms agree where it matters."""
    for name in ("names", "control_hz", "low", "high"):
        expected, got = getattr(trained_on, name), getattr(robot, name)
        if expected != got:
            raise ValueError(
                f"wrong robot: the checkpoint was trained for {trained_on.name} with {name} "
                f"{expected}, got {robot.name} with {got}; use its own robot or train for this one"
            )


def _read_description(path: Path) -> tuple[PluginConfig, RobotSpec, Statistics, Provenance]:
    """Return what a policy is made of, the arm, its statistics and where they come from."""
    found = read_json(path)
    if found.get("format") != FORMAT:
        raise ValueError(
            f"{path}: checkpoint format {found.get('format')!r}, expected {FORMAT}; load it with "
            "the release that wrote it, or train again"
        )
    try:
        return (
            configs.from_json(None, found.get("policy"), f"{path}: policy", "vla.policies"),
            configs.from_json(RobotSpec, found.get("robot"), f"{path}: robot"),
            configs.from_json(Statistics, found.get("statistics"), f"{path}: statistics"),
            configs.from_json(Provenance, found.get("provenance"), f"{path}: provenance"),
        )
    except ValueError as error:
        raise ValueError(f"{error}; restore the checkpoint, or train again") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise ValueError saying what is wrong."""
    try:
        value = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({error}); restore the checkpoint") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: damaged, no JSON object; restore the checkpoint")
    return value


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file, or raise ValueError saying what is wrong."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a damaged file
        raise ValueError(f"{path}: damaged tokenizer ({error}); restore the checkpoint") from error


def load_weights_(module: torch.nn.Module, path: Path) -> None:
    """Give a module the weights of a safetensors file, or raise ValueError saying what is wrong."""
    try:
        given = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: damaged weights ({error}); restore the checkpoint") from error
    expected = module.state_dict()
    for name, value in expected.items():
        if name not in given:
            raise ValueError(
                f"{path}: lacks weight {name!r}; description and weights do not belong together"
            )
        if given[name].shape != value.shape:
            raise ValueError(
                f"{path}: weight {name!r} has shape {tuple(given[name].shape)}, "
                f"the description expects {tuple(value.shape)}"
            )
    extra = sorted(set(given) - set(expected))
    if extra:
        raise ValueError(f"{path}: unexpected weight {extra[0]!r}; description and weights differ")
    bad = [name for name, value in given.items() if not torch.isfinite(value.float()).all()]
    if bad:
        raise ValueError(
            f"{path}: weight {bad[0]!r} is not finite; train again or use an older one"
        )
    module.load_state_dict(given)
