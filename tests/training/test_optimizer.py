"""Learning rate, clipping, decay and averaging, worked out by hand."""

import math

import pytest
import torch
from torch import nn

from training.core.optimizer import Optimizer, OptimizerConfig, learning_rate


def module() -> nn.Linear:
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, -2.0]]))
        net.bias.copy_(torch.tensor([0.5]))
    return net


def test_the_learning_rate_rises_to_its_peak_and_falls_along_a_cosine() -> None:
    config = OptimizerConfig(lr=0.8, warmup_steps=4, min_lr_ratio=0.1)
    rates = [learning_rate(config, step, steps=12) for step in range(14)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    # half-way down: 0.8 * (0.1 + 0.9 * (1 + cos(pi / 2)) / 2) = 0.8 * 0.55
    assert rates[8] == pytest.approx(0.44)
    # a quarter: 0.8 * (0.1 + 0.9 * (1 + cos(pi / 4)) / 2)
    assert rates[6] == pytest.approx(0.8 * (0.1 + 0.45 * (1 + math.sqrt(0.5))))
    assert rates[12] == rates[13] == pytest.approx(0.08)  # a tenth, and no rise afterwards


def test_the_first_update_is_that_of_adamw() -> None:
    net = module()
    config = OptimizerConfig(lr=0.1, weight_decay=0.5, warmup_steps=1, grad_clip_norm=100.0)
    optimizer = Optimizer(config, net, steps=10)
    loss = 3 * net.weight[0, 0] + 4 * net.bias[0]
    told = optimizer.step(loss)
    # Adam's first step is lr * sign(gradient); the matrix also decays by lr * 0.5 * weight
    expected = [1 * (1 - 0.05) - 0.1, -2 * (1 - 0.05)]
    torch.testing.assert_close(net.weight.detach(), torch.tensor([expected]))
    torch.testing.assert_close(net.bias.detach(), torch.tensor([0.4]))  # biases do not decay
    assert told == pytest.approx({"grad_norm": 5.0, "lr": 0.1})


def test_a_large_gradient_is_clipped_to_the_norm_and_told_as_it_was() -> None:
    net = module()
    optimizer = Optimizer(OptimizerConfig(grad_clip_norm=0.5), net, steps=10)
    told = optimizer.step(30 * net.weight[0, 0] + 40 * net.bias[0])
    assert told["grad_norm"] == pytest.approx(50.0)
    assert net.weight.grad is not None
    torch.testing.assert_close(net.weight.grad, torch.tensor([[0.3, 0.0]]))


def test_the_average_starts_as_the_weights_and_slows_down() -> None:
    net = module()
    optimizer = Optimizer(OptimizerConfig(ema_decay=0.1), net, steps=10)
    previous = optimizer.average["weight"].clone()
    for decay in (1 / 11, 0.1, 0.1):  # min(ema, n / (n + 10)) after n updates
        optimizer.step(net.weight.square().sum() + net.bias.sum())
        expected = decay * previous + (1 - decay) * net.weight.detach()
        torch.testing.assert_close(optimizer.average["weight"], expected)
        previous = optimizer.average["weight"].clone()


def test_counters_are_copied_into_the_average_and_running_statistics_averaged() -> None:
    net = nn.BatchNorm1d(1, affine=True)
    optimizer = Optimizer(OptimizerConfig(), net, steps=10)
    optimizer.step(net(torch.tensor([[1.0], [3.0]])).square().sum())
    assert optimizer.average["num_batches_tracked"] == 1
    # running mean 0.1 * 2, of which 10 / 11 enter the average
    torch.testing.assert_close(optimizer.average["running_mean"], torch.tensor([0.2 * 10 / 11]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_told_and_leaves_everything_as_it_was(bad: float) -> None:
    net = module()
    optimizer = Optimizer(OptimizerConfig(), net, steps=10)
    optimizer.step(net.weight.sum())
    before = {name: value.clone() for name, value in optimizer.tensors().items()}
    with pytest.raises(ValueError, match=r"gradient of update 1 .* lower optimizer.lr"):
        optimizer.step(net.weight.sum() * bad)
    after = optimizer.tensors()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert optimizer.count == 1


def test_restored_it_goes_on_to_the_bit() -> None:
    def descend(optimizer: Optimizer, net: nn.Linear, times: int) -> None:
        for i in range(times):
            x = torch.tensor([[1.0, 2.0 + i]])
            optimizer.step((net(x) - 1).square().sum())

    config = OptimizerConfig(warmup_steps=2, ema_decay=0.5)
    a, b = module(), nn.Linear(2, 1)
    first = Optimizer(config, a, steps=20)
    descend(first, a, 5)
    saved = {name: value.clone() for name, value in first.tensors().items()}
    second = Optimizer(config, b, steps=20)
    second.load(saved, 5)
    descend(first, a, 4)
    descend(second, b, 4)
    left, right = first.tensors(), second.tensors()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
