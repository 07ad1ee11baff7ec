"""The only training loop: get data, update, log, evaluate, save; resume where a run was stopped.

It knows no algorithm and no task. A run that is killed and started again ends, on CPU, with the
same weights to the bit as one that was left alone.
"""

import copy
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import rich.progress
import safetensors.torch
import torch
from rich.console import Console
from safetensors import SafetensorError

from training import files, flags, host
from training.config import TrainConfig
from training.evaluate import Evaluation, evaluate
from training.metrics import MetricsLog
from training.optimiser import Optimiser
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts import registry
from vla.policies.vla import VLAPolicy


@runtime_checkable
class Learner(Protocol):
    """What an algorithm plug-in's `Config.start(train, data)` returns."""

    policy: VLAPolicy
    """The policy that learns, on its device."""
    instructions: tuple[str, ...]
    """Instructions it learns from."""

    def collect(self) -> Any:
        """Return the data of the next update."""
        ...

    def update(
        self, data: Any, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Improve the policy on `data`; the metric "samples" counts what was learned from."""
        ...

    def state(self) -> dict[str, Any]:
        """Return, as JSON types, what `restore_` needs to continue the same stream of data."""
        ...

    def restore_(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        ...


class Interrupted(Exception):
    """The run was stopped by a signal, after saving."""


@dataclass(frozen=True)
class _Run:
    """What a run works on."""

    config: TrainConfig
    out: Path
    learner: Learner
    optimiser: Optimiser
    generator: torch.Generator


def run(config: TrainConfig, data: Path, out: Path, console: Console) -> list[Evaluation]:
    """Train on `data` until `config.steps`, going on from what is in `out`.

    Returns:
        The evaluations made by this call, the last one on episodes of a seed of their own.

    Raises:
        ValueError: `out` holds a run of another configuration, or something else.
        Interrupted: SIGINT or SIGTERM arrived; everything is saved.
    """
    check(config, out)
    host.prepare(config.threads)
    learner = config.algo.start(config, data)
    optimiser = Optimiser(config.optimiser, learner.policy, config.steps)
    generator = torch.Generator(config.device).manual_seed(config.seed)
    this = _Run(config, out, learner, optimiser, generator)
    _claim(config, out)  # only now: settings that nothing could start with leave no trace
    _resume_(this)
    parameters = sum(p.numel() for p in learner.policy.parameters())
    left = config.steps - optimiser.count
    console.print(f"{parameters:,} parameters, {left} updates to go, in {out}")
    results: list[Evaluation] = []
    with MetricsLog(out, optimiser.count, config.wandb_project) as log:
        with _signals() as stopped, _progress(console) as bar:
            results += _train(this, log, bar, stopped)
        if stopped.is_set():
            raise Interrupted(f"saved after update {optimiser.count} of {config.steps}")
        if config.eval.final_episodes and not (out / "evaluation.json").exists():
            result = _evaluate(this, config.eval.final_episodes, config.eval.seed + 1)
            files.write_json(out / "evaluation.json", result.to_json())
            log.write(optimiser.count, {"eval/final_success": result.rate})
            console.print(result.sentence())
            results.append(result)
    return results


def _train(
    this: _Run, log: MetricsLog, bar: rich.progress.Progress, stopped: threading.Event
) -> list[Evaluation]:
    config, optimiser = this.config, this.optimiser
    line = bar.add_task("training", total=config.steps, completed=optimiser.count, rate=0.0)
    results = []
    samples, since = 0.0, time.perf_counter()
    while optimiser.count < config.steps and not stopped.is_set():
        this.learner.policy.train()
        metrics = this.learner.update(this.learner.collect(), optimiser, this.generator)
        step, last = optimiser.count, optimiser.count == config.steps
        samples += metrics.get("samples", 0.0)
        if step % config.log_every == 0 or last:
            seconds = time.perf_counter() - since
            rate = samples / seconds
            samples, since = 0.0, time.perf_counter()
            log.write(step, {**metrics, "samples_per_s": rate, "seconds": seconds})
            bar.update(line, completed=step, rate=rate)
        if step % config.save_every == 0 or last:
            _save(this)
        if config.eval.every and step % config.eval.every == 0 and not last:
            result = _evaluate(this, config.eval.episodes, config.eval.seed)
            log.write(step, {"eval/success": result.rate, "eval/seconds": result.seconds})
            results.append(result)
            since = time.perf_counter()
    if stopped.is_set():
        _save(this)
    return results


def _evaluate(this: _Run, episodes: int, seed: int) -> Evaluation:
    averaged = copy.deepcopy(this.learner.policy)
    averaged.load_state_dict(this.optimiser.average)
    return evaluate(averaged.eval(), this.config.task, episodes=episodes, seed=seed)


def _save(this: _Run) -> None:
    """Write policy and trainer state together, by one rename."""
    learner, optimiser = this.learner, this.optimiser

    def also(folder: Path) -> None:
        tensors = {**optimiser.tensors(), "generator": this.generator.get_state()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        safetensors.torch.save_file(tensors, folder / "trainer.safetensors")
        state = {"step": optimiser.count, "learner": learner.state()}
        (folder / "trainer.json").write_text(json.dumps(state) + "\n")

    task = configs.to_json(this.config.task)
    origin = checkpoint.provenance(task, learner.instructions, optimiser.count)
    checkpoint.save(learner.policy, origin, this.out / "checkpoint", optimiser.average, also)


def _resume_(this: _Run) -> None:
    folder = this.out / "checkpoint"
    checkpoint.recover_folder(folder)
    if not folder.exists():
        return
    damaged = (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError)
    try:
        state = json.loads((folder / "trainer.json").read_text())
        tensors = safetensors.torch.load_file(folder / "trainer.safetensors")
        this.generator.set_state(tensors.pop("generator"))
        this.optimiser.load_(tensors, state["step"])
        this.learner.restore_(state["learner"])
        checkpoint.load(folder)  # the policy beside the trainer's state is whole, too
    except damaged as error:
        raise ValueError(
            f"{folder}: cannot continue this run ({error}); delete {this.out} to start it afresh"
        ) from error


def check(config: TrainConfig, out: Path) -> None:
    """Raise ValueError unless `out` can hold this run: it is new, empty, or holds it already."""
    flags.check_device(config.device)
    registry.check("vla.robots", config.robot)
    path, fresh = out / "config.json", out / ".config.json.new"
    wanted = configs.to_json(config)
    if path.exists():
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path}: damaged ({error}); delete {out} to start afresh") from error
        if not isinstance(found, dict):
            raise ValueError(f"{path}: damaged, no JSON object; delete {out} to start afresh")
        if found != wanted:
            raise ValueError(
                f"{out} holds a run with another configuration ({_difference(found, wanted)}); "
                "choose another --out, or delete it"
            )
        return
    if out.exists() and (not out.is_dir() or any(file != fresh for file in out.iterdir())):
        raise ValueError(
            f"{out} is not empty and holds no run (no config.json); choose another --out"
        )


def _claim(config: TrainConfig, out: Path) -> None:
    """Write the run's configuration, whole or not at all, unless it is there."""
    path = out / "config.json"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(path, json.dumps(configs.to_json(config), indent=1) + "\n")


def _difference(a: Any, b: Any, name: str = "config") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            if a.get(key) != b.get(key):
                return _difference(a.get(key), b.get(key), f"{name}.{key}")
    return f"{name} is {a!r} there, {b!r} here"


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event that the loop sees between updates; a second one stops
    at once what was asked for between two updates, such as an evaluation.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(*_: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(console: Console) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"), rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[rate]:.0f} samples/s"),
        rich.progress.TimeRemainingColumn(), console=console,
    )  # fmt: skip
