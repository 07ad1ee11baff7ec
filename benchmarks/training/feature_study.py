"""The gain of caching the features of a frozen backbone: epochs with and without, in one run.

`python -m benchmarks.training.feature_study --dataset DATASET` trains the same policy from the same
seed twice, encoding every image again and reading cached features. It prints the time of an epoch
of each and the difference of their losses. Two backbones are measured: the frozen part of the tiny
backbone, and one of the size of a small pretrained encoder (ResNet-18 up to 1/16, random weights:
time and equality do not depend on them). `--backbone vlm` or `vision_text` measures that one
instead, frozen, with the model in `--model` or a small random one.
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

from benchmarks import tiny_model_command
from sim import vec_env
from training.algos import bc
from training.core import runtime
from training.core.config import TrainConfig
from training.core.optimizer import Optimizer
from training.data import features
from vla import cli
from vla.backbones import tiny
from vla.contracts import registry
from vla.contracts.config import PluginConfig, validate_min
from vla.memory import none
from vla.nn.vision import grid
from vla.policies import vla
from vla.utils import arguments, files

STRIDE, CHANNELS = 16, 256
"""Of ResNet-18 after its third stage."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Measure epochs with and without cached features."""

    dataset: Path
    """Data set of `task`."""
    task: str = "reach"
    """Its task."""
    out: Path = Path("runs/feature-study")
    """Folder of features.json."""
    backbone: Literal["vlm", "vision_text"] | None = None
    """Pretrained backbone to measure; the two visions above if None."""
    model: str = ""
    """Its model, as for `--policy.backbone.model`; if empty, a small random one is made."""
    updates: int = 40
    """Updates of each, after which losses are compared and an epoch's time is extrapolated."""
    batch: int = 64
    """Decisions per update."""
    threads: int = 1
    """CPU threads."""

    def __post_init__(self) -> None:
        validate_min(self, updates=2, batch=1, threads=1)
        if self.model and self.backbone is None:
            raise ValueError(f"model: got {self.model} without --backbone; give vlm or vision_text")


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(tiny.Config):
    """The tiny backbone behind a frozen ResNet-18; for measurements alone."""

    frozen: bool = True
    """Always."""

    def build(self, views: int, proprio: int, vocabulary: int, memory: int) -> "ResNetBackbone":
        """Return a backbone."""
        return ResNetBackbone(self, views, proprio, vocabulary, memory)


class ResNetBackbone(tiny.TinyBackbone):
    """A frozen trunk, followed by small layers that learn."""

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
        """Set the mode of the trained layers; the trunk keeps its running statistics."""
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
        """Encode observations without memory, from their cached features."""
        maps = torch.relu(self.narrow(features["maps"].flatten(0, 1)))
        cells = self.look(maps).flatten(2).unflatten(0, (-1, self.views))
        maps = maps.unflatten(0, (-1, self.views))
        return super().encode_from({"maps": maps, "cells": cells}, proprio, words)


VISIONS: dict[str, PluginConfig] = {
    "tiny, frozen": tiny.Config(frozen=True),
    "ResNet-18, frozen": ResNetConfig(),
}
"""Backbones to measure, by name."""
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
        size = tiny_model_command.TinyArgs(
            out=folder / family, width=WIDTH, layers=LAYERS, image_px=SIDE
        )
        weights, model = tiny_model_command.make(family, size), str(size.out)
        name = f"{family}, {weights / 1e6:.1f} million random weights"
    plugged = registry.load("vla.backbones", args.backbone)
    config = plugged.Config(model=model, image_px=tiny.Config().image_px)
    config.check()
    return {f"{args.backbone}, frozen: {name}": config}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Measurements of one backbone."""

    encode_s: float
    """Seconds of an epoch that encodes every image."""
    cache_s: float
    """Seconds of an epoch that reads cached features."""
    once_s: float
    """Seconds of caching."""
    kept_mb: float
    """Size of the cache."""
    parted: float
    """Largest difference of two losses of the same update."""
    loss: tuple[float, float]
    """The first and the last loss."""

    @property
    def faster(self) -> float:
        """Ratio of the two epochs."""
        return self.encode_s / self.cache_s


def measure(args: StudyArgs, backbone: PluginConfig, data: Path) -> Row:
    """Return the gain of caching for one backbone; `data` has no cache yet."""
    algo = bc.Config(sampling="frame", batch_size=args.batch)
    config = TrainConfig(
        task=vec_env.load_task(args.task), steps=args.updates, threads=args.threads, algo=algo,
        policy=vla.Config(backbone=backbone, memory=none.Config(), n_action_steps=4),
    )  # fmt: skip
    plain = bc.BehaviorCloning(algo, config, (data,))
    begin = time.perf_counter()
    features.load(plain.module, plain.arms[0].store, data.parent / f"{data.name}-cache")
    once = time.perf_counter() - begin
    cached = bc.BehaviorCloning(algo, replace(config, cache_frozen_features=True), (data,))
    epoch = len(plain.arms[0].store.frames) / args.batch
    learners, losses = (plain, cached), np.zeros((args.updates, 2))
    seconds = np.zeros((args.updates, 2))
    optimizers = [Optimizer(config.optimizer, learner.module, args.updates) for learner in learners]
    generators = [torch.Generator().manual_seed(0) for _ in learners]
    for i in range(args.updates):
        for j in (i % 2, 1 - i % 2):  # in turns, so that other load affects both
            begin = time.perf_counter()
            learners[j].module.train()
            metrics = learners[j].update(learners[j].collect(), optimizers[j], generators[j])
            seconds[i, j], losses[i, j] = time.perf_counter() - begin, metrics["loss"]
    encode_s, cache_s = np.median(seconds[1:], 0) * epoch
    assert cached.features is not None
    return Row(
        encode_s=float(encode_s), cache_s=float(cache_s), once_s=once,
        kept_mb=sum(part.nbytes for part in cached.features.values()) / 1e6,
        parted=float(np.abs(losses[:, 0] - losses[:, 1]).max()),
        loss=(float(losses[0, 1]), float(losses[-1, 1])),
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Measure, print and write.

    Raises:
        ValueError: the data are damaged or of another task.
    """
    args = arguments.read(StudyArgs, argv, "python -m benchmarks.training.feature_study")
    runtime.prepare(args.threads)
    table = Table("backbone", "epoch, encoding", "epoch, cached", "faster", "caching", "size",
                  "losses differ by", "loss, first to last")  # fmt: skip
    measured = {}
    with tempfile.TemporaryDirectory() as models:
        for name, backbone in visions(args, Path(models)).items():
            with tempfile.TemporaryDirectory() as folder:
                data = Path(folder) / "data"
                data.symlink_to(
                    args.dataset.resolve()
                )  # its features are written next to the link and deleted with it
                measured[name] = row = measure(args, backbone, data)
            table.add_row(
                name, f"{row.encode_s:.1f} s", f"{row.cache_s:.1f} s", f"{row.faster:.1f} x",
                f"{row.once_s:.1f} s", f"{row.kept_mb:.0f} MB", f"{row.parted:.1e}",
                f"{row.loss[0]:.3f} to {row.loss[1]:.3f}",
            )  # fmt: skip
    Console(width=140).print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    results = {name: {**asdict(row), "faster": row.faster} for name, row in measured.items()}
    files.write_text(args.out / "features.json", json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.feature_study:main", sys.argv[1:]))
