"""Names of older formats and what they are called now: the one place that knows old names.

`vla.contracts.migrate` reads with these tables what an older release wrote. The tables of flags,
verbs and ROS parameters give the answer to an old name on the command line.
"""

from collections.abc import Mapping
from typing import Any

_HEAD = {
    "train_timesteps": "num_train_timesteps", "steps": "num_inference_steps",
    "prediction": "prediction_type", "draws": "num_noise_samples", "tuned": "ft_denoising_steps",
    "prefix": "max_prefix_len", "min_std": "min_sampling_denoising_std",
    "clip": "clip_sample_range",
}  # fmt: skip
_TIMEOUTS = {"open_s": "startup_timeout_s", "call_s": "step_timeout_s"}
_BACKBONE = {
    "tune": "finetune_mode", "rank": "lora_rank", "checkpointing": "gradient_checkpointing",
    "cells": "pooled_tokens_per_side", "layer": "num_vlm_layers",
    "look_layer": "vision_feature_layer", "sharpness": "softmax_inverse_temperature",
}  # fmt: skip
_POLICY = {"chunk": "chunk_size", "execute": "n_action_steps"}
_SAMPLER = {
    "episodes": "batch_episodes", "past": "memory_frames", "spots": "anchor_frames",
    "mates": "pair_frames", "idle": "static_frame_weight", "mate_s": "max_pair_offset_s",
    "foreign": "mismatched_instruction_prob", "rewound": "rewind_prob", "shown": "reference_prob",
    "untold": "drop_instruction_prob", "recoloured": "recolor_prob", "dark": "view_dropout",
    "shift_px": "random_shift_px", "gain": "brightness_jitter",
}  # fmt: skip
_DPPO = {
    "episodes": "batch_episodes", "tuned": "ft_denoising_steps",
    "min_std": "min_sampling_denoising_std", "trace": "gae_lambda",
    "toward_noise": "gamma_denoising", "clip": "clip_ploss_coef",
    "clip_least": "clip_ploss_coef_base", "clip_growth": "clip_ploss_coef_rate",
    "warmup": "n_critic_warmup_itr", "value": "vf_coef", "clone": "bc_loss_coeff",
    "cloned": "bc_batch_size",
}  # fmt: skip
_OGPO = {
    "critics": "num_critics", "width": "critic_hidden_dim", "critic_rate": "critic_lr",
    "critic_steps": "utd_ratio", "critic_batch": "critic_batch_size",
    "critic_follow": "critic_tau", "warmup": "critic_warmup_steps", "policy": "actor_loss_coef",
    "episodes": "batch_episodes", "queries": "states_per_episode",
    "group": "group_size", "min_std": "min_sampling_denoising_std", "clip": "clip_ploss_coef",
    "follow": "tau", "next_chunks": "num_target_action_samples", "clone": "bc_loss_coeff",
    "cloned": "bc_batch_size",
}  # fmt: skip

CONFIGS: dict[str, dict[str, str]] = {
    # vla
    "vla.policies.vla.Config": _POLICY,
    "vla.policies._lerobot.LeRobotConfig": _POLICY,
    "vla.heads.diffusion.Config": _HEAD,
    "vla.heads.flow_matching.Config": _HEAD,
    "vla.nn.backbone.BackboneConfig": {**_BACKBONE, "given": "description"},
    "vla.policies.smolvla.Config": {
        "learns": "train_expert_only", "steps": "num_inference_steps",
        "given": "description",
    },
    "vla.policies.lerobot_diffusion.Config": {
        "widths": "down_dims", "steps": "num_inference_steps",
    },
    # training
    "training.core.config.RunConfig": {"optimiser": "optimizer"},
    "training.core.config.TrainConfig": {
        "vision_from": "pretrained_vision_encoder", "features": "cache_frozen_features",
    },
    "training.core.optimizer.OptimizerConfig": {
        "warmup": "warmup_steps", "final_share": "min_lr_ratio", "clip": "grad_clip_norm",
        "beside": "value_lr_multiplier", "ema": "ema_decay",
    },
    "training.algos.bc.Config": {
        "unit": "sampling", "batch": "batch_size", "queries": "states_per_episode",
        "phases": "num_phase_offsets", "still_weight": "static_frame_weight",
        "short_share": "short_fraction", "shift_px": "random_shift_px",
        "gain": "brightness_jitter",
    },
    "training.algos.distill.Config": {"batch": "batch_size", "draws": "num_noise_samples"},
    "training.reward_model.config.RewardModelConfig": {"critic": "reward_model"},
    "training.algos.reward_model.Config": {
        "drawing": "sampler", "aiming": "goal_pretrain_fraction", "aimed": "goal_pretrain_batch",
    },
    "training.reward_model.batches.SamplerConfig": _SAMPLER,
    "training.reward_model.datasets.Sizes": {"instead": "episodes_per_task"},
    # training/rl
    "training.rl.config.OnlineRLConfig": {
        "rounds": "n_iterations", "episodes": "episodes_per_iteration", "environments": "num_envs",
        "preserve": "bc_anchor", "earlier": "max_prior_episodes", "shift_px": "random_shift_px",
        "gain": "brightness_jitter",
        "help.by": "intervention.source", "help.attended": "intervention.fraction",
        "help.patience": "intervention.patience", "help.port": "intervention.port",
        "help.answer_s": "intervention.response_timeout_s",
        "help.led": "jump_start.fraction", "help.lead": "jump_start.max_guide_steps",
        "help.curriculum": "jump_start.curriculum", "help.retried": "retry.fraction",
        "help.stop": "early_termination.patience",
    },
    "training.rl.config.RuntimeConfig": {
        "processes": "distributed", "lag": "max_policy_lag", "silent_s": "heartbeat_timeout_s",
    },
    "training.algos.filtered_bc.Config": {"batch": "batch_size", "queries": "states_per_episode"},
    "training.algos.dppo.Config": _DPPO,
    "training.algos.ogpo.Config": _OGPO,
    # reward_models
    "reward_models.core.checkpoint.Description": {"critic": "reward_model"},
    "reward_models.models.pairwise.Config": {"aims": "goal_width"},
    "reward_models.models.vlm.Config": {"batch": "batch_size"},
    # deploy
    "deploy.runtime.artefact.Manifest": {
        **_POLICY, "steps": "num_inference_steps", "prefix": "max_prefix_len",
        "late": "ft_denoising_steps",
    },
    # sim
    "sim.backends.isaac_gym.Config": {**_TIMEOUTS, "pictures": "renderer"},
    "sim.backends.isaac_lab.Config": {**_TIMEOUTS, "pictures": "renderer"},
    "sim.backends.newton.Config": {**_TIMEOUTS, "pictures": "renderer"},
    "sim.backends.process.Config": _TIMEOUTS,
    "sim.backends.ros.Config": {
        "silent_s": "command_timeout_s", "blind_s": "joint_state_timeout_s",
        "goes_on": "auto_resume_stages",
    },
    "sim.suites.isaac_lab_env.Config": {"open_s": "startup_timeout_s"},
    "sim.tasks.tabletop.Config": {"goal": ""},
    "training.data.demos.DemosConfig": {"looks": "visual_shift"},
}  # fmt: skip
"""Fields of a configuration by "module.Class": old path to new path. A dot leads into a group, on
either side; an empty new path drops the field."""

STAGES = {
    "silence": "command_timeout", "gone": "policy_died", "blind": "joint_state_timeout",
    "stuck": "tracking_error", "start-jump": "start_deviation",
}  # fmt: skip
"""Stages of the safety node, old to new."""

VALUES: dict[str, dict[str, dict[Any, Any]]] = {
    "vla.policies.smolvla.Config": {"train_expert_only": {"expert": True, "all": False}},
    "training.core.config.TrainConfig": {
        "cache_frozen_features": {"encode": False, "cache": True},
    },
    "training.algos.bc.Config": {"sampling": {"episodes": "sequence", "windows": "frame"}},
    "deploy.reward_model.artefact.RewardModelManifest": {"kind": {"critic": "reward_model"}},
    "training.rl.config.OnlineRLConfig": {
        "reward": {
            "oracle": "dense_oracle", "critic": "learned", "critic+sparse": "learned+sparse",
        },
    },
    "sim.backends.ros.Config": {"auto_resume_stages": STAGES},
    "training.data.demos.DemosConfig": {"visual_shift": {"usual": "none", "surface": "colour"}},
}  # fmt: skip
"""Values, or items, of a configuration's fields by "module.Class" and new path: old to new."""

