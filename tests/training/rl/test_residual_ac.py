"""A residual on a frozen policy, distilled back into the policy."""

import numpy as np
import torch
from rich.console import Console

from tests.training.rl.runs import config, start
from training.core import loop
from training.core.optimizer import Optimizer, OptimizerConfig
from training.rl.rollout.explorer import one_step
from vla import checkpoint


def test_the_base_stays_and_the_policy_follows_the_actor(begun, tmp_path) -> None:
    run = config("residual_ac")
    learner = run.algo.start(run, start(begun, tmp_path))
    optimizer = Optimizer(OptimizerConfig(lr=1e-3, warmup_steps=0), learner.module, 40)
    generator = torch.Generator().manual_seed(0)
    data = learner.collect()
    actor, policy = learner.actor, learner.policy
    noise = torch.randn((len(data.features), *policy.noise_shape[1:]), generator=generator)

    def chunks() -> list[torch.Tensor]:
        with torch.no_grad():
            return [one_step(p, data.features, noise)[:, :4] for p in (actor, policy)]

    base = {k: v.clone() for k, v in actor.state_dict().items() if ".residual." not in k}
    at_first = chunks()
    torch.testing.assert_close(*at_first)
    with torch.no_grad():
        actor.head.denoiser.residual[-1].bias.fill_(1.0)
    acts = chunks()[0]
    figures = [learner.update(data, optimizer, generator) for _ in range(40)]
    acted, done = chunks()
    assert all(torch.equal(actor.state_dict()[name], value) for name, value in base.items())
    assert not torch.equal(acted, acts)
    assert (acted - at_first[0]).abs().max() <= learner.config.residual_scale
    assert (acted - done).square().mean() < 0.5 * (acts - at_first[0]).square().mean()
    assert figures[-1]["distillation_loss"] > 0


def test_its_checkpoint_is_a_plain_policy(begun, tmp_path) -> None:
    place = start(begun, tmp_path)
    loop.run(config("residual_ac"), place, tmp_path / "run", Console(quiet=True))
    before, after = (checkpoint.load(at)[0] for at in (place.policy, tmp_path / "run"))
    assert after.state_dict().keys() == before.state_dict().keys()
    assert after.head.config.num_inference_steps == 1
    assert all(np.isfinite(v).all() for v in map(np.asarray, after.state_dict().values()))
