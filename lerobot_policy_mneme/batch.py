"""From LeRobot's batches to our observations and episodes; pictures are bytes again."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE, OBS_STR
from torch import Tensor

from vla.contracts.types import EpisodeBatch, Observation
from vla.policies.vla import VLAPolicy

Batch = Mapping[str, Any]
"""What LeRobot's processors hand to a policy."""
PLACE = f"{OBS_STR}.robot_state"
CLOCK = "clock"
"""Key of what our environments tell below PLACE: i64 [b, 3], control steps since the episode
began, number of the episode, seed of the episodes. LeRobot's processors leave it as it is."""


def clock(batch: Batch) -> np.ndarray | None:
    """Return i64 [b, 3] of our environments, see CLOCK; None of others, and of arms."""
    told = batch.get(PLACE)
    if not isinstance(told, Mapping) or CLOCK not in told:
        return None
    found: np.ndarray = told[CLOCK].cpu().numpy()
    return found


def words(batch: Batch, rows: int) -> tuple[str, ...]:
    """Return the instruction of each row.

    Raises:
        ValueError: there is none.
    """
    task = batch.get("task")
    told = (task,) * rows if isinstance(task, str) else tuple(task or ())
    if len(told) != rows or not all(told):
        raise ValueError(
            f"task: got {task!r} for {rows} rows, expected an instruction each; say "
            "--dataset.single_task, or record with one"
        )
    return told


def pictures(batch: Batch, camera: str) -> Tensor:
    """Return a camera's pictures, RGB u8 [..., h, w, 3], of f32 [..., 3, h, w] in [0, 1].

    Raises:
        ValueError: there is no such camera.
    """
    key = f"{OBS_IMAGES}.{camera}"
    if key not in batch:
        known = [name for name in batch if name.startswith(f"{OBS_IMAGES}.")]
        raise ValueError(
            f"{key}: the policy looks through it, got {', '.join(known) or 'no pictures'}; name "
            "cameras as the policy does, or rename them with --rename_map"
        )
    return (batch[key] * 255).round().clamp(0, 255).to(torch.uint8).movedim(-3, -1)


def views(batch: Batch, cameras: tuple[str, ...]) -> Tensor:
    """Return pictures u8 [..., v, h, w, 3] of several cameras.

    Raises:
        ValueError: one is missing, or they are not of one size.
    """
    seen = [pictures(batch, name) for name in cameras]
    sizes = {tuple(one.shape[-3:-1]) for one in seen}
    if len(sizes) > 1:
        raise ValueError(
            f"pictures: got sizes (height, width) {sorted(sizes)}, expected one; record all "
            "cameras with the same"
        )
    return torch.stack(seen, -4)


def observation(batch: Batch, policy: VLAPolicy, rows: np.ndarray, time_s: np.ndarray) -> Any:
    """Return what our policy sees in some rows.

    Args:
        batch: Of one moment: pictures f32 [b, 3, h, w], state f32 [b, s].
        policy: Who decides; cameras that it does not look through stay black.
        rows: i64 [n].
        time_s: f64 [n], since their episodes began.
    """
    seen = views(batch, policy.config.cameras)
    chosen = torch.as_tensor(rows, device=seen.device)
    count = len(policy.robot.cameras)
    images = seen.new_zeros(len(rows), count, *seen.shape[2:])
    images[:, policy.views] = seen[chosen]
    task = words(batch, len(seen))
    return Observation(
        images=images, image_ok=np.ones((len(rows), count), np.bool_),
        proprio=batch[OBS_STATE][chosen].float(), task=tuple(task[row] for row in rows),
        time_s=time_s,
    )  # fmt: skip


def episodes(batch: Batch, policy: VLAPolicy, starts: np.ndarray) -> EpisodeBatch:
    """Return samples of a data set as short episodes, the last decision of which is learned from.

    Args:
        batch: Windows of w decisions: pictures f32 [b, w, 3, h, w], state f32 [b, w, s] with
            `_is_pad` bool [b, w] where the episode had not begun, action f32 [b, k, u] with
            `_is_pad` where it had ended, `index` and `episode_index` i64 [b].
        policy: Who learns.
        starts: i64, index of the first frame of every episode of the data set.

    Raises:
        ValueError: something is missing, or does not fit together.
    """
    pad = f"{OBS_STATE}_is_pad"
    for key in (OBS_STATE, pad, ACTION, f"{ACTION}_is_pad", "index", "episode_index"):
        if not isinstance(batch.get(key), Tensor):
            raise ValueError(f"{key}: missing from the batch, which has {', '.join(batch)}")
    valid = ~batch[pad]
    rows, window = valid.shape
    index, episode = (batch[key].cpu().numpy().reshape(-1) for key in ("index", "episode_index"))
    past = policy.execute * np.arange(window - 1, -1, -1)
    now = torch.as_tensor((index - starts[episode])[:, None] - past, device=valid.device)
    if not torch.equal(now >= 0, valid):
        raise ValueError(
            f"{pad}: does not agree with `index` and where episodes begin; merge or convert the "
            "data set anew"
        )
    row, place = valid.nonzero(as_tuple=True)
    decision = (valid.cumsum(1) - 1)[row, place]
    return EpisodeBatch(
        images=views({k: v for k, v in batch.items() if k.startswith(OBS_IMAGES)},
                     policy.config.cameras)[row, place],
        proprio=batch[OBS_STATE][row, place].float(), now=now[row, place].float(), row=row,
        decision=decision, task=words(batch, rows), query=valid.sum(1).cumsum(0) - 1,
        actions=batch[ACTION].float(), pad=batch[f"{ACTION}_is_pad"],
        weight=torch.ones(rows, device=valid.device),
    )  # fmt: skip
