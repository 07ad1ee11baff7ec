"""Vision-language models of the real classes with random weights, small enough for tests."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
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
    Qwen2TokenizerFast,
    Qwen2VLImageProcessorFast,
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
SMOL = ("<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>",
        "<global-img>", "<image>")  # fmt: skip
GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>",
         "<start_of_image>", "<end_of_image>", "<image_soft_token>", "<image>")  # fmt: skip
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "initializer_range": 0.3,
}  # fmt: skip


VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip


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


def save_qwen(folder: Path) -> Path:
    """Write a Qwen3-VL of some ten thousand weights, with its processor."""
    words = tokenizer(QWEN)
    ids = {name: words.convert_tokens_to_ids(name) for name in QWEN}
    config = Qwen3VLConfig(
        text_config={
            **SIZES, "vocab_size": len(words), "rope_scaling": {
                "rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
            "patch_size": 8, "out_hidden_size": 32, "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    images = {"patch_size": 8, "merge_size": 2}
    size = {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}
    processor = Qwen3VLProcessor(
        Qwen2VLImageProcessorFast(**images, size=size), words,
        Qwen3VLVideoProcessor(**images),
        chat_template=TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )  # fmt: skip
    return _save(folder, config, processor)


def save_internvl(folder: Path) -> Path:
    """Write an InternVL of some ten thousand weights, with its processor."""
    named = {
        "start_image_token": "<img>", "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>",
    }  # fmt: skip
    words = tokenizer(INTERN, **named)
    size = {"height": 32, "width": 32}
    config = InternVLConfig(
        text_config={"model_type": "qwen2", "vocab_size": len(words), **SIZES},
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": [32, 32], "patch_size": [8, 8],
        },
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"), image_seq_length=4,
    )  # fmt: skip
    processor = InternVLProcessor(
        GotOcr2ImageProcessorFast(size=size), words, InternVLVideoProcessor(size=size),
        image_seq_length=4, chat_template=TEMPLATE.replace("IMAGE", "<IMG_CONTEXT>"),
    )  # fmt: skip
    return _save(folder, config, processor)


def save_smolvlm(folder: Path) -> Path:
    """Write a SmolVLM2 of some ten thousand weights, with its processor."""
    words = PreTrainedTokenizerFast(
        tokenizer_object=trained(SMOL), eos_token=SMOL[2], pad_token=SMOL[0], bos_token=SMOL[1],
        extra_special_tokens={
            "image_token": "<image>", "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>",
        },
    )  # fmt: skip
    config = SmolVLMConfig(
        text_config={"model_type": "llama", "vocab_size": len(words), "pad_token_id": 0, **SIZES},
        vision_config={**VISION, "image_size": 32, "patch_size": 8}, scale_factor=2,
        image_token_id=words.convert_tokens_to_ids("<image>"), pad_token_id=0,
    )  # fmt: skip
    _save(folder, config, words)
    images = SmolVLMImageProcessor(size={"longest_edge": 32}, max_image_size={"longest_edge": 32})
    images.save_pretrained(folder)
    # What `SmolVLMProcessor` adds to them; it needs a package that nothing else here does.
    template = TEMPLATE.replace("IMAGE", "<image>").replace("<|im_end|>", "<end_of_utterance>")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    return folder


def save_paligemma(folder: Path) -> Path:
    """Write a PaliGemma of some ten thousand weights, with its processor."""
    words = _gemma_words()
    config = PaliGemmaConfig(
        text_config={"model_type": "gemma", "vocab_size": len(words), **SIZES},
        vision_config={**VISION, "image_size": 32, "patch_size": 8, "vision_use_head": False,
                       "projection_dim": 32, "model_type": "siglip_vision_model"},
        image_token_index=words.convert_tokens_to_ids("<image>"), projection_dim=32,
    )  # fmt: skip
    images = SiglipImageProcessorFast(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    return _save(folder, config, PaliGemmaProcessor(images, words))


def save_gemma3(folder: Path) -> Path:
    """Write a Gemma 3 of some ten thousand weights, with its processor."""
    words = _gemma_words()
    config = Gemma3Config(
        text_config={"model_type": "gemma3_text", "vocab_size": len(words), "sliding_window": 16,
                     "layer_types": ["sliding_attention", "full_attention"],
                     "query_pre_attn_scalar": 16, **SIZES},
        vision_config={**VISION, "image_size": 32, "patch_size": 8, "vision_use_head": False,
                       "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4, image_token_index=words.convert_tokens_to_ids("<image_soft_token>"),
        boi_token_index=words.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=words.convert_tokens_to_ids("<end_of_image>"),
    )  # fmt: skip
    processor = Gemma3Processor(
        Gemma3ImageProcessorFast(size={"height": 32, "width": 32}), words, image_seq_length=4,
        chat_template=TEMPLATE.replace("IMAGE", "<start_of_image>").replace(
            "<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>"),
    )  # fmt: skip
    return _save(folder, config, processor)


def _gemma_words() -> GemmaTokenizerFast:
    return GemmaTokenizerFast(
        tokenizer_object=trained(GEMMA), additional_special_tokens=list(GEMMA[4:]),
        extra_special_tokens={
            "image_token": "<image_soft_token>", "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
    )  # fmt: skip


def save_siglip(folder: Path) -> Path:
    """Write a SigLIP2 of some ten thousand weights, with its tokenizer."""
    words = _gemma_words()
    config = SiglipConfig(
        text_config={**VISION, "vocab_size": len(words), "max_position_embeddings": 16,
                     "projection_size": 32},
        vision_config={**VISION, "image_size": 32, "patch_size": 8},
    )  # fmt: skip
    _save(folder, config, words)
    SiglipImageProcessorFast(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def save_dinov2(folder: Path) -> Path:
    """Write a DINOv2 of some ten thousand weights."""
    config = Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=48,
        patch_size=8,
    )  # fmt: skip
    images = BitImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return _save(folder, config, images)


TOWERS = {"siglip": save_siglip, "dinov2": save_dinov2}
"""What writes a vision tower of each kind."""
FAMILIES = {
    "smolvlm": save_smolvlm, "qwen3_vl": save_qwen, "paligemma": save_paligemma,
    "gemma3": save_gemma3, "internvl": save_internvl,
}  # fmt: skip
"""What writes a model of each family."""


def _save(folder: Path, config: PretrainedConfig, processor: Any) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  transformers' initialisers know no other source
        towers = config.model_type in TOWERS
        model = (AutoModel if towers else AutoModelForImageTextToText).from_config(config)
    model.save_pretrained(folder, safe_serialization=True)
    processor.save_pretrained(folder)
    return folder
