"""Reward models on disk: a folder of safetensors and JSON, checked when read.

`reward_model.json` holds the configurations of reward model and scorer, the calibration and the
provenance; `tokenizer.json` the vocabulary; `model.safetensors` the weights. Reward models without
weights have no folder: their name is enough.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer

from reward_models.core.calibration import Calibration
from reward_models.core.curves import ScorerConfig
from reward_models.core.scorer import Scorer
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.config import PluginConfig, plugin
from vla.nn.vlm import HUB, locate
from vla.utils import tokenizer as tokenizer_file

FORMAT = 2
READABLE = (1, 2)
"""Formats that `vla.contracts.renames` knows the names of."""
PACKAGE = "reward_models.models"
DESCRIPTION, DESCRIPTION_1 = "reward_model.json", "critic.json"
"""File name of the description, in this format and in format 1."""
FILES = (DESCRIPTION, "model.safetensors")
UNTRAINED = ("time", "oracle")
"""Reward models without weights, known by name."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What `reward_model.json` holds."""

    reward_model: PluginConfig = plugin(PACKAGE, "time")
    """The plug-in."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """How scores become curves."""
    calibration: Calibration = field(default_factory=Calibration)
    """How scores become probabilities."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Data sets, updates, revision, versions."""
    format: int = FORMAT
    """Version of this layout."""


def save(
    scorer: Scorer,
    reward_model: PluginConfig,
    tokenizer: Tokenizer | None,
    folder: Path,
    *,
    weights: dict[str, torch.Tensor],
    provenance: dict[str, Any],
    also: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a reward model, replacing its folder atomically.

    `reward_model` is its configuration, `provenance` its origin as JSON types; `also` writes
    further files into the new folder.
    """
    with checkpoint.new_folder(folder) as new:
        description = Description(
            reward_model=reward_model, scorer=scorer.config, calibration=scorer.calibration,
            provenance=provenance,
        )  # fmt: skip
        (new / DESCRIPTION).write_text(json.dumps(configs.to_json(description), indent=1) + "\n")
        if tokenizer is not None:
            tokenizer_file.save(tokenizer, new / "tokenizer.json")
        tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
        safetensors.torch.save_file(tensors, new / "model.safetensors")
        also(new)


def copy_others(folder: Path) -> Callable[[Path], None]:
    """Return a function that copies a folder's further files (trainer state) to its replacement."""

    def also(new: Path) -> None:
        for file in folder.iterdir():
            if file.name != DESCRIPTION_1 and not (new / file.name).exists():
                shutil.copyfile(file, new / file.name)

    return also


def load(place: str | Path) -> Scorer:
    """Return the scorer of a reward model: a folder of `vla reward-model train`, or a name.

    Raises:
        ValueError: there is no such reward model, or its folder is damaged.
    """
    if str(place) in UNTRAINED:
        # Their frame scores are exact: there is nothing to fuse.
        exact = ScorerConfig(absolute_share=1.0)
        return Scorer(registry.load(PACKAGE, str(place)).Config().build(), exact)
    folder = find(Path(place))
    description = describe(folder)
    file = folder / "tokenizer.json"
    tokenizer = checkpoint.read_tokenizer(file) if file.is_file() else None
    settings, weights = _local(description.reward_model), folder / "model.safetensors"
    # One that adapts a pretrained model stores only what it has changed.
    bound = None if getattr(settings, "model", "") else weights
    with checkpoint.building(_description(folder), bound):
        reward_model = settings.build(tokenizer)
    checkpoint.load_weights(reward_model, folder / "model.safetensors")
    return Scorer(reward_model.eval(), description.scorer, description.calibration)


def _local(reward_model: Any) -> Any:
    """Return settings that download nothing, since the folder may come from anywhere."""
    name: str = getattr(reward_model, "model", "")
    if not name:
        return reward_model
    locate(name, download=False)
    return replace(reward_model, model=name.removeprefix(HUB))


def find(place: Path) -> Path:
    """Return the reward model's folder at `place`, or the best or last one of the run there.

    Raises:
        ValueError: there is none.
    """
    for folder in _places(place):
        names = (_description(folder).name, *FILES[1:])
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder}: reward model lacks {', '.join(missing)}; copy it whole")
        return folder
    raise ValueError(
        f"{place}: no reward model there (expected a folder with {' and '.join(FILES)}, or one of "
        f"{', '.join(UNTRAINED)}); give the folder that `vla reward-model train --out` wrote"
    )


def is_reward_model(place: Path) -> bool:
    """Whether `place` is a folder or run with a reward model, complete or not, or a name of one."""
    return any(True for _ in _places(place)) or (str(place) in UNTRAINED and not place.exists())


def _places(place: Path) -> Iterator[Path]:
    """Yield the folders at `place`, or in the run there, that describe a reward model."""
    root = place.resolve()
    for folder in (root, root / "best", root / "checkpoint"):
        for candidate in (folder, checkpoint.old_place(folder)):
            if _description(candidate).is_file():
                yield candidate


def _description(folder: Path) -> Path:
    """Return the file that describes a reward model; in format 1 it has another name."""
    old = folder / DESCRIPTION_1
    return old if old.is_file() and not (folder / DESCRIPTION).is_file() else folder / DESCRIPTION


def describe(folder: Path) -> Description:
    """Return the description in a reward model's folder.

    Raises:
        ValueError: it is damaged, or of another format.
    """
    path = _description(folder)
    value = checkpoint.read_json(path)
    if value.get("format") not in READABLE:
        raise ValueError(
            f"{path}: reward model format {value.get('format')!r}, expected 1 to {FORMAT}; load it "
            "with the release that wrote it, or train again"
        )
    try:
        return configs.from_json(Description, value, str(path))
    except ValueError as error:
        raise configs.of_file(path, error, "restore the reward model, or train again") from error


def identity(place: str | Path) -> str:
    """Return a hash of everything that decides a reward model's predictions."""
    if str(place) in UNTRAINED:
        return str(place)
    digest = hashlib.blake2b(digest_size=16)
    folder = find(Path(place))
    for name in (_description(folder).name, "tokenizer.json", "model.safetensors"):
        file = folder / name
        if file.is_file():
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "blake2b").digest())
    return digest.hexdigest()
