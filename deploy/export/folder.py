"""Writes the folder of an export as a whole: a failed export leaves the old one."""

import contextlib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from rich.progress import Progress
from tokenizers import Tokenizer
from torch import nn

from deploy.export import graph
from deploy.export.graph import Traced
from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import Graph, Kind
from vla import checkpoint
from vla.utils import files
from vla.utils import tokenizer as tokenizer_file


@contextlib.contextmanager
def replacing(folder: Path, kind: Kind) -> Iterator[Path]:
    """Yield a new folder that replaces `folder` once it is filled.

    Args:
        folder: Folder to write; replaced if it is an export of the same kind.
        kind: Kind of the export.

    Raises:
        ValueError: the folder holds something else.
    """
    if folder.exists() and artefacts.kind_of(folder) not in (kind, "damaged"):
        raise ValueError(
            f"{folder}: is there and no exported {artefacts.prose(kind)}; give another --out"
        )
    with files.claim(folder):
        checkpoint.recover_folder(folder)  # what a killed export left
        with checkpoint.new_folder(folder) as new:
            yield new


def graphs(
    owner: nn.Module, traced: Mapping[str, Traced], tokenizer: Tokenizer, folder: Path
) -> dict[str, Graph]:
    """Write graphs by name, and the tokenizer; return the description of the graphs."""
    tokenizer_file.save(tokenizer, folder / artefacts.TOKENIZER)
    with Progress(transient=True) as bar:
        return {
            name: graph.export(owner, source, folder / f"{name}.onnx")
            for name, source in bar.track(traced.items(), description="exporting")
        }


def versions() -> dict[str, str]:
    """Return the versions of the packages that export."""
    return {name: metadata.version(name) for name in ("torch", "onnx", "onnxscript")}
