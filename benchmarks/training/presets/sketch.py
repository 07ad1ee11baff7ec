"""Policies with the shapes of real ones and no numbers in them, and batches to count them with.

A backbone that is on no machine here is built from what `published` says of it. Its tokenizer and
prompt are stand-ins: one id per word, and as many ids around as are usual.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from benchmarks.training.presets import published
from sim import vec_env
from training.core.config import TrainConfig
from vla.contracts.specs import RobotSpec
from vla.contracts.types import EpisodeBatch, Observation
from vla.nn import families
from vla.nn.normalize import NormalizationStatistics
from vla.nn.pretrained import PretrainedConfig
from vla.nn.text import train_tokenizer
from vla.nn.vlm import HUB
from vla.policies.vla import VLAPolicy

TASK = "press the button that has the colour the lamp showed"
"""An instruction of the usual length."""
BETWEEN = 3
"""Ids between two pictures."""


@contextmanager
def weightless() -> Iterator[None]:
    """Let every parameter that is created meanwhile be on the meta device: a shape, no memory."""

    def bare(_: nn.Module, __: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return parameter
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(bare)
    try:
        yield
    finally:
        hook.remove()


def architecture(name: str) -> Any:
    """Return the configuration, of transformers, of a published model.

    Raises:
        ValueError: nothing is known of it.
    """
    from transformers import CONFIG_MAPPING

    plain = name.removeprefix(HUB)
    if plain not in published.MODELS:
        names = ", ".join(published.MODELS)
        raise ValueError(f"model: nothing is known of the sizes of {plain!r}; known are {names}")
    settings = copy.deepcopy(published.MODELS[plain].architecture)
    return CONFIG_MAPPING[settings["model_type"]].from_dict(settings)


def weights_of(name: str) -> dict[str, int]:
    """Return how many weights a published model has: `all`, as it was published, and `read`,
    without the head that predicts words.
    """
    from transformers import AutoModelForImageTextToText

    from vla.nn.transformers_versions import no_init_weights

    with weightless(), no_init_weights():
        whole: Any = AutoModelForImageTextToText.from_config(architecture(name))
    read = sum(weight.numel() for weight in whole.model.parameters())
    tied = published.MODELS[name.removeprefix(HUB)].tied
    return {"all": read + (0 if tied else whole.lm_head.weight.numel()), "read": read}


def described(
    config: PretrainedConfig, model_config: Any, views: int, words: int
) -> PretrainedConfig:
    """Return a backbone's settings with all that would be read from the model's folder.

    Args:
        config: Settings.
        model_config: Configuration of its model, as transformers has it.
        views: Cameras.
        words: Words of the tokenizer that stands in for the model's.
    """
    image = families.image_size(model_config, config.image_px)
    published_model = published.MODELS.get(config.model.removeprefix(HUB))
    first, after = published_model.around if published_model else published.CHAT
    description = {
        "architecture": {**model_config.to_dict(), "model_type": model_config.model_type},
        "before": [[1] * first, *[[1] * BETWEEN] * views], "after": [1] * after,
        "side": image.side, "tokens": image.tokens, "mean": [0.5] * 3, "std": [0.5] * 3,
        "vocabulary": words, "stored": True, "source": {},
    }  # fmt: skip
    return replace(config, description=description)


def policy(config: TrainConfig, model_config: Any = None, *, bare: bool = True) -> VLAPolicy:
    """Return the policy of a run.

    Args:
        config: The run's.
        model_config: Configuration of its pretrained model; of the published one by default.
        bare: Whether its parameters are shapes alone; small random numbers otherwise.

    Raises:
        ValueError: nothing is known of its pretrained model.
    """
    robot = vec_env.load_arm(config.task, config.robot)
    shape: Any = config.policy
    words = tokenizer()
    if isinstance(shape.backbone, PretrainedConfig):
        model_config = architecture(shape.backbone.model) if model_config is None else model_config
        backbone = described(
            shape.backbone, model_config, len(shape.cameras), words.get_vocab_size()
        )
        shape = replace(shape, backbone=backbone)
    count = len(robot.channels)
    zeros, ones = (0.0,) * count, (1.0,) * count
    scale = NormalizationStatistics(
        state_mean=zeros, state_std=ones, action_low=zeros, action_high=ones
    )
    if bare:
        with weightless():
            return shape.build(robot, scale, words)
    built: VLAPolicy = shape.build(robot, scale, words)
    if isinstance(shape.backbone, PretrainedConfig):
        _fill(built.backbone.net)
    return built


def tokenizer() -> Tokenizer:
    """Return a tokenizer that knows one instruction."""
    return train_tokenizer([TASK])


def _fill(net: nn.Module) -> None:
    """Give weights that were never written small numbers: what is left in memory may be slow."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(0.0, 0.02, generator=generator)


def batch(policy: VLAPolicy, config: TrainConfig, decisions: int) -> EpisodeBatch:
    """Return a batch of a run, grey pictures; of whole episodes, all of `decisions`."""
    algo: Any = config.algo
    rows = algo.batch_size
    length = 1 if algo.sampling == "frame" else decisions
    states = 1 if algo.sampling == "frame" else min(algo.states_per_episode, decisions)
    frames, channels = rows * length, len(policy.robot.channels)
    side = policy.config.backbone.image_px
    every = np.arange(frames).reshape(rows, length)
    query = np.sort(every[:, :: max(1, length // states)][:, :states].reshape(-1))
    chunk = (len(query), policy.config.chunk_size)
    arrays = {
        "images": np.full((frames, len(policy.views), side, side, 3), 128, np.uint8),
        "proprio": np.zeros((frames, channels), np.float32),
        "step_index": np.tile(np.arange(length, dtype=np.float32) * policy.n_action_steps, rows),
        "episode_index": np.repeat(np.arange(rows), length),
        "decision": np.tile(np.arange(length), rows),
        "loss_index": query,
        "actions": np.zeros((*chunk, channels), np.float32),
        "action_is_pad": np.zeros(chunk, np.bool_),
        "weight": np.ones(len(query), np.float32),
    }
    return EpisodeBatch(task=(TASK,) * rows, **{k: torch.from_numpy(v) for k, v in arrays.items()})


def observation(robot: RobotSpec) -> Observation:
    """Return what one arm sees: grey pictures."""
    camera, count = robot.cameras[0], len(robot.cameras)
    shape = (1, count, camera.height_px, camera.width_px, 3)
    return Observation(
        images=torch.full(shape, 128, dtype=torch.uint8), image_ok=torch.ones(1, count).bool(),
        proprio=torch.zeros(1, len(robot.channels)), task=(TASK,),
        time_s=torch.zeros(1, dtype=torch.float64),
    )  # fmt: skip


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors of a batch or an observation."""
    return [part for part in vars(value).values() if isinstance(part, Tensor)]
