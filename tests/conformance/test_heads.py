"""What every registered action head must satisfy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fakes import fake_context, liven_
from vla.contracts import registry
from vla.contracts.protocols import Head

CHUNK, ACTIONS, SIZES = 4, 3, (12, 8, 10)


@pytest.fixture(params=registry.names("vla.heads"))
def head(request: pytest.FixtureRequest):
    built = registry.load("vla.heads", request.param).Config().build(CHUNK, ACTIONS, SIZES)
    liven_(built)
    return built.eval()


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def condition(batch: int):
    return fake_context(np.random.default_rng(0), batch, SIZES)


@pytest.mark.parametrize("stochastic", [False, True])
def test_a_sample_is_a_path_from_the_noise_to_a_finite_chunk(head, stochastic: bool) -> None:
    members = {*Head.__annotations__, *(name for name in vars(Head) if name[0] != "_")}
    assert all(hasattr(head, name) for name in members)
    noise = draw(1, 2, *head.noise_shape)
    latents, log_prob = head.sample(condition(2), noise, stochastic)
    steps = head.noise_shape[0] - 1
    assert head.noise_shape[1:] == (CHUNK, ACTIONS)
    assert latents.shape == (2, steps + 1, CHUNK, ACTIONS)
    assert log_prob.shape == (2, steps)
    assert torch.equal(latents[:, 0], noise[:, 0])
    assert latents.isfinite().all()
    assert log_prob.isfinite().all()


def test_a_sampled_path_scores_what_sampling_said(head) -> None:
    latents, log_prob = head.sample(condition(3), draw(2, 3, *head.noise_shape), True)
    assert torch.equal(head.log_prob(condition(3), latents), log_prob)


def test_rows_are_sampled_alone(head) -> None:
    context, noise = condition(3), draw(3, 3, *head.noise_shape)
    together = head.sample(context, noise, True)[0]
    alone = head.sample(type(context)(*(part[1:2] for part in context)), noise[1:2], True)[0]
    torch.testing.assert_close(together[1:2], alone, atol=1e-4, rtol=1e-4)


def test_the_loss_has_a_row_each_and_is_a_function_of_the_generators_state(head) -> None:
    clean, pad = draw(4, 2, CHUNK, ACTIONS), torch.zeros(2, CHUNK).bool()
    pad[1] = True
    a, b = (head.loss(clean, pad, condition(2), torch.Generator().manual_seed(s)) for s in (0, 0))
    assert torch.equal(a, b)
    assert a[0] > 0
    assert a[1] == 0  # nothing but padding
    other = head.loss(clean, pad, condition(2), torch.Generator().manual_seed(1))
    assert other[0] != a[0]


def test_every_weight_learns(head) -> None:
    clean, pad = draw(5, 4, CHUNK, ACTIONS), torch.zeros(4, CHUNK).bool()
    head.loss(clean, pad, condition(4), torch.Generator().manual_seed(0)).sum().backward()
    silent = [n for n, p in head.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []
