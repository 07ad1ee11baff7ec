"""LeRobot's SmolVLA (Shukor et al. 2025) as a baseline: SmolVLM and an expert that matches flows.

The vision-language model comes from a folder of this machine, or has random weights and small
sizes; LeRobot's own SmolVLA checkpoints, which fix the widths of state and action, are not read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal

import torch
import tyro
from tokenizers import Tokenizer
from torch import Tensor, nn

from vla.contracts.config import check_least
from vla.contracts.specs import RobotSpec
from vla.nn import pretrained
from vla.nn.vlm import LOCAL, locate
from vla.normalize import Statistics
from vla.policies._lerobot import LeRobotConfig, LeRobotPolicy

RANDOM = "random"
"""The model that is made on the spot."""
PUBLISHED = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
"""The model that LeRobot takes."""
WORDS = 48
"""Most words of an instruction, as in LeRobot."""
PATCH_PX, SHUFFLE = 8, 3
"""Of the model made on the spot: side of a patch, and patches along a side of a token."""


@dataclass(frozen=True, kw_only=True)
class Config(LeRobotConfig):
    """Settings of SmolVLA: LeRobot's, with the widths of state and action those of the arm."""

    model: str = ""
    """Folder of a SmolVLM; OWNER/NAME in Hugging Face's cache; hub:OWNER/NAME to download it; or
    random: a small one with random weights."""
    learns: Literal["expert", "all"] = "expert"
    """What learns: the expert (LeRobot's default), or the vision-language model as well, as one
    with random weights must."""
    layers: int = 16
    """Layers of the language model that are kept; 0 for all."""
    steps: int = 10
    """Denoising steps of a decision."""
    given: Annotated[dict[str, Any] | None, tyro.conf.Suppress] = None
    """What was read from the model's folder; None before."""

    preset: ClassVar[Mapping[str, float]] = {"lr": 1e-4, "weight_decay": 1e-10, "clip": 10.0}
    """LeRobot's."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        super().__post_init__()
        check_least(self, layers=0, steps=1)
        if self.model == RANDOM and self.image_px % (PATCH_PX * SHUFFLE):
            raise ValueError(
                f"policy.image_px: got {self.image_px}, expected a multiple of "
                f"{PATCH_PX * SHUFFLE} with --policy.model {RANDOM}"
            )

    @property
    def source(self) -> dict[str, Any]:
        """See `LeRobotConfig`; empty until the model was read."""
        return {} if self.given is None else self.given["source"]

    def folder(self) -> Path:
        """Return where the model is.

        Raises:
            ValueError: none was named, or it is not there.
        """
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
        """Return the model's own tokenizer; one of these instructions if its weights are random."""
        if self.model == RANDOM:
            return super().tokenizer(instructions)
        return pretrained.bare_tokenizer(self.folder())

    def build(self, robot: RobotSpec, statistics: Statistics, tokenizer: Tokenizer) -> "SmolVLA":
        """Return a policy; with pretrained weights, unless a checkpoint has them.

        Raises:
            ValueError: the model is missing or no SmolVLM, or the robot has no such camera.
        """
        if self.given is not None:
            return SmolVLA(self, robot, statistics, tokenizer)
        if self.model == RANDOM:
            given = {
                "architecture": _small(self.image_px, tokenizer.get_vocab_size()),
                "source": {},
            }
            return SmolVLA(replace(self, given=given), robot, statistics, tokenizer)
        folder = self.folder()
        policy = SmolVLA(replace(self, given=_read(self, folder)), robot, statistics, tokenizer)
        _fill_(policy.vlm, folder)
        return policy