PLUGINS: dict[str, dict[str, str]] = {
    "training.algos": {"critic": "reward_model"},
}
"""Registry keys by plug-in folder: old key to new key."""

DSRL = ("dsrl", "steer")
"""Registry keys of an algorithm that was removed."""

ADDED = (
    "co_tasks", "co_fraction", "backbone.text_encoder", "backbone.queries",
    "algo.grounding_loss_coef", "demos.recovery_fraction",
    "co_robots", "policy.max_action_dim", "frames_on_device",
    "algo.co_num_phase_offsets", "pretrained_path", "algo.retention", "losses.grounding",
    "algo.stochastic_denoising", "algo.num_failures", "retry.offset_std_m", "memory.time",
    "task.random_distractors",
)  # fmt: skip
"""Settings of runs that came later; their defaults are what a run before them did. Some have
the name of the group that they stand in: an older setting elsewhere had the same name."""
NOISE_ACTOR = ("noise_actor", "steering")
"""Names of its settings in a policy's configuration; none of them counts with a width of 0."""

DSRL_REMOVED = (
    "DSRL was removed in this release, because it never improved a policy; use the policy that "
    "the run started from, which is unchanged, or the release that wrote the run"
)

WEIGHTS: dict[str, str] = {
    "head.denoiser.settled": "head.denoiser.prefix_embedding",
    "head.late.settled": "head.late.prefix_embedding",
}  # fmt: skip
"""Parts of names in state dicts, old to new; a part begins at the start of a name or after a dot,
and longer ones are renamed first."""

TRAINER: dict[str, str] = {**WEIGHTS, "beside.": "value_net."}
"""Parts of names in trainer.safetensors, old to new; they hold state dicts of the policy."""

_DIAGNOSTICS = {
    "health/spread": "diagnostics/action_std", "health/return_std": "diagnostics/return_std",
    "health/gradient": "diagnostics/grad_norm_ratio", "health/dormant": "diagnostics/dormant_frac",
    "health/staleness": "diagnostics/staleness", "health/kl": "diagnostics/kl",
}  # fmt: skip

METRICS: dict[str, str] = {
    # reward models
    "difference": "difference_loss", "trend": "trend_loss", "done": "done_loss",
    "match": "match_loss", "preference": "preference_loss", "goal": "goal_loss",
    "corrected": "corrected_loss", "eval/order": "eval/score",
    "eval/final_order": "eval/final_score",
    # online RL
    "practice/episodes": "rollout/episodes", "practice/success": "rollout/success",
    "practice/claimed": "rollout/predicted_success", "practice/right": "rollout/success_accuracy",
    "practice/return": "rollout/return", "practice/agreement": "rollout/reward_spearman",
    "practice/alarm": "rollout/reward_spearman_alarm",
    "practice/control_steps": "rollout/control_steps",
    "practice/helped": "rollout/intervention_rate",
    "practice/attended": "rollout/intervention_episodes",
    "practice/retried": "rollout/retry_episodes",
    "practice/foreign": "rollout/mismatched_success",
    "practice/foreign_return": "rollout/mismatched_return",
    "practice/behind": "rollout/policy_lag",
    "practice/preserves_policy": "rollout/bc_anchor_is_policy", "clone": "bc_loss",
    **_DIAGNOSTICS,
    **{f"{old}_alarm": f"{new}_alarm" for old, new in _DIAGNOSTICS.items()},
}  # fmt: skip
"""Names in metrics.jsonl, old to new."""

EXPERIENCE: dict[str, str] = {"action_source": "by", "decision_index": "at"}
"""Arrays and attributes of recorded experience, new to old: they are read by their new name."""

LABELS: dict[str, str] = {"critic": "reward_model"}
"""Keys of a labelled data set's provenance, old to new."""

VERBS: dict[str, str] = {
    "critic": "reward-model", "up": "ros launch", "parity": "verify-export",
    "model tiny": "bench tiny-model",
}  # fmt: skip
"""Verbs of `vla`, old to new."""


