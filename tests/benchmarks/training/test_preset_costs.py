"""Counts of weights are the published ones; counted memory is what is given out when it runs."""

import dataclasses
import json

import pytest
import torch
from rich.console import Console

from benchmarks.training.presets import bench, count, kernels, measure, published, sketch
from benchmarks.training.presets.flop_memory_counter import Kernel, Tally

EXACT = {
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": 507_482_304,
    "google/paligemma-3b-pt-224": 2_923_466_480,
    "Qwen/Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "OpenGVLab/InternVL3-8B-hf": 7_944_373_760,
}
"""What transformers' classes have at these sizes; the published figures are rounded."""


@pytest.mark.parametrize("name", published.MODELS)
def test_a_published_model_has_as_many_weights_as_were_published(name):
    found = sketch.weights_of(name)["all"]
    assert found == EXACT[name]
    assert found == pytest.approx(published.MODELS[name].parameters, rel=0.002)


@pytest.mark.parametrize("name", ["small", "base", "large"])
def test_a_preset_names_a_model_of_known_sizes(name):
    model = bench.preset(name, "pick_place").policy.backbone.model
    assert model.removeprefix("hub:") in published.MODELS


def test_a_model_of_unknown_sizes_is_named():
    with pytest.raises(ValueError, match="nothing is known of the sizes of 'me/mine'; known are"):
        sketch.architecture("hub:me/mine")


def test_a_kept_activation_is_counted_and_one_that_nobody_holds_is_not():
    weight = torch.zeros(100, 100, requires_grad=True)
    with Tally([weight]) as tally:
        x = torch.ones(10, 100)  # 4,000 bytes
        y = x @ weight  # 4,000, and x is kept for the gradient
        del x
        assert tally.held == 8_000
        del y
        assert tally.held == 0
    assert tally.peak == 8_000
    assert tally.flops == {Kernel("matmul", (1, 10, 100, 100), torch.float32): 200_000}


@pytest.fixture(scope="module")
def smol():
    run, made = bench.small_vlm()
    return dataclasses.replace(
        run, algo=dataclasses.replace(run.algo, batch_size=1, states_per_episode=2)
    ), made


@pytest.fixture(autouse=True)
def _timed_once(monkeypatch):
    monkeypatch.setattr(measure, "ROUNDS", 1)


@pytest.mark.parametrize("recipe", ["pick_place", "cue_colour"])
def test_counted_memory_of_an_update_is_within_2_percent_of_what_is_given_out(recipe):
    run = bench.preset("tiny", recipe)
    run = dataclasses.replace(run, algo=dataclasses.replace(run.algo, batch_size=4))
    counted = count.update(sketch.policy(run), run, 6).peak
    assert counted == pytest.approx(measure.update(run, 6).peak, rel=0.02)


def test_counted_memory_of_a_model_with_adapters_is_within_2_percent(smol):
    run, made = smol
    counted = count.update(sketch.policy(run, made), run, 3).peak
    assert counted == pytest.approx(measure.update(run, 3, made).peak, rel=0.02)
    acts = count.decide(sketch.policy(run, made)).peak
    # A decision holds so little that what the operations need inside themselves is seen.
    assert acts == pytest.approx(measure.decision(run, made).peak, rel=0.25)


def test_checkpointing_is_seen_to_save_memory_and_to_cost_operations(smol):
    run, made = smol
    policy = run.policy
    backbone = dataclasses.replace(policy.backbone, gradient_checkpointing=False)
    kept = dataclasses.replace(run, policy=dataclasses.replace(policy, backbone=backbone))
    spared = count.update(sketch.policy(run, made), run, 3)
    whole = count.update(sketch.policy(kept, made), kept, 3)
    assert spared.peak < 0.8 * whole.peak
    assert sum(spared.flops.values()) > sum(whole.flops.values())


def test_weights_gradients_and_averages_of_a_frozen_model_are_counted_by_hand(smol):
    run, made = smol
    policy = run.policy
    backbone = dataclasses.replace(
        policy.backbone, finetune_mode="frozen", dtype="bfloat16", embed_mib=0
    )
    run = dataclasses.replace(run, policy=dataclasses.replace(policy, backbone=backbone))
    sizes = count.count(run, 2, made)
    built = sketch.policy(run, made)
    net = sum(weight.numel() for weight in built.backbone.net.parameters())
    own = sum(weight.numel() for weight in built.parameters()) - net
    assert (sizes.frozen, sizes.trained) == (net, own)
    assert sizes.gradients == 4 * own
    assert sizes.optimizer == 8 * own
    assert 2 * net + 4 * own <= sizes.weights < 2 * net + 4 * own + 2e6  # and constants
    assert 4 * own <= sizes.average < 4 * own + 1e5  # the frozen net is in no checkpoint


def test_time_is_the_sum_of_what_is_multiplied_moved_and_called():
    kernel = Kernel("matmul", (1, 8, 8, 8), torch.float32)
    known = kernels.Speed({("matmul", torch.float32): 100.0}, moved=10.0, call_s=0.5)
    cost = Tally().cost._replace(moved=20, calls=4)
    cost.flops[kernel] = 300
    assert known.seconds(cost) == 3.0 + 2.0 + 2.0


@pytest.mark.parametrize(
    "kernel",
    [
        Kernel("matmul", (1, 64, 32, 16), torch.float32),
        Kernel("matmul", (4, 8, 32, 16), torch.bfloat16),
        Kernel("attention", (2, 2, 16, 24, 8), torch.float32),
        Kernel("convolution", (2, 3, 32, 32, 8, 4, 4, 4), torch.float32),
    ],
)
def test_every_kind_of_kernel_can_be_timed(kernel):
    assert kernels.rate(kernel, "cpu") > 0


@pytest.mark.slow
def test_the_small_preset_fits_8_gb_even_with_adapters():
    sizes = count.count(bench.preset("small", "cue_colour", "lora"), 16)
    assert sizes.training + bench.RESERVE <= 8 * 2**30


def test_the_command_prints_all_of_it_and_says_where_each_figure_is_from(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "checks", lambda args: iter([]))
    args = bench.BenchArgs(names=("tiny",), seconds=0.0, out=tmp_path / "out")
    console = Console(record=True, width=120)
    told = bench.run(args, console)["presets"][0]
    assert json.loads((tmp_path / "out" / "presets.json").read_text())["presets"][0] == told
    assert told["bytes"] == "counted"
    assert told["update"]["from"] == told["decision"]["from"] == bench.ESTIMATED
    assert told["fits"] == {"8 GB": True, "24 GB": True, "80 GB": True}
    text = console.export_text()
    assert "(e) estimated from kernels measured here" in text
    assert "A100's published peak" in text
