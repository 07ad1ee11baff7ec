"""Small models of the pretrained families: the real classes and processors, with random weights.

They have learned nothing: they are for trying a command without a download, for tests and for
measuring time. This imports transformers, which takes seconds: import it where a model is made.
"""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoModel,
    AutoModelForImageTextToText,
    BitImageProcessor,
    Dinov2Config,
    Gemma3Config,
    Gemma3ImageProcessorFast,
    Gemma3Processor,
    GemmaTokenizerFast,
    GotOcr2ImageProcessorFast,
    InternVLConfig,
    InternVLProcessor,
    InternVLVideoProcessor,
    PaliGemmaConfig,
    PaliGemmaProcessor,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2TokenizerFast,
    Qwen2VLImageProcessorFast,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    SiglipConfig,
    SiglipImageProcessorFast,
    SmolVLMConfig,
    SmolVLMImageProcessor,
)

TEXT = "Task: press the red button. yes no worse same better progress now complete " * 4
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
        "<|image_pad|>", "<|video_pad|>")  # fmt: skip
INTERN = (*QWEN[:3], "<img>", "</img>", "<IMG_CONTEXT>", "<video>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_TEMPLATE = TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
SMOL = ("<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>",
        "<global-img>", "<image>")  # fmt: skip
GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>",
         "<start_of_image>", "<end_of_image>", "<image_soft_token>", "<image>")  # fmt: skip
PATCH = 8
"""Pixels along a side of a patch."""


