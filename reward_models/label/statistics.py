"""Statistics of the new columns as stock LeRobot has them; abstained frames do not count."""

from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)


def statistics(values: np.ndarray) -> dict[str, list[Any]]:
    """Return the statistics of a column [n] in LeRobot's form: a list of one number each.

    Where nothing counts, `count` is 0 and the others are, too: LeRobot weights by count.
    """
    known = values.astype(np.float64)
    known = known[~np.isnan(known)]
    count = len(known)
    if not count:
        known = np.zeros(1)
    figures = {
        "min": known.min(), "max": known.max(), "mean": known.mean(), "std": known.std(),
        **dict(zip(QUANTILES, np.quantile(known, list(QUANTILES.values())), strict=True)),
    }  # fmt: skip
    return {
        name: [count] if name == "count" else [float(figures[name])] for name in NAMES
    }  # fmt: skip
