"""Checks of a prefix that every policy shares; no torch here."""

import numpy as np

from vla.contracts.types import Prefix
from vla.utils.arrays import to_numpy


def check(prefix: Prefix, max_prefix_len: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a policy trained with at most `max_prefix_len` actions supports a
    prefix in physical units; `shape` (b, k, u) is that of its chunks.
    """
    values, mask = to_numpy(prefix.values), to_numpy(prefix.mask)
    fits = values.shape == shape and mask.shape == shape[:2]
    fits = fits and values.dtype == mask.dtype == np.float32
    if not fits or not np.isfinite(values).all():
        raise ValueError(
            f"prefix: got values {values.dtype} {values.shape} and mask {mask.dtype} "
            f"{mask.shape}, expected finite float32 {shape} and {shape[:2]}"
        )
    if not ((mask >= 0) & (mask <= 1)).all():
        raise ValueError(f"prefix: got a mask from {mask.min()} to {mask.max()}, expected 0 to 1")
    if prefix.guided:
        return
    count = mask.sum(1)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < count[:, None]):
        raise ValueError("prefix: the mask is not 1 for the first actions and 0 for the others")
    longest = int(count.max(initial=0))
    if longest > max_prefix_len:
        raise ValueError(
            f"prefix: got {longest} actions, the policy was trained with at most {max_prefix_len}; "
            f"train with --policy.head.max_prefix_len {longest}, or use mode guided"
        )
