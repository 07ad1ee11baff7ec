"""What every registered backbone must satisfy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import tiny_models
from tests.fakes import TASKS, liven_
from vla.contracts import registry
from vla.nn.context import Context, Encoded, Retrieved

VIEWS, PROPRIO, MEMORY = 2, 3, 10
CASES = [
    (name, kind)
    for name in registry.names("vla.backbones")
    for kind in tiny_models.KINDS.get(name, ("",))
]
"""Every backbone; a pretrained one with a tiny model of each family, all of it learning."""


class Probe:
    """A backbone with inputs that fit it."""

    def __init__(self, name: str, **given: Any) -> None:
        config = registry.load("vla.backbones", name).Config(**given)
        words = config.tokenizer(TASKS).get_vocab_size()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # noqa: TID251  initial weights come from the global generator
            self.net = config.build(VIEWS, PROPRIO, words, MEMORY).eval()
        liven_(self.net)
        rng = np.random.default_rng(0)
        side = config.image_px
        self.images = torch.from_numpy(rng.integers(0, 256, (2, VIEWS, side, side, 3), np.uint8))
        self.proprio = torch.from_numpy(rng.standard_normal((2, PROPRIO), np.float32))
        self.words = torch.tensor([[4, 5, 6], [7, 8, 0]])
        tokens, width = self.net.token_shape
        self.retrieved = Retrieved(
            torch.from_numpy(rng.standard_normal((2, tokens, width), np.float32)),
            torch.from_numpy(rng.standard_normal((2, MEMORY), np.float32)),
        )

    def encode(self, index: slice = slice(None)) -> Encoded:
        return self.net.encode(self.images[index], self.proprio[index], self.words[index])

    def refine(self, index: slice = slice(None)) -> Context:
        retrieved = Retrieved(*(part[index] for part in self.retrieved))
        return self.net.refine(self.encode(index).cache, retrieved)


@pytest.fixture(params=CASES, ids=lambda case: "-".join(part for part in case if part))
def probe(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Probe:
    name, kind = request.param
    if not kind:
        return Probe(name)
    return Probe(name, model=str(tiny_model(kind)), finetune_mode="full", **tiny_models.SMALL)


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_tokens_and_context_have_the_announced_shapes_and_are_finite(probe: Probe) -> None:
    encoded, context = probe.encode(), probe.refine()
    assert encoded.tokens.shape == (2, *probe.net.token_shape)
    pooled, token, memory = probe.net.sizes(MEMORY)
    assert memory == MEMORY
    assert context.pooled.shape == (2, pooled)
    assert context.tokens.shape[::2] == (2, token)
    assert context.memory.shape == (2, MEMORY)
    for part in (encoded.tokens, *context):
        assert part.dtype == torch.float32
        assert part.isfinite().all()


def test_every_part_of_the_cache_has_a_row_per_observation(probe: Probe) -> None:
    assert all(len(part) == 2 for part in probe.encode().cache)


def test_rows_are_seen_alone(probe: Probe) -> None:
    alone = slice(1, 2)
    assert_close(probe.encode(alone).tokens, probe.encode().tokens[alone])
    assert_close(probe.refine(alone).pooled, probe.refine().pooled[alone])


def test_padding_of_the_instruction_does_not_matter(probe: Probe) -> None:
    padded = probe.refine().pooled
    probe.words = torch.cat([probe.words, torch.zeros(2, 4, dtype=torch.int64)], 1)
    assert_close(probe.refine().pooled, padded)


@pytest.mark.parametrize("part", ["images", "proprio", "words", "vector"])
def test_the_context_depends_on_everything_that_is_given(probe: Probe, part: str) -> None:
    before = probe.refine().pooled
    if part == "vector":
        probe.retrieved = probe.retrieved._replace(vector=probe.retrieved.vector + 1)
    else:
        value = getattr(probe, part)
        setattr(probe, part, 255 - value if part == "images" else value + 1)
    assert (probe.refine().pooled - before).abs().amax(1).min() > 1e-5


def test_a_missing_camera_gives_finite_tokens(probe: Probe) -> None:
    probe.images = torch.zeros_like(probe.images)
    assert probe.encode().tokens.isfinite().all()
    assert probe.refine().pooled.isfinite().all()


def test_every_weight_learns(probe: Probe) -> None:
    encoded, context = probe.encode(), probe.refine()
    (encoded.tokens.square().sum() + context.pooled.square().sum()).backward()
    silent = [n for n, p in probe.net.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []
