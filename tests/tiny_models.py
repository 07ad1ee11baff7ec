"""Pretrained models with random weights, written once per session."""

from collections.abc import Callable
from pathlib import Path

import pytest

VLMS = ("smolvlm", "qwen3_vl", "qwen2_5_vl", "paligemma", "gemma3", "internvl")
TOWERS = ("siglip", "dinov2")
KINDS = {"vlm": VLMS, "vision_text": TOWERS}
"""Families of models by the backbone that takes them."""
SMALL = {
    "image_px": 32, "pooled_tokens_per_side": 2, "bottleneck": 16, "token_width": 16,
    "pooled_width": 32,
}  # fmt: skip
"""Settings of a backbone that fit them."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a family's name to the folder of its model."""
    place = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        from benchmarks import tiny_models  # transformers takes seconds to import

        if not (place / name).exists():
            makers = {**tiny_models.FAMILIES, **tiny_models.TOWERS}
            makers[name](place / name, tiny_models.TINY)
        return place / name

    return folder
