"""What keeping the features of a frozen backbone is worth: epochs with and without, in one run.

`python -m training.feature_study --data DATASET` trains the same policy from the same seed twice,
looking at every picture anew and reading what was kept. It prints the time of an epoch of each and
how far their losses part. Two visions are measured: the frozen part of the tiny backbone, and one
of the size of a small pretrained encoder (ResNet-18 up to 1/16, random weights: time and equality
do not depend on what it has learned). `--backbone vlm` or `vision_text` measures that one instead,
frozen, with the model in `--model` or a small random one that is made on the spot.
"""

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from sim import vec_env
from training import host
from training.algos import bc
from training.config import TrainConfig
from training.data import features
from training.optimiser import Optimiser
from vla import arguments, cli, files, model_command
from vla.backbones import tiny
from vla.contracts import registry
from vla.contracts.config import PluginConfig, check_least
from vla.memory import none
from vla.nn.vision import grid
from vla.policies import vla

STRIDE, CHANNELS = 16, 256
"""Of ResNet-18 after its third stage."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Measure epochs with and without kept features."""

    data: Path
    """Data set of `task`."""
    task: str = "reach"
    """What it shows."""
    out: Path = Path("runs/feature-study")
    """Folder of features.json."""
    backbone: Literal["vlm", "vision_text"] | None = None
    """Pretrained backbone to measure; the two visions above if None."""
    model: str = ""
    """Its model, as `--policy.backbone.model` takes it; one is made if nothing is said."""
    updates: int = 40
    """Updates of each, after which losses are compared and an epoch's time is extrapolated."""
    batch: int = 64
    """Decisions per update."""
    threads: int = 1
    """CPU threads."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, updates=2, batch=1, threads=1)
        if self.model and self.backbone is None:
            raise ValueError(f"model: got {self.model} without --backbone; give vlm or vision_text")


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(tiny.Config):
    """The tiny backbone behind a frozen ResNet-18; for measurements alone."""

    frozen: bool = True
    """It is."""

    def build(self, views: int, proprio: int, vocabulary: int, memory: int) -> "ResNetBackbone":
        """Return a backbone."""
        return ResNetBackbone(self, views, proprio, vocabulary, memory)


class ResNetBackbone(tiny.TinyBackbone):
    """Looks through a frozen trunk; all that follows it is small, and learns."""

    def __init__(self, config: ResNetConfig, *sizes: int) -> None:
        super().__init__(config, *sizes)
        from torchvision.models import resnet18

        trunk = list(resnet18(weights=None).children())[:7]
        self.stem = nn.Sequential(*trunk).requires_grad_(requires_grad=False)
        c, side = config.channels, config.image_px // STRIDE
        self.narrow = nn.Conv2d(CHANNELS, c, 1)
        self.look.requires_grad_(requires_grad=True)
        self.coordinates = grid(side, side)

    def train(self, mode: bool = True) -> "ResNetBackbone":
        """Set the mode of what learns; the trunk keeps its running statistics."""
        super().train(mode)
        self.stem.eval()
        return self

    def frozen_features(self, images: Tensor, words: Tensor) -> dict[str, Tensor]:
        """Return feature maps f32 [b, v, 256, h / 16, w / 16]."""
        side = self.config.image_px
        flat = images.flatten(0, 1).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
        if flat.shape[2:] != (side, side):
            flat = nn.functional.interpolate(flat, (side, side), mode="bilinear", antialias=True)
        return {"maps": self.stem(flat).unflatten(0, (-1, self.views))}

    def encode_from(self, features: dict[str, Tensor], proprio: Tensor, words: Tensor) -> Any:
        """Encode observations without memory, from what was seen in them."""
        maps = torch.relu(self.narrow(features["maps"].flatten(0, 1)))
        cells = self.look(maps).flatten(2).unflatten(0, (-1, self.views))
        maps = maps.unflatten(0, (-1, self.views))
        return super().encode_from({"maps": maps, "cells": cells}, proprio, words)


VISIONS: dict[str, PluginConfig] = {
    "tiny, frozen": tiny.Config(frozen=True),
    "ResNet-18, frozen": ResNetConfig(),
}
"""What is measured, by name."""
MADE = {"vlm": "smolvlm", "vision_text": "siglip"}
"""Family of the model that is made for a pretrained backbone."""
WIDTH, LAYERS, SIDE = 192, 4, 128
"""Its size: a tenth of a published model's, and its vision the larger part of the work."""


