"""Qwen3-VL with 8 billion parameters and low-rank adapters: GPUs of 80 GB, one or several.

All of its weights learn with `--policy.backbone.tune full --policy.backbone.dtype float32`, shared
out among several GPUs.
"""

from training import scale
from training.config import TrainConfig
from vla.backbones import vlm


def preset(recipe: TrainConfig) -> TrainConfig:
    """Return a recipe at this scale."""
    backbone = vlm.Config(
        model="hub:Qwen/Qwen3-VL-8B-Instruct", tune="lora", rank=32, dtype="bfloat16",
        checkpointing=True, image_px=320, bottleneck=512, token_width=256, pooled_width=1024,
    )  # fmt: skip
    return scale.grown(recipe, scale.Scale(
        backbone=backbone, width=1024, depth=12, slots=64, windows=32, episodes=4, lr=1e-4,
    ))  # fmt: skip
