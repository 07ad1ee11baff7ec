"""The diffusion head: it samples like `diffusers`, scores what it sampled, learns and masks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler
from torch import Tensor

from tests.fakes import fake_context, liven_
from vla.contracts.types import Prefix
from vla.heads import diffusion
from vla.nn.context import Context

CHUNK, ACTIONS, SIZES = 4, 3, (12, 8, 10)
SMALL = diffusion.Config(width=64, depth=2)
KINDS = ("mlp", "transformer")


def build(config: diffusion.Config) -> diffusion.DiffusionHead:
    head = config.build(CHUNK, ACTIONS, SIZES)
    liven_(head)
    return head.eval()


def draw(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, np.float32))


def condition(rng: np.random.Generator, batch: int = 2) -> Context:
    return fake_context(rng, batch, SIZES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prediction", ["sample", "epsilon"])
def test_sampling_gives_what_a_loop_of_diffusers_gives(kind, prediction) -> None:
    rng = np.random.default_rng(0)
    # the bound is ours, and diffusers has none here: put it out of reach
    head = build(replace(SMALL, denoiser=kind, prediction_type=prediction, clip_sample_range=1e6))
    context, noise = condition(rng), draw(rng, 2, *head.noise_shape)
    scheduler = DDIMScheduler(
        num_train_timesteps=head.config.num_train_timesteps,
        beta_schedule="squaredcos_cap_v2",
        timestep_spacing="trailing",
        clip_sample=False,
        prediction_type=prediction,
    )
    scheduler.set_timesteps(head.config.num_inference_steps)
    latent = noise[:, 0]
    with torch.no_grad():
        latents, log_prob = head.sample(context, noise, stochastic=False)
        for t in scheduler.timesteps:
            output = head.denoiser(latent, t.expand(2), context)
            latent = scheduler.step(output, t, latent, eta=0.0).prev_sample
    scale = latent.abs().max()
    torch.testing.assert_close(latents[:, -1] / scale, latent / scale, atol=1e-4, rtol=0)
    assert not log_prob.any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_ratio_of_a_fresh_sample_is_exactly_one(kind) -> None:
    rng = np.random.default_rng(1)
    head = build(replace(SMALL, denoiser=kind))
    context, noise = condition(rng, 5), draw(rng, 5, *head.noise_shape)
    with torch.no_grad():
        latents, log_prob = head.sample(context, noise, stochastic=True)
    again = head.log_prob(context, latents)
    assert again.requires_grad
    assert torch.equal((again - log_prob).exp(), torch.ones_like(log_prob))


def test_log_probability_is_that_of_the_noise_that_was_drawn() -> None:
    rng = np.random.default_rng(2)
    head = build(SMALL)
    noise = draw(rng, 2, *head.noise_shape)
    latents, log_prob = head.sample(condition(rng), noise, stochastic=True)
    for i in range(head.config.num_inference_steps):
        _, std = head.step(i, latents[:, i], condition(rng), stochastic=True)
        assert std >= head.config.min_sampling_denoising_std
        # log N(mean + std z; mean, std^2) = -z^2 / 2 - log std - log(2 pi) / 2, per number
        density = -noise[:, i + 1].square() / 2 - np.log(std) - np.log(2 * np.pi) / 2
        torch.testing.assert_close(log_prob[:, i], density.sum((1, 2)), atol=1e-3, rtol=1e-3)


def test_only_the_first_noise_counts_when_deterministic() -> None:
    rng = np.random.default_rng(3)
    head = build(SMALL)
    context, noise = condition(rng), draw(rng, 2, *head.noise_shape)
    other = torch.cat([noise[:, :1], draw(rng, 2, *head.noise_shape)[:, 1:]], 1)
    assert torch.equal(head.sample(context, noise, False)[0], head.sample(context, other, False)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prediction", ["sample", "epsilon"])
def test_padded_actions_carry_no_loss(kind, prediction) -> None:
    rng = np.random.default_rng(4)
    # One draw, so that the gradient of the network's output can be taken action by action.
    head = build(replace(SMALL, denoiser=kind, prediction_type=prediction, num_noise_samples=1))
    outputs: list[Tensor] = []
    head.denoiser.register_forward_hook(lambda *args: outputs.append(args[2]))
    pad = torch.tensor([[False, False, True, True], [False, False, False, True]])
    loss = head.loss(draw(rng, 2, CHUNK, ACTIONS), pad, condition(rng), torch.Generator())
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    assert not gradient[pad].any()
    assert (gradient[~pad] != 0).all()


def test_the_loss_of_a_row_is_its_mean_over_the_actions_that_count() -> None:
    rng = np.random.default_rng(5)
    head = build(replace(SMALL, num_noise_samples=1))
    clean, context = draw(rng, 2, CHUNK, ACTIONS), condition(rng)
    pad = torch.tensor([[False] * CHUNK, [True] * CHUNK])
    outputs: list[Tensor] = []
    head.denoiser.register_forward_hook(lambda *args: outputs.append(args[2]))
    loss = head.loss(clean, pad, context, torch.Generator())
    torch.testing.assert_close(loss[0], (outputs[0][0] - clean[0]).square().mean())
    assert loss[1] == 0.0


def test_both_predictions_agree_about_the_true_answer() -> None:
    rng = np.random.default_rng(6)
    clean = draw(rng, 2, CHUNK, ACTIONS).clamp(-1, 1)
    noise, context = draw(rng, 2, CHUNK, ACTIONS), condition(rng)
    heads = {p: build(replace(SMALL, prediction_type=p)) for p in ("sample", "epsilon")}
    truth = {"sample": clean, "epsilon": noise}
    for t in (0, 40, 80):
        alpha = heads["sample"].alphas[t]
        latent = alpha.sqrt() * clean + (1 - alpha).sqrt() * noise
        for name, head in heads.items():
            head.denoiser.forward = lambda *_, answer=truth[name]: answer
            at = torch.full((2,), t)
            got = head.clean(head.predict(latent, at, context), latent, at)
            torch.testing.assert_close(got, clean, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_is_learned(kind) -> None:
    rng = np.random.default_rng(7)
    head = build(replace(SMALL, denoiser=kind)).train()
    clean, pad = draw(rng, 4, CHUNK, ACTIONS).clamp(-1, 1), torch.zeros(4, CHUNK).bool()
    context, generator = condition(rng, 4), torch.Generator().manual_seed(0)
    adam = torch.optim.Adam(head.parameters(), lr=3e-3)
    losses = []
    for _ in range(150):
        loss = head.loss(clean, pad, context, generator).mean()
        losses.append(loss.item())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert np.mean(losses[-10:]) < np.mean(losses[:3]) / 10
    noise = draw(rng, 4, *head.noise_shape)
    with torch.no_grad():
        sampled = head.sample(context, noise, stochastic=False)[0][:, -1]
    assert (sampled - clean).abs().mean() < 0.2


@pytest.mark.parametrize("part", ["pooled", "tokens", "memory"])
def test_the_transformer_listens_to_every_part_of_its_condition(part) -> None:
    rng = np.random.default_rng(8)
    head = build(replace(SMALL, denoiser="transformer"))
    context, noise = condition(rng), draw(rng, 2, *head.noise_shape)
    other = context._replace(**{part: getattr(context, part) + 1})
    a, b = (head.sample(c, noise, stochastic=False)[0] for c in (context, other))
    assert (a - b).abs().max() > 1e-4


def test_late_steps_and_low_noise_levels_ask_the_late_network_and_the_others_the_first() -> None:
    rng = np.random.default_rng(8)
    whole, head = build(SMALL), build(SMALL)
    head.load_state_dict(whole.state_dict())
    head.add_ft_denoiser(2)
    context, noise = condition(rng), draw(rng, 2, *head.noise_shape)
    with torch.no_grad():
        assert torch.equal(
            head.sample(context, noise, True)[0], whole.sample(context, noise, True)[0]
        )
        for weight in head.late.parameters():
            weight.add_(0.1)
        before, after = (h.sample(context, noise, True)[0] for h in (whole, head))
        assert torch.equal(after[:, :5], before[:, :5])  # the start and four of six steps
        assert not torch.equal(after[:, 5], before[:, 5])
        # 100 levels in six steps: the fifth step is asked at level 32.
        level = torch.tensor([32, 33])
        said, old, new = (f(noise[:, 0], level, context) for f in
                          (head.predict, head.denoiser, head.late))  # fmt: skip
    assert torch.equal(said[0], new[0])
    assert torch.equal(said[1], old[1])


def test_a_network_is_split_once_and_into_parts() -> None:
    head = build(replace(SMALL, ft_denoising_steps=2))
    with pytest.raises(ValueError, match="of 6 denoising steps the last 2 have a separate network"):
        head.add_ft_denoiser(3)
    for tuned in (0, 6):
        with pytest.raises(
            ValueError, match=f"ft_denoising_steps: got {tuned}; .* expected 1 to 5"
        ):
            build(SMALL).add_ft_denoiser(tuned)
    with pytest.raises(ValueError, match="ft_denoising_steps: got 6, expected less than the 6"):
        build(replace(SMALL, ft_denoising_steps=6))


def test_settled_actions_carry_no_loss_and_enter_without_noise() -> None:
    rng = np.random.default_rng(0)
    head = build(replace(SMALL, max_prefix_len=CHUNK - 1, num_noise_samples=8))
    clean, pad = draw(rng, 2, CHUNK, ACTIONS), torch.zeros(2, CHUNK, dtype=torch.bool)
    seen = []

    def watched(latent, t, context, known):
        seen.append((latent, known))
        return torch.zeros_like(latent)  # so the error of an action is its square

    head.denoiser.forward = watched
    loss = head.loss(clean, pad, condition(rng), torch.Generator().manual_seed(0))
    (latent, known), wide = seen[0], clean.repeat(8, 1, 1)
    counts = known.sum(1)
    assert set(counts.tolist()) == set(range(CHUNK))  # every length, none of them the whole chunk
    assert torch.equal(known, (torch.arange(CHUNK) < counts[:, None]).float())
    assert torch.equal(latent[known > 0], wide[known > 0])
    assert not torch.isclose(latent[known == 0], wide[known == 0]).any()
    free = (1 - known).view(8, 2, CHUNK)
    expected = (clean.square().mean(2) * free).sum((0, 2)) / free.sum((0, 2))
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_hears_which_actions_are_settled(kind) -> None:
    rng = np.random.default_rng(0)
    head = build(replace(SMALL, denoiser=kind, max_prefix_len=2))
    latent, t, context = draw(rng, 2, CHUNK, ACTIONS), torch.tensor([5, 50]), condition(rng)
    known = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    told, untold = head.predict(latent, t, context, known), head.predict(latent, t, context)
    assert not torch.isclose(told[0], untold[0]).any()
    torch.testing.assert_close(told[1], untold[1])


def test_a_prefix_of_the_whole_chunk_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"max_prefix_len: got 4, expected less than the 4 actions"
    ):
        build(replace(SMALL, max_prefix_len=CHUNK))


def test_a_head_learns_to_go_on_from_what_is_settled() -> None:
    """Chunks are a constant, 1 or -1: only the settled action tells which."""
    rng = np.random.default_rng(0)
    config = replace(SMALL, max_prefix_len=1, num_noise_samples=1, num_inference_steps=4)
    head = config.build(CHUNK, ACTIONS, SIZES)
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    generator, context = torch.Generator().manual_seed(0), condition(rng, 64)
    context = Context(*(torch.zeros_like(part) for part in context))
    pad = torch.zeros(64, CHUNK, dtype=torch.bool)
    for _ in range(300):
        sign = torch.from_numpy(rng.choice([-1.0, 1.0], 64).astype(np.float32))
        clean = sign[:, None, None].expand(-1, CHUNK, ACTIONS)
        loss = head.loss(clean, pad, context, generator).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    noise = draw(rng, 64, *head.noise_shape)
    first = (torch.arange(CHUNK) < 1).float().expand(64, -1)
    with torch.no_grad():
        found = head.sample(context, noise, False, Prefix(values=clean, mask=first))[0][:, -1]
        free = head.sample(context, noise, False)[0][:, -1]
    assert (found.sign() == clean.sign()).float().mean() > 0.95
    assert 0.2 < (free.sign() == clean.sign()).float().mean() < 0.8
