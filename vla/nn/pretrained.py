"""Pretrained networks inside a backbone: source, trainable part and storage.

A policy's description holds everything needed to build such a network, except its weights. Frozen
weights are stored in checkpoints if they are few; otherwise the checkpoint names their folder and
hash and reads them from there: a checkpoint never causes a download.
"""

import copy
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

from vla.contracts.config import validate_min
from vla.nn.backbone import BackboneConfig
from vla.nn.context import Context, Encoded, Retrieved
from vla.nn.token_pooling import Pool, Squeeze, resized
from vla.nn.vlm import DTYPES, HUB, LOCAL, first_line, locate

T = TypeVar("T")
MIB = 2**20
NET = "net."
"""Prefix of the pretrained weights within a backbone's."""


@dataclass(frozen=True, kw_only=True)
class PretrainedConfig(BackboneConfig):
    """Settings shared by pretrained backbones."""

    model: str = ""
    """Folder of the model; OWNER/NAME in Hugging Face's cache; or hub:OWNER/NAME to download it."""
    finetune_mode: Literal["frozen", "lora", "full"] = "frozen"
    """What is trained of the pretrained network: nothing, low-rank adapters, or everything."""
    lora_rank: int = 16
    """Rank of the adapters, if `finetune_mode` is lora."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of frozen pretrained weights."""
    gradient_checkpointing: bool = False
    """Recompute activations of the pretrained network in the backward pass to save memory."""
    image_px: int = 224
    """Side of the images that data sets are read with; resized to the model's input."""
    pooled_tokens_per_side: int = 4
    """Perceptual tokens along a side; memory stores their square, and one cognitive token."""
    bottleneck: int = 128
    """Channels of the squeeze-excite bottleneck."""
    token_width: int = 64
    """Width of the tokens that memory stores."""
    pooled_width: int = 256
    """Width of the vector that conditions the action head."""
    selected: int = 4
    """Tokens selected by instruction, proprioception and memory."""
    embed_mib: int = 256
    """Frozen pretrained weights up to this size, in MiB, are stored in checkpoints."""
    description: Annotated[dict[str, Any] | None, tyro.conf.Suppress] = None
    """Description of the model, read from its folder; None before."""

    def __post_init__(self) -> None:
        validate_min(
            self, lora_rank=1, image_px=8, pooled_tokens_per_side=1, bottleneck=4, token_width=1,
            pooled_width=1, selected=1, embed_mib=0,
        )  # fmt: skip
        if self.finetune_mode == "full" and self.dtype != "float32":
            raise ValueError(
                f"dtype: got {self.dtype} with finetune_mode full, expected float32: small updates "
                "vanish in it; on cuda training computes in bfloat16 anyway"
            )

    @property
    def families(self) -> tuple[str, ...]:
        """Supported model types, as in config.json."""
        raise NotImplementedError

    @property
    def token_shape(self) -> tuple[int, int]:
        """Tokens per decision and their width."""
        return self.pooled_tokens_per_side**2 + 1, self.token_width

    @property
    def source(self) -> dict[str, Any]:
        """See `BackboneConfig`; empty until the model is read."""
        return {} if self.description is None else self.description["source"]

    def folder(self, *, download: bool = True) -> Path:
        """Return the model's folder; `download` as in `vla.nn.vlm.locate`.

        Raises:
            ValueError: no model is named, or it is not there.
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
        """Check packages, files and family of the model; see `PluginConfig.check`."""
        need = ("transformers", "peft") if self.finetune_mode == "lora" else ("transformers",)
        for package in need:
            if importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"policy.backbone: needs {package}, which is not installed; "
                    "pip install 'mneme-vla[train]'"
                )
        folder = self.folder()
        self.check_family(model_type(folder), folder)
        if not any(folder.glob("*.safetensors")):
            raise ValueError(f"{folder}: has no weights (no *.safetensors); copy the model whole")
        self.tokenizer(())

    def check_family(self, kind: str, where: object) -> None:
        """Raise ValueError unless a model type is supported."""
        if kind not in self.families:
            raise ValueError(f"{where}: is a {kind}, expected one of {', '.join(self.families)}")

    def described(self, read: Callable[[Path], dict[str, Any]]) -> tuple[Any, Path | None]:
        """Return the settings with the model's description, which `read` returns for a folder, and
        the folder of its weights: None if a checkpoint holds them.

        Raises:
            ValueError: the model is missing, damaged or of an unsupported family.
        """
        if self.description is not None:
            return self, weights_folder(self)
        folder = self.folder()
        return replace(self, description=read(folder)), folder

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return the model's tokenizer, without its special tokens around a text."""
        return bare_tokenizer(self.folder())


