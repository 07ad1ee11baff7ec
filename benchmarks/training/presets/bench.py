"""`vla bench preset`: memory and time of an update and of a decision, by preset.

Every result says how it was obtained. Whatever runs here in little time is measured; the rest is
counted on meta tensors, and its time estimated from kernels measured here. The first table shows
both side by side for two policies that run anywhere.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.training.presets import count, kernels, measure
from sim.tasks import pick_place
from training.algos import bc
from training.core import runtime
from training.core.config import TrainConfig
from training.recipes import _base
from vla.backbones import vlm
from vla.contracts import registry
from vla.contracts.config import validate_min
from vla.heads import diffusion
from vla.policies import vla
from vla.utils import arguments, files
from vla.utils.memory import available_bytes

PRESETS = "training.presets"
GB = 1e9
GPUS = {"8 GB": 8, "24 GB": 24, "80 GB": 80}
"""Memory of GPUs, in 2**30 bytes."""
RESERVE = 2**30
"""GPU memory for its driver, its libraries and gaps between tensors."""
A100_BF16 = 312e12
"""Dense bfloat16 operations per second of the A100, by NVIDIA's data sheet."""
MEASURED, COUNTED, ESTIMATED = "measured", "counted", "estimated from kernels measured here"
SHORT = {MEASURED: "(m)", ESTIMATED: "(e)"}
"""Marks of how a time was obtained."""


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Count the memory and time of presets, and measure them where they run here."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Presets; all if none are named."""
    recipe: str = "pick_place"
    """Recipe that the presets scale."""
    decisions: int = 16
    """Decisions of an episode, for recipes that train on whole episodes."""
    finetune_mode: Literal["preset", "frozen", "lora", "full"] = "preset"
    """How a pretrained model is fine-tuned; full is in float32."""
    seconds: float = 60.0
    """Longest estimated time of what still runs on a CPU."""
    out: Path = Path("runs/bench-preset")
    """Folder of presets.json."""

    def __post_init__(self) -> None:
        validate_min(self, decisions=1, seconds=0)


def preset(name: str, recipe: str, finetune_mode: str = "preset") -> TrainConfig:
    """Return a recipe at a preset's scale.

    Raises:
        ValueError: there is no such preset or recipe.
    """
    config = registry.load(PRESETS, name).preset(registry.load("training.recipes", recipe).recipe())
    policy: Any = config.policy
    if finetune_mode == "preset" or not hasattr(policy.backbone, "finetune_mode"):
        return config
    dtype = "float32" if finetune_mode == "full" else "bfloat16"
    backbone = replace(policy.backbone, finetune_mode=finetune_mode, dtype=dtype)
    return replace(config, policy=replace(policy, backbone=backbone))


def small_vlm() -> tuple[TrainConfig, Any]:
    """Return a run with a SmolVLM of a few million weights and adapters, and its configuration."""
    from transformers import SmolVLMConfig

    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 3}
    model = SmolVLMConfig(
        text_config={"model_type": "llama", "vocab_size": 4096, "num_hidden_layers": 4,
                     "num_key_value_heads": 3, "head_dim": 64, "pad_token_id": 0, **sizes},
        vision_config={"num_hidden_layers": 4, "image_size": 128, "patch_size": 16, **sizes},
        scale_factor=2, image_token_id=4095, pad_token_id=0,
    )  # fmt: skip
    base = _base.memory_task(pick_place.Config())
    backbone = vlm.Config(
        model="random", finetune_mode="lora", gradient_checkpointing=True, image_px=96
    )
    head = diffusion.Config(denoiser="transformer", width=192, depth=3)
    policy = vla.Config(backbone=backbone, head=head)
    return replace(base, policy=policy, algo=bc.Config(batch_size=2, states_per_episode=2)), model


def checks(args: BenchArgs) -> Iterator[dict[str, Any]]:
    """Yield, for policies that run anywhere, every figure counted or estimated and measured."""
    smol, model = small_vlm()
    tiny = preset("tiny", args.recipe)
    for name, config, source in (("tiny", tiny, None), ("random SmolVLM, LoRA", smol, model)):
        sizes = count.count(config, args.decisions, source)
        step = measure.update(config, args.decisions, source)
        act = measure.decision(config, source)
        speed = kernels.speed((sizes.step_cost, sizes.act_cost), config.device)
        yield {
            "name": name,
            "update, bytes": (sizes.step, step.peak),
            "decision, bytes": (sizes.act, act.peak),
            "update, s": (speed.seconds(sizes.step_cost), step.seconds),
            "decision, s": (speed.seconds(sizes.act_cost), act.seconds),
        }


def figures(name: str, args: BenchArgs) -> dict[str, Any]:
    """Return the figures of one preset, as JSON types, each time with where it is from."""
    config = preset(name, args.recipe, args.finetune_mode)
    sizes = count.count(config, args.decisions)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    speed = kernels.speed((sizes.step_cost, sizes.act_cost), here)
    row: dict[str, Any] = {
        "preset": name, "recipe": args.recipe, "finetune_mode": args.finetune_mode,
        "batch": config.algo.batch_size,
        **{k: v for k, v in vars(sizes).items() if isinstance(v, int)},
        "training": sizes.training, "deciding": sizes.deciding, "bytes": COUNTED,
        "machine": torch.cuda.get_device_name() if here == "cuda" else "CPU, one thread",
        "fits": {gpu: sizes.training + RESERVE <= size * 2**30 for gpu, size in GPUS.items()},
    }  # fmt: skip
    local = replace(config, device=here)
    for what, cost, need in (
        ("update", sizes.step_cost, sizes.training), ("decision", sizes.act_cost, sizes.deciding)
    ):  # fmt: skip
        total = sum(cost.flops.values())
        guess = speed.seconds(cost)
        times: dict[str, Any] = {"flops": total, "a100_peak_s": total / A100_BF16}
        times |= {"seconds": guess, "from": ESTIMATED}
        if _runs(what, config, here, guess, need, args.seconds):
            measured = (
                measure.update(local, args.decisions) if what == "update"
                else measure.decision(local)
            )  # fmt: skip
            times |= {"estimate_s": guess, "seconds": measured.seconds, "from": MEASURED}
            times |= {"bytes": measured.peak}
        row[what] = times
    return row


