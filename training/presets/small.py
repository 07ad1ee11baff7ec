"""The lower half of a frozen SmolVLM2 with 500 million parameters: one GPU of 8 GB.

Half of the layers, and none of them trained, is what SmolVLA does (arXiv 2506.01844, section 3).
"""

from training import scale
from training.config import TrainConfig
from vla.backbones import vlm


def preset(recipe: TrainConfig) -> TrainConfig:
    """Return a recipe at this scale."""
    backbone = vlm.Config(
        model="hub:HuggingFaceTB/SmolVLM2-500M-Video-Instruct", dtype="bfloat16",
        checkpointing=True, layer=16, image_px=256, bottleneck=256, token_width=128,
        pooled_width=512,
    )  # fmt: skip
    return scale.grown(recipe, scale.Scale(
        backbone=backbone, width=512, depth=6, slots=32, windows=32, episodes=4, lr=3e-4,
    ))  # fmt: skip
