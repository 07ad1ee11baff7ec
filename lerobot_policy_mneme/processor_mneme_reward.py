"""LeRobot's processors around reward model `mneme`: batch axis and devices, nothing else."""

from typing import Any

from lerobot_policy_mneme.configuration_mneme_reward import MnemeConfig
from lerobot_policy_mneme.processor_mneme import Pipelines, pipelines


def make_mneme_pre_post_processors(
    config: MnemeConfig, dataset_stats: dict[str, dict[str, Any]] | None = None
) -> Pipelines:
    """Return the pipelines before and after the reward model; statistics are ignored."""
    return pipelines(config, {}, {}, {})
