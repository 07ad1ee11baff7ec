"""Policy `mneme`: our policy with memory behind LeRobot's methods; it computes nothing itself.

Its folder is one of our checkpoints with LeRobot's config.json and processors beside: `vla eval`,
`vla export` and LeRobot's commands open the same files.
"""

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
from lerobot_policy_mneme.configuration_mneme import MnemeConfig, to_lerobot_, to_ours
from lerobot_policy_mneme.origin import check_channels, fresh
from lerobot_policy_mneme.player import Player
from vla import checkpoint
from vla.checkpoint import Provenance
from vla.policies.vla import VLAPolicy

CONFIG = "config.json"
HUB = ("cache_dir", "force_download", "local_files_only", "revision", "token")
"""What of LeRobot's arguments concerns downloads."""


class MnemePolicy(PreTrainedPolicy):
    """Satisfies LeRobot's policies."""

    config_class = MnemeConfig
    name: ClassVar[str] = "mneme"

    def __init__(
        self, config: MnemeConfig, dataset_stats: Any = None, dataset_meta: Any = None,
        loaded: tuple[VLAPolicy, Provenance] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Make a fresh policy for a data set, or wrap one that was loaded.

        Args:
            config: Its settings; what they leave open is filled in.
            dataset_stats: Figures of the data set's columns; those of `dataset_meta` if None.
            dataset_meta: The data set it learns from; not needed to act.
            loaded: A policy and where it comes from.
            kwargs: Whatever else LeRobot hands to every policy.

        Raises:
            ValueError: there is neither data set nor policy, or they do not fit the settings.
        """
        super().__init__(config)
        config.validate_features()
        if loaded is None:
            if dataset_meta is None:
                raise ValueError(
                    "policy mneme: got neither a data set to learn from nor a policy; give "
                    "--policy.path, the folder of a trained one"
                )
            stats = dataset_meta.stats if dataset_stats is None else dataset_stats
            loaded = fresh(config, dataset_meta, stats)
            to_lerobot_(config, loaded[0].config)
        self.policy, self.origin = loaded
        check_agreement(config, self.policy)
        self.starts = None
        if dataset_meta is not None:
            check_channels(self.policy.robot, dataset_meta)
            if dataset_meta.episodes is not None:  # one that is yet to be recorded has none
                self.starts = np.asarray(dataset_meta.episodes["dataset_from_index"])
        self.player = Player(self.policy, config.noise_seed)

    @classmethod
    def from_pretrained(
        cls, pretrained_name_or_path: str | Path, *, config: PreTrainedConfig | None = None,
        strict: bool = True, **kwargs: Any,
    ) -> "MnemePolicy":  # fmt: skip
        """Return the policy of a folder, or of a repository of the Hub, in evaluation mode.

        Args:
            pretrained_name_or_path: What `save_pretrained` or `vla lerobot pack` wrote.
            config: Its settings; those in the folder if None.
            strict: Weights always have to fit.
            kwargs: As `__init__`, and how to download.

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
        loaded = checkpoint.load_ours(folder, "LeRobot's policy mneme")
        policy = cls(config, loaded=loaded, **kwargs)
        return policy.to(config.device).eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write our checkpoint and LeRobot's config.json, each file whole or not at all."""
        part = save_directory / f".mneme-{os.getpid()}"
        checkpoint.save(
            self.policy,
            self.origin,
            part,
            self.policy.state_dict(),
            self._write_settings,
        )
        for name in (*checkpoint.FILES, CONFIG):
            (part / name).replace(save_directory / name)
        shutil.rmtree(part)

    def _write_settings(self, folder: Path) -> None:
        self.config.save_pretrained(folder)

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
            ValueError: the batch lacks something, or no data set was given to learn from.
        """
        if self.starts is None:
            raise ValueError("policy mneme: got a batch to learn from and no dataset_meta before")
        seen = batches.episodes(batch, self.policy, self.starts)
        context = self.policy.contexts(seen)
        clean = self.policy.normalizer.action(seen.actions)
        loss = self.policy.head.loss(clean, seen.pad, context, self._random())
        mean = loss.mean()
        return (mean if reduction == "mean" else loss), {"loss": float(mean.detach())}

    def update(self) -> None:
        """Count an update; LeRobot calls this after each."""
        self.origin = replace(self.origin, step=self.origin.step + 1)

    def reset(self) -> None:
        """Begin new episodes: memory is empty, no action is planned."""
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
        """Return the chunk f32 [b, k, u] of a decision, which is also written to memory.

        Raises:
            ValueError: as `select_action`.
        """
        return self.player.chunk(batch)

    def _random(self) -> torch.Generator:
        """Return a source that follows from torch's own: LeRobot seeds and saves that one."""
        seed = int(torch.randint(2**62, ()))
        return torch.Generator(self.policy.device).manual_seed(seed)


def check_agreement(config: MnemeConfig, policy: VLAPolicy) -> None:
    """Raise ValueError unless settings and policy are of each other."""
    wanted = to_ours(config, policy.config.cameras)
    for name in ("chunk", "execute", "cameras", "backbone", "memory", "head", "steering"):
        got, expected = getattr(wanted, name), getattr(policy.config, name)
        if got != expected:
            raise ValueError(
                f"{name}: the settings say {got}, the policy in the folder is trained for "
                f"{expected}; leave the setting out, or train anew"
            )


def downloaded(repository: str, hub: dict[str, Any]) -> Path:
    """Return the local copy of a repository of the Hub."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(repository, allow_patterns=[*checkpoint.FILES, CONFIG], **hub))
