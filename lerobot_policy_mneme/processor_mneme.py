"""LeRobot's processors around policy `mneme`: batch axis and devices; values stay unchanged.

Normalisation steps exist because fine-tuning names them; by `normalization_mapping` they do
nothing.
"""

from typing import Any

from lerobot.configs.types import PolicyFeature
from lerobot.processor import (
    AddBatchDimensionProcessorStep,
    DeviceProcessorStep,
    NormalizerProcessorStep,
    PolicyAction,
    PolicyProcessorPipeline,
    RenameObservationsProcessorStep,
    UnnormalizerProcessorStep,
)
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from lerobot.utils.constants import (
    POLICY_POSTPROCESSOR_DEFAULT_NAME,
    POLICY_PREPROCESSOR_DEFAULT_NAME,
)

from lerobot_policy_mneme.configuration_mneme import MnemeConfig

Features = dict[str, PolicyFeature]
Pipelines = tuple[
    PolicyProcessorPipeline[dict[str, Any], dict[str, Any]],
    PolicyProcessorPipeline[PolicyAction, PolicyAction],
]


def make_mneme_pre_post_processors(
    config: MnemeConfig, dataset_stats: dict[str, dict[str, Any]] | None = None
) -> Pipelines:
    """Return the pipelines of batches before, and of actions after the policy; statistics, which
    LeRobot passes for every policy, are ignored.
    """
    inputs, outputs = config.input_features or {}, config.output_features or {}
    return pipelines(config, inputs, outputs, config.normalization_mapping)


def pipelines(config: Any, inputs: Features, outputs: Features, norm_map: Any) -> Pipelines:
    """Return pipelines for a configuration's device, and features that may be normalised."""
    before = [
        RenameObservationsProcessorStep(rename_map={}),
        AddBatchDimensionProcessorStep(),
        DeviceProcessorStep(device=config.device),
        NormalizerProcessorStep(features={**inputs, **outputs}, norm_map=norm_map, stats=None),
    ]
    after = [
        UnnormalizerProcessorStep(features=outputs, norm_map=norm_map, stats=None),
        DeviceProcessorStep(device="cpu"),
    ]
    return (
        PolicyProcessorPipeline(steps=before, name=POLICY_PREPROCESSOR_DEFAULT_NAME),
        PolicyProcessorPipeline(
            steps=after, name=POLICY_POSTPROCESSOR_DEFAULT_NAME,
            to_transition=policy_action_to_transition, to_output=transition_to_policy_action,
        ),
    )  # fmt: skip
