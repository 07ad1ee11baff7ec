"""`vla lerobot pack` and `unpack`: our checkpoints to LeRobot's folders and back, without loss.

Our three files are in both, byte for byte; LeRobot's config.json and processors come and go.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lerobot_policy_mneme.configuration_mneme import MnemeConfig, features, to_lerobot_
from lerobot_policy_mneme.modeling_mneme import CONFIG
from lerobot_policy_mneme.processor_mneme import make_mneme_pre_post_processors
from sim import vec_env
from vla import arguments, checkpoint
from vla.contracts import config as configs
from vla.contracts.config import check_least

INSIDE = ("", "pretrained_model", "checkpoints/last/pretrained_model")
"""Where below what a user names LeRobot keeps a policy: itself, a checkpoint's, a run's."""


@dataclass(frozen=True, kw_only=True)
class PackArgs:
    """Make LeRobot's folder of a checkpoint: for `lerobot-eval`, `-record`, `-train`."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """Run or checkpoint of ours."""
    out: Path
    """Folder to write; it must not exist."""
    history: int = 8
    """Decisions that a sample holds, if LeRobot trains it further."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, history=1)


@dataclass(frozen=True, kw_only=True)
class UnpackArgs:
    """Make a checkpoint of LeRobot's folder: for `vla eval`, `export`, `train rl`."""

    folder: Annotated[Path, tyro.conf.Positional]
    """A pretrained_model of type mneme, a checkpoint or the output_dir of `lerobot-train`."""
    out: Path
    """Run folder to write; it must not exist."""
    task: str = ""
    """The task it is for, where its data set was not recorded by `vla demos`."""


def pack(argv: list[str]) -> int:
    """Run `vla lerobot pack CHECKPOINT --out DIR`; return the exit code.

    Raises:
        ValueError: there is no checkpoint, it is damaged or a baseline, or something is at DIR.
    """
    args = arguments.read(PackArgs, argv, "vla lerobot pack")
    found = checkpoint.find(args.checkpoint)
    policy, _ = checkpoint.load_ours(found, "vla lerobot pack")
    robot = policy.robot
    seen = {
        camera.name: (camera.height_px, camera.width_px)
        for camera in robot.cameras
        if camera.name in policy.config.cameras
    }
    inputs, outputs = features(seen, len(robot.channels))
    config = MnemeConfig(
        robot=robot.name, history=args.history, device="cpu", input_features=inputs,
        output_features=outputs,
    )  # fmt: skip
    to_lerobot_(config, policy.config)

    def beside(fresh: Path) -> None:
        config.save_pretrained(fresh)
        for pipeline in make_mneme_pre_post_processors(config):
            pipeline.save_pretrained(fresh)

    copied(found, args.out, beside)
    print(f"for LeRobot: --policy.path={args.out}")
    return 0


def unpack(argv: list[str]) -> int:
    """Run `vla lerobot unpack DIR --out RUN`; return the exit code.

    Raises:
        ValueError: there is no such policy, it is damaged or a baseline, its task is not known, or
            something is at RUN.
    """
    args = arguments.read(UnpackArgs, argv, "vla lerobot unpack")
    found = located(args.folder)
    _, origin = checkpoint.load_ours(found, "vla lerobot unpack")
    if not (args.task or origin.task):
        raise ValueError(
            f"{found}: its data set does not say which task it is for; give --task, as in `vla "
            "tasks`"
        )

    def beside(fresh: Path) -> None:
        if args.task:
            task = configs.to_json(vec_env.load_task(args.task))
            said = checkpoint.read_json(fresh / "policy.json")
            said["provenance"]["task"] = task
            (fresh / "policy.json").write_text(json.dumps(said, indent=1) + "\n")

    copied(found, args.out, beside, "checkpoint")
    print(f"for us: vla eval {args.out}")
    return 0


def located(folder: Path) -> Path:
    """Return the folder of a policy of ours in what LeRobot wrote.

    Raises:
        ValueError: there is none, or one of another type.
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


def copied(found: Path, out: Path, beside: Callable[[Path], None], within: str = "") -> None:
    """Copy a checkpoint to `out`/`within` and have more written beside it, all at once.

    Raises:
        ValueError: something is at `out`.
    """
    if out.exists():
        raise ValueError(f"{out}: is there already; give another --out, or take it away")
    fresh = out.with_name(f".{out.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        (fresh / within).mkdir(parents=True)
        for name in checkpoint.FILES:
            shutil.copyfile(found / name, fresh / within / name)
        beside(fresh / within)
        checkpoint.replace_folder(fresh, out)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
