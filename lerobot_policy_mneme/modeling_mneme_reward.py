"""Reward model `mneme`: what `vla reward-model train` wrote behind LeRobot's interface of 0.6.

`from_pretrained` opens the folder as it is. LeRobot does not train it: `vla reward-model train`
does.
"""

import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lerobot.configs.rewards import RewardModelConfig
from lerobot.rewards.pretrained import PreTrainedRewardModel
from torch import Tensor, nn

from lerobot_policy_mneme import batch as batches
from lerobot_policy_mneme.configuration_mneme_reward import MnemeConfig
from lerobot_policy_mneme.modeling_mneme import CONFIG
from reward_models.core import checkpoint
from reward_models.core.scorer import Scorer
from vla.contracts.types import Frames


class MnemeRewardModel(PreTrainedRewardModel):
    """Implements LeRobot's `PreTrainedRewardModel`."""

    config_class = MnemeConfig
    name: ClassVar[str] = "mneme"

    def __init__(self, config: MnemeConfig, folder: Path | None = None, **kwargs: Any) -> None:
        """Load the reward model of a folder, or of `config.pretrained_path`.

        Args:
            config: Its settings.
            folder: Where `vla reward-model train` wrote it.
            kwargs: Other arguments that LeRobot passes to every reward model.

        Raises:
            ValueError: no folder is given, or there is no reward model in it, or it has no cameras.
        """
        super().__init__(config)
        place = folder or config.pretrained_path
        if place is None:
            raise ValueError(
                "reward model mneme: got no folder, expected that of `vla reward-model train`; "
                "give --reward_model.pretrained_path"
            )
        self.folder = checkpoint.find(Path(place))
        self.scorer: Scorer = checkpoint.load(self.folder)
        network = self.scorer.reward_model
        if not isinstance(network, nn.Module):
            raise ValueError(f"{self.folder}: has no weights; LeRobot needs a trained reward model")
        self.network = network

    @classmethod
    def from_pretrained(
        cls, pretrained_name_or_path: str | Path, *, config: RewardModelConfig | None = None,
        **kwargs: Any,
    ) -> "MnemeRewardModel":  # fmt: skip
        """Return the reward model of a folder, in evaluation mode.

        Args:
            pretrained_name_or_path: Folder of `vla reward-model train`, or of `save_pretrained`.
            config: Its settings; those in the folder, or the defaults, if None.
            kwargs: Arguments of downloads, ignored: folders are local.

        Raises:
            ValueError: there is no reward model, or it is damaged.
        """
        folder = checkpoint.find(Path(pretrained_name_or_path))
        if config is None and (folder / CONFIG).is_file():
            config = RewardModelConfig.from_pretrained(folder)
        if not isinstance(config or MnemeConfig(), MnemeConfig):
            raise ValueError(f"{folder}: settings of another reward model, expected mneme")
        model = cls(config or MnemeConfig(device="cpu"), folder)
        return model.to(model.config.device).eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        """Copy the folder and add LeRobot's config.json."""
        for file in self.folder.iterdir():
            shutil.copyfile(file, save_directory / file.name)
        self.config.save_pretrained(save_directory)

    @torch.no_grad()
    def compute_reward(self, batch: batches.Batch) -> Tensor:
        """Return the score f32 [b] of the last frame of each window, given the frames before it.

        A window is an episode from its first frame on, or its latest part: only what it holds is
        remembered. The score is always finite: where the reward model would abstain in `vla label`,
        it is its best guess.

        Args:
            batch: Images [b, t, 3, h, w] or [b, 3, h, w], f32 in [0, 1], of the reward model's
                cameras, and `task`.

        Raises:
            ValueError: a camera or the instruction is missing, or sizes differ.
        """
        images = batches.views(batch, self.scorer.reward_model.cameras)
        if images.dim() == 5:
            images = images[:, None]
        rows, window, views = images.shape[:3]
        frames = Frames(
            images=images.flatten(0, 1).cpu().numpy(),
            image_ok=np.ones((rows * window, views), np.bool_),
            time_s=np.tile(np.arange(window) / self.config.fps, rows),
            episode_index=np.repeat(np.arange(rows), window),
        )
        curves = self.scorer.curves(frames, batches.instructions(batch, rows))
        if self.config.reward_output == "success":
            scores = self.scorer.progress(curves).done_prob
        else:
            scores = curves.value
        return torch.as_tensor(scores[window - 1 :: window], device=self.config.device)
