"""A new policy for a LeRobot data set: arm, statistics, tokenizer and task."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from lerobot_policy_mneme.configuration_mneme import MnemeConfig, vla_config
from sim import vec_env
from vla import checkpoint
from vla.checkpoint import Provenance
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.specs import RobotSpec
from vla.data.info import RECORDING_FILE
from vla.nn.normalize import NormalizationStatistics
from vla.policies.vla import VLAPolicy

Stats = Mapping[str, Mapping[str, Any]]
"""LeRobot's statistics of a data set: by feature, then by name."""
BEYOND = 0.5
"""Tolerated distance of actions from the arm's limits, as a fraction of their range."""


def new_policy(config: MnemeConfig, meta: Any, stats: Stats) -> tuple[VLAPolicy, Provenance]:
    """Return a policy with random weights for a data set, and its provenance.

    `meta` is LeRobot's metadata of the data set, `stats` the statistics of its columns.

    Raises:
        ValueError: arm and data set do not fit, or a part of the policy is unknown.
    """
    recording = recorded(Path(meta.root))
    robot = arm(config, meta, recording)
    normalization = statistics(stats)
    check_channels(robot, meta)
    check_units(robot, normalization, meta)
    instructions = tuple(sorted(map(str, meta.tasks.index)))
    settings = vla_config(config, tuple(camera.name for camera in robot.cameras))
    policy = settings.build(robot, normalization, settings.backbone.tokenizer(instructions))
    return policy, checkpoint.provenance(recording.get("task", {}), instructions, 0)


def recorded(data: Path) -> dict[str, Any]:
    """Return the settings with which `vla demos` recorded a data set; {} for other data sets."""
    file = data / RECORDING_FILE
    return checkpoint.read_json(file) if file.is_file() else {}


def arm(config: MnemeConfig, meta: Any, recording: dict[str, Any]) -> RobotSpec:
    """Return the arm of a data set: rate and image sizes are those of the data set.

    Raises:
        ValueError: the arm is unknown, or not named.
    """
    name = config.robot or recording.get("robot", "")
    if recording.get("task"):
        task = configs.from_json(None, recording["task"], RECORDING_FILE, vec_env.TASKS)
        robot = vec_env.load_arm(task, name or None)
    elif name:
        robot = vec_env.load_robot(name)
    else:
        raise ValueError(
            f"{meta.root}: recorded with {meta.robot_type}; name the arm with --policy.robot="
            f"{' or '.join(registry.names('vla.robots'))}"
        )
    cameras = tuple(
        dataclasses.replace(camera, height_px=size[0], width_px=size[1])
        for camera in robot.cameras
        for size in [meta.features.get(f"{OBS_IMAGES}.{camera.name}", {}).get("shape")]
        if size
    )
    if not cameras:
        keys = ", ".join(meta.camera_keys) or "none"
        raise ValueError(
            f"{meta.root}: cameras {keys}; {robot.name} has "
            f"{', '.join(camera.name for camera in robot.cameras)}: rename them in the data set"
        )
    return dataclasses.replace(robot, cameras=cameras, control_hz=float(meta.fps))


def statistics(stats: Stats) -> NormalizationStatistics:
    """Return the statistics for normalisation; ValueError if the data set lacks one."""
    values: dict[str, tuple[float, ...]] = {}
    for key, names in {OBS_STATE: ("mean", "std"), ACTION: ("min", "max")}.items():
        for name in names:
            value = stats.get(key, {}).get(name)
            if value is None:
                raise ValueError(
                    f"meta/stats.json: no {name} of {key}; recompute the statistics of the data set"
                )
            values[f"{key} {name}"] = tuple(float(v) for v in np.asarray(value).reshape(-1))
    return NormalizationStatistics(
        state_mean=values[f"{OBS_STATE} mean"], state_std=values[f"{OBS_STATE} std"],
        action_low=values[f"{ACTION} min"], action_high=values[f"{ACTION} max"],
    )  # fmt: skip


def check_channels(robot: RobotSpec, meta: Any) -> None:
    """Raise ValueError unless a data set has the joints and the rate of the arm."""
    for key in (OBS_STATE, ACTION):
        columns = meta.features[key].get("names")
        names = [str(name).removesuffix(".pos") for name in columns] if columns else []
        if isinstance(columns, dict) or names != list(robot.names):
            raise ValueError(
                f"{meta.root}: {key} has {json.dumps(columns)}, {robot.name} has "
                f"{', '.join(robot.names)}; give its own arm with --policy.robot"
            )
    if meta.fps != robot.control_hz:
        raise ValueError(
            f"{meta.root}: {meta.fps} frames per second, the policy acts at {robot.control_hz:g} "
            "Hz; record at that rate, or train again"
        )


def check_units(robot: RobotSpec, stats: NormalizationStatistics, meta: Any) -> None:
    """Raise ValueError unless the actions of a data set are in the units of the arm."""
    for name, low, high, least, most in zip(
        robot.names, stats.action_low, stats.action_high, robot.low, robot.high, strict=True
    ):
        slack = BEYOND * (most - least)
        if low < least - slack or high > most + slack:
            raise ValueError(
                f"{meta.root}: actions of {name} range from {low:g} to {high:g}, the arm from "
                f"{least:g} to {most:g} rad or m; convert the data set to those units"
            )
