"""Vision-language models of the real classes with random weights, small enough for tests."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForImageTextToText,
    GotOcr2ImageProcessorFast,
    InternVLConfig,
    InternVLProcessor,
    InternVLVideoProcessor,
    Qwen2TokenizerFast,
    Qwen2VLImageProcessorFast,
    Qwen3VLConfig,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
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
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "initializer_range": 0.3,
}  # fmt: skip


def tokenizer(special: tuple[str, ...], **named: str) -> Qwen2TokenizerFast:
    """Return a byte-level tokenizer trained on a few words."""
    fresh = Tokenizer(models.BPE())
    fresh.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fresh.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    fresh.train_from_iterator([TEXT], trainer)
    return Qwen2TokenizerFast(
        tokenizer_object=fresh, eos_token=special[2], pad_token=special[0],
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


def _save(folder: Path, config: object, processor: object) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  transformers' initialisers know no other source
        model = AutoModelForImageTextToText.from_config(config)
    model.save_pretrained(folder, safe_serialization=True)
    processor.save_pretrained(folder)
    return folder