class Sizes(NamedTuple):
    """How large a model is."""

    width: int = 32
    """Of the hidden states of both towers; a multiple of 32, above 64 of 64."""
    layers: int = 2
    """Of each tower."""
    image_px: int = 32
    """Side of its pictures; a multiple of 16."""

    @property
    def heads(self) -> int:
        """Attention heads."""
        return max(self.width // 64, 2)

    @property
    def vision(self) -> dict[str, Any]:
        """What towers call their sizes."""
        return {
            "hidden_size": self.width, "intermediate_size": 3 * self.width // 2,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
        }  # fmt: skip

    @property
    def square(self) -> dict[str, Any]:
        """What vision towers for pictures of one size call theirs."""
        return {**self.vision, "image_size": self.image_px, "patch_size": PATCH}

    @property
    def language(self) -> dict[str, Any]:
        """What language models call theirs; weights so large that words and pictures show."""
        return {
            **self.vision, "num_key_value_heads": 1, "head_dim": self.width // self.heads,
            "initializer_range": 0.3 * (32 / self.width) ** 0.5,
        }  # fmt: skip

    @property
    def tokens(self) -> int:
        """Vision tokens of a picture where four patches become one."""
        return (self.image_px // PATCH // 2) ** 2

    @property
    def size(self) -> dict[str, int]:
        """What image processors call the size of a picture."""
        return {"height": self.image_px, "width": self.image_px}


TINY = Sizes()
"""Some ten thousand weights."""


def trained(special: tuple[str, ...]) -> Tokenizer:
    """Return a byte-level tokenizer trained on a few words."""
    fresh = Tokenizer(models.BPE())
    fresh.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fresh.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    fresh.train_from_iterator([TEXT], trainer)
    return fresh


def tokenizer(special: tuple[str, ...], **named: str) -> Qwen2TokenizerFast:
    """Return a byte-level tokenizer trained on a few words, as Qwen has it."""
    return Qwen2TokenizerFast(
        tokenizer_object=trained(special), eos_token=special[2], pad_token=special[0],
        additional_special_tokens=list(special), extra_special_tokens=named,
    )  # fmt: skip


def save_qwen(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write a Qwen3-VL with random weights and its processor."""
    words = tokenizer(QWEN)
    processor = Qwen3VLProcessor(
        *_qwen_eyes(sizes, words), Qwen3VLVideoProcessor(patch_size=PATCH, merge_size=2),
        chat_template=QWEN_TEMPLATE,
    )  # fmt: skip
    config = Qwen3VLConfig(
        text_config=_qwen_language(sizes, words, True),
        vision_config={
            **_qwen_vision(sizes), "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
        **_qwen_ids(words),
    )  # fmt: skip
    return _save(folder, config, processor)


def save_qwen25(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write a Qwen2.5-VL with random weights and its processor; two windows along a picture."""
    words = tokenizer(QWEN)
    processor = Qwen2_5_VLProcessor(
        *_qwen_eyes(sizes, words), Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=2),
        chat_template=QWEN_TEMPLATE,
    )  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=_qwen_language(sizes, words, False),
        vision_config={
            **_qwen_vision(sizes), "window_size": max(sizes.image_px // 2, 2 * PATCH),
            "fullatt_block_indexes": [sizes.layers - 1],
        },
        **_qwen_ids(words),
    )  # fmt: skip
    return _save(folder, config, processor)


def _qwen_eyes(sizes: Sizes, words: Qwen2TokenizerFast) -> tuple[Any, Qwen2TokenizerFast]:
    size = {"shortest_edge": 16 * 16, "longest_edge": (2 * sizes.image_px) ** 2}
    return Qwen2VLImageProcessorFast(patch_size=PATCH, merge_size=2, size=size), words


def _qwen_language(sizes: Sizes, words: Qwen2TokenizerFast, interleaved: bool) -> dict[str, Any]:
    axis = sizes.width // sizes.heads // 8
    turns: dict[str, Any] = {"rope_type": "default", "mrope_section": [2 * axis, axis, axis]}
    if interleaved:
        turns["mrope_interleaved"] = True
    return {**sizes.language, "vocab_size": len(words), "rope_scaling": turns}


def _qwen_vision(sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_size": sizes.width, "intermediate_size": 3 * sizes.width // 2,
        "depth": sizes.layers, "num_heads": sizes.heads, "patch_size": PATCH,
        "out_hidden_size": sizes.width,
    }  # fmt: skip


def _qwen_ids(words: Qwen2TokenizerFast) -> dict[str, int]:
    ids = {name: words.convert_tokens_to_ids(name) for name in QWEN}
    return {
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }  # fmt: skip


def save_internvl(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write an InternVL with random weights and its processor."""
    named = {
        "start_image_token": "<img>", "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>",
    }  # fmt: skip
    words = tokenizer(INTERN, **named)
    config = InternVLConfig(
        text_config={"model_type": "qwen2", "vocab_size": len(words), **sizes.language},
        vision_config={
            **sizes.vision, "image_size": [sizes.image_px] * 2, "patch_size": [PATCH] * 2,
        },
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=sizes.tokens,
    )  # fmt: skip
    processor = InternVLProcessor(
        GotOcr2ImageProcessorFast(size=sizes.size), words,
        InternVLVideoProcessor(size=sizes.size), image_seq_length=sizes.tokens,
        chat_template=TEMPLATE.replace("IMAGE", "<IMG_CONTEXT>"),
    )  # fmt: skip
    return _save(folder, config, processor)


def save_smolvlm(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write a SmolVLM2 with random weights and its processor."""
    words = PreTrainedTokenizerFast(
        tokenizer_object=trained(SMOL), eos_token=SMOL[2], pad_token=SMOL[0], bos_token=SMOL[1],
        extra_special_tokens={
            "image_token": "<image>", "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>",
        },
    )  # fmt: skip
    config = SmolVLMConfig(
        text_config={"model_type": "llama", "vocab_size": len(words), "pad_token_id": 0,
                     **sizes.language},
        vision_config=sizes.square, scale_factor=2,
        image_token_id=words.convert_tokens_to_ids("<image>"), pad_token_id=0,
    )  # fmt: skip
    _save(folder, config, words)
    edge = {"longest_edge": sizes.image_px}
    images = SmolVLMImageProcessor(size=edge, max_image_size=edge)
    images.save_pretrained(folder)
    # What `SmolVLMProcessor` adds to them; it needs a package that nothing else here does.
    template = TEMPLATE.replace("IMAGE", "<image>").replace("<|im_end|>", "<end_of_utterance>")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    return folder


def save_paligemma(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write a PaliGemma with random weights and its processor."""
    words = _gemma_words(image_token="<image>")
    config = PaliGemmaConfig(
        text_config={"model_type": "gemma", "vocab_size": len(words), **sizes.language},
        vision_config={**sizes.square, "vision_use_head": False,
                       "projection_dim": sizes.width, "model_type": "siglip_vision_model"},
        image_token_index=words.convert_tokens_to_ids("<image>"), projection_dim=sizes.width,
    )  # fmt: skip
    images = SiglipImageProcessorFast(size=sizes.size)
    images.image_seq_length = 4 * sizes.tokens
    return _save(folder, config, PaliGemmaProcessor(images, words))


def save_gemma3(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write a Gemma 3 with random weights and its processor."""
    words = _gemma_words(
        image_token="<image_soft_token>", boi_token="<start_of_image>", eoi_token="<end_of_image>"
    )
    kinds = [("sliding_attention", "full_attention")[i % 2] for i in range(sizes.layers)]
    config = Gemma3Config(
        text_config={"model_type": "gemma3_text", "vocab_size": len(words), "sliding_window": 16,
                     "layer_types": kinds,
                     "query_pre_attn_scalar": sizes.width // sizes.heads, **sizes.language},
        vision_config={**sizes.square, "vision_use_head": False,
                       "model_type": "siglip_vision_model"},
        mm_tokens_per_image=sizes.tokens,
        image_token_index=words.convert_tokens_to_ids("<image_soft_token>"),
        boi_token_index=words.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=words.convert_tokens_to_ids("<end_of_image>"),
    )  # fmt: skip
    processor = Gemma3Processor(
        Gemma3ImageProcessorFast(size=sizes.size), words, image_seq_length=sizes.tokens,
        chat_template=TEMPLATE.replace("IMAGE", "<start_of_image>").replace(
            "<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>"),
    )  # fmt: skip
    return _save(folder, config, processor)


def _gemma_words(**named: str) -> GemmaTokenizerFast:
    """Return a tokenizer trained on a few words, as Gemma has it."""
    fresh = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    fresh.normalizer = normalizers.Replace(" ", "▁")
    fresh.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    fresh.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(GEMMA), show_progress=False,
        initial_alphabet=[*string.ascii_letters, *string.digits, "▁", "\n"],
    )  # fmt: skip
    fresh.train_from_iterator([TEXT], trainer)
    return GemmaTokenizerFast(
        tokenizer_object=fresh, additional_special_tokens=list(GEMMA[4:]),
        extra_special_tokens=named,
    )  # fmt: skip


def save_siglip(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write a SigLIP2 with random weights and its tokenizer."""
    words = _gemma_words()
    config = SiglipConfig(
        text_config={**sizes.vision, "vocab_size": len(words), "max_position_embeddings": 16,
                     "projection_size": sizes.width},
        vision_config=sizes.square,
    )  # fmt: skip
    _save(folder, config, words)
    SiglipImageProcessorFast(size=sizes.size).save_pretrained(folder)
    return folder


def save_dinov2(folder: Path, sizes: Sizes = TINY) -> Path:
    """Write a DINOv2 with random weights."""
    config = Dinov2Config(
        hidden_size=sizes.width, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, mlp_ratio=2, image_size=3 * sizes.image_px // 2,
        patch_size=PATCH,
    )  # fmt: skip
    images = BitImageProcessor(size={"shortest_edge": sizes.image_px}, crop_size=sizes.size)
    return _save(folder, config, images)


Maker = Callable[[Path, Sizes], Path]
TOWERS: dict[str, Maker] = {"siglip": save_siglip, "dinov2": save_dinov2}
"""What writes a vision tower of each kind."""
FAMILIES: dict[str, Maker] = {
    "smolvlm": save_smolvlm, "qwen3_vl": save_qwen, "qwen2_5_vl": save_qwen25,
    "paligemma": save_paligemma,
    "gemma3": save_gemma3, "internvl": save_internvl,
}  # fmt: skip
"""What writes a model of each family."""


def count(folder: Path) -> int:
    """Return how many weights the model in a folder has."""
    files = folder.glob("*.safetensors")
    return sum(weight.numel() for file in files for weight in load_file(file).values())


def _save(folder: Path, config: PretrainedConfig, processor: Any) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  transformers' initialisers know no other source
        towers = config.model_type in TOWERS
        model = (AutoModel if towers else AutoModelForImageTextToText).from_config(config)
    model.save_pretrained(folder, safe_serialization=True)
    processor.save_pretrained(folder)
    return folder
