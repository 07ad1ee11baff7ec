"""Rectified flow: Euler by hand, one distribution by ODE and by SDE, and a head that follows it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fakes import fake_context, fake_noise, fake_observation, fake_policy, liven_
from vla.contracts.types import Prefix
from vla.heads import flow_matching
from vla.nn import flow
from vla.nn.context import Context
from vla.policies import vla

CHUNK, ACTIONS, SIZES = 4, 3, (12, 8, 10)
SMALL = flow_matching.Config(width=64, depth=2)


def build(config: flow_matching.Config) -> flow_matching.FlowMatchingHead:
    head = config.build(CHUNK, ACTIONS, SIZES)
    liven_(head)
    return head.eval()


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def condition(batch: int = 2) -> Context:
    return fake_context(np.random.default_rng(0), batch, SIZES)


def answering(head: flow_matching.FlowMatchingHead, field) -> None:
    """Let a head's network say field(latent, timestep)."""
    head.denoiser.forward = lambda latent, t, *_: field(latent, t)


def test_euler_of_a_linear_field_by_hand() -> None:
    head = build(replace(SMALL, num_inference_steps=4, clip_sample_range=1e6))
    answering(head, lambda latent, t: latent)  # v = x: each of four steps takes a quarter of x off
    noise = torch.ones(1, *head.noise_shape)
    found = head.sample(condition(1), noise, False)[0][0, :, 0, 0]
    np.testing.assert_allclose(found, [1, 0.75, 0.5625, 0.421875, 0.31640625], rtol=1e-5)


def test_steps_are_equally_long_to_the_nearest_level_and_end_at_no_noise() -> None:
    found = flow.make_chain(10, 4)
    assert found.timesteps == (9, 7, 4, 1)  # levels 10, 7.5, 5 and 2.5; halves go to even ones
    assert found.times == (1.0, 0.8, 0.5, 0.2)
    assert found.times_next == (0.8, 0.5, 0.2, 0.0)
    for steps in (0, 11):
        with pytest.raises(ValueError, match=rf"\[1, 10\], got {steps}"):
            flow.make_chain(10, steps)


def walked(steps: int, best, noise_level: float, count: int = 40_000) -> Tensor:
    """Return where `count` chains end when the clean value is told by best(latent, time)."""
    generator = torch.Generator().manual_seed(0)
    chain = flow.make_chain(1000, steps)
    x = torch.randn(count, generator=generator, dtype=torch.float64)
    for t, s in zip(chain.times, chain.times_next, strict=True):
        mean, std = flow.transition(x, best(x, t), t, s, noise_level, 0.0)
        fresh = torch.randn(count, generator=generator, dtype=torch.float64)
        x = mean + std * fresh
    return x


def two_bumps(x: Tensor, t: float) -> Tensor:
    """Return E[x_0 | x_t] where x_0 is 0.6 N(-0.7, 0.2^2) + 0.4 N(0.5, 0.1^2)."""
    parts, weights = [], []
    for share, mean, std in ((0.6, -0.7, 0.2), (0.4, 0.5, 0.1)):
        variance = ((1 - t) * std) ** 2 + t**2
        away = x - (1 - t) * mean
        parts.append(mean + (1 - t) * std**2 / variance * away)
        weights.append(share * (-0.5 * away**2 / variance).exp() / variance**0.5)
    total = torch.stack(weights).sum(0).clamp(min=1e-300)
    return sum(w * p for w, p in zip(weights, parts, strict=True)) / total


@pytest.mark.parametrize("noise_level", [0.0, 0.5, 1.0])
def test_the_ode_and_the_sde_draw_from_the_distribution_whose_velocity_they_follow(
    noise_level,
) -> None:
    found = walked(100, two_bumps, noise_level).sort().values
    z = torch.linspace(-2, 2, 401, dtype=torch.float64)
    truth = sum(
        share * torch.special.ndtr((z - mean) / std)
        for share, mean, std in ((0.6, -0.7, 0.2), (0.4, 0.5, 0.1))
    )
    seen = torch.searchsorted(found, z) / len(found)
    assert (seen - truth).abs().max() < 0.015  # a Kolmogorov distance; chance alone gives 0.007


@pytest.mark.parametrize("steps", [2, 5])
def test_however_few_the_steps_signal_and_noise_keep_their_shares(steps) -> None:
    generator = torch.Generator().manual_seed(1)
    chain = flow.make_chain(1000, steps)
    x = torch.randn(200_000, generator=generator)
    for t, s in zip(chain.times, chain.times_next, strict=True):
        mean, std = flow.transition(x, torch.tensor(0.4), t, s, 0.7, 0.05)
        x = mean + std * torch.randn(len(x), generator=generator)
        left = max(s, 0.05)  # the floor is all that is left at the end
        assert float(x.mean()) == pytest.approx(0.4 * (1 - s), abs=0.01)
        assert float(x.std()) == pytest.approx(left, rel=0.01)


def test_a_short_step_is_that_of_the_sde_of_flow_grpo() -> None:
    x, clean, a = draw(0, 6), draw(1, 6), 0.5
    for t, step in ((0.6, 1e-2), (0.6, 1e-3)):
        mean, std = flow.transition(x, clean, t, t - step, a, 0.0)
        sigma = a * (t / (1 - t)) ** 0.5
        noise = (x - (1 - t) * clean) / t
        drift = sigma**2 * step / (2 * t)
        theirs = clean * (1 - t + step) + noise * (t - step - drift)
        assert std == pytest.approx(sigma * step**0.5)
        assert (mean - theirs).abs().max() < 5 * step**2


