"""`vla bench tiny-model`: a small random model of a pretrained family, without a download.

It has the real classes, processor and tokenizer with random weights. Every command that takes a
pretrained model takes it, to be tried without a download.
"""

import difflib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vla.contracts.config import validate_min
from vla.utils import arguments
from vla.utils.files import publish

FAMILIES = (
    "smolvlm", "qwen3_vl", "qwen2_5_vl", "paligemma", "gemma3", "internvl", "siglip", "dinov2",
)  # fmt: skip
"""What can be made; `benchmarks.tiny_models` makes it."""
USAGE = f"""usage: vla bench tiny-model FAMILY --out FOLDER [--width N] [--layers N] [--image-px N]
families: {", ".join(FAMILIES)}"""


@dataclass(frozen=True, kw_only=True)
class TinyArgs:
    """Make a small model with random weights, to try a pretrained backbone without a download."""

    out: Path
    """Folder of the model; must not exist yet."""
    width: int = 32
    """Width of its hidden states: 32, or a multiple of 64."""
    layers: int = 2
    """Layers of each of its towers."""
    image_px: int = 32
    """Side of its pictures in pixels, a multiple of 16."""

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        validate_min(self, width=32, layers=1, image_px=16)
        if self.width != 32 and self.width % 64:
            raise ValueError(f"width: got {self.width}, expected 32 or a multiple of 64")
        if self.image_px % 16:
            raise ValueError(f"image_px: got {self.image_px}, expected a multiple of 16")


def make(family: str, args: TinyArgs) -> int:
    """Write a model, whole or not at all; return how many weights it has.

    Args:
        family: One of `FAMILIES`.
        args: Where, and how large.

    Raises:
        ValueError: no such family, or there is something already.
    """
    if family not in FAMILIES:
        near = difflib.get_close_matches(family, FAMILIES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"unknown family {family!r}: {hint}known families are {', '.join(FAMILIES)}"
        )
    if args.out.exists():
        raise ValueError(f"{args.out} is there already; choose another --out, or delete it")
    from benchmarks import tiny_models

    makers = {**tiny_models.FAMILIES, **tiny_models.TOWERS}
    fresh = args.out.parent / f".{args.out.name}.{os.getpid()}.new"
    try:
        makers[family](fresh, tiny_models.Sizes(args.width, args.layers, args.image_px))
        publish(fresh, args.out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return tiny_models.count(args.out)


def main(argv: list[str]) -> int:
    """Run `vla bench tiny-model FAMILY --out FOLDER`; return the exit code.

    Raises:
        ValueError: see `make`.
    """
    if not argv or argv[0].startswith("-"):
        print(USAGE)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    args = arguments.read(TinyArgs, argv[1:], f"vla bench tiny-model {argv[0]}")
    weights = make(argv[0], args)
    print(f"{args.out}: a {argv[0]} of {weights:,} random weights; it has learned nothing")
    return 0