def visions(args: StudyArgs, folder: Path) -> dict[str, PluginConfig]:
    """Return what to measure, by name.

    Args:
        args: Says what.
        folder: Where a model may be made.

    Raises:
        ValueError: there is no such model.
    """
    if args.backbone is None:
        return VISIONS
    model, name = args.model, args.model
    if not model:
        family = MADE[args.backbone]
        size = model_command.TinyArgs(
            out=folder / family, width=WIDTH, layers=LAYERS, image_px=SIDE
        )
        weights, model = model_command.make(family, size), str(size.out)
        name = f"{family}, {weights / 1e6:.1f} million random weights"
    plugged = registry.load("vla.backbones", args.backbone)
    config = plugged.Config(model=model, image_px=tiny.Config().image_px)
    config.check()
    return {f"{args.backbone}, frozen: {name}": config}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one vision."""

    encode_s: float
    """Seconds of an epoch that looks at every picture."""
    cache_s: float
    """Seconds of one that reads what was kept."""
    once_s: float
    """Seconds of looking once."""
    kept_mb: float
    """What is kept."""
    parted: float
    """Largest difference of two losses of the same update."""
    loss: tuple[float, float]
    """The first and the last."""

    @property
    def faster(self) -> float:
        """How many times."""
        return self.encode_s / self.cache_s


def measure(args: StudyArgs, backbone: PluginConfig, data: Path) -> Row:
    """Return what keeping features is worth for one backbone; `data` has no features yet."""
    algo = bc.Config(unit="windows", batch=args.batch)
    config = TrainConfig(
        task=vec_env.load_task(args.task), steps=args.updates, threads=args.threads, algo=algo,
        policy=vla.Config(backbone=backbone, memory=none.Config(), execute=4),
    )  # fmt: skip
    plain = bc.BehaviourCloning(algo, config, data)
    begin = time.perf_counter()
    features.load(plain.module, plain.store, data.parent / f"{data.name}-cache")
    once = time.perf_counter() - begin
    kept = bc.BehaviourCloning(algo, replace(config, features="cache"), data)
    epoch = len(plain.store.frames) / args.batch
    learners, losses = (plain, kept), np.zeros((args.updates, 2))
    seconds = np.zeros((args.updates, 2))
    optimisers = [Optimiser(config.optimiser, one.module, args.updates) for one in learners]
    generators = [torch.Generator().manual_seed(0) for _ in learners]
    for i in range(args.updates):
        for j in (i % 2, 1 - i % 2):  # they take turns, so that a busy machine is busy for both
            begin = time.perf_counter()
            learners[j].module.train()
            found = learners[j].update(learners[j].collect(), optimisers[j], generators[j])
            seconds[i, j], losses[i, j] = time.perf_counter() - begin, found["loss"]
    encode_s, cache_s = np.median(seconds[1:], 0) * epoch
    assert kept.features is not None
    return Row(
        encode_s=float(encode_s), cache_s=float(cache_s), once_s=once,
        kept_mb=sum(part.nbytes for part in kept.features.values()) / 1e6,
        parted=float(np.abs(losses[:, 0] - losses[:, 1]).max()),
        loss=(float(losses[0, 1]), float(losses[-1, 1])),
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Measure, print and write.

    Raises:
        ValueError: the data are damaged or of another task.
    """
    args = arguments.read(StudyArgs, argv, "python -m training.feature_study")
    host.prepare(args.threads)
    table = Table("vision", "epoch, looking", "epoch, kept", "faster", "looking once", "kept",
                  "losses part by", "loss, first to last")  # fmt: skip
    found = {}
    with tempfile.TemporaryDirectory() as models:
        for name, backbone in visions(args, Path(models)).items():
            with tempfile.TemporaryDirectory() as folder:
                data = Path(folder) / "data"
                data.symlink_to(args.data.resolve())  # features go beside it, and away with it
                found[name] = row = measure(args, backbone, data)
            table.add_row(
                name, f"{row.encode_s:.1f} s", f"{row.cache_s:.1f} s", f"{row.faster:.1f} x",
                f"{row.once_s:.1f} s", f"{row.kept_mb:.0f} MB", f"{row.parted:.1e}",
                f"{row.loss[0]:.3f} to {row.loss[1]:.3f}",
            )  # fmt: skip
    Console(width=140).print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    told = {name: {**asdict(row), "faster": row.faster} for name, row in found.items()}
    files.write_text(args.out / "features.json", json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run("training.feature_study:main", sys.argv[1:]))
