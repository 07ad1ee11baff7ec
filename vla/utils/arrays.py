"""Arrays of numpy from what a policy returns; no torch here."""

from typing import Any

import numpy as np


def to_numpy(value: Any, dtype: Any = None) -> np.ndarray:
    """Return a numpy array from one, or from a torch tensor on any device; it may share memory."""
    if hasattr(value, "detach"):  # numpy reads tensors of the CPU alone
        value = value.detach().cpu()
    return np.asarray(value, dtype)
