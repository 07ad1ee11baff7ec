"""Checkpoints: a folder of safetensors and JSON that is validated when it is loaded.

`policy.json` holds configuration, robot, statistics, task and provenance; `tokenizer.json` the
tokenizer; `model.safetensors` the weights. No code from the folder is ever run.
"""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from vla.contracts import config as configs
from vla.contracts import migrate, renames
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec
from vla.nn.normalize import NormalizationStatistics
from vla.policies.vla import Embodiment, VLAPolicy
from vla.runtime.policy_loader import LoadedPolicy
from vla.utils import files, hub_name, tokenizer

FORMAT = 2
READABLE = (1, 2)
"""Formats that can be read; `vla.contracts.migrate` renames."""
LEAST_BYTES = 1 << 28
"""What building any network may allocate."""
FILES = ("policy.json", "tokenizer.json", "model.safetensors")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Origin of a checkpoint."""

    task: dict[str, Any]
    """Configuration of the task it was trained on; "type" is its registry key."""
    instructions: tuple[str, ...]
    """Instructions it was trained on."""
    step: int
    """Training updates so far."""
    revision: str
    """Git revision of the code, "unknown" outside a repository."""
    versions: dict[str, str]
    """Versions of torch, safetensors and tokenizers."""
    pretrained: dict[str, Any] = field(default_factory=dict)
    """Name, revision, licence and hash of a pretrained backbone's weights; empty for none."""


