"""Critics on disk: a folder of safetensors and JSON that is checked before it is trusted.

`critic.json` holds the critic's configuration, the scorer's, the calibration and where it comes
from; `tokenizer.json` its words; `model.safetensors` the weights. Critics that learn nothing need
no folder: their name is enough.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer

from reward_models.calibrate import Calibration
from reward_models.curves import ScorerConfig
from reward_models.scorer import Scorer
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.config import PluginConfig, plugin
from vla.nn.vlm import HUB, locate

FORMAT = 1
PACKAGE = "reward_models.critics"
FILES = ("critic.json", "model.safetensors")
UNTRAINED = ("time", "oracle")
"""Critics without weights, known by name."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What `critic.json` holds."""

    critic: PluginConfig = plugin(PACKAGE, "time")
    """The plug-in."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """How its judgements become curves."""
    calibration: Calibration = field(default_factory=Calibration)
    """How they become probabilities."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Data sets, updates, revision, versions."""
    format: int = FORMAT
    """Version of this layout."""


def save(
    scorer: Scorer,
    critic: PluginConfig,
    tokenizer: Tokenizer | None,
    folder: Path,
    *,
    weights: dict[str, torch.Tensor],
    provenance: dict[str, Any],
    also: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a critic by atomic rename: the folder is either the old one, or wholly the new.

    Args:
        scorer: Its scorer and calibration.
        critic: Its configuration.
        tokenizer: Its words, if it reads any with a tokenizer of its own.
        folder: Where to write; replaced if it exists.
        weights: The state dict to store.
        provenance: Where it comes from, as JSON types.
        also: Writes further files that must appear together with the weights.
    """
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        told = Description(
            critic=critic, scorer=scorer.config, calibration=scorer.calibration,
            provenance=provenance,
        )  # fmt: skip
        (fresh / "critic.json").write_text(json.dumps(configs.to_json(told), indent=1) + "\n")
        if tokenizer is not None:
            tokenizer.save(str(fresh / "tokenizer.json"))
        tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
        safetensors.torch.save_file(tensors, fresh / "model.safetensors")
        also(fresh)
        checkpoint.replace_folder(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def keep_others(folder: Path) -> Callable[[Path], None]:
    """Return what copies a folder's further files (a trainer's state) to its replacement."""

    def also(fresh: Path) -> None:
        for file in folder.iterdir():
            if not (fresh / file.name).exists():
                shutil.copyfile(file, fresh / file.name)

    return also


def load(place: str | Path) -> Scorer:
    """Return the scorer of a critic: a folder that `vla critic train` wrote, or a name.

    Raises:
        ValueError: there is no such critic, or its folder is damaged.
    """
    if str(place) in UNTRAINED:
        # What they say of a moment is exact: there is nothing to fuse.
        exact = ScorerConfig(absolute_share=1.0)
        return Scorer(registry.load(PACKAGE, str(place)).Config().build(), exact)
    folder = find(Path(place))
    told = describe(folder)
    words = folder / "tokenizer.json"
    critic = _local(told.critic).build(
        checkpoint.read_tokenizer(words) if words.is_file() else None
    )
    checkpoint.load_weights_(critic, folder / "model.safetensors")
    return Scorer(critic.eval(), told.scorer, told.calibration)


def _local(critic: Any) -> Any:
    """Return settings that download nothing; a critic's folder may be anybody's.

    Raises:
        ValueError: they name a model that is not on this machine.
    """
    name: str = getattr(critic, "model", "")
    if not name:
        return critic
    locate(name, download=False)
    return replace(critic, model=name.removeprefix(HUB))


def find(place: Path) -> Path:
    """Return the critic's folder at `place`, or in the run at `place`: the best of it, or the last.

    Raises:
        ValueError: there is none.
    """
    for kept in _places(place):
        missing = [name for name in FILES if not (kept / name).is_file()]
        if missing:
            raise ValueError(f"{kept}: critic lacks {', '.join(missing)}; copy it whole")
        return kept
    raise ValueError(
        f"{place}: no critic there (expected a folder with {' and '.join(FILES)}, or one of "
        f"{', '.join(UNTRAINED)}); give the folder that `vla critic train --out` wrote"
    )


def is_critic(place: Path) -> bool:
    """Whether a critic is meant by `place`: a folder or run with one, whole or not, or a name."""
    return any(True for _ in _places(place)) or (str(place) in UNTRAINED and not place.exists())


def _places(place: Path) -> Iterator[Path]:
    """Yield the folders at `place`, or in the run there, that hold the description of a critic."""
    here = place.resolve()
    for folder in (here, here / "best", here / "checkpoint"):
        for kept in (folder, checkpoint.old_place(folder)):
            if (kept / FILES[0]).is_file():
                yield kept


def describe(folder: Path) -> Description:
    """Return what a critic's folder says of itself.

    Raises:
        ValueError: it is damaged, or of another format.
    """
    path = folder / "critic.json"
    found = checkpoint.read_json(path)
    if found.get("format") != FORMAT:
        raise ValueError(
            f"{path}: critic format {found.get('format')!r}, expected {FORMAT}; load it with the "
            "release that wrote it, or train again"
        )
    try:
        return configs.from_json(Description, found, str(path))
    except ValueError as error:
        raise ValueError(f"{error}; restore the critic, or train again") from error


def identity(place: str | Path) -> str:
    """Return a hash of everything that decides what a critic says: labels are keyed by it."""
    if str(place) in UNTRAINED:
        return str(place)
    digest = hashlib.blake2b(digest_size=16)
    folder = find(Path(place))
    for name in ("critic.json", "tokenizer.json", "model.safetensors"):
        file = folder / name
        if file.is_file():
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "blake2b").digest())
    return digest.hexdigest()
