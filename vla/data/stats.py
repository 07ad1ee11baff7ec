"""Statistics of columns and images, as LeRobot stores them per episode and per data set."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
"""LeRobot's names of the quantiles."""
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)
SAMPLE = 8
"""Statistics use every SAMPLE-th image of an episode."""
THIN = 4
"""Statistics use every THIN-th row and column of an image."""

FeatureStats = dict[str, np.ndarray]
"""By name, such as "mean": one value per channel; "count" has one value in all."""
Statistics = dict[str, FeatureStats]
"""By feature key."""


def column_stats(values: np.ndarray) -> FeatureStats:
    """Return the statistics of a column `t` or `t d`, `d` values each; rows with NaN are left out.

    If no row is valid, all values are 0: LeRobot weights by count.
    """
    table = values.reshape(len(values), -1).astype(np.float64)
    rows = table[~np.isnan(table).any(axis=1)]
    count = len(rows)
    if not count:
        rows = np.zeros((1, table.shape[1]))
    quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
    return {
        "min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0),
        "count": np.array([count]), **dict(zip(QUANTILES, quantiles, strict=True)),
    }  # fmt: skip


def image_stats(pixels: np.ndarray) -> FeatureStats:
    """Return the statistics of RGB pixels u8 `... 3` in [0, 1], `3 1 1` each."""
    stats = column_stats(pixels.reshape(-1, 3) / 255.0)
    return {name: v if name == "count" else v.reshape(3, 1, 1) for name, v in stats.items()}


def merge_stats(parts: Sequence[FeatureStats]) -> FeatureStats:
    """Return the statistics of several episodes together; quantiles are averaged, as in LeRobot.

    Images of LeRobotDataset v2 have no quantiles: a quantile that a part lacks is left out.
    """
    parts = [part for part in parts if part["count"][0]] or parts[:1]
    count = np.array([part["count"][0] for part in parts])
    weights = np.maximum(count, 1).astype(np.float64)

    def mean(name: str) -> np.ndarray:
        return np.average(np.stack([part[name] for part in parts]), axis=0, weights=weights)

    centre = mean("mean")
    variance = np.stack([part["std"] ** 2 + (part["mean"] - centre) ** 2 for part in parts])
    return {
        "min": np.stack([part["min"] for part in parts]).min(0),
        "max": np.stack([part["max"] for part in parts]).max(0),
        "mean": centre,
        "std": np.sqrt(np.average(variance, axis=0, weights=weights)),
        "count": np.array([count.sum()]),
        **{name: mean(name) for name in QUANTILES if all(name in part for part in parts)},
    }


def as_lists(stats: Mapping[str, FeatureStats]) -> dict[str, dict[str, Any]]:
    """Return statistics as JSON types."""
    return {
        key: {name: np.asarray(v).tolist() for name, v in s.items()} for key, s in stats.items()
    }


def has_stats(feature: Mapping[str, Any]) -> bool:
    """Return whether a feature is a column of numbers `t` or `t d`, for which statistics exist."""
    kinds = ("float", "int", "uint", "bool")
    return feature["dtype"].startswith(kinds) and len(feature["shape"]) == 1


def column_values(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of numbers or of lists of one length as f64 `t d`.

    Raises:
        ValueError: the lists differ in length, or hold no numbers.
    """
    rows = column.combine_chunks()
    flat = rows
    lists = (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)
    while isinstance(flat, lists):
        flat = flat.flatten()
    if not (pa.types.is_primitive(flat.type) or pa.types.is_boolean(flat.type)):
        raise ValueError(f"got values of type {column.type}, expected numbers")
    values = flat.to_numpy(zero_copy_only=False).astype(np.float64)
    if not len(rows) or values.size % len(rows):
        raise ValueError(
            f"got {values.size} numbers in {len(rows)} rows, expected the same number in every row"
        )
    return values.reshape(len(rows), -1)
