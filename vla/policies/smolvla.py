"""LeRobot's SmolVLA (Shukor et al. 2025) as a baseline: SmolVLM and a flow-matching action expert.

The vision-language model comes from a local folder, or is small with random weights. LeRobot's
SmolVLA checkpoints, which fix the widths of state and action, are not supported.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import torch
import tyro
from tokenizers import Tokenizer
from torch import Tensor, nn

from vla.contracts.config import validate_min
from vla.contracts.specs import RobotSpec
from vla.nn import pretrained
from vla.nn.normalize import NormalizationStatistics
from vla.nn.vlm import LOCAL, locate
from vla.policies._lerobot import LeRobotConfig, LeRobotPolicy

RANDOM = "random"
"""Name of the small model with random weights."""
PUBLISHED = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
"""The model that LeRobot uses."""
MAX_TOKENS = 48
"""Longest instruction in tokens, as in LeRobot."""
PATCH_PX, SHUFFLE = 8, 3
"""Of the random model: side of a patch, and patches along a side of a token."""


@dataclass(frozen=True, kw_only=True)
class Config(LeRobotConfig):
    """Settings of SmolVLA; the widths of state and action are the arm's."""

    model: str = ""
    """Folder of a SmolVLM; OWNER/NAME in Hugging Face's cache; hub:OWNER/NAME to download it; or
    random: a small one with random weights."""
    train_expert_only: bool = True
    """Train the action expert alone, as LeRobot does by default. If false the vision-language model
    is trained as well, which random weights need."""
    layers: int = 16
    """Layers of the language model that are kept; 0 for all."""
    num_inference_steps: int = 10
    """Denoising steps of a decision."""
    description: Annotated[dict[str, Any] | None, tyro.conf.Suppress] = None
    """Description of the model, read from its folder; None before."""

    preset: ClassVar[Mapping[str, float]] = {
        "lr": 1e-4,
        "weight_decay": 1e-10,
        "grad_clip_norm": 10.0,
    }
    """LeRobot's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_min(self, layers=0, num_inference_steps=1)
        if self.model == RANDOM and self.image_px % (PATCH_PX * SHUFFLE):
            raise ValueError(
                f"policy.image_px: got {self.image_px}, expected a multiple of "
                f"{PATCH_PX * SHUFFLE} with --policy.model {RANDOM}"
            )

    @property
    def source(self) -> dict[str, Any]:
        """See `LeRobotConfig`; empty until the model was read."""
        return {} if self.description is None else self.description["source"]

    def folder(self) -> Path:
        """Return the model's folder; ValueError if no model is named, or it is not there."""
        how = f"fetch one: hf download {PUBLISHED}, and give --policy.model {PUBLISHED}"
        if not self.model:
            raise ValueError(
                f"policy.model: got none, expected a folder with a SmolVLM or {RANDOM}; {how}"
            )
        try:
            folder = locate(self.model)
        except ValueError as error:
            raise ValueError(f"{error}; or {how}") from error
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder}: no model there (no config.json); copy it whole, or {how}")
        return folder

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return the model's tokenizer; one trained on the instructions for the random model."""
        if self.model == RANDOM:
            return super().tokenizer(instructions)
        return pretrained.bare_tokenizer(self.folder())

    def network(self, robot: RobotSpec) -> Any:
        """Return LeRobot's `SmolVLAPolicy` with random weights, of the described model."""
        from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
        from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

        architecture: dict[str, Any] = (self.description or {})["architecture"]
        count, side = len(robot.channels), int(architecture["vision_config"]["image_size"])
        config = SmolVLAConfig(
            **self.shape(robot), chunk_size=self.chunk_size, n_action_steps=self.n_action_steps,
            max_state_dim=count, max_action_dim=count, resize_imgs_with_padding=(side, side),
            num_steps=self.num_inference_steps, freeze_vision_encoder=self.train_expert_only,
            train_expert_only=self.train_expert_only, num_vlm_layers=self.layers,
            vlm_model_name="policy.json",
        )  # fmt: skip
        with _described(architecture):
            policy = SmolVLAPolicy(config)
        policy.model.vlm_with_expert.vlm.lm_head = nn.Identity()  # no token is predicted
        return policy

    def build(
        self, robot: RobotSpec, statistics: NormalizationStatistics, tokenizer: Tokenizer
    ) -> "SmolVLA":
        """Return a policy with pretrained weights, unless a checkpoint holds them.

        Raises:
            ValueError: the model is missing or no SmolVLM, or the robot has no such camera.
        """
        if self.description is not None:
            return SmolVLA(self, robot, statistics, tokenizer)
        if self.model == RANDOM:
            architecture = _small(self.image_px, tokenizer.get_vocab_size())
            config = replace(self, description={"architecture": architecture, "source": {}})
            return SmolVLA(config, robot, statistics, tokenizer)
        folder = self.folder()
        config = replace(self, description=_read(self, folder))
        policy = SmolVLA(config, robot, statistics, tokenizer)
        _load_vlm_weights(policy.vlm, folder)
        return policy


