"""Qwen3-VL with 4 billion parameters and low-rank adapters: one GPU of 24 GB."""

from training.core.config import TrainConfig
from training.presets import _scale
from vla.backbones import vlm


def preset(recipe: TrainConfig) -> TrainConfig:
    """Return a recipe at this scale."""
    backbone = vlm.Config(
        model="hub:Qwen/Qwen3-VL-4B-Instruct", finetune_mode="lora", lora_rank=16, dtype="bfloat16",
        gradient_checkpointing=True, image_px=224, bottleneck=512, token_width=256,
        pooled_width=768,
    )  # fmt: skip
    return _scale.scaled(
        recipe, backbone=backbone, width=768, depth=8, slots=32, frames=16, episodes=2, lr=2e-4,
    )  # fmt: skip
