"""The contract types reject arrays of the wrong layout, dtype or batch size."""

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from vla.contracts.types import ActionChunk, Observation


def observation(**changes):
    rows = 2
    fields = {
        "images": np.zeros((rows, 3, 48, 64, 3), np.uint8),
        "image_ok": np.ones((rows, 3), bool),
        "proprio": np.zeros((rows, 6), np.float32),
        "task": ("reach", "push"),
        "time_s": np.zeros(rows, np.float64),
    }
    return Observation(**{**fields, **changes})


def test_numpy_and_torch_observations_of_the_right_shape_are_accepted():
    assert observation().images.shape == (2, 3, 48, 64, 3)
    assert observation(proprio=torch.zeros(2, 6)).proprio.shape == (2, 6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("images", np.zeros((2, 3, 3, 48, 64), np.uint8)),  # channels first
        ("images", np.zeros((2, 3, 48, 64, 3), np.float32)),  # scaled to [0, 1] too early
        ("images", np.zeros((2, 48, 64, 3), np.uint8)),  # no view axis
        ("proprio", np.zeros((2, 6), np.float64)),  # numpy's default dtype
        ("proprio", torch.zeros(3, 6)),  # another batch size
        ("time_s", np.zeros(2, np.float32)),
        ("task", ["reach", "push"]),  # a mutable list
    ],
)
def test_an_observation_of_the_wrong_layout_is_caught(field, value):
    with pytest.raises(TypeCheckError, match=f"parameter '{field}'"):
        observation(**{field: value})


def test_an_action_chunk_without_its_time_axis_is_caught():
    start_s = np.zeros(4, np.float64)
    assert ActionChunk(values=np.zeros((4, 8, 6), np.float32), start_s=start_s).start_s is start_s
    with pytest.raises(TypeCheckError):
        ActionChunk(values=np.zeros((4, 6), np.float32), start_s=start_s)
