"""The noise actor: density of its noise, best of n chunks, and acting with it."""

import numpy as np
import pytest
import torch
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution

from tests.fakes import fake_observation, fake_policy, liven_
from vla import checkpoint
from vla.nn.noise_actor import NoiseActorConfig
from vla.policies import vla

SMALL = vla.Config(chunk_size=4, n_action_steps=2)


def steered(**settings) -> vla.VLAPolicy:
    policy = fake_policy(SMALL)
    policy.add_noise_actor(NoiseActorConfig(**{"width": 16, "num_critics": 2, **settings}))
    liven_(policy.noise_actor)
    return policy.eval()


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def act(policy, noise, batch: int = 3):
    obs = fake_observation(np.random.default_rng(0), batch)
    return policy.act(obs, policy.initial_state(batch), noise)[0].values


def test_the_density_is_that_of_a_squashed_gaussian() -> None:
    noise_actor = steered(noise_bound=1.2).noise_actor
    features = draw(1, 5, noise_actor.actor[0].in_features)
    drawn = noise_actor.draw(features, draw(2, 5, noise_actor.chunk, noise_actor.actions))
    assert drawn.noise.abs().max() < 1.2
    mean, log_std = noise_actor.gaussian(features)
    squash = [TanhTransform(cache_size=1), AffineTransform(0.0, 1.2)]
    wanted = TransformedDistribution(Normal(mean, log_std.exp()), squash)
    found = wanted.log_prob(drawn.noise).flatten(1).mean(1)
    torch.testing.assert_close(drawn.log_prob, found, atol=1e-4, rtol=1e-4)


def test_fresh_noise_is_about_what_the_policy_was_cloned_with() -> None:
    policy = fake_policy(SMALL)
    policy.add_noise_actor(NoiseActorConfig(width=16))
    features = draw(1, 200, policy.noise_actor.actor[0].in_features)
    normal = draw(2, 200, policy.noise_actor.chunk, policy.noise_actor.actions)
    noise = policy.noise_actor.draw(features, normal).noise
    assert noise.mean().abs() < 0.1
    assert 0.85 < noise.std() < 1.05


def test_acting_starts_from_the_chosen_noise_and_rollouts_from_noise_around_it() -> None:
    policy = steered()
    first, second = (draw(s, 3, *policy.noise_shape) for s in (3, 4))
    assert torch.equal(act(policy, first), act(policy, second))
    plain = fake_policy(SMALL)
    assert not torch.equal(act(policy, first), act(plain, first))
    obs = fake_observation(np.random.default_rng(0), 3)
    chunk, trace, _ = policy.sample(obs, policy.initial_state(3), first)
    again, _, _ = policy.sample(obs, policy.initial_state(3), second)
    assert not torch.equal(chunk.values, again.values)
    # The same weights, from the noise that was chosen, without drawing, come to the same.
    replayed = act(plain, trace.latents[:, :1])
    torch.testing.assert_close(chunk.values, replayed, atol=1e-5, rtol=1e-5)
    assert not trace.log_prob.any()
    with pytest.raises(ValueError, match="with a noise actor are deterministic"):
        policy.log_prob(obs, policy.initial_state(3), trace)


def test_the_chunk_of_the_highest_value_is_chosen_row_by_row(monkeypatch) -> None:
    policy = steered(best_of_n=3, lcb_coef=0.0)
    noise = draw(5, 2, *policy.noise_shape)
    seen = []

    def values(features, chunk):
        seen.append(chunk)
        return torch.tensor([0.1, 0.3, 0.2, 0.9, 0.0, 0.5]).expand(2, -1)

    monkeypatch.setattr(policy.noise_actor.values, "forward", values)
    obs = fake_observation(np.random.default_rng(0), 2)
    _, trace, _ = policy.sample(obs, policy.initial_state(2), noise)
    assert torch.equal(trace.latents[:, -1, :2], seen[0][[1, 3]])
    assert seen[0].shape == (6, 2, 2)


def test_doubt_is_taken_off(monkeypatch) -> None:
    policy = steered(best_of_n=2, lcb_coef=1.0)
    # Means 1.0 and 0.9, deviations 0.5 and 0.1.
    told = torch.tensor([[1.5, 1.0], [0.5, 0.8]])
    monkeypatch.setattr(policy.noise_actor.values, "forward", lambda features, chunk: told)
    obs, noise = fake_observation(np.random.default_rng(0), 1), draw(6, 1, *policy.noise_shape)
    chosen = policy.sample(obs, policy.initial_state(1), noise)[1].latents
    second = noise.clone()
    second[:, 0] = noise[:, 1]
    policy.noise_actor.config = NoiseActorConfig(width=16, num_critics=2)
    torch.testing.assert_close(
        policy.sample(obs, policy.initial_state(1), second)[1].latents, chosen
    )


def test_a_checkpoint_acts_with_its_noise_actor(tmp_path) -> None:
    policy = steered(best_of_n=2)
    origin = checkpoint.provenance({}, (), 1)
    checkpoint.save(policy, origin, tmp_path / "policy", policy.state_dict())
    loaded, _ = checkpoint.load(tmp_path / "policy")
    noise = draw(7, 3, *policy.noise_shape)
    assert loaded.config.noise_actor.best_of_n == 2
    assert torch.equal(act(loaded, noise), act(policy, noise))


def test_more_candidates_than_rows_of_noise_are_refused() -> None:
    with pytest.raises(ValueError, match="best_of_n: got 8, expected at most 7"):
        steered(best_of_n=8)
