"""Training and what is around it keep tensors on one device, and compute what the CPU computes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks import tiny_models
from benchmarks.reward_models import synthetic_dataset
from deploy.runtime import target_selection
from deploy.server import request
from reward_models.label.command import label
from reward_models.label.plan import prepare
from reward_models.label.settings import LabelArgs
from reward_models.losses import vlm as vlm_tune
from reward_models.models import vlm
from tests.pretend_device import NAME, DeviceMixError, assert_like_the_cpu
from tests.training.test_distill import plan as distill_plan
from tests.training.test_features import plan as frozen_plan
from tests.training.test_reward_model_runs import config as reward_model_config
from tests.training.tiny_run import PX, run, tiny_config
from training.algos import bc
from training.commands import train_reward_model, tune_reward_model
from training.commands.tune_reward_model import TuneConfig
from training.core import loop
from training.core.config import Teacher
from training.core.metrics import read_metrics
from training.evaluation.evaluate import evaluate
from vla import checkpoint
from vla.contracts import registry
from vla.data.reader import open_dataset
from vla.heads import flow_matching
from vla.memory import gru
from vla.nn.devices import check_device
from vla.policies import act, lerobot_diffusion, vla

DEVICES = ("cpu", NAME)


def here(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).to(NAME)


MIXES: dict[str, Callable[[], Any]] = {
    "sum": lambda: here(2) + torch.zeros(2),
    "sum in place": lambda: torch.zeros(2).add_(here(2)),
    "product": lambda: here(2, 2) @ torch.zeros(2, 2),
    "layer": lambda: nn.Linear(2, 2)(here(1, 2)),
    "concatenation": lambda: torch.cat([here(2), torch.zeros(2)]),
    "choice": lambda: torch.where(torch.ones(2, dtype=torch.bool), here(2), here(2)),
    "index": lambda: here(2)[torch.tensor([0])],
    "assignment at an index": lambda: here(2).index_put_((torch.tensor([0]),), here(1)),
    "embedding": lambda: nn.Embedding(2, 2).to(NAME)(torch.tensor([1])),
    "loss": lambda: nn.functional.mse_loss(here(2), torch.zeros(2)),
    "output": lambda: torch.add(here(2), here(2), out=torch.zeros(2)),
    "generator": lambda: torch.randn(2, generator=torch.Generator(), device=NAME),
    "generator in place": lambda: here(2).normal_(generator=torch.Generator()),
    "permutation": lambda: torch.randperm(2, generator=torch.Generator(), device=NAME),
    "numpy": lambda: here(2).numpy(),
    "numpy by conversion": lambda: np.asarray(here(2)),
    "numpy in a function": lambda: np.concatenate([here(2)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", MIXES)
def test_a_mix_of_devices_is_refused(kind: str) -> None:
    with pytest.raises((DeviceMixError, TypeError)):
        MIXES[kind]()


def test_what_a_gpu_allows_is_allowed() -> None:
    a = torch.arange(6.0).view(2, 3)
    b = a.to(NAME)
    assert b.device.type == NAME
    assert b.cpu().equal(a)
    assert (b * 2 + torch.tensor(1.0)).cpu().equal(a * 2 + 1)
    assert b[1].tolist() == [3, 4, 5]
    assert float(b.sum()) == 15
    view = b[:, 1]
    view += 1  # changes what it is a view of
    assert b.cpu()[:, 1].tolist() == [2, 5]
    net, other = nn.Linear(3, 2), nn.Linear(3, 2)
    before = net.weight.detach().clone()
    other.load_state_dict(net.state_dict())
    adam = [torch.optim.AdamW(n.parameters(), fused=True) for n in (net, other)]
    net.to(NAME)  # after the optimizer, whose parameters these stay
    for n, x, opt in ((net, a.to(NAME), adam[0]), (other, a, adam[1])):
        n(x).square().sum().backward()
        opt.step()
    assert net.weight.device.type == NAME
    assert net.weight.cpu().equal(other.weight)
    assert not net.weight.cpu().equal(before)


def test_what_no_device_is_is_refused() -> None:
    check_device(NAME)
    for name in ("cuda:7", "tpux", "meta"):
        with pytest.raises(ValueError, match=f"device: got '{name}', on which torch cannot"):
            check_device(name)


CLONES: dict[str, Callable[[], Any]] = {
    "default": tiny_config,
    "flow, prefixes": lambda: tiny_config(
        policy=replace(tiny_config().policy, head=flow_matching.Config(max_prefix_len=2))
    ),
    "gru": lambda: tiny_config(policy=replace(tiny_config().policy, memory=gru.Config())),
    "frozen features": lambda: frozen_plan(cache_frozen_features=True),
    "frames on the device, shifted": lambda: tiny_config(
        algo=bc.Config(batch_size=4, random_shift_px=2), frames_on_device=True
    ),
}


@pytest.mark.parametrize("kind", CLONES)
def test_cloning(kind: str, arm_dataset: Path, tmp_path: Path) -> None:
    def train(device: str) -> Path:
        config = replace(CLONES[kind](), device=device, steps=3, save_every=2)
        return run(config, arm_dataset, tmp_path / device)

    assert_like_the_cpu(train)


FAMILIES = {"small": "smolvlm", "base": "qwen3_vl", "large": "qwen3_vl"}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_preset_with_a_tiny_model_of_its_family(
    name: str, arm_dataset: Path, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    def train(device: str) -> Path:
        plan: Any = registry.load("training.presets", name).preset(tiny_config())
        small = replace(  # in 32 bits: the CPU has other kernels for 16, which round differently
            plan.policy.backbone, model=str(tiny_model(FAMILIES[name])), image_px=PX,
            num_vlm_layers=0, pooled_tokens_per_side=2, dtype="float32",
        )  # fmt: skip
        policy = replace(plan.policy, backbone=small, head=tiny_config().policy.head)
        config = replace(
            plan, policy=policy, algo=replace(plan.algo, batch_size=2), device=device, steps=2
        )
        return run(config, arm_dataset, tmp_path / device)

    # Attention has a kernel of its own on the CPU, which rounds differently: 2e-6 was measured.
    assert_like_the_cpu(train, tolerance=1e-5)


def test_distillation(arm_dataset: Path, tmp_path: Path) -> None:
    teacher = Teacher(run(tiny_config(steps=2), arm_dataset, tmp_path / "teacher"), arm_dataset)

    def train(device: str) -> Path:
        out = tmp_path / device
        loop.run(distill_plan(device=device, steps=3), teacher, out, Console(quiet=True))
        return out

    assert_like_the_cpu(train)


def test_a_reward_model(tmp_path: Path) -> None:
    def train(device: str) -> Path:
        out = tmp_path / device
        config = reward_model_config(device=device)
        train_reward_model.train(config, out, tmp_path / "data", Console(quiet=True))
        return out

    assert_like_the_cpu(train)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # InternVL's processor
def test_tuning_a_vision_language_reward_model(arm_dataset: Path, tmp_path: Path) -> None:
    model = vlm.Config(
        model=str(tiny_models.save_internvl(tmp_path / "internvl")), image_px=32, dtype="float32",
        lora_rank=4,
    )  # fmt: skip
    config, info = TuneConfig(reward_model=model, frames=4, pairs=4), open_dataset(arm_dataset)
    losses = []
    for device in DEVICES:
        torch.manual_seed(0)  # noqa: TID251  peft draws the adapter's weights from it
        built, rng = config.reward_model.build().to(device), np.random.default_rng(0)
        frames = tune_reward_model.read(info, built, config)
        pairs = (tune_reward_model.sample_pairs(frames, config, rng) for _ in range(2))
        losses.append([step["loss"] for step in vlm_tune.tune(built, pairs, config.lr)])
    np.testing.assert_allclose(*losses, rtol=1e-4)


SMALL_BASELINES = {
    "act": act.Config(image_px=32, width=16, layers=1),
    "diffusion": lerobot_diffusion.Config(image_px=32, down_dims=(8, 16)),
}


@pytest.mark.parametrize("kind", SMALL_BASELINES)
def test_a_baseline_of_lerobot(kind: str, arm_dataset: Path, tmp_path: Path) -> None:
    algo = bc.Config(batch_size=2, sampling="frame")
    losses = []
    for device in DEVICES:
        config = tiny_config(policy=SMALL_BASELINES[kind], algo=algo, device=device, steps=2)
        folder = run(config, arm_dataset, tmp_path / device)
        losses.append([row["loss"] for row in read_metrics(folder)])
        policy, _ = checkpoint.load(folder, device=device)
        assert evaluate(policy, config.task, episodes=1, seed=1).success
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_labels(fake_dataset: Path, tmp_path: Path) -> None:
    reward_model = synthetic_dataset.make_reward_model(tmp_path / "small")
    columns = []
    for device in DEVICES:
        out = tmp_path / device
        label(prepare(LabelArgs(
            source=fake_dataset, reward_model=str(reward_model), out=out, device=device
        )))  # fmt: skip
        tables = [pq.read_table(file) for file in sorted(out.glob("data/**/*.parquet"))]
        columns.append(np.concatenate([t["progress"].to_numpy() for t in tables]))
    np.testing.assert_allclose(*columns, atol=1e-6)
    assert np.isfinite(columns[0]).any()


def test_evaluation_and_other_numbers_of_steps(arm_dataset: Path, tmp_path: Path) -> None:
    config = tiny_config(steps=1)
    folder = run(config, arm_dataset, tmp_path / "run")
    results = []
    for device in DEVICES:
        policy, _ = checkpoint.load(folder, device=device)
        assert isinstance(policy, vla.VLAPolicy)
        ended = evaluate(policy.with_steps(2).eval(), config.task, episodes=2, seed=1)
        results.append((ended.success, policy.device.type))
    assert results == [(results[0][0], "cpu"), (results[0][0], NAME)]


def test_servers_bridges_and_logs_take_decisions_of_a_device(
    arm_dataset: Path, tmp_path: Path
) -> None:
    folder = run(tiny_config(steps=1), arm_dataset, tmp_path / "run")
    policy, _ = checkpoint.load(folder, device=NAME)
    target_selection.try_out(policy)  # raises if it cannot read the actions
    arm, _ = checkpoint.load(folder)
    px = arm.robot.cameras[0].height_px
    shape = (1, len(arm.robot.cameras), px, px, 3)
    arrays = {
        "images": np.zeros(shape, np.uint8), "image_ok": np.ones(shape[:2], np.bool_),
        "proprio": np.array([arm.robot.home], "f4"), "time_s": np.zeros(1),
        "noise": np.zeros((1, *arm.noise_shape), "f4"),
    }  # fmt: skip
    answers = []
    for each in (arm, policy):
        start = request.memory(each.initial_state(1))
        asked = request.Request(task=("go",), arrays=arrays | start, memory=tuple(start))
        answers.append(request.decide(each, [asked])[0])
    for name, value in answers[0].items():
        np.testing.assert_allclose(answers[1][name], value, atol=1e-4)
