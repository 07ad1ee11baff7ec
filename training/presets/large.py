"""Qwen3-VL with 8 billion parameters and low-rank adapters: GPUs of 80 GB, one or several.

`--policy.backbone.finetune_mode full --policy.backbone.dtype float32` trains all of its weights,
sharded over several GPUs.
"""

from training.core.config import TrainConfig
from training.presets import _scale
from vla.backbones import vlm


def preset(recipe: TrainConfig) -> TrainConfig:
    """Return a recipe at this scale."""
    backbone = vlm.Config(
        model="hub:Qwen/Qwen3-VL-8B-Instruct", finetune_mode="lora", lora_rank=32, dtype="bfloat16",
        gradient_checkpointing=True, image_px=320, bottleneck=512, token_width=256,
        pooled_width=1024,
    )  # fmt: skip
    return _scale.scaled(
        recipe, backbone=backbone, width=1024, depth=12, slots=64, frames=32, episodes=4, lr=1e-4,
    )  # fmt: skip
