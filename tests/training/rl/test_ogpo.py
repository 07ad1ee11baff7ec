"""OGPO: values of chunks that learn, advantages within groups, and what becomes likelier."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.training.rl.runs import config, start
from training.algos.ogpo import agreed
from training.core.optimizer import Optimizer, OptimizerConfig
from training.rl.runners.chunk_critics import ChunkCritics
from training.rl.runners.frozen_vision import context_of
from vla import checkpoint


def test_values_learn_what_their_targets_say_and_differ_where_nothing_was_said() -> None:
    critics = ChunkCritics(5, count=3, width=32, seed=0, lr=3e-3, tau=0.1)
    generator = torch.Generator().manual_seed(0)
    features, chunk = (torch.randn((64, n), generator=generator) for n in (3, 2))
    chunk = chunk.unflatten(1, (1, 2))
    target = features[:, 0] - chunk[:, 0, 1].abs()
    first = critics.update(features, chunk, target)
    for _ in range(300):
        last = critics.update(features, chunk, target)
    assert last < 0.05 * first
    with torch.no_grad():
        known, far = critics(features, chunk), critics(10 * features, 10 * chunk)
    assert known.std(0).mean() < 0.3 * far.std(0).mean()
    assert not torch.equal(critics.slow(features, chunk), known)
    assert not any(
        weight.requires_grad or weight.grad is not None for weight in critics.parameters()
    )


def test_a_copy_of_its_state_goes_on_to_the_same_numbers() -> None:
    sides = [ChunkCritics(3, count=2, width=8, seed=s, lr=1e-2, tau=0.1) for s in (0, 1)]
    features, chunk, target = torch.ones(4, 1), torch.ones(4, 1, 2), torch.arange(4.0)
    first, second = (
        Optimizer(
            OptimizerConfig(), nn.ModuleDict({"q": q, "policy": nn.Linear(1, 1)}), 9, {"q": q.adam}
        )
        for q in sides
    )
    sides[0].update(features, chunk, target)
    second.load({name: value.clone() for name, value in first.tensors().items()}, 0)
    for critics in sides:
        critics.update(features, chunk, target)
    after = second.tensors()
    assert all(torch.equal(value, after[name]) for name, value in first.tensors().items())


def test_advantages_are_trusted_only_where_all_values_agree() -> None:
    better = torch.tensor([[0.3, -0.1, 0.2, 0.0], [0.1, -0.4, -0.2, 0.5]])
    assert agreed(better).tolist() == pytest.approx([0.1, -0.1, 0.0, 0.0])


@pytest.mark.parametrize("conservative", [False, True])
def test_chunks_that_values_like_become_likelier(conservative, begun, tmp_path) -> None:
    run = config("ogpo")
    settings = replace(
        run.algo,
        group_size=8,
        states_per_episode=8,
        bc_loss_coeff=0.0,
        tau=0.0,
        conservative=conservative,
        clip_ploss_coef=0.5,
    )
    learner = replace(run, algo=settings).algo.start(
        replace(run, algo=settings), start(begun, tmp_path)
    )
    data = learner.collect()
    critics = learner.module.value_net["critics"]

    def likes_high_first_joints(features, chunk):
        return chunk[:, :, 0].mean(1).expand(2, -1)

    critics.forward = likes_high_first_joints

    def mean_first_joint():
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            context = learner.policy.contexts(data.decisions)
            noise = torch.randn(
                (len(context.pooled), *learner.policy.noise_shape), generator=generator
            )
            return learner.policy.head.sample(context, noise, True)[0][:, -1, :, 0].mean()

    before = mean_first_joint()
    optimizer = Optimizer(OptimizerConfig(lr=1e-4, warmup_steps=0), learner.module, 20)
    for _ in range(8):
        learner.update(data, optimizer, torch.Generator().manual_seed(0))
    assert mean_first_joint() > before + 0.005


def test_frozen_vision_is_encoded_once_and_does_not_change(begun, tmp_path) -> None:
    run, place = config("ogpo, frozen vision"), start(begun, tmp_path)
    learner = run.algo.start(run, place)
    optimizer = Optimizer(OptimizerConfig(lr=1e-3, warmup_steps=0), learner.module, 4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        data = learner.collect()
        assert isinstance(data.decisions, torch.Tensor)
        learner.update(data, optimizer, generator)
    learner.save(learner.module.state_dict(), 2, tmp_path / "saved", lambda folder: None)
    saved = checkpoint.load(tmp_path / "saved")[0].eval()
    before = checkpoint.load(place.policy)[0].state_dict()
    changed = {n for n, w in saved.state_dict().items() if not torch.equal(w, before[n])}
    assert {".".join(name.split(".")[:2]) for name in changed} == {"backbone.pool", "head.denoiser"}
    for episode, features in zip(learner.runner.episodes, learner.policy_features, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(
                saved.contexts(learner.boundaries(episode)).pooled,
                context_of(learner.policy, features).pooled, rtol=1e-4, atol=1e-4,
            )  # fmt: skip