class SmolVLA(LeRobotPolicy):
    """LeRobot's SmolVLA."""

    normalize_images = False

    @property
    def vlm(self) -> nn.Module:
        """The vision-language model."""
        return self.net.model.vlm_with_expert.vlm

    def inputs(self, images: Tensor, proprio: Tensor, task: tuple[str, ...]) -> dict[str, Any]:
        """See `LeRobotPolicy.inputs`; instructions end with a new line, as in LeRobot."""
        token_ids = self.text(tuple(f"{text}\n" for text in task), self.device)[:, :MAX_TOKENS]
        return {
            **super().inputs(images, proprio, task),
            "observation.language.tokens": token_ids,
            "observation.language.attention_mask": token_ids != 0,
        }

    def decide(self, inputs: dict[str, Any], noise: Tensor) -> Tensor:
        """See `LeRobotPolicy.decide`: Euler steps from the noise of row 0."""
        return self.net.predict_action_chunk(inputs, noise=noise[:, 0])

    def loss(self, inputs: dict[str, Any]) -> Tensor:
        """See `LeRobotPolicy.loss`; LeRobot 0.4 misspells the name of the padding."""
        return super().loss({**inputs, "actions_id_pad": inputs["action_is_pad"]})


def _small(side_px: int, vocabulary: int) -> dict[str, Any]:
    """Return the architecture of a SmolVLM of some three million weights."""
    from transformers import SmolVLMConfig

    made = SmolVLMConfig(
        text_config={
            "model_type": "llama", "vocab_size": vocabulary, "pad_token_id": 0, "hidden_size": 192,
            "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 48,
        },
        vision_config={
            "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
            "num_attention_heads": 4, "image_size": side_px, "patch_size": PATCH_PX,
        },
        scale_factor=SHUFFLE, image_token_id=0, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    return pretrained.as_json(made)


def _read(config: Config, folder: Path) -> dict[str, Any]:
    """Return the description of a model in a folder: everything but weights and tokenizer."""
    from transformers import AutoConfig

    made = pretrained.read_model(lambda: AutoConfig.from_pretrained(folder, **LOCAL), folder)
    if made.model_type != "smolvlm":
        raise ValueError(
            f"policy.model: {folder} holds a {made.model_type!r}, expected a SmolVLM; other "
            "families go with our own policy: --policy.type vla --policy.backbone.type vlm"
        )
    source = pretrained.model_source(config.model, folder)
    return {"architecture": pretrained.as_json(made), "source": source}


@contextmanager
def _described(architecture: dict[str, Any]) -> Iterator[None]:
    """Let LeRobot, which loads a model's configuration by name, get this description instead.

    A checkpoint then needs neither the model's folder nor the Hub. Of the processor LeRobot uses
    two token ids, of special tokens that its defaults leave out; a real one needs the package
    num2words.
    """
    from lerobot.policies.smolvla import smolvlm_with_expert as theirs
    from transformers import SmolVLMConfig

    made = SmolVLMConfig.from_dict(json.loads(json.dumps(architecture)))
    tokenizer = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)
    before = theirs.AutoConfig, theirs.AutoProcessor
    theirs.AutoConfig = SimpleNamespace(from_pretrained=lambda _: made)
    processor = SimpleNamespace(tokenizer=tokenizer)
    theirs.AutoProcessor = SimpleNamespace(from_pretrained=lambda _: processor)
    try:
        yield
    finally:
        theirs.AutoConfig, theirs.AutoProcessor = before


def _load_vlm_weights(vlm: nn.Module, folder: Path) -> None:
    """Load the weights in a folder of the layers that a vision-language model has."""
    from transformers import AutoModelForImageTextToText

    whole = pretrained.read_model(
        lambda: AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, **LOCAL
        ),
        folder,
    )
    weights = whole.state_dict()
    vlm.load_state_dict({name: weights[name] for name in vlm.state_dict()})