def _runs(
    what: str, config: TrainConfig, here: str, guess: float, need: int, limit: float
) -> bool:  # fmt: skip
    """Return whether a preset can be run here, and is worth it."""
    if here == "cuda":
        return need + RESERVE <= torch.cuda.mem_get_info()[0]
    # On a CPU nothing is cast to sixteen bits: an update is another one than on a GPU.
    alike = what == "decision" or config.device == "cpu"
    rounds = measure.ROUNDS + 2
    return alike and guess * rounds <= limit and 2 * need <= available_bytes()


def check_table(rows: list[dict[str, Any]]) -> Table:
    """Return counted and estimated figures beside measured ones."""
    table = _table("the estimator against what was measured here", [row["name"] for row in rows])
    for what, scale, unit in (
        ("update, bytes", 1e-6, "MB counted"), ("decision, bytes", 1e-6, "MB counted"),
        ("update, s", 1e3, "ms estimated"), ("decision, s", 1e3, "ms estimated"),
    ):  # fmt: skip
        cells = []
        for row in rows:
            guess, truth = (scale * value for value in row[what])
            cells.append(f"{guess:,.1f} / {truth:,.1f} = {guess / truth:.2f}")
        table.add_row(f"{what.split(',')[0]}, {unit} / measured", *cells)
    return table


def memory_table(rows: list[dict[str, Any]]) -> Table:
    """Return parameters and memory; all of it counted."""
    table = _table("parameters and memory (GB = 1e9 bytes): counted", [r["preset"] for r in rows])
    for label, key, scale in (
        ("weights that learn, M", "trained", 1e-6), ("frozen weights, M", "frozen", 1e-6),
        ("weights, GB", "weights", 1 / GB), ("averaged weights, GB", "average", 1 / GB),
        ("Adam, GB", "optimizer", 1 / GB), ("gradients, GB", "gradients", 1 / GB),
        ("activations with gradients, GB", "step", 1 / GB), ("training, GB", "training", 1 / GB),
        ("deciding, GB", "deciding", 1 / GB),
    ):  # fmt: skip
        table.add_row(label, *(f"{row[key] * scale:,.2f}" for row in rows))
    table.add_row("batch", *(str(row["batch"]) for row in rows))
    table.add_row("training fits", *(_fits(row) for row in rows))
    return table


def _fits(row: dict[str, Any]) -> str:
    for gpu, fits in row["fits"].items():
        if fits:
            return gpu
    most = max(GPUS.values()) * 2**30 - RESERVE
    return f"shared, {math.ceil(row['training'] / most)} x 80 GB"


def time_table(rows: list[dict[str, Any]]) -> Table:
    """Return times, each with where it is from."""
    names = [row["preset"] for row in rows]
    table = _table(f"seconds on this machine ({rows[0]['machine']})", names)
    for what in ("update", "decision"):
        costs = [row[what] for row in rows]
        table.add_row(
            f"{what}, s", *(f"{cost['seconds']:.3g} {SHORT[cost['from']]}" for cost in costs)
        )
        table.add_row(f"{what}, TFLOP counted", *(f"{cost['flops'] / 1e12:.3g}" for cost in costs))
        peak = (f"{cost['a100_peak_s']:.2g}" for cost in costs)
        table.add_row(f"{what}, s at an A100's published peak", *peak)
    return table


def _table(title: str, names: list[str]) -> Table:
    table = Table(title=title)
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    return table


def run(args: BenchArgs, console: Console) -> dict[str, Any]:
    """Count and measure, print, and write what was found."""
    names = args.names or registry.names(PRESETS)
    for name in names:
        registry.check(PRESETS, name)
    registry.check("training.recipes", args.recipe)
    with console.status("checking the estimator"):
        beside = list(checks(args))
    console.print(check_table(beside))
    rows = []
    for name in names:
        with console.status(f"{name}: counting and timing kernels"):
            rows.append(figures(name, args))
    console.print(memory_table(rows))
    console.print(time_table(rows))
    console.print(
        f"(m) {MEASURED}, with random weights of the published sizes; (e) {ESTIMATED}. Training is "
        "weights, average, Adam, and activations with gradients, on one device; 1 GiB of a GPU is "
        f"left to its driver. Whole episodes are of {args.decisions} decisions."
    )
    results = {"checks": beside, "presets": rows}
    args.out.mkdir(parents=True, exist_ok=True)
    files.write_json(args.out / "presets.json", results)
    console.print(f"figures: {args.out / 'presets.json'}")
    return results


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(BenchArgs, argv, "vla bench preset")
    runtime.prepare(1)
    run(args, Console(highlight=False))
    return 0
