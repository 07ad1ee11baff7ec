"""What a prefix of settled actions has to be, for every policy alike; no torch here."""

import numpy as np

from vla.contracts.types import Prefix


def check(prefix: Prefix, trained: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a policy can go on from a prefix.

    Args:
        prefix: Settled actions.
        trained: Most of them that the policy was trained to go on from.
        shape: (b, k, u) of its chunks.
    """
    values, weight = np.asarray(prefix.values), np.asarray(prefix.weight)
    right = values.shape == shape and weight.shape == shape[:2]
    right = right and values.dtype == weight.dtype == np.float32
    if not right or not np.isfinite(values).all():
        raise ValueError(
            f"prefix: got values {values.dtype} {values.shape} and weights {weight.dtype} "
            f"{weight.shape}, expected float32 {shape} and {shape[:2]}, all of them finite"
        )
    if not ((weight >= 0) & (weight <= 1)).all():
        raise ValueError(f"prefix: weights {weight.min()} to {weight.max()}, expected 0 to 1")
    if prefix.guided:
        return
    count = weight.sum(1)
    first = np.arange(weight.shape[1]) < count[:, None]
    if not np.array_equal(weight, first):
        raise ValueError("prefix: settled are not the first actions; give 1 for those, 0 after")
    if count.max(initial=0) > trained:
        raise ValueError(
            f"prefix: {count.max():.0f} settled actions, the policy was trained to go on from at "
            f"most {trained}; train with --policy.head.prefix {count.max():.0f}, or guide it"
        )
