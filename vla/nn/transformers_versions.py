"""What transformers 4 and 5 name differently, in one place."""

import importlib
import importlib.metadata
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from vla.nn.vlm import LOCAL

FIVE = int(importlib.metadata.version("transformers").split(".")[0]) >= 5


def no_init_weights() -> AbstractContextManager[None]:
    """Return a context in which models of transformers leave their weights uninitialised."""
    home = "transformers.initialization" if FIVE else "transformers.modeling_utils"
    return importlib.import_module(home).no_init_weights()


def image_processor(folder: Path, *, torchvision: bool) -> Any:
    """Return the image processor of the model in a folder, computing with torchvision or PIL."""
    from transformers import AutoImageProcessor

    backend = {"backend": "torchvision" if torchvision else "pil"}
    how: dict[str, Any] = backend if FIVE else {"use_fast": torchvision}
    return AutoImageProcessor.from_pretrained(folder, **how, **LOCAL)
