"""Architectures of published vision-language models, as numbers: enough to count without weights.

Values are those of each model's config.json on huggingface.co (`source`), where they differ from
the defaults of transformers' configuration classes. `parameters` is the size of the published
weights (their bytes by the width of a number, or what the model's page says), with the head that
predicts words, which a backbone has no use for.
"""

from dataclasses import dataclass
from typing import Any

_QWEN_ROPE = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}
_QWEN_VISION = {
    "in_channels": 3, "num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "num_heads": 16,
}  # fmt: skip
CHAT = (14, 9)
"""Ids that a chat template lays before a picture or the words, and after them: about so many."""


@dataclass(frozen=True)
class Published:
    """One published model."""

    source: str
    """Where the values were read."""
    parameters: float
    """Of the published weights."""
    tied: bool
    """Whether the head that predicts words is the word embedding."""
    around: tuple[int, int]
    """Ids that its prompt lays before the first picture and after the words."""
    architecture: dict[str, Any]
    """Of its configuration, with `model_type`."""


MODELS = {
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": Published(
        source="config.json and model.safetensors (2.03 GB in 32 bits), revision 7b375e1",
        parameters=2.03e9 / 4,
        tied=False,
        around=CHAT,
        architecture={
            "model_type": "smolvlm",
            "scale_factor": 4,
            "image_token_id": 49190,
            "text_config": {
                "model_type": "llama",
                "vocab_size": 49280,
                "hidden_size": 960,
                "intermediate_size": 2560,
                "num_hidden_layers": 32,
                "num_attention_heads": 15,
                "num_key_value_heads": 5,
                "head_dim": 64,
                "max_position_embeddings": 8192,
                "rope_theta": 100000,
                "pad_token_id": 2,
            },
            "vision_config": {
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_hidden_layers": 12,
                "num_attention_heads": 12,
                "image_size": 512,
                "patch_size": 16,
            },
        },
    ),
    "google/paligemma-3b-pt-224": Published(
        source="config.json; 2.92 B on the pages of its fine-tuned copies",
        parameters=2.92e9,
        tied=True,
        around=(0, 1),
        architecture={
            "model_type": "paligemma",
            "image_token_index": 257152,
            "projection_dim": 2048,
            "text_config": {
                "model_type": "gemma",
                "vocab_size": 257216,
                "hidden_size": 2048,
                "intermediate_size": 16384,
                "num_hidden_layers": 18,
                "num_attention_heads": 8,
                "num_key_value_heads": 1,
                "head_dim": 256,
            },
            "vision_config": {
                "model_type": "siglip_vision_model",
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "image_size": 224,
                "patch_size": 14,
                "projection_dim": 2048,
                "vision_use_head": False,
            },
        },
    ),
    "Qwen/Qwen3-VL-4B-Instruct": Published(
        source="config.json; 4.44 B parameters on its page",
        parameters=4.44e9,
        tied=True,
        around=CHAT,
        architecture={
            "model_type": "qwen3_vl",
            "image_token_id": 151655,
            "video_token_id": 151656,
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
            "tie_word_embeddings": True,
            "text_config": {
                "vocab_size": 151936,
                "hidden_size": 2560,
                "intermediate_size": 9728,
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "rope_theta": 5000000,
                "rope_scaling": _QWEN_ROPE,
            },
            "vision_config": {
                **_QWEN_VISION,
                "depth": 24,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "out_hidden_size": 2560,
                "deepstack_visual_indexes": [5, 11, 17],
            },
        },
    ),
    "Qwen/Qwen3-VL-8B-Instruct": Published(
        source="config.json; 8.77 B parameters on its page",
        parameters=8.77e9,
        tied=False,
        around=CHAT,
        architecture={
            "model_type": "qwen3_vl",
            "image_token_id": 151655,
            "video_token_id": 151656,
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
            "tie_word_embeddings": False,
            "text_config": {
                "vocab_size": 151936,
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "rope_theta": 5000000,
                "rope_scaling": _QWEN_ROPE,
            },
            "vision_config": {
                **_QWEN_VISION,
                "depth": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "out_hidden_size": 4096,
                "deepstack_visual_indexes": [8, 16, 24],
            },
        },
    ),
    "OpenGVLab/InternVL3-8B-hf": Published(
        source="config.json; four files of weights, 15.89 GB in 16 bits",
        parameters=15.89e9 / 2,
        tied=False,
        around=CHAT,
        architecture={
            "model_type": "internvl",
            "downsample_ratio": 0.5,
            "image_seq_length": 256,
            "image_token_id": 151667,
            "text_config": {
                "model_type": "qwen2",
                "vocab_size": 151674,
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "max_position_embeddings": 32768,
                "rope_theta": 1000000.0,
            },
            "vision_config": {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "image_size": [448, 448],
                "patch_size": [14, 14],
                "attention_bias": True,
            },
        },
    ),
}
"""By OWNER/NAME."""
