"""The lower half of a frozen SmolVLM2 with 500 million parameters: one GPU of 8 GB.

Half of the layers, and none of them trained, is what SmolVLA does (arXiv 2506.01844, section 3).
"""

from training.core.config import TrainConfig
from training.presets import _scale
from vla.backbones import vlm


def preset(recipe: TrainConfig) -> TrainConfig:
    """Return a recipe at this scale."""
    backbone = vlm.Config(
        model="hub:HuggingFaceTB/SmolVLM2-500M-Video-Instruct", dtype="bfloat16",
        gradient_checkpointing=True, num_vlm_layers=16, image_px=256, bottleneck=256,
        token_width=128,
        pooled_width=512,
    )  # fmt: skip
    return _scale.scaled(
        recipe, backbone=backbone, width=512, depth=6, slots=32, frames=32, episodes=4, lr=3e-4,
    )  # fmt: skip
