"""How `vla export` writes a folder: it is either the old one, or wholly the new."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from rich.progress import Progress
from tokenizers import Tokenizer
from torch import nn

from deploy import artefact as artefacts
from deploy import graph
from deploy.artefact import Graph, Kind
from deploy.graph import Traced
from vla import checkpoint

PACKAGES = ("torch", "onnx", "onnxscript")


@contextlib.contextmanager
def replacing(folder: Path, kind: Kind) -> Iterator[Path]:
    """Yield a new folder; once it is filled, it takes the place of the one that is asked for.

    Args:
        folder: Where to write; replaced if it was exported of the same kind.
        kind: What is exported.

    Raises:
        ValueError: the folder holds something else.
    """
    if folder.exists() and not artefacts.is_artefact(folder, kind):
        raise ValueError(f"{folder}: is there and no exported {kind}; give another --out")
    checkpoint.recover_folder(folder)  # the rest of an export that was killed
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        yield fresh
        checkpoint.replace_folder(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def graphs(
    owner: nn.Module, traced: Mapping[str, Traced], tokenizer: Tokenizer, folder: Path
) -> dict[str, Graph]:
    """Write graphs by name, and the tokenizer; return what the graphs are."""
    tokenizer.save(str(folder / artefacts.TOKENIZER))
    with Progress(transient=True) as bar:
        return {
            name: graph.export(owner, one, folder / f"{name}.onnx")
            for name, one in bar.track(traced.items(), description="exporting")
        }


def versions() -> dict[str, str]:
    """Return the versions of what exports."""
    return {name: metadata.version(name) for name in PACKAGES}