def _algo_flags(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of an algorithm's renamed fields."""
    return {f"--algo.{old}": f"--algo.{as_flag(new)}" for old, new in fields.items()}


def as_flag(name: str) -> str:
    """Return a name as it stands in a flag, with hyphens."""
    return name.replace("_", "-")


_LAUNCH = {
    "speed": "max-velocity-scaling-factor", "output": "controller-type",
}  # fmt: skip

FLAGS: dict[str, dict[str, str]] = {
    "export": {"--calibrate": "--dataset", "--steps": "--num-inference-steps"},
    "verify-export": {
        "--against": "--reference-checkpoint", "--data": "--dataset", "--target": "--targets",
    },
    "serve": {
        "--at": "--address", "--against": "--reference-checkpoint",
        "--limits.rows": "--limits.max-batch-size",
        "--limits.controllers": "--limits.max-clients",
        "--limits.gather-ms": "--limits.max-queue-delay-ms",
        "--limits.rate-hz": "--limits.max-request-rate-hz",
        "--limits.age-s": "--limits.max-observation-age-s",
        "--limits.silent-s": "--limits.idle-timeout-s",
    },
    "": {
        # vla
        **{f"--policy.{old}": f"--policy.{new}" for old, new in _POLICY.items()},
        **{f"--policy.head.{old}": f"--policy.head.{new}" for old, new in _HEAD.items()},
        **{
            f"--policy.backbone.{old}": f"--policy.backbone.{new}"
            for old, new in _BACKBONE.items()
        },
        "--policy.learns": "--policy.train-expert-only (a switch)",
        "--policy.widths": "--policy.down-dims", "--policy.steps": "--policy.num-inference-steps",
        # other areas
        "--backend.open_s": "--backend.startup_timeout_s",
        "--backend.call_s": "--backend.step_timeout_s",
        "--backend.pictures": "--backend.renderer",
        "--backend.silent_s": "--backend.command_timeout_s",
        "--backend.blind_s": "--backend.joint_state_timeout_s",
        "--backend.goes_on": "--backend.auto_resume_stages",
        "--looks": "--visual_shift",
        "--optimiser": "--optimizer", "--optimizer.warmup": "--optimizer.warmup-steps",
        "--optimizer.final-share": "--optimizer.min-lr-ratio",
        "--optimizer.clip": "--optimizer.grad-clip-norm",
        "--optimizer.beside": "--optimizer.value-lr-multiplier",
        "--optimizer.ema": "--optimizer.ema-decay", "--licence": "--license",
    },
    "train": {
        "--data": "--dataset", "--vision-from": "--pretrained-vision-encoder",
        "--features": "--cache-frozen-features (a switch)",
        "--algo.unit": "--algo.sampling sequence|frame", "--algo.batch": "--algo.batch-size",
        "--algo.queries": "--algo.states-per-episode",
        "--algo.phases": "--algo.num-phase-offsets",
        "--algo.still-weight": "--algo.static-frame-weight",
        "--algo.short-share": "--algo.short-fraction",
        "--algo.shift-px": "--algo.random-shift-px", "--algo.gain": "--algo.brightness-jitter",
    },
    "hub card": {"--data": "--dataset"}, "hub push": {"--data": "--dataset"},
    "train distill": {
        "--from": "--policy.path", "--data": "--dataset",
        "--algo.draws": "--algo.num-noise-samples",
    },
    "eval": {"--backend": "--backend.type", "--against": "--reference-checkpoint"},
    "label": {"--critic": "--reward-model"},
    "reward-model train": {
        "--data": "--dataset",
        "--sizes.instead": "--sizes.episodes-per-task",
        "--algo.aiming": "--algo.goal-pretrain-fraction",
        "--algo.aimed": "--algo.goal-pretrain-batch",
        **{
            f"--algo.drawing.{old}": f"--algo.sampler.{new}".replace("_", "-")
            for old, new in (_SAMPLER | {"pairs": "pairs"}).items()
        },
    },
    "reward-model eval": {"--data": "--dataset", "--rounds": "--bootstrap-samples"},
    "reward-model calibrate": {"--data": "--dataset"},
    "reward-model tune": {
        "--data": "--dataset", "--foreign": "--mismatched-instruction-prob", "--rate": "--lr",
        "--critic.batch": "--reward-model.batch-size", "--critic.model": "--reward-model.model",
        "--reward-model.batch": "--reward-model.batch-size",
    },
    "train rl": {
        "--from": "--policy.path", "--demos": "--dataset", "--critic": "--reward-model",
        "--also": "--prior-runs", "--rounds": "--n-iterations",
        "--episodes": "--episodes-per-iteration", "--environments": "--num-envs",
        "--preserve": "--bc-anchor", "--earlier": "--max-prior-episodes",
        "--shift-px": "--random-shift-px", "--gain": "--brightness-jitter",
        "--help.by": "--intervention.source", "--help.attended": "--intervention.fraction",
        "--help.patience": "--intervention.patience", "--help.port": "--intervention.port",
        "--help.answer-s": "--intervention.response-timeout-s",
        "--help.led": "--jump-start.fraction", "--help.lead": "--jump-start.max-guide-steps",
        "--help.curriculum": "--jump-start.curriculum", "--help.retried": "--retry.fraction",
        "--help.stop": "--early-termination.patience",
        "--runtime.processes": "--runtime.distributed",
        "--runtime.lag": "--runtime.max-policy-lag",
        "--runtime.silent-s": "--runtime.heartbeat-timeout-s",
        **_algo_flags({**_DPPO, **_OGPO, "batch": "batch_size"}),
        "--algo.warmup": "--algo.critic-warmup-steps or, of dppo, --algo.n-critic-warmup-itr",
    },
    # robot_bridge
    **{
        f"ros launch {name}": {f"--{old}": f"--{new}" for old, new in _LAUNCH.items()}
        for name in ("arm", "record", "sim_arm")
    },
    "ros launch dual_arm": {
        f"--{side}.{old}": f"--{side}.{new}"
        for side in ("left", "right") for old, new in _LAUNCH.items()
    },
    "convert": {"--task-topic": "--instruction-topic"},
    "bench bridge": {"--silent-s": "--command-timeout-s", "--blind-s": "--joint-state-timeout-s"},
    # benchmarks
    "bench label": {"--data": "--dataset"}, "bench realtime": {"--execute": "--n-action-steps"},
    "python -m benchmarks.deploy.server_study": {"--pictures": "--images"},
    "python -m benchmarks.robot_bridge.monitor_study": {
        "--data": "--dataset", "--tolerated": "--max-false-alarm-rate",
    },
    "python -m benchmarks.training.feature_study": {"--data": "--dataset"},
}  # fmt: skip
"""Flags by verb ("" for every verb), old to new, without a value."""

_OBSERVATION = {
    "stale_s": "max_observation_age_s", "apart_s": "max_sync_interval_s",
    "frozen_s": "frozen_image_timeout_s",
}  # fmt: skip

PARAMETERS: dict[str, dict[str, str]] = {
    "launch": {old: new.replace("-", "_") for old, new in _LAUNCH.items()},
    "safety_node": {
        "speed": "max_velocity_scaling_factor", "output": "controller_type",
        "stale_s": "max_chunk_age_s", "silent_s": "command_timeout_s",
        "blind_s": "joint_state_timeout_s", "jump": "max_start_deviation",
        "stuck": "max_tracking_error", "sag": "rest_position_tolerance",
        "deadman_s": "deadman_timeout_s", "pace_s": "speed_scaling_timeout_s",
    },
    "policy_node": {"gated": "require_safety_enabled", **_OBSERVATION},
    "monitor": {"blind_s": "score_timeout_s", **_OBSERVATION},
    "recorder": {"pictures": "images"},
}  # fmt: skip
"""ROS parameters by node, and launch arguments under "launch": old to new."""

TOPICS: dict[str, str] = {
    "chunk": "action_chunk", "task": "instruction", "help": "intervention_request",
    "pace": "speed_scaling",
}  # fmt: skip
"""ROS topics, old to new; recordings of an earlier release have the old ones."""

GRAPHS: dict[str, str] = {
    "memory": "memory_update", "refine": "condition", "decide": "act",
    "denoise_late": "denoise_ft", "judge": "score",
}  # fmt: skip
"""ONNX graphs of an exported policy or reward model, old to new."""

PORTS: dict[str, dict[str, str]] = {
    "policy": {
        "words": "token_ids", "known": "prefix_mask", "first": "is_first", "now": "step_index",
        "t": "timestep",
    },
    "reward_model": {
        "words": "token_ids", "fresh": "is_first", "first": "first_embedding",
        "earlier": "earlier_embeddings", "shown": "reference_embeddings",
        "shown_progress": "reference_progress",
    },
}  # fmt: skip
"""Inputs of those graphs by what was exported, old to new; an old ONNX file keeps its names."""

AXES: dict[str, str] = {"words": "num_tokens", "shown": "num_reference_frames"}
"""Axes of variable length of those inputs, old to new."""