class SmolVLA(LeRobotPolicy):
    """See the module's sentence."""

    pictures = False

    def __init__(
        self, config: Config, robot: RobotSpec, statistics: Statistics, tokenizer: Tokenizer
    ) -> None:
        super().__init__(config, robot, statistics, tokenizer)
        from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
        from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

        architecture: dict[str, Any] = (config.given or {})["architecture"]
        count, side = len(robot.channels), int(architecture["vision_config"]["image_size"])
        frozen = config.learns == "expert"
        theirs = SmolVLAConfig(
            **config.shape(robot), chunk_size=config.chunk, n_action_steps=config.execute,
            max_state_dim=count, max_action_dim=count, resize_imgs_with_padding=(side, side),
            num_steps=config.steps, freeze_vision_encoder=frozen, train_expert_only=frozen,
            num_vlm_layers=config.layers, vlm_model_name="policy.json",
        )  # fmt: skip
        with _described(architecture):
            self.net = SmolVLAPolicy(theirs)
        self.vlm.lm_head = nn.Identity()  # no word is ever predicted

    @property
    def vlm(self) -> nn.Module:
        """The vision-language model."""
        return self.net.model.vlm_with_expert.vlm

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels); row 0 is read."""
        return self.config.steps + 1, self.config.chunk, len(self.robot.channels)

    def seen(self, images: Tensor, proprio: Tensor, task: tuple[str, ...]) -> dict[str, Any]:
        """See `LeRobotPolicy.seen`; instructions end with a new line, as in LeRobot."""
        words = self.text(tuple(f"{one}\n" for one in task), self.device)[:, :WORDS]
        return {
            **super().seen(images, proprio, task),
            "observation.language.tokens": words,
            "observation.language.attention_mask": words != 0,
        }

    def decide(self, seen: dict[str, Any], noise: Tensor) -> Tensor:
        """See `LeRobotPolicy.decide`: Euler steps from the noise of row 0."""
        return self.net.predict_action_chunk(seen, noise=noise[:, 0])

    def loss(self, seen: dict[str, Any]) -> Tensor:
        """See `LeRobotPolicy.loss`; LeRobot 0.4.4 misspells the name of the padding."""
        return super().loss({**seen, "actions_id_pad": seen["action_is_pad"]})


def _small(side_px: int, words: int) -> dict[str, Any]:
    """Return the architecture of a SmolVLM of some three million weights."""
    from transformers import SmolVLMConfig

    made = SmolVLMConfig(
        text_config={
            "model_type": "llama", "vocab_size": words, "pad_token_id": 0, "hidden_size": 192,
            "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 48,
        },
        vision_config={
            "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
            "num_attention_heads": 4, "image_size": side_px, "patch_size": PATCH_PX,
        },
        scale_factor=SHUFFLE, image_token_id=0, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    return _as_json(made)


def _read(config: Config, folder: Path) -> dict[str, Any]:
    """Return everything that is needed of a model's folder but its weights and its words."""
    from transformers import AutoConfig

    made = pretrained.opened(lambda: AutoConfig.from_pretrained(folder, **LOCAL), folder)
    if made.model_type != "smolvlm":
        raise ValueError(
            f"policy.model: {folder} holds a {made.model_type!r}, expected a SmolVLM; other "
            "families go with our own policy: --policy.type vla --policy.backbone.type vlm"
        )
    source = pretrained.source_of(config.model, folder)
    return {"architecture": _as_json(made), "source": source}


def _as_json(made: Any) -> dict[str, Any]:
    """Return a configuration of transformers as it will be read from policy.json."""
    return {**json.loads(made.to_json_string()), "model_type": made.model_type}


@contextmanager
def _described(architecture: dict[str, Any]) -> Iterator[None]:
    """Let LeRobot, which looks for a model by its name, find this description instead.

    A checkpoint then needs neither the model's folder nor the hub. Of the processor LeRobot keeps
    two token ids, for special tokens that its defaults leave out; to make one takes a package,
    num2words, that nothing else needs.
    """
    from lerobot.policies.smolvla import smolvlm_with_expert as theirs
    from transformers import SmolVLMConfig

    made = SmolVLMConfig.from_dict(json.loads(json.dumps(architecture)))
    words = SimpleNamespace(fake_image_token_id=0, global_image_token_id=0)
    before = theirs.AutoConfig, theirs.AutoProcessor
    theirs.AutoConfig = SimpleNamespace(from_pretrained=lambda _: made)
    processor = SimpleNamespace(tokenizer=words)
    theirs.AutoProcessor = SimpleNamespace(from_pretrained=lambda _: processor)
    try:
        yield
    finally:
        theirs.AutoConfig, theirs.AutoProcessor = before


def _fill_(vlm: nn.Module, folder: Path) -> None:
    """Give a vision-language model the weights in a folder, those of layers that it has."""
    from transformers import AutoModelForImageTextToText

    whole = pretrained.opened(
        lambda: AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, **LOCAL
        ),
        folder,
    )
    weights = whole.state_dict()
    vlm.load_state_dict({name: weights[name] for name in vlm.state_dict()})
