"""Converts LeRobot's batches to `Observation` and `EpisodeBatch`; images become bytes again."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE, OBS_STR
from torch import Tensor

from vla.contracts.types import EpisodeBatch, Observation
from vla.policies.vla import VLAPolicy

Batch = Mapping[str, Any]
"""Output of LeRobot's processors."""
PLACE = f"{OBS_STR}.robot_state"
CLOCK = "clock"
"""Key below PLACE in which our environments report i64 [b, 3]: control steps since the episode
began, index of the episode, seed of the episodes. LeRobot's processors keep it as it is."""


def clock(batch: Batch) -> np.ndarray | None:
    """Return i64 [b, 3] of our environments, see CLOCK; None for others and for arms."""
    state = batch.get(PLACE)
    if not isinstance(state, Mapping) or CLOCK not in state:
        return None
    values: np.ndarray = state[CLOCK].cpu().numpy()
    return values


def instructions(batch: Batch, rows: int) -> tuple[str, ...]:
    """Return the instruction of each row; ValueError if there is none."""
    task = batch.get("task")
    texts = (task,) * rows if isinstance(task, str) else tuple(task or ())
    if len(texts) != rows or not all(texts):
        raise ValueError(
            f"task: got {task!r} for {rows} rows, expected an instruction each; give "
            "--dataset.single_task, or record with one"
        )
    return texts


def camera_images(batch: Batch, camera: str) -> Tensor:
    """Return a camera's images, RGB u8 [..., h, w, 3], of f32 [..., 3, h, w] in [0, 1].

    Raises:
        ValueError: there is no such camera.
    """
    key = f"{OBS_IMAGES}.{camera}"
    if key not in batch:
        cameras = [name for name in batch if name.startswith(f"{OBS_IMAGES}.")]
        raise ValueError(
            f"{key}: missing, got {', '.join(cameras) or 'no images'}; name cameras as the policy "
            "does, or rename them with --rename_map"
        )
    return (batch[key] * 255).round().clamp(0, 255).to(torch.uint8).movedim(-3, -1)


def views(batch: Batch, cameras: tuple[str, ...]) -> Tensor:
    """Return images u8 [..., v, h, w, 3] of several cameras.

    Raises:
        ValueError: a camera is missing, or sizes differ.
    """
    images = [camera_images(batch, name) for name in cameras]
    sizes = {tuple(image.shape[-3:-1]) for image in images}
    if len(sizes) > 1:
        raise ValueError(
            f"images: got sizes (height, width) {sorted(sizes)}, expected one; record all cameras "
            "with the same"
        )
    return torch.stack(images, -4)


def observation(batch: Batch, policy: VLAPolicy, rows: np.ndarray, time_s: np.ndarray) -> Any:
    """Return the observation of some rows.

    Args:
        batch: Of one time step: images f32 [b, 3, h, w], state f32 [b, s].
        policy: The acting policy; images of cameras that it does not use stay black.
        rows: i64 [n].
        time_s: f64 [n], seconds since their episodes began.
    """
    used = views(batch, policy.config.cameras)
    chosen = torch.as_tensor(rows, device=used.device)
    count = len(policy.robot.cameras)
    images = used.new_zeros(len(rows), count, *used.shape[2:])
    images[:, policy.views] = used[chosen]
    task = instructions(batch, len(used))
    return Observation(
        images=images, image_ok=np.ones((len(rows), count), np.bool_),
        proprio=batch[OBS_STATE][chosen].float(), task=tuple(task[row] for row in rows),
        time_s=time_s,
    )  # fmt: skip


def episodes(batch: Batch, policy: VLAPolicy, starts: np.ndarray) -> EpisodeBatch:
    """Return samples of a data set as short episodes whose last decision carries the loss.

    Args:
        batch: Windows of w decisions: images f32 [b, w, 3, h, w], state f32 [b, w, s] with
            `_is_pad` bool [b, w] where the episode had not begun, action f32 [b, k, u] with
            `_is_pad` where it had ended, `index` and `episode_index` i64 [b].
        policy: The trained policy.
        starts: i64, index of the first frame of every episode of the data set.

    Raises:
        ValueError: an array is missing, or arrays do not match.
    """
    pad = f"{OBS_STATE}_is_pad"
    for key in (OBS_STATE, pad, ACTION, f"{ACTION}_is_pad", "index", "episode_index"):
        if not isinstance(batch.get(key), Tensor):
            raise ValueError(f"{key}: missing from the batch, which has {', '.join(batch)}")
    valid = ~batch[pad]
    rows, window = valid.shape
    index, episode = (batch[key].cpu().numpy().reshape(-1) for key in ("index", "episode_index"))
    past = policy.n_action_steps * np.arange(window - 1, -1, -1)
    now = torch.as_tensor((index - starts[episode])[:, None] - past, device=valid.device)
    if not torch.equal(now >= 0, valid):
        raise ValueError(
            f"{pad}: does not agree with `index` and where episodes begin; merge or convert the "
            "data set again"
        )
    row, place = valid.nonzero(as_tuple=True)
    decision = (valid.cumsum(1) - 1)[row, place]
    return EpisodeBatch(
        images=views({k: v for k, v in batch.items() if k.startswith(OBS_IMAGES)},
                     policy.config.cameras)[row, place],
        proprio=batch[OBS_STATE][row, place].float(), step_index=now[row, place].float(),
        episode_index=row, decision=decision, task=instructions(batch, rows),
        loss_index=valid.sum(1).cumsum(0) - 1, actions=batch[ACTION].float(),
        action_is_pad=batch[f"{ACTION}_is_pad"],
        weight=torch.ones(rows, device=valid.device),
    )  # fmt: skip
