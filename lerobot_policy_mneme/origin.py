"""A fresh policy for a LeRobot data set: whose arm, which statistics and words, which task."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from lerobot_policy_mneme.configuration_mneme import MnemeConfig, to_ours
from sim import vec_env
from vla import checkpoint
from vla.checkpoint import Provenance
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.specs import RobotSpec
from vla.data.writer import RECORDING_FILE
from vla.normalize import Statistics
from vla.policies.vla import VLAPolicy

Stats = Mapping[str, Mapping[str, Any]]
"""LeRobot's figures of a data set: by feature, then by name."""
BEYOND = 0.5
"""How far actions may lie outside the arm's limits, as a share of the range between them."""


def fresh(config: MnemeConfig, meta: Any, stats: Stats) -> tuple[VLAPolicy, Provenance]:
    """Return a policy with random weights for a data set, and where it comes from.

    Args:
        config: What it is made of.
        meta: LeRobot's metadata of the data set.
        stats: Figures of its columns.

    Raises:
        ValueError: arm and data set do not fit, or a part of the policy is unknown.
    """
    recording = recorded(Path(meta.root))
    robot = arm(config, meta, recording)
    found = statistics(stats)
    check_channels(robot, meta)
    check_units(robot, found, meta)
    instructions = tuple(sorted(map(str, meta.tasks.index)))
    ours = to_ours(config, tuple(camera.name for camera in robot.cameras))
    policy = ours.build(robot, found, ours.backbone.tokenizer(instructions))
    return policy, checkpoint.provenance(recording.get("task", {}), instructions, 0)


def recorded(data: Path) -> dict[str, Any]:
    """Return what `vla demos` was asked for when it recorded a data set; {} for another's."""
    file = data / RECORDING_FILE
    return checkpoint.read_json(file) if file.is_file() else {}


def arm(config: MnemeConfig, meta: Any, recording: dict[str, Any]) -> RobotSpec:
    """Return the arm of a data set: its rate and pictures are those of the data set.

    Raises:
        ValueError: nobody says which arm it is, or there is no such arm.
    """
    name = config.robot or recording.get("robot", "")
    if recording.get("task"):
        task = configs.from_json(None, recording["task"], RECORDING_FILE, vec_env.TASKS)
        found = vec_env.load_arm(task, name or None)
    elif name:
        found = vec_env.load_robot(name)
    else:
        raise ValueError(
            f"{meta.root}: recorded with {meta.robot_type}; say which arm that is: --policy.robot="
            f"{' or '.join(registry.names('vla.robots'))}"
        )
    cameras = tuple(
        dataclasses.replace(camera, height_px=size[0], width_px=size[1])
        for camera in found.cameras
        for size in [meta.features.get(f"{OBS_IMAGES}.{camera.name}", {}).get("shape")]
        if size
    )
    if not cameras:
        seen = ", ".join(meta.camera_keys) or "none"
        raise ValueError(
            f"{meta.root}: cameras {seen}; {found.name} has "
            f"{', '.join(camera.name for camera in found.cameras)}: rename them in the data set"
        )
    return dataclasses.replace(found, cameras=cameras, control_hz=float(meta.fps))


def statistics(stats: Stats) -> Statistics:
    """Return what our policy normalises with.

    Raises:
        ValueError: the data set has no such figures.
    """
    said: dict[str, tuple[float, ...]] = {}
    for key, names in {OBS_STATE: ("mean", "std"), ACTION: ("min", "max")}.items():
        for name in names:
            value = stats.get(key, {}).get(name)
            if value is None:
                raise ValueError(
                    f"meta/stats.json: no {name} of {key}; recompute the statistics of the data set"
                )
            said[f"{key} {name}"] = tuple(float(v) for v in np.asarray(value).reshape(-1))
    return Statistics(
        state_mean=said[f"{OBS_STATE} mean"], state_std=said[f"{OBS_STATE} std"],
        action_low=said[f"{ACTION} min"], action_high=said[f"{ACTION} max"],
    )  # fmt: skip


def check_channels(robot: RobotSpec, meta: Any) -> None:
    """Raise ValueError unless joints and rate of a data set are those of the arm."""
    for key in (OBS_STATE, ACTION):
        told = meta.features[key].get("names")
        names = [str(name).removesuffix(".pos") for name in told] if told else []
        if isinstance(told, dict) or names != list(robot.names):
            raise ValueError(
                f"{meta.root}: {key} has {json.dumps(told)}, {robot.name} has "
                f"{', '.join(robot.names)}; give its own arm with --policy.robot"
            )
    if meta.fps != robot.control_hz:
        raise ValueError(
            f"{meta.root}: {meta.fps} frames per second, the policy acts at {robot.control_hz:g} "
            "Hz; record at that rate, or train anew"
        )


def check_units(robot: RobotSpec, found: Statistics, meta: Any) -> None:
    """Raise ValueError unless actions of a data set are in the units of the arm."""
    for name, low, high, least, most in zip(
        robot.names, found.action_low, found.action_high, robot.low, robot.high, strict=True
    ):
        slack = BEYOND * (most - least)
        if low < least - slack or high > most + slack:
            raise ValueError(
                f"{meta.root}: actions of {name} range from {low:g} to {high:g}, the arm from "
                f"{least:g} to {most:g} rad or m; convert the data set to those units"
            )
