"""`vla lerobot pack` and `unpack`: checkpoints to LeRobot's folders and back, without loss.

The three files of a checkpoint are in both, byte for byte; pack adds LeRobot's config.json and
processors, unpack drops them.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lerobot_policy_mneme.configuration_mneme import MnemeConfig, features, update_from_vla
from lerobot_policy_mneme.modeling_mneme import CONFIG
from lerobot_policy_mneme.processor_mneme import make_mneme_pre_post_processors
from sim import vec_env
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.config import validate_min
from vla.utils import arguments

INSIDE = ("", "pretrained_model", "checkpoints/last/pretrained_model")
"""Places of a policy in LeRobot's folders: a policy's, a checkpoint's, a run's."""


@dataclass(frozen=True, kw_only=True)
class PackArgs:
    """Convert a checkpoint to LeRobot's folder, for `lerobot-eval`, `-record`, `-train`."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """Run or checkpoint of `vla train`."""
    out: Path
    """Folder to write; it must not exist."""
    history: int = 8
    """Decisions of a training sample, if LeRobot trains it further."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        validate_min(self, history=1)


@dataclass(frozen=True, kw_only=True)
class UnpackArgs:
    """Convert LeRobot's folder to a checkpoint, for `vla eval`, `export`, `train rl`."""

    folder: Annotated[Path, tyro.conf.Positional]
    """A pretrained_model of type mneme, a checkpoint or the output_dir of `lerobot-train`."""
    out: Path
    """Run folder to write; it must not exist."""
    task: str = ""
    """Task of the policy, if its data set was not recorded by `vla demos`."""


def pack(argv: list[str]) -> int:
    """Run `vla lerobot pack CHECKPOINT --out DIR`; return the exit code.

    Raises:
        ValueError: there is no checkpoint, it is damaged or a baseline, or something is at DIR.
    """
    args = arguments.read(PackArgs, argv, "vla lerobot pack")
    source = checkpoint.find(args.checkpoint)
    policy, _ = checkpoint.load_vla(source, "vla lerobot pack")
    robot = policy.robot
    sizes = {
        camera.name: (camera.height_px, camera.width_px)
        for camera in robot.cameras
        if camera.name in policy.config.cameras
    }
    inputs, outputs = features(sizes, len(robot.channels))
    config = MnemeConfig(
        robot=robot.name, history=args.history, device="cpu", input_features=inputs,
        output_features=outputs,
    )  # fmt: skip
    update_from_vla(config, policy.config)

    def write_lerobot(folder: Path) -> None:
        config.save_pretrained(folder)
        for pipeline in make_mneme_pre_post_processors(config):
            pipeline.save_pretrained(folder)

    copy_checkpoint(source, args.out, write_lerobot)
    print(f"for LeRobot: --policy.path={args.out}")
    return 0


def unpack(argv: list[str]) -> int:
    """Run `vla lerobot unpack DIR --out RUN`; return the exit code.

    Raises:
        ValueError: there is no such policy, it is damaged or a baseline, its task is unknown, or
            something is at RUN.
    """
    args = arguments.read(UnpackArgs, argv, "vla lerobot unpack")
    source = find_policy(args.folder)
    _, origin = checkpoint.load_vla(source, "vla lerobot unpack")
    if not (args.task or origin.task):
        raise ValueError(f"{source}: its data set names no task; give --task, one of `vla tasks`")

    def set_task(folder: Path) -> None:
        if args.task:
            description = checkpoint.read_json(folder / "policy.json")
            description["provenance"]["task"] = configs.to_json(vec_env.load_task(args.task))
            (folder / "policy.json").write_text(json.dumps(description, indent=1) + "\n")

    copy_checkpoint(source, args.out, set_task, "checkpoint")
    print(f"checkpoint: vla eval {args.out}")
    return 0


def find_policy(folder: Path) -> Path:
    """Return the folder of a policy `mneme` in a folder of LeRobot.

    Raises:
        ValueError: there is none, or it has another type.
    """
    for place in (folder / inside for inside in INSIDE):
        if (place / CONFIG).is_file():
            kind = checkpoint.read_json(place / CONFIG).get("type")
            if kind != "mneme":
                raise ValueError(f"{place}: a policy of type {kind!r}, expected 'mneme'")
            return checkpoint.find(place)
    raise ValueError(
        f"{folder}: no policy of LeRobot there (no {CONFIG}); give a pretrained_model, or the "
        "output_dir of lerobot-train"
    )


def copy_checkpoint(
    source: Path, out: Path, add_files: Callable[[Path], None], within: str = ""
) -> None:
    """Copy a checkpoint to `out`/`within`, with further files, by one rename.

    Raises:
        ValueError: something is at `out`.
    """
    if out.exists():
        raise ValueError(f"{out}: exists already; give another --out, or delete it")
    with checkpoint.new_folder(out) as new:
        (new / within).mkdir(exist_ok=True)
        for name in checkpoint.FILES:
            shutil.copyfile(source / name, new / within / name)
        add_files(new / within)