def provenance(task: dict[str, Any], instructions: tuple[str, ...], step: int) -> Provenance:
    """Return the provenance of weights that this process makes now."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=False)
    packages = {name: metadata.version(name) for name in ("torch", "safetensors", "tokenizers")}
    return Provenance(
        task=task, instructions=instructions, step=step,
        revision=head.stdout.strip() or "unknown", versions=packages,
    )  # fmt: skip


def save(
    policy: Any,
    origin: Provenance,
    folder: Path,
    weights: dict[str, torch.Tensor],
    add_files: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a checkpoint by atomic rename: the folder is either the old or the complete new one.

    Args:
        policy: The policy to describe, of `vla/policies`.
        origin: Its provenance.
        folder: Where to write; replaced if it exists.
        weights: The state dict to store, such as an exponential average of the policy's.
        add_files: Writes further files, such as the trainer's state, into the new folder.
    """
    with new_folder(folder) as new:
        description = {
            "format": FORMAT,
            "parameters": sum(p.numel() for p in policy.parameters()),
            "policy": configs.to_json(policy.config),
            "robot": configs.to_json(policy.robot),
            "statistics": configs.to_json(policy.statistics),
            "provenance": configs.to_json(replace(origin, pretrained=policy.config.source)),
        }
        if others := getattr(policy, "co_embodiments", ()):
            description["co_embodiments"] = configs.to_json(others)
        (new / "policy.json").write_text(json.dumps(description, indent=1) + "\n")
        tokenizer.save(policy.text.tokenizer, new / "tokenizer.json")
        tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
        safetensors.torch.save_file(tensors, new / "model.safetensors")
        add_files(new)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` at the end of the block, unless it raises."""
    new = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        replace_folder(new, folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def replace_folder(new: Path, folder: Path) -> None:
    """Replace `folder` by `new` so that a kill leaves one of the two complete."""
    files.flush(new)
    old = old_place(folder)
    shutil.rmtree(old, ignore_errors=True)
    if not folder.exists():
        new.rename(folder)
    elif files.exchange(new, folder):
        old = new
    else:
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise
    files.sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Finish a replacement that was killed and delete its leftovers; only the writer calls it."""
    old = old_place(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)
    for leftover in [*folder.parent.glob(f".{folder.name}.new-*"), *[old] * old.exists()]:
        shutil.rmtree(leftover)


def old_place(folder: Path) -> Path:
    """Return the path of the old checkpoint while a new one replaces it."""
    return folder.with_name(f".{folder.name}.old")


def run_of(folder: Path) -> Path:
    """Return the run's folder of a checkpoint in it, or a folder outside a run as it is."""
    name = "checkpoint"
    return folder.parent if folder.name in (name, f".{name}.old") else folder


def load(
    folder: Path, robot: RobotSpec | None = None, device: str = "cpu"
) -> tuple[Any, Provenance]:
    """Read and validate a checkpoint.

    Args:
        folder: A checkpoint, or a run folder with a checkpoint named "checkpoint".
        robot: The arm to drive, one of those of training; the first of them if None.
        device: Device of the weights.

    Returns:
        The policy, an `ArmPolicy` in evaluation mode, and its provenance.

    Raises:
        ValueError: a file is missing or damaged, weights do not fit, or the robot differs.
    """
    folder = find(folder)
    config, arms, origin = _read_description(folder / "policy.json")
    first = arms[0]
    check_described(config, folder / "policy.json")
    words = read_tokenizer(folder / "tokenizer.json")
    with building(folder / "policy.json", folder / "model.safetensors"):
        policy = config.build(first.robot, first.statistics, words)
    load_weights(policy, folder / "model.safetensors")
    policy = policy.to(device).eval()
    if isinstance(policy, VLAPolicy):
        policy.co_embodiments = arms[1:]
    if robot is not None:
        policy = for_robot(policy, robot.name)
        check_robot(policy.robot, robot)
    return policy, origin


@contextlib.contextmanager
def building(description: Path, weights: Path | None) -> Iterator[None]:
    """Turn what a network raises for sizes that cannot be into a ValueError that names the file.

    One much larger than its file of weights, if that is given, is given up before it fills memory.
    """
    try:
        stored = weights.stat().st_size if weights is not None else None
        with contextlib.nullcontext() if stored is None else _Budget(stored):
            yield
    except (ArithmeticError, LookupError, RuntimeError, TypeError) as error:
        text = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{description}: describes no network that can be built ({text}); restore the folder, "
            "or train again"
        ) from error
    except ValueError as error:
        if str(description.parent) in str(error):
            raise
        raise configs.of_file(description, error) from error


class _Budget(TorchDispatchMode):
    """Refuses to allocate many times what a file of weights has."""

    def __init__(self, stored: int) -> None:
        super().__init__()
        self.stored, self.left = stored, 8 * stored + LEAST_BYTES

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        # What is made of no other tensor; the system gives pages only as they are written.
        if isinstance(made, torch.Tensor) and not any(isinstance(a, torch.Tensor) for a in args):
            self.left -= made.nbytes
            if self.left < 0:
                raise RuntimeError(f"far larger than its weights, which have {self.stored:,} bytes")
        return made


def check_described(config: PluginConfig, path: Path) -> None:
    """Raise ValueError if a policy's description lacks that of its pretrained model.

    Building it would search that model, and download it if its name starts with "hub:".
    """
    for part in (config, getattr(config, "backbone", None)):
        if getattr(part, "description", {}) is None:
            raise ValueError(
                f"{path}: lacks the description of its pretrained model (description is null); "
                "restore the checkpoint, or train again"
            )


def load_vla(folder: Path, purpose: str, device: str = "cpu") -> tuple[VLAPolicy, Provenance]:
    """Load a checkpoint of a `vla` policy for a purpose such as "export".

    Raises:
        ValueError: as `load`, or the policy is a baseline, which can only be trained and tested.
    """
    policy, origin = load(folder, device=device)
    if not isinstance(policy, VLAPolicy):
        raise ValueError(
            f"{folder}: {purpose} got a policy of type {configs.type_name(policy.config)!r}, "
            "expected one of type 'vla'; baselines are for `vla train`, `vla eval` and "
            "`vla bench compare`"
        )
    return policy, origin


def open_policy(folder: Path, threads: int, device: str = "cpu", robot: str = "") -> LoadedPolicy:
    """Load the policy of a checkpoint, for `vla.runtime.policy_loader`; ValueError as `load`.

    Of one that drives several arms, `robot` names one; the first of them if empty.
    """
    torch.set_num_threads(threads)
    place = find(folder)
    policy, origin = load(place, device=device)
    return LoadedPolicy(
        policy=for_robot(policy, robot),
        folder=place,
        task=origin.task,
        step=origin.step,
        target="torch",
    )


def find(folder: Path) -> Path:
    """Return the checkpoint in `folder`, which may be the run folder around it.

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
        f"give the folder that `vla train --out` wrote{hub_name.hint(folder)}"
    )


def for_robot(policy: Any, robot: str) -> Any:
    """Return a policy for an arm, by name, if it drives several; else the policy as it is."""
    several = robot and isinstance(policy, VLAPolicy) and policy.co_embodiments
    return policy.for_robot(robot) if several else policy


def check_robot(trained_on: RobotSpec, robot: RobotSpec) -> None:
    """Raise ValueError with the first difference unless channels, limits and rate agree."""
    for name in ("names", "control_hz", "low", "high"):
        expected, got = getattr(trained_on, name), getattr(robot, name)
        if expected != got:
            raise ValueError(
                f"wrong robot: the checkpoint was trained for {trained_on.name} with {name} "
                f"{expected}, got {robot.name} with {got}; use its own robot or train for this one"
            )


def _read_description(path: Path) -> tuple[PluginConfig, tuple[Embodiment, ...], Provenance]:
    """Return configuration, arms and provenance of a policy."""
    stored = read_json(path)
    if stored.get("format") not in READABLE:
        raise ValueError(
            f"{path}: checkpoint format {stored.get('format')!r}, expected 1 to {FORMAT}; load it "
            "with the release that wrote it, or train again"
        )
    try:
        robot = configs.from_json(RobotSpec, stored.get("robot"), f"{path}: robot")
        statistics = configs.from_json(
            NormalizationStatistics, stored.get("statistics"), f"{path}: statistics"
        )
        others = configs.from_json(
            tuple[Embodiment, ...], stored.get("co_embodiments", []), f"{path}: co_embodiments"
        )
        return (
            configs.from_json(None, stored.get("policy"), f"{path}: policy", "vla.policies"),
            (Embodiment(robot=robot, statistics=statistics), *others),
            configs.from_json(Provenance, stored.get("provenance"), f"{path}: provenance"),
        )
    except migrate.RemovedError as error:
        raise ValueError(f"{path}: {error}") from error
    except ValueError as error:
        raise configs.of_file(path, error, "restore the checkpoint, or train again") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise ValueError."""
    try:
        value = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({error}); restore the checkpoint") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: damaged, no JSON object; restore the checkpoint")
    return value


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file, or raise ValueError."""
    return tokenizer.load(path, "restore the checkpoint")


def load_weights(module: torch.nn.Module, path: Path) -> None:
    """Load the weights of a safetensors file into a module, or raise ValueError."""
    try:
        stored = migrate.tensors(safetensors.torch.load_file(path), renames.WEIGHTS)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: damaged weights ({error}); restore the checkpoint") from error
    expected = module.state_dict()
    for name, value in expected.items():
        if name not in stored:
            raise ValueError(
                f"{path}: lacks weight {name!r}; description and weights do not belong together"
            )
        if stored[name].shape != value.shape:
            raise ValueError(
                f"{path}: weight {name!r} has shape {tuple(stored[name].shape)}, "
                f"the description expects {tuple(value.shape)}"
            )
    extra = sorted(set(stored) - set(expected))
    if extra:
        raise ValueError(f"{path}: unexpected weight {extra[0]!r}; description and weights differ")
    bad = [name for name, value in stored.items() if not torch.isfinite(value.float()).all()]
    if bad:
        raise ValueError(
            f"{path}: weight {bad[0]!r} is not finite; train again or use an older one"
        )
    module.load_state_dict(stored)