class PretrainedBackbone(nn.Module):
    """Base of the pretrained backbones.

    A subclass sets `net`, then calls `add_trainable_layers`, and implements `features`.
    """

    net: nn.Module
    mean: Tensor
    std: Tensor
    hidden: frozenset[str] = frozenset()

    def __init__(self, config: PretrainedConfig, views: int) -> None:
        super().__init__()
        self.config, self.views = config, views
        self.description: dict[str, Any] = config.description or {}
        for name in ("mean", "std"):
            value = torch.tensor(self.description[name]).view(3, 1, 1)
            self.register_buffer(name, value, persistent=False)

    def add_trainable_layers(
        self, width: int, last: int, side: int, proprio: int, memory: int
    ) -> None:
        """Add the trainable layers after the pretrained network, and leave large frozen weights out
        of state dicts.

        Args:
            width: Width of a vision token.
            last: Width of the last language position.
            side: Vision tokens along a side of an image.
            proprio: Channels of proprioception.
            memory: Width of the retrieved vector.
        """
        c = self.config
        self.perceive = Squeeze(
            width, side, self.views, c.pooled_tokens_per_side, c.bottleneck, c.token_width
        )
        self.think = nn.Sequential(nn.LayerNorm(last), nn.Linear(last, c.token_width))
        tokens, narrow = c.token_shape
        self.pool = Pool(tokens - 1, narrow, proprio, memory, c.selected, c.pooled_width)
        if not self.description["stored"]:
            trained = {n for n, p in self.net.named_parameters() if p.requires_grad}
            self.hidden = frozenset(n for n in self.net.state_dict() if n not in trained)
            self.register_state_dict_post_hook(_drop_hidden)
            self.register_load_state_dict_post_hook(_ignore_hidden)

    @property
    def token_shape(self) -> tuple[int, int]:
        """Tokens per decision and their width."""
        return self.config.token_shape

    def sizes(self, memory: int) -> tuple[int, int, int]:
        """Widths of `Context`: pooled, token, memory."""
        return self.config.pooled_width, self.config.token_width, memory

    def train(self, mode: bool = True) -> "PretrainedBackbone":
        """Set the mode; a frozen network stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.net.eval()
        return self

    def features(self, images: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pretrained network's features of an observation, once per decision.

        Args:
            images: u8 or f32 [b, v, h, w, 3], 0 to 255.
            token_ids: i64 [b, w], ids of the model's tokenizer, 0 pads.

        Returns:
            Vision tokens f32 [b, v, n, width], and the last language position f32 [b, last].
        """
        raise NotImplementedError

    @property
    def frozen(self) -> bool:
        """Whether the whole pretrained network is frozen; see `Cacheable`."""
        return self.config.finetune_mode == "frozen"

    def encode(self, images: Tensor, proprio: Tensor, token_ids: Tensor) -> Encoded:
        """Encode images, token ids and proprioception f32 [b, s], without memory."""
        return self.encode_from(self.frozen_features(images, token_ids), proprio, token_ids)

    def frozen_features(self, images: Tensor, token_ids: Tensor) -> dict[str, Tensor]:
        """Return the result of `features` by name; see `Cacheable`."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            seen, last = self.features(images, token_ids)
        return {"seen": seen, "last": last}

    def encode_from(
        self, features: dict[str, Tensor], proprio: Tensor, token_ids: Tensor
    ) -> Encoded:
        """Encode from frozen features; see `Cacheable`."""
        return self.encode_features(features["seen"], features["last"], proprio)

    def encode_features(self, seen: Tensor, last: Tensor, proprio: Tensor) -> Encoded:
        """Encode the result of `features`."""
        perceptual, thought = self.perceive(seen), self.think(last)
        return Encoded(torch.cat([perceptual, thought[:, None]], 1), (perceptual, thought, proprio))

    def refine(self, cache: tuple[Tensor, Tensor, Tensor], retrieved: Retrieved) -> Context:
        """Fuse the encoding with the content retrieved from memory."""
        pooled = self.pool(*cache, retrieved.vector)
        return Context(pooled, retrieved.tokens, retrieved.vector)

    def pixels(self, images: Tensor, side: int) -> Tensor:
        """Return images f32 [b * v, 3, side, side] resized and normalised for the model."""
        flat = images.flatten(0, 1).permute(0, 3, 1, 2).float().div(255.0)
        flat = resized(resized(flat, self.config.image_px), side)
        return (flat - self.mean) / self.std


def _drop_hidden(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in module.hidden:
        del state[f"{prefix}{NET}{name}"]


def _ignore_hidden(module: Any, keys: Any) -> None:
    keys.missing_keys[:] = [
        key for key in keys.missing_keys if key.rpartition(f".{NET}")[2] not in module.hidden
        and key.removeprefix(NET) not in module.hidden
    ]  # fmt: skip


def set_trainable(
    net: nn.Module, config: PretrainedConfig, adapted: nn.Module, layers: str
) -> None:
    """Set type and trainable weights of a network, with adapters if configured: on those layers of
    the part `adapted` whose names match the regular expression `layers`.
    """
    net.to(DTYPES[config.dtype])
    net.requires_grad_(config.finetune_mode == "full")
    if config.finetune_mode == "lora":
        from peft import LoraConfig, inject_adapter_in_model

        lora = LoraConfig(
            r=config.lora_rank,
            lora_alpha=2 * config.lora_rank,
            lora_dropout=0.0,
            target_modules=layers,
        )
        inject_adapter_in_model(lora, adapted)
        for name, weight in adapted.named_parameters():
            weight.requires_grad_("lora_" in name)
            if "lora_" in name:
                weight.data = weight.data.float()  # small updates vanish in sixteen bits
    if config.gradient_checkpointing and config.finetune_mode != "frozen":
        # The name in transformers 5, or else in 4.
        enable = getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)
        enable({"use_reentrant": False})


def read_architecture(config: PretrainedConfig, folder: Path) -> Any:
    """Return the configuration, of transformers, of the model in a folder.

    Raises:
        ValueError: it is damaged or of an unsupported family.
    """
    from transformers import AutoConfig

    architecture = read_model(lambda: AutoConfig.from_pretrained(folder, **LOCAL), folder)
    config.check_family(architecture.model_type, folder)
    return architecture


def as_json(architecture: Any) -> dict[str, Any]:
    """Return a configuration of transformers as JSON types."""
    return {**json.loads(architecture.to_json_string()), "model_type": architecture.model_type}


def load_network(kind: Any, config: PretrainedConfig, folder: Path | None) -> Any:
    """Return a model of a class of transformers, with a folder's weights or uninitialised."""
    from transformers import CONFIG_MAPPING

    from vla.nn.transformers_versions import no_init_weights

    if folder is not None:
        return kind.from_pretrained(
            folder, dtype=DTYPES[config.dtype], use_safetensors=True, attn_implementation="sdpa",
            **LOCAL,
        )  # fmt: skip
    stored = (config.description or {})["architecture"]
    config.check_family(stored["model_type"], "policy.json")
    architecture = CONFIG_MAPPING[stored["model_type"]].from_dict(copy.deepcopy(stored))
    with no_init_weights():
        return kind.from_config(architecture, attn_implementation="sdpa", trust_remote_code=False)


