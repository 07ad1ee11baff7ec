"""A pretrained vision-language model that fills in forms: images and text in, logits out.

One forward pass returns the logits of all answers of a form, each over the tokens that are allowed
at its position: no text is generated or parsed. The reward model defines the form. Nothing is
downloaded unless a setting asks for it ("hub:OWNER/NAME").
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Prompt = Sequence[str | np.ndarray]
"""Texts and images (u8 [h, w, 3], RGB) in the order in which they are shown."""

HUB = "hub:"
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""For every `from_pretrained`: only local files, and none of their code is run."""
FILLER = "?"
"""Replaces an answer while later ones are computed: no answer may depend on another."""
LAYERS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
"""Layers with adapters: the projections of the language model, not those of the vision tower."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Slot(NamedTuple):
    """One answer of a form."""

    lead: str
    """Text before the answer."""
    choices: tuple[int, ...]
    """Allowed tokens."""


class Vlm(nn.Module):
    """A model of transformers with its processor; several roles may share one."""

    def __init__(self, model: nn.Module, processor: Any, batch: int) -> None:
        """Wrap a model that takes images and text, as `AutoModelForImageTextToText` loads it, and
        its processor with a chat template; `batch` prompts per forward pass bound the memory.
        """
        super().__init__()
        self.model, self.processor, self.batch = model, processor, batch
        self.tokenizer = processor.tokenizer
        # InternVL would cut every image into a dozen tiles.
        tiles = hasattr(processor.image_processor, "crop_to_patches")
        self._images = {"images_kwargs": {"crop_to_patches": False}} if tiles else {}

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.model.parameters()).device

    def tokens(self, words: Sequence[str]) -> tuple[int, ...]:
        """Return the first token of each word.

        Raises:
            ValueError: two of them begin with the same token, so the model cannot tell them apart.
        """
        tokens = tuple(self._ids(word)[0] for word in words)
        if len(set(tokens)) < len(tokens):
            raise ValueError(
                f"the tokenizer of {self.model.config.model_type} begins {', '.join(words)} with "
                f"tokens {tokens}, expected different ones; use another model"
            )
        return tokens

    def fill(self, prompts: Sequence[Prompt], form: Sequence[Slot]) -> list[Tensor]:
        """Return the logits f32 [n, choices] of each answer, in one pass per prompt."""
        parts = [
            self._fill(prompts[start : start + self.batch], form)
            for start in range(0, len(prompts), self.batch)
        ]
        if not parts:
            return [torch.zeros(0, len(slot.choices), device=self.device) for slot in form]
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    def _fill(self, prompts: Sequence[Prompt], form: Sequence[Slot]) -> list[Tensor]:
        images = [part for prompt in prompts for part in prompt if not isinstance(part, str)]
        texts = [self._text(prompt) for prompt in prompts]
        # Padding on the left lets the form end every row at the same position.
        inputs = dict(
            self.processor(
                text=texts, images=images or None, padding=True, padding_side="left",
                return_tensors="pt", **self._images,
            )
        )  # fmt: skip
        ids, ends = self._form(form)
        written = torch.tensor(ids).expand(len(prompts), -1)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], written], 1)
        mask = [inputs["attention_mask"], torch.ones_like(written)]
        inputs["attention_mask"] = torch.cat(mask, 1)
        inputs.pop("token_type_ids", None)
        if "mm_token_type_ids" in inputs:  # transformers 5: where images are, and the form has none
            kinds = inputs["mm_token_type_ids"]
            inputs["mm_token_type_ids"] = torch.cat([kinds, torch.zeros_like(written)], 1)
        at = torch.tensor(ends) + inputs["input_ids"].shape[1] - len(ids)
        moved = {name: value.to(self.device) for name, value in inputs.items()}
        out = self.model(**moved, logits_to_keep=at.to(self.device), use_cache=False)
        logits = out.logits.float()
        return [logits[:, k, list(slot.choices)] for k, slot in enumerate(form)]

    def _form(self, form: Sequence[Slot]) -> tuple[list[int], list[int]]:
        """Return the tokens of a form without its last answer, and where each lead ends."""
        ids: list[int] = []
        ends = []
        filler = self._ids(FILLER)[:1]
        for slot in form:
            ids += self._ids(slot.lead)
            ends.append(len(ids) - 1)
            ids += filler
        return ids[:-1], ends

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _text(self, prompt: Prompt) -> str:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
            for part in prompt
        ]
        messages = [{"role": "user", "content": content}]
        return self.processor.apply_chat_template(messages, add_generation_prompt=True)


def load(name: str, *, dtype: str = "float32", batch: int = 8, lora_rank: int = 0) -> Vlm:
    """Load a model, in evaluation mode.

    Args:
        name: A folder; OWNER/NAME of a model in Hugging Face's cache on this machine; or
            "hub:OWNER/NAME" to download it, if it is not there (never with HF_HUB_OFFLINE set).
        dtype: Of the weights: one of `DTYPES`.
        batch: Prompts per forward pass.
        lora_rank: Rank of a new adapter, which changes nothing until trained; 0 for none.

    Raises:
        ValueError: there is no such model, or it has no chat template.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = locate(name)
    try:
        processor = AutoProcessor.from_pretrained(folder, **LOCAL)
        model = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=DTYPES[dtype], use_safetensors=True, **LOCAL
        )
    except (OSError, ValueError, KeyError) as error:
        line = f"{folder}: no vision-language model ({first_line(error)}); copy it whole"
        raise ValueError(line) from error
    if not getattr(processor, "chat_template", None):
        raise ValueError(f"{folder}: the processor has no chat template; use a model that chats")
    model.requires_grad_(False)
    return Vlm(attach(model, lora_rank) if lora_rank else model, processor, batch).eval()


