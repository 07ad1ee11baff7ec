"""Two processes train as one would, one of them writes, and neither outlives the other."""

import signal
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.training.processes import together
from tests.training.tiny_run import PX, run, tiny_config
from training.algos import bc
from training.core import distributed
from training.core.distributed import Partition
from training.core.metrics import read_metrics
from training.core.optimizer import OptimizerConfig
from vla import checkpoint
from vla.backbones import tiny
from vla.memory import bank, none
from vla.nn.norms import Standardize

SLOW = OptimizerConfig(lr=1e-4, warmup_steps=3)
"""Adam's first steps are signs of gradients: where one is all but 0, rounding decides, and the
longer the steps, the sooner losses show it.
"""


def losses(out):
    return [row["loss"] for row in read_metrics(out)]


def test_shares_are_all_of_a_batch_and_may_be_empty() -> None:
    assert [Partition(rank, 3).range(7) for rank in range(3)] == [(0, 2), (2, 4), (4, 7)]
    assert [Partition(rank, 2).range(1) for rank in range(2)] == [(0, 0), (0, 1)]


@pytest.mark.parametrize("unit", ["sequence", "frame"])
def test_parts_of_a_batch_have_the_rows_of_the_whole_and_losses_that_add_up(
    unit, arm_dataset
) -> None:
    config = tiny_config(
        algo=bc.Config(
            sampling=unit,
            batch_size=3,
            states_per_episode=2,
            random_shift_px=2,
            brightness_jitter=0.2,
        )
    )
    config = replace(config, policy=replace(config.policy, memory=none.Config()))
    found = []
    for part in (None, Partition(0, 2), Partition(1, 2)):
        learner = config.algo.start(config, arm_dataset)
        if part is not None:
            learner.group = distributed.ProcessGroup(part)
        (batch,) = learner.collect()
        generator = torch.Generator().manual_seed(0)
        found.append((batch, learner.module.bc_loss(batch, generator)[0].item()))
    (whole, loss), *parts = found
    for name in ("images", "proprio", "step_index", "decision", "actions", "action_is_pad"):
        both = torch.cat([getattr(batch, name) for batch, _ in parts])
        assert torch.equal(both, getattr(whole, name)), name
    assert sum(one for _, one in parts) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("memory", "parallel"),
    [
        (none.Config(), "ddp"),
        (bank.Config(), "ddp"),
        pytest.param(bank.Config(), "fsdp", marks=pytest.mark.slow),
    ],
)
def test_two_processes_have_the_losses_of_one_and_one_of_them_writes(
    memory, parallel, arm_dataset, tmp_path
) -> None:
    # Seven episodes by threes: the last batch of an epoch leaves the first process nothing to do,
    # and what a bank remembers is standardised over two rows there.
    config = tiny_config(optimizer=SLOW)
    config = replace(config, policy=replace(config.policy, memory=memory))
    whole = run(config, arm_dataset, tmp_path / "one")
    ended = together(config, arm_dataset, tmp_path / "two", parallel=parallel)
    assert ended == [(0, ""), (0, "")]
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(whole), atol=1e-5)
    assert len(losses(whole)) == config.steps
    samples = [[row["samples"] for row in read_metrics(tmp_path / n)] for n in ("one", "two")]
    assert samples[0] == samples[1]
    ours, theirs = (checkpoint.load(tmp_path / n)[0].state_dict() for n in ("one", "two"))
    for name in (n for n in ours if "running" in n):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-3, rtol=1e-3)


def test_a_run_goes_on_in_other_processes_and_with_other_shares(arm_dataset, tmp_path) -> None:
    config = tiny_config(optimizer=SLOW)
    whole, out = run(config, arm_dataset, tmp_path / "one"), tmp_path / "two"
    for stops, parallel in ((2, "ddp"), (5, "fsdp")):
        ended = together(config, arm_dataset, out, stops=stops, parallel=parallel)
        assert [told.split(":")[0] for _, told in ended] == ["Interrupted", "Interrupted"], ended
    assert checkpoint.load(out)[1].step == 6
    trainers = [safetensors.torch.load_file(f / "checkpoint/trainer.safetensors")
                for f in (out, whole)]  # fmt: skip
    shapes = [{name: tuple(value.shape) for name, value in one.items()} for one in trainers]
    assert shapes[0] == shapes[1]
    run(config, arm_dataset, out)
    np.testing.assert_allclose(losses(out), losses(whole), atol=1e-5)


def test_a_killed_process_ends_the_other_with_a_sentence_and_the_run_goes_on(
    arm_dataset, tmp_path
) -> None:
    config = tiny_config(
        policy=replace(
            tiny_config().policy, memory=none.Config(),
            backbone=tiny.Config(image_px=PX, frozen=True),
        ),
        cache_frozen_features=True, optimizer=SLOW,
    )  # fmt: skip
    whole = run(config, arm_dataset, tmp_path / "one")
    ended = together(config, arm_dataset, tmp_path / "two", dies=5)
    assert ended[1] == (-signal.SIGKILL, "")
    assert ended[0][0] == 1
    assert ended[0][1].startswith("ValueError: one of the 2 processes of this run has ended;")
    assert checkpoint.load(tmp_path / "two")[1].step == 3
    ended = together(config, arm_dataset, tmp_path / "two", stops=6)
    assert [told.split(":")[0] for _, told in ended] == ["Interrupted", "Interrupted"], ended
    assert checkpoint.load(tmp_path / "two")[1].step == 7
    assert together(config, arm_dataset, tmp_path / "two") == [(0, ""), (0, "")]
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(whole), atol=1e-5)


def test_online_rl_and_compiled_losses_are_not_distributed(arm_dataset) -> None:
    config = tiny_config(compile=True)
    learner = config.algo.start(config, arm_dataset)
    with pytest.raises(ValueError, match="compile: not with several processes"):
        learner.distribute(distributed.ProcessGroup(Partition(0, 2)))


def test_alone_it_standardises_as_batch_norm_does() -> None:
    ours, theirs = Standardize(4), torch.nn.BatchNorm1d(4, affine=False)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 4), np.float32))
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    before = ours.running_mean.clone()
    ours(x[:1])  # one row has no deviation
    assert torch.equal(ours.running_mean, before)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