def describe_model(
    config: PretrainedConfig, folder: Path, architecture: Any, read: dict[str, Any]
) -> dict[str, Any]:
    """Return a model's part of the policy description: what was read, storage and source."""
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    # All weights are stored where they are trained, or few.
    stored = config.finetune_mode == "full" or size <= config.embed_mib * MIB
    description = {
        "architecture": as_json(architecture), **read, "stored": stored,
        "source": model_source(config.model, folder),
    }  # fmt: skip
    return json.loads(json.dumps(description))  # as from a file: no tuples, no numbers as keys


def read_model(read: Callable[[], T], folder: Path) -> T:
    """Return the result of `read`, which loads a part of a model in a folder by transformers.

    Raises:
        ValueError: it fails; the message is one line.
    """
    try:
        return read()
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
        line = first_line(error)
        raise ValueError(f"{folder}: cannot be read ({line}); copy the model whole") from error


def model_type(folder: Path) -> str:
    """Return the `model_type` of a model's config.json; ValueError if the file is damaged."""
    try:
        return str(json.loads((folder / "config.json").read_text())["model_type"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{folder / 'config.json'}: damaged, or names no model_type; copy the model whole"
        ) from error


def model_source(name: str, folder: Path) -> dict[str, Any]:
    """Return name, revision, licence and hash of a model; None for unknown values."""
    snapshot = folder.resolve()
    revision = snapshot.name if snapshot.parent.name == "snapshots" else None
    card = folder / "README.md"
    text = card.read_text(errors="replace") if card.is_file() else ""
    line = re.search(r"\A---\n.*?^license: *(\S+)", text, re.MULTILINE | re.DOTALL)
    config = json.loads((folder / "config.json").read_text())
    licence = line.group(1) if line else config.get("license")
    return {
        "name": name.removeprefix(HUB), "revision": revision, "licence": licence,
        "sha256": weights_hash(folder),
    }  # fmt: skip


def weights_hash(folder: Path) -> str:
    """Return the SHA-256 of all weights in a folder, files in alphabetical order."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def weights_folder(config: PretrainedConfig) -> Path | None:
    """Return the folder of pretrained weights; None if the checkpoint holds them.

    Raises:
        ValueError: the folder is missing, or holds other weights than those of training.
    """
    if config.description is None or config.description["stored"]:
        return None
    folder, expected = config.folder(download=False), config.description["source"]["sha256"]
    if (actual := weights_hash(folder)) != expected:
        raise ValueError(
            f"{folder}: holds weights {actual[:12]}, expected {expected[:12]}; "
            "give it the revision that policy.json names"
        )
    return folder


def bare_tokenizer(folder: Path, ends: bool = False) -> Tokenizer:
    """Return a model's tokenizer, without special tokens around a text unless `ends`.

    Raises:
        ValueError: the folder has none in the format of `tokenizers`.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{folder}: has no tokenizer.json; copy the model whole")
    settings = json.loads(path.read_text())
    around = settings.get("post_processor") if ends else None
    return Tokenizer.from_str(
        json.dumps({**settings, "post_processor": around, "truncation": None, "padding": None})
    )


def check_vocabulary(size: int, expected: int) -> None:
    """Raise ValueError unless a policy's vocabulary is as large as the model's."""
    if size != expected:
        raise ValueError(
            f"policy.backbone: got a tokenizer of {size} tokens, expected the model's with "
            f"{expected}; use the model's tokenizer"
        )
