"""Policy `mneme`: `vla.policies.vla` behind LeRobot's policy interface.

Its folder is a checkpoint plus LeRobot's config.json and processors: `vla eval`, `vla export` and
LeRobot's commands open the same files.
"""

import dataclasses
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from lerobot_policy_mneme import batch as batches
from lerobot_policy_mneme.configuration_mneme import MnemeConfig, update_from_vla, vla_config
from lerobot_policy_mneme.origin import check_channels, new_policy
from lerobot_policy_mneme.player import Player
from vla import checkpoint
from vla.checkpoint import Provenance
from vla.policies.vla import VLAPolicy

CONFIG = "config.json"
HUB = ("cache_dir", "force_download", "local_files_only", "revision", "token")
"""LeRobot's arguments of downloads."""


class MnemePolicy(PreTrainedPolicy):
    """Implements LeRobot's `PreTrainedPolicy`."""

    config_class = MnemeConfig
    name: ClassVar[str] = "mneme"

    def __init__(
        self, config: MnemeConfig, dataset_stats: Any = None, dataset_meta: Any = None,
        loaded: tuple[VLAPolicy, Provenance] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Build a policy for a data set, or wrap a loaded one.

        Args:
            config: Its settings; open ones are filled in.
            dataset_stats: Statistics of the data set's columns; those of `dataset_meta` if None.
            dataset_meta: The training data set; not needed to act.
            loaded: A policy and its provenance.
            kwargs: Other arguments that LeRobot passes to every policy.

        Raises:
            ValueError: there is neither data set nor policy, or they do not fit the settings.
        """
        super().__init__(config)
        config.validate_features()
        if loaded is None:
            if dataset_meta is None:
                raise ValueError(
                    "policy mneme: got neither a data set nor a policy; give "
                    "--policy.path, the folder of a trained one"
                )
            stats = dataset_meta.stats if dataset_stats is None else dataset_stats
            loaded = new_policy(config, dataset_meta, stats)
            update_from_vla(config, loaded[0].config)
        self.policy, self.origin = loaded
        check_agreement(config, self.policy)
        self.starts = None
        if dataset_meta is not None:
            check_channels(self.policy.robot, dataset_meta)
            if dataset_meta.episodes is not None:  # a data set that is not recorded yet has none
                self.starts = np.asarray(dataset_meta.episodes["dataset_from_index"])
        self.player = Player(self.policy, config.noise_seed)

    @classmethod
    def from_pretrained(
        cls, pretrained_name_or_path: str | Path, *, config: PreTrainedConfig | None = None,
        strict: bool = True, **kwargs: Any,
    ) -> "MnemePolicy":  # fmt: skip
        """Return the policy of a folder, or of a repository of the Hub, in evaluation mode.

        Args:
            pretrained_name_or_path: Result of `save_pretrained` or `vla lerobot pack`.
            config: Its settings; those in the folder if None.
            strict: Ignored: weights always have to fit.
            kwargs: As `__init__`, and arguments of downloads.

        Raises:
            ValueError: a file is missing or damaged, or settings and policy do not agree.
        """
        hub = {name: kwargs.pop(name) for name in HUB if name in kwargs}
        folder = Path(pretrained_name_or_path)
        if not folder.is_dir():
            folder = downloaded(str(pretrained_name_or_path), hub)
        if config is None:
            config = PreTrainedConfig.from_pretrained(folder)
        if not isinstance(config, MnemeConfig):
            raise ValueError(f"{folder}: a policy of type {config.type}, expected mneme")
        loaded = checkpoint.load_vla(folder, "LeRobot's policy mneme")
        policy = cls(config, loaded=loaded, **kwargs)
        return policy.to(config.device).eval()

    def _save_pretrained(
        self, save_directory: Path, state_dict: dict[str, Tensor] | None = None
    ) -> None:
        """Write checkpoint and LeRobot's config.json, each file whole or not at all.

        `state_dict` holds the weights where no process has all of them (FSDP, LeRobot 0.6).
        """
        part = save_directory / f".mneme-{os.getpid()}"
        weights, add_files = self.policy.state_dict(), self.config.save_pretrained
        if state_dict is not None:
            weights = {name: state_dict[f"policy.{name}"] for name in weights}
        checkpoint.save(self.policy, self.origin, part, weights, add_files)
        for name in (*checkpoint.FILES, CONFIG):
            (part / name).replace(save_directory / name)
        shutil.rmtree(part)

    def get_optim_params(self) -> Any:
        """Return parameters in two groups: weight decay is for matrices alone."""
        learned = [p for p in self.policy.parameters() if p.requires_grad]
        matrices = [p for p in learned if p.dim() >= 2]
        others = [p for p in learned if p.dim() < 2]
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]

    def forward(
        self, batch: batches.Batch, reduction: Literal["mean", "none"] = "mean"
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the cloning loss of `vla train`: the mean, or f32 [b] with "none".

        Raises:
            ValueError: the batch lacks something, or the policy was built without a data set.
        """
        if self.starts is None:
            raise ValueError(
                "policy mneme: got a training batch without dataset_meta; build it for a data set"
            )
        samples = batches.episodes(batch, self.policy, self.starts)
        context = self.policy.contexts(samples)
        clean = self.policy.normalizer.action(samples.actions)
        loss = self.policy.head.loss(clean, samples.action_is_pad, context, self._random())
        mean = loss.mean()
        return (mean if reduction == "mean" else loss), {"loss": float(mean.detach())}

    def update(self) -> None:
        """Count an update; LeRobot calls this after each."""
        self.origin = replace(self.origin, step=self.origin.step + 1)

    def reset(self) -> None:
        """Start new episodes: memory is empty, no action is planned."""
        self.player.reset()

    @torch.no_grad()
    def select_action(self, batch: batches.Batch, **kwargs: Any) -> Tensor:
        """Return the next action f32 [b, u], position targets in physical units.

        Raises:
            ValueError: a camera, the instruction or a row is missing.
        """
        return self.player.action(batch)

    @torch.no_grad()
    def predict_action_chunk(self, batch: batches.Batch, **kwargs: Any) -> Tensor:
        """Return the chunk f32 [b, k, u] of a decision, written to memory; see `select_action`."""
        return self.player.chunk(batch)

    def _random(self) -> torch.Generator:
        """Return a generator seeded by torch's global one, which LeRobot seeds and saves."""
        seed = int(torch.randint(2**62, ()))
        return torch.Generator(self.policy.device).manual_seed(seed)


def check_agreement(config: MnemeConfig, policy: VLAPolicy) -> None:
    """Raise ValueError unless settings and policy agree."""
    wanted = vla_config(config, policy.config.cameras)
    for field in dataclasses.fields(policy.config):
        name = field.name
        got, expected = getattr(wanted, name), getattr(policy.config, name)
        if got != expected:
            raise ValueError(
                f"{name}: the settings say {got}, the policy in the folder is trained for "
                f"{expected}; leave the setting out, or train again"
            )


def downloaded(repository: str, hub: dict[str, Any]) -> Path:
    """Return the local copy of a repository of the Hub."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(repository, allow_patterns=[*checkpoint.FILES, CONFIG], **hub))