def test_log_probability_is_that_of_the_noise_that_was_drawn_and_no_std_is_below_the_floor() -> (
    None
):
    head = build(SMALL)
    noise = draw(2, 2, *head.noise_shape)
    with torch.no_grad():
        latents, log_prob = head.sample(condition(), noise, stochastic=True)
    for i in range(head.config.num_inference_steps):
        _, std = head.step(i, latents[:, i], condition(), stochastic=True)
        assert std >= head.config.min_sampling_denoising_std
        density = -noise[:, i + 1].square() / 2 - np.log(std) - np.log(2 * np.pi) / 2
        torch.testing.assert_close(log_prob[:, i], density.sum((1, 2)), atol=1e-3, rtol=1e-3)
    again = head.log_prob(condition(), latents)
    assert again.requires_grad
    assert torch.equal((again - log_prob).exp(), torch.ones_like(log_prob))


def test_both_predictions_agree_about_the_true_answer() -> None:
    clean, noise = draw(6, 2, CHUNK, ACTIONS).clamp(-1, 1), draw(7, 2, CHUNK, ACTIONS)
    for name, answer in (("sample", clean), ("velocity", noise - clean)):
        head = build(replace(SMALL, prediction_type=name))
        for level in (0, 400, 999):
            at = torch.full((2,), level)
            got = head.clean(answer, head.mixed(clean, noise, at), at)
            torch.testing.assert_close(got, clean, atol=1e-4, rtol=1e-4)


def test_times_are_drawn_with_the_density_of_pi0() -> None:
    head = build(SMALL)
    t = head.draw_timesteps((4, 20_000), torch.Generator().manual_seed(0))
    assert (int(t.min()), int(t.max())) >= (0, 990)
    share = (t + 1) / 1000
    for low in (0.2, 0.5, 0.8):  # P(t < x) of Beta(1.5, 1) is x^1.5
        assert float((share <= low).float().mean()) == pytest.approx(low**1.5, abs=0.01)


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
@pytest.mark.parametrize("prediction", ["velocity", "sample"])
def test_one_batch_is_learned(kind, prediction) -> None:
    head = build(replace(SMALL, denoiser=kind, prediction_type=prediction)).train()
    clean, pad = draw(7, 4, CHUNK, ACTIONS).clamp(-1, 1), torch.zeros(4, CHUNK).bool()
    context, generator = condition(4), torch.Generator().manual_seed(0)
    adam = torch.optim.Adam(head.parameters(), lr=3e-3)
    for _ in range(200):
        adam.zero_grad()
        head.loss(clean, pad, context, generator).mean().backward()
        adam.step()
    with torch.no_grad():
        sampled = head.sample(context, draw(8, 4, *head.noise_shape), False)[0][:, -1]
    assert (sampled - clean).abs().mean() < 0.25


def test_what_was_drawn_for_some_rows_gives_their_loss() -> None:
    head = build(replace(SMALL, max_prefix_len=2))
    clean, pad = draw(9, 4, CHUNK, ACTIONS), torch.zeros(4, CHUNK).bool()
    whole = head.loss(clean, pad, condition(4), torch.Generator().manual_seed(3))
    drawn = head.draw(4, torch.Generator().manual_seed(3))
    part = Context(*(x[1:3] for x in condition(4)))
    some = head.loss(clean[1:3], pad[1:3], part, drawn.rows(1, 2))
    torch.testing.assert_close(some, whole[1:3])


def test_settled_actions_stand_in_the_chunk_told_or_guided() -> None:
    head = build(replace(SMALL, max_prefix_len=2))
    values = draw(10, 2, CHUNK, ACTIONS).clamp(-1, 1)
    weight = torch.tensor([[1.0, 1, 0, 0], [1, 0.5, 0, 0]])
    noise = draw(11, 2, *head.noise_shape)
    free = head.sample(condition(), noise, False)[0][:, -1]
    for guided in (False, True):
        mask = weight if guided else (weight == 1).float()
        found = head.sample(
            condition(), noise, False, Prefix(values=values, mask=mask, guided=guided)
        )[0][:, -1]
        torch.testing.assert_close(found[mask == 1], values[mask == 1])
        assert (found - free)[:, 2:].abs().max() > 1e-4 or guided


def policy(**changes) -> vla.VLAPolicy:
    return fake_policy(vla.Config(head=replace(SMALL, **changes)))


def test_a_policy_takes_more_steps_or_fewer_and_its_likelihood_is_that_of_its_path() -> None:
    rng = np.random.default_rng(0)
    mine = policy()
    other = mine.with_steps(3)
    assert other.noise_shape[0] == 4
    obs, state = fake_observation(rng, 2), other.initial_state(2)
    chunk, trace, _ = other.sample(obs, state, fake_noise(rng, other, 2))
    assert chunk.values.isfinite().all()
    again = other.log_prob(obs, state, trace)
    torch.testing.assert_close(again, trace.log_prob)
    with pytest.raises(ValueError, match="steps: got 3, expected .* separate network for the last"):
        policy(ft_denoising_steps=1).with_steps(3)


def test_a_policy_of_flows_goes_on_from_a_prefix() -> None:
    rng = np.random.default_rng(2)
    mine = policy(max_prefix_len=3)
    obs, state, noise = fake_observation(rng, 1), mine.initial_state(1), fake_noise(rng, mine, 1)
    values = mine.act(obs, state, noise)[0].values.numpy()
    weight = np.zeros(values.shape[:2], np.float32)
    weight[:, :3] = 1
    shifted = (values * 0.5).astype(np.float32)
    found = mine.act(obs, state, noise, Prefix(values=shifted, mask=weight))[0].values.numpy()
    np.testing.assert_allclose(found[:, :3], shifted[:, :3], atol=1e-5)
