"""Pretrained networks inside a backbone: where they come from, what of them learns and is stored.

A policy's description holds everything that such a network is built of but its weights. Weights
that do not learn are in a checkpoint while they are few; of many, the checkpoint names the folder
and its hash, and reads them from there: nothing is downloaded because a checkpoint says so.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
import tyro
from tokenizers import Tokenizer
from torch import Tensor, nn

from vla.contracts.config import check_least
from vla.nn.backbone import BackboneConfig
from vla.nn.context import Context, Encoded, Retrieved
from vla.nn.looking import Pool, Squeeze, resized
from vla.nn.vlm import DTYPES, HUB, locate

T = TypeVar("T")
MIB = 2**20
NET = "net."
"""Prefix of the pretrained weights within a backbone's."""


@dataclass(frozen=True, kw_only=True)
class PretrainedConfig(BackboneConfig):
    """What the settings of pretrained backbones have in common."""

    model: str = ""
    """Folder of the model; OWNER/NAME in Hugging Face's cache; or hub:OWNER/NAME to download it."""
    tune: Literal["frozen", "lora", "full"] = "frozen"
    """What of the pretrained network learns: nothing, low-rank adapters, or everything."""
    rank: int = 16
    """Rank of the adapters; lora only."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of pretrained weights that do not learn."""
    checkpointing: bool = False
    """Compute activations of the pretrained network twice, instead of keeping them."""
    image_px: int = 224
    """Side of the pictures that data sets are read with; made as large as the model wants them."""
    cells: int = 4
    """Perceptual tokens along a side: memory stores cells x cells, and one cognitive token."""
    bottleneck: int = 128
    """Channels of the squeeze-excite bottleneck."""
    token_width: int = 64
    """Width of the tokens that memory stores."""
    pooled_width: int = 256
    """Width of the vector handed to the action head."""
    selected: int = 4
    """Tokens picked by instruction, proprioception and memory."""
    embed_mib: int = 256
    """Pretrained weights that do not learn are stored in checkpoints up to this size, in MiB."""
    given: Annotated[dict[str, Any] | None, tyro.conf.Suppress] = None
    """What was read from the model's folder; None before."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, rank=1, image_px=8, cells=1, bottleneck=4, token_width=1, pooled_width=1,
                    selected=1, embed_mib=0)  # fmt: skip
        if self.tune == "full" and self.dtype != "float32":
            raise ValueError(
                f"dtype: got {self.dtype} with tune full, expected float32: small steps vanish in "
                "it; on cuda training computes in bfloat16 anyway"
            )

    @property
    def families(self) -> tuple[str, ...]:
        """Names that the models it takes give themselves."""
        raise NotImplementedError

    @property
    def token_shape(self) -> tuple[int, int]:
        """Tokens per decision and their width."""
        return self.cells**2 + 1, self.token_width

    @property
    def source(self) -> dict[str, Any]:
        """See `BackboneConfig`; empty until the model was read."""
        return {} if self.given is None else self.given["source"]

    def folder(self, *, download: bool = True) -> Path:
        """Return where the model is.

        Args:
            download: See `vla.nn.vlm.locate`.

        Raises:
            ValueError: none was named, or it is not there.
        """
        if not self.model:
            raise ValueError(
                "policy.backbone.model: got none, expected a model; give its folder, or "
                f"{HUB}OWNER/NAME to download it"
            )
        folder = locate(self.model, download=download)
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder}: no model there (no config.json); copy it whole")
        return folder

    def check(self) -> None:
        """See `PluginConfig.check`: packages, the model's files, its family."""
        need = ("transformers", "peft") if self.tune == "lora" else ("transformers",)
        for package in need:
            if importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"policy.backbone: needs {package}, which is not installed; "
                    "pip install -e '.[train]'"
                )
        folder = self.folder()
        kind = model_type(folder)
        if kind not in self.families:
            raise ValueError(f"{folder}: is a {kind}, expected one of {', '.join(self.families)}")
        if not any(folder.glob("*.safetensors")):
            raise ValueError(f"{folder}: has no weights (no *.safetensors); copy the model whole")
        self.tokenizer(())

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return the model's own tokenizer, without what it lays around a text."""
        return bare_tokenizer(self.folder())


class PretrainedBackbone(nn.Module):
    """Base of the pretrained backbones: all but the network that looks and reads.

    A subclass calls `equip_` once its `net` is there, and defines `features`.
    """

    net: nn.Module
    hidden: frozenset[str] = frozenset()

    def __init__(self, config: PretrainedConfig, views: int) -> None:
        super().__init__()
        self.config, self.views = config, views

    def equip_(self, width: int, last: int, side: int, proprio: int, memory: int) -> None:
        """Add what learns beside the pretrained network, and hide from checkpoints what it may.

        Args:
            width: Of a vision token.
            last: Width of the last language position.
            side: Vision tokens along a side of a picture.
            proprio: Numbers of proprioception.
            memory: Width of the retrieved vector.
        """
        c = self.config
        self.perceive = Squeeze(width, side, self.views, c.cells, c.bottleneck, c.token_width)
        self.think = nn.Sequential(nn.LayerNorm(last), nn.Linear(last, c.token_width))
        tokens, narrow = c.token_shape
        self.pool = Pool(tokens - 1, narrow, proprio, memory, c.selected, c.pooled_width)
        if c.given is not None and not c.given["stored"]:
            learns = {n for n, p in self.net.named_parameters() if p.requires_grad}
            self.hidden = frozenset(n for n in self.net.state_dict() if n not in learns)
            self.register_state_dict_post_hook(_hide)
            self.register_load_state_dict_post_hook(_pardon)

    @property
    def token_shape(self) -> tuple[int, int]:
        """Tokens per decision and their width."""
        return self.config.token_shape

    def sizes(self, memory: int) -> tuple[int, int, int]:
        """Widths of `Context`: pooled, token, memory."""
        return self.config.pooled_width, self.config.token_width, memory

    def train(self, mode: bool = True) -> "PretrainedBackbone":
        """Set the mode; what does not learn stays as it was judged."""
        super().train(mode)
        if self.frozen:
            self.net.eval()
        return self

    def features(self, images: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the pretrained network makes of an observation, once per decision.

        Args:
            images: u8 or f32 [b, v, h, w, 3], 0 to 255.
            words: i64 [b, w], ids of the model's tokenizer, 0 pads.

        Returns:
            Vision tokens f32 [b, v, n, width], and the last language position f32 [b, last].
        """
        raise NotImplementedError

    @property
    def frozen(self) -> bool:
        """See `Cacheable`: whether nothing of the pretrained network learns."""
        return self.config.tune == "frozen"

    def encode(self, images: Tensor, proprio: Tensor, words: Tensor) -> Encoded:
        """Encode observations without memory; `features`, and proprioception f32 [b, s]."""
        return self.encode_from(self.frozen_features(images, words), proprio, words)

    def frozen_features(self, images: Tensor, words: Tensor) -> dict[str, Tensor]:
        """See `Cacheable`; what `features` gives, by name."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            seen, last = self.features(images, words)
        return {"seen": seen, "last": last}

    def encode_from(self, features: dict[str, Tensor], proprio: Tensor, words: Tensor) -> Encoded:
        """See `Cacheable`; words are in what was read already."""
        return self.encode_features(features["seen"], features["last"], proprio)

    def encode_features(self, seen: Tensor, last: Tensor, proprio: Tensor) -> Encoded:
        """Encode what `features` gave."""
        perceptual, thought = self.perceive(seen), self.think(last)
        return Encoded(torch.cat([perceptual, thought[:, None]], 1), (perceptual, thought, proprio))

    def refine(self, cache: tuple[Tensor, Tensor, Tensor], retrieved: Retrieved) -> Context:
        """Fuse what was seen with what memory retrieved."""
        pooled = self.pool(*cache, retrieved.vector)
        return Context(pooled, retrieved.tokens, retrieved.vector)

    def pixels(self, images: Tensor, side: int, mean: Tensor, std: Tensor) -> Tensor:
        """Return pictures f32 [b * v, 3, side, side] as the model wants them."""
        flat = images.flatten(0, 1).permute(0, 3, 1, 2).float().div(255.0)
        flat = resized(resized(flat, self.config.image_px), side)
        return (flat - mean) / std


def _hide(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in module.hidden:
        del state[f"{prefix}{NET}{name}"]


def _pardon(module: Any, keys: Any) -> None:
    keys.missing_keys[:] = [
        key for key in keys.missing_keys if key.rpartition(f".{NET}")[2] not in module.hidden
        and key.removeprefix(NET) not in module.hidden
    ]  # fmt: skip


def tune_(net: nn.Module, config: PretrainedConfig, adapted: nn.Module, layers: str) -> None:
    """Let learn of a network what is to learn.

    Args:
        net: The network.
        config: Says what.
        adapted: The part of it that adapters are attached to.
        layers: Regular expression for the names of the layers in there.
    """
    net.to(DTYPES[config.dtype])
    net.requires_grad_(config.tune == "full")
    if config.tune == "lora":
        from peft import LoraConfig, inject_adapter_in_model

        lora = LoraConfig(
            r=config.rank, lora_alpha=2 * config.rank, lora_dropout=0.0, target_modules=layers
        )
        inject_adapter_in_model(lora, adapted)
        for name, weight in adapted.named_parameters():
            weight.requires_grad_("lora_" in name)
            if "lora_" in name:
                weight.data = weight.data.float()  # small steps vanish in sixteen bits
    if config.checkpointing and config.tune != "frozen":
        net.gradient_checkpointing_enable({"use_reentrant": False})


def given_of(config: PretrainedConfig, folder: Path, read: dict[str, Any]) -> dict[str, Any]:
    """Return what a policy's description keeps of a model: what was read, and where it is from."""
    found = {
        **read, "stored": is_stored(config, folder), "source": source_of(config.model, folder)
    }  # fmt: skip
    return json.loads(json.dumps(found))  # as it will be read again: no tuples, no numbers as keys


def opened(read: Callable[[], T], folder: Path) -> T:
    """Return what transformers reads in a folder.

    Raises:
        ValueError: it cannot, in one line.
    """
    try:
        return read()
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(f"{folder}: cannot be read ({line}); copy the model whole") from error


def model_type(folder: Path) -> str:
    """Return the name that a model gives itself.

    Raises:
        ValueError: its config.json is damaged.
    """
    try:
        return str(json.loads((folder / "config.json").read_text())["model_type"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{folder / 'config.json'}: damaged, or names no model_type; copy the model whole"
        ) from error


def is_stored(config: PretrainedConfig, folder: Path) -> bool:
    """Return whether all weights go into checkpoints: they learn, or are few."""
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return config.tune == "full" or size <= config.embed_mib * MIB


def source_of(name: str, folder: Path) -> dict[str, Any]:
    """Return name, revision, licence and hash of a model; None for what its folder does not say."""
    snapshot = folder.resolve()
    revision = snapshot.name if snapshot.parent.name == "snapshots" else None
    card = folder / "README.md"
    text = card.read_text(errors="replace") if card.is_file() else ""
    found = re.search(r"\A---\n.*?^license: *(\S+)", text, re.MULTILINE | re.DOTALL)
    config = json.loads((folder / "config.json").read_text())
    licence = found.group(1) if found else config.get("license")
    return {
        "name": name.removeprefix(HUB), "revision": revision, "licence": licence,
        "sha256": hash_of(folder),
    }  # fmt: skip


def hash_of(folder: Path) -> str:
    """Return the SHA-256 of the weights in a folder, file after file."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while chunk := file.read(MIB):
                digest.update(chunk)
    return digest.hexdigest()


def weights_folder(config: PretrainedConfig) -> Path | None:
    """Return the folder to read pretrained weights from; None if the checkpoint has them.

    Raises:
        ValueError: it is not there, or holds other weights than the policy was trained with.
    """
    if config.given is None or config.given["stored"]:
        return None
    folder, told = config.folder(download=False), config.given["source"]["sha256"]
    if (found := hash_of(folder)) != told:
        raise ValueError(
            f"{folder}: holds weights {found[:12]}, the checkpoint was trained on {told[:12]}; "
            "give it the revision that policy.json names"
        )
    return folder


def bare_tokenizer(folder: Path, ends: bool = False) -> Tokenizer:
    """Return a model's tokenizer, without what it lays around a text unless `ends`.

    Raises:
        ValueError: the folder has none in the format of `tokenizers`.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{folder}: has no tokenizer.json; copy the model whole")
    whole = json.loads(path.read_text())
    around = whole.get("post_processor") if ends else None
    return Tokenizer.from_str(
        json.dumps({**whole, "post_processor": around, "truncation": None, "padding": None})
    )


def settled(config: PretrainedConfig, given: dict[str, Any]) -> Any:
    """Return a configuration that knows what was read from the model's folder."""
    return replace(config, given=given)


def check_vocabulary(given: int, own: int) -> None:
    """Raise ValueError unless a policy's words are the model's."""
    if given != own:
        raise ValueError(
            f"policy.backbone: got a tokenizer of {given} words, expected the model's own with "
            f"{own}; a pretrained backbone reads no other words"
        )
