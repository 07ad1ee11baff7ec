"""DPPO: ratios that begin at 1, its loss by hand, and what it makes likelier."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.training.rl.runs import config, start
from training.algos.dppo import clipped
from training.optimiser import Optimiser, OptimiserConfig
from training.rl.config import PracticeConfig


def using(**settings) -> PracticeConfig:
    run = config("dppo")
    return replace(run, algo=replace(run.algo, **settings))


def test_the_clipped_loss_by_hand() -> None:
    change = torch.log(torch.tensor([[1.5, 1.0], [1.0, 0.5]]))
    advantage, bound = torch.tensor([2.0, -1.0]), torch.tensor([0.1, 0.2])
    # Gains: 2 * 0.9 at the noisier transition, 2 at the last; -0.9 and -1 for the other decision.
    # min(1.5, 1.1) * 1.8 = 1.98; 1 * 2; 1 * -0.9; min(0.5 * -1, 0.8 * -1) = -0.8.
    found = clipped(change, advantage, bound, torch.tensor([0.9, 1.0]))
    assert found.item() == pytest.approx(-(1.98 + 2.0 - 0.9 - 0.8) / 4)


@pytest.mark.parametrize("tuned", [0, 1, 3])
def test_the_ratio_is_1_at_the_first_update_and_one_tuned_step_gives_numbers(
    tuned, begun, tmp_path
) -> None:
    run = using(tuned=tuned, episodes=2)
    learner = run.algo.start(run, start(begun, tmp_path))
    optimiser = Optimiser(OptimiserConfig(lr=1e-4, warmup=0), learner.module, 4)
    generator = torch.Generator().manual_seed(0)
    figures = learner.update(learner.collect(), optimiser, generator)
    assert figures["ratio"] < 1e-5
    assert abs(figures["kl"]) < 1e-6
    assert all(np.isfinite(value) for value in figures.values() if value == value)
    # The latest practice again: the weights have changed, the ratio with them.
    assert learner.update(learner.collect(), optimiser, generator)["ratio"] > 1e-5
    assert len(learner.tuned) == (tuned or 6)


def test_what_turned_out_better_than_expected_becomes_likelier(begun, tmp_path) -> None:
    run = using(episodes=2, clone=0.0, value=0.0)
    learner = run.algo.start(run, start(begun, tmp_path))
    data = learner.collect()
    good = np.arange(len(data.prepared.advantage)) % 2 == 0
    data = data._replace(
        prepared=data.prepared._replace(advantage=np.where(good, 1.0, -1.0).astype(np.float32))
    )
    optimiser = Optimiser(OptimiserConfig(lr=3e-5, warmup=0), learner.module, 10)
    for _ in range(3):
        learner.update(data, optimiser, torch.Generator().manual_seed(0))
    with torch.no_grad():
        score = learner.scores(learner.policy.contexts(data.decisions), data.latents).numpy()
    change = score - data.prepared.score
    assert change[good].mean() > change[~good].mean()


def test_clips_grow_and_advantages_fade_towards_the_noise(begun, tmp_path) -> None:
    run = using()
    learner = run.algo.start(run, start(begun, tmp_path))
    clips, fades = learner._clips(), learner._discounts()
    assert clips[0] == pytest.approx(0.001)
    assert clips[-1] == pytest.approx(0.01)
    assert (clips.diff() > 0).all()
    np.testing.assert_allclose(fades, 0.99 ** np.arange(5, -1, -1), rtol=1e-6)


def test_more_tuned_steps_than_there_are_is_refused(begun, tmp_path) -> None:
    run = using(tuned=9)
    with pytest.raises(ValueError, match="tuned: got 9, the policy denoises in 6 steps"):
        run.algo.start(run, start(begun, tmp_path))
