"""Schedule and transitions against `diffusers`, the reference that others check theirs with."""

import math

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from torch import Tensor

from vla.nn import diffusion


def scheduler(train: int, steps: int) -> DDIMScheduler:
    reference = DDIMScheduler(
        num_train_timesteps=train,
        beta_schedule="squaredcos_cap_v2",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        prediction_type="sample",
    )
    reference.set_timesteps(steps)
    return reference


def draw(rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.standard_normal((3, 4, 2), np.float32))


@pytest.mark.parametrize("train", [10, 100, 1000])
def test_alphas_are_those_of_diffusers(train: int) -> None:
    reference = DDPMScheduler(num_train_timesteps=train, beta_schedule="squaredcos_cap_v2")
    torch.testing.assert_close(
        diffusion.cosine_alphas(train), reference.alphas_cumprod, atol=0, rtol=0
    )


@pytest.mark.parametrize("train", [50, 100, 1000])
def test_the_chain_visits_the_timesteps_of_diffusers_for_every_number_of_steps(train: int) -> None:
    alphas = diffusion.cosine_alphas(train)
    for steps in range(1, 51):
        # for 29 and 31 steps diffusers 0.35 adds a timestep of -1, an error of its rounding
        reference = scheduler(train, steps).timesteps.tolist()[:steps]
        for i, (got, expected) in enumerate(
            zip(diffusion.make_chain(alphas, steps).timesteps, reference, strict=True)
        ):
            halfway = (2 * i * train) % (2 * steps) == steps  # rounds up or down by a last bit
            assert abs(got - expected) <= halfway


@pytest.mark.parametrize("steps", [1, 2, 6, 7, 10, 100])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_every_transition_is_that_of_diffusers(steps: int, eta: float) -> None:
    rng = np.random.default_rng(steps)
    reference = scheduler(100, steps)
    chain = diffusion.make_chain(diffusion.cosine_alphas(100), steps)
    for t, alpha, alpha_prev in zip(*chain, strict=True):
        latent, clean = draw(rng), draw(rng)
        mean, std = diffusion.transition(latent, clean, alpha, alpha_prev, eta, min_std=0.0)
        still = reference.step(clean, t, latent, eta=eta, variance_noise=torch.zeros_like(latent))
        torch.testing.assert_close(mean, still.prev_sample, atol=1e-4, rtol=1e-5)
        unit = reference.step(clean, t, latent, eta=eta, variance_noise=torch.ones_like(latent))
        torch.testing.assert_close(
            unit.prev_sample - still.prev_sample, torch.full_like(latent, std), atol=2e-5, rtol=1e-4
        )


def test_an_eta_of_zero_is_deterministic_and_the_floor_holds() -> None:
    chain = diffusion.make_chain(diffusion.cosine_alphas(100), 5)
    latent, clean = torch.ones(1, 2, 1), torch.zeros(1, 2, 1)
    for alpha, alpha_prev in zip(chain.alphas, chain.alphas_prev, strict=True):
        assert diffusion.transition(latent, clean, alpha, alpha_prev, 0.0, 0.0)[1] == 0.0
        mean, std = diffusion.transition(latent, clean, alpha, alpha_prev, 1.0, 0.3)
        assert std >= 0.3
        plain, _ = diffusion.transition(latent, clean, alpha, alpha_prev, 1.0, 0.0)
        assert torch.equal(mean, plain)  # the floor adds noise, it does not move the mean


@pytest.mark.parametrize("steps", [0, 101])
def test_an_impossible_number_of_steps_is_refused(steps: int) -> None:
    with pytest.raises(ValueError, match=rf"must lie in \[1, 100\], got {steps}"):
        diffusion.make_chain(diffusion.cosine_alphas(100), steps)


def test_noising_has_unit_power_and_the_given_share_of_signal() -> None:
    clean, noise = torch.tensor([2.0]), torch.tensor([-1.0])
    # sqrt(0.36) * 2 + sqrt(0.64) * (-1) = 1.2 - 0.8
    noisy = diffusion.add_noise(clean, noise, torch.tensor(0.36))
    torch.testing.assert_close(noisy, torch.tensor([0.4]))


def test_log_probability_is_the_normal_density_summed_over_the_chunk() -> None:
    value = torch.tensor([[[1.0, 0.0], [0.0, -1.0]]])
    # four numbers, std 0.5: two of them lie 2 deviations off: -2 * 2 - 4 * log(0.5 * sqrt(2 pi))
    expected = -2 * (2.0**2) / 2 - 4 * math.log(0.5 * math.sqrt(2 * math.pi))
    got = diffusion.gaussian_log_prob(value, torch.zeros_like(value), 0.5)
    torch.testing.assert_close(got, torch.tensor([expected]))