def locate(name: str, *, download: bool = True) -> Path:
    """Return the folder of a model; only "hub:OWNER/NAME" may use the network.

    Args:
        name: As in `load`.
        download: Whether "hub:" is honoured; not for names from a checkpoint, which are not
            trusted.

    Raises:
        ValueError: the model is not on this machine, or could not be fetched.
    """
    from huggingface_hub import snapshot_download

    if Path(name).is_dir():
        return Path(name)
    plain = name.removeprefix(HUB)
    forbidden = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
    offline = forbidden or not download or not name.startswith(HUB)
    try:
        # transformers asks the hub about names, even of cached models, but not about folders.
        folder = snapshot_download(
            plain, local_files_only=offline, allow_patterns=["*.json", "*.safetensors", "*.txt",
            "*.jinja", "README.md"],
        )  # fmt: skip
    except (OSError, ValueError) as error:
        why = "" if offline else f" and could not be fetched ({first_line(error)})"
        how = _how(plain, download)
        raise ValueError(f"model {plain!r} is not on this machine{why}; {how}") from error
    return Path(folder)


def _how(name: str, download: bool) -> str:
    """Return what to do about a model that is not there."""
    if Path(name).is_absolute():
        return "give its folder" if download else "put its folder there again"
    fetch = f"fetch it once: hf download {name}"
    give = f"give a folder, or {HUB}{name} with HF_HUB_OFFLINE unset to download it, or "
    return give + fetch if download else fetch


def attach(model: nn.Module, rank: int) -> nn.Module:
    """Return a model with a new low-rank adapter on its language model (Hu et al. 2021)."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=LAYERS)
    return get_peft_model(model, config)


def adapter_weights(vlm: Vlm) -> dict[str, Tensor]:
    """Return the weights of the adapter under the names of peft; empty if there is none."""
    from peft import PeftModel, get_peft_model_state_dict

    if not isinstance(vlm.model, PeftModel):
        return {}
    return get_peft_model_state_dict(vlm.model, save_embedding_layers=False)


def load_adapter_weights(vlm: Vlm, weights: dict[str, Tensor]) -> None:
    """Give the adapter the weights that `adapter_weights` returned."""
    from peft import set_peft_model_state_dict

    if weights:
        set_peft_model_state_dict(vlm.model, weights)


def save_adapter(vlm: Vlm, folder: Path) -> None:
    """Write the adapter as peft does: `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        ValueError: there is no adapter.
    """
    if not adapter_weights(vlm):
        raise ValueError(
            "nothing to save: the model has no adapter; load it with lora_rank above 0"
        )
    vlm.model.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)


def plain(text: str) -> str:
    """Return a user's text without what a tokenizer could take for one of its special tokens."""
    return text.replace("<", "(").replace(">", ")")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
