"""The training loop of all algorithms: get data, update, log, evaluate, save and resume.

It depends on no algorithm and no task. On CPU, a run that is killed and started again ends with
bit-identical weights to an uninterrupted run.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import rich.progress
import safetensors.torch
import torch
from rich.console import Console
from safetensors import SafetensorError

from training.core import runtime
from training.core.callbacks import Callbacks, RunCallback
from training.core.config import RunConfig
from training.core.distributed import SINGLE_PROCESS, ProcessGroup
from training.core.metrics import MetricsLog
from training.core.optimizer import Optimizer
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts import migrate
from vla.contracts.renames import ADDED, NOISE_ACTOR
from vla.nn.devices import check_device
from vla.utils import files
from vla.utils.interrupted import Interrupted, stop_requests

Weights = dict[str, torch.Tensor]
"""A state dict."""


@runtime_checkable
class Outcome(Protocol):
    """Result of an evaluation."""

    seconds: float
    """Wall time of the evaluation."""

    @property
    def metric(self) -> str:
        """Name of what `rate` measures, in one word."""
        ...

    @property
    def rate(self) -> float:
        """Quality of the weights; higher is better."""
        ...

    def summary(self) -> str:
        """Return the result as one sentence."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the complete result as JSON types."""
        ...


@runtime_checkable
class Learner(Protocol):
    """What an algorithm plug-in's `Config.start(train, data)` returns."""

    module: torch.nn.Module
    """The network to train, on its device."""

    def collect(self) -> Any:
        """Return the data of the next update."""
        ...

    def update(
        self, data: Any, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Train the module on `data`; the metric "samples" counts the samples of the update."""
        ...

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Outcome:
        """Evaluate (averaged) weights and leave the module unchanged."""
        ...

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write weights, their description and the files that `also` adds to `folder` atomically,
        by one rename.
        """
        ...

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless what `save` wrote is complete."""
        ...

    def state(self) -> dict[str, Any]:
        """Return, as JSON types, what `restore` needs to continue the same stream of data."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        ...


@runtime_checkable
class Distributable(Protocol):
    """A learner that can train in several processes."""

    def distribute(self, group: ProcessGroup) -> None:
        """From now on train on this process's part of every batch."""
        ...


@runtime_checkable
class HasOptimizers(Protocol):
    """A learner with optimizers in addition to the one that the loop passes to it."""

    optimizers: dict[str, torch.optim.Optimizer]
    """By name; each steps part of the module, and its state is saved with the run."""


@runtime_checkable
class HasCallbacks(Protocol):
    """A learner that reports what it does between updates."""

    callbacks: Callbacks
    """Set by the loop."""


def run(
    config: RunConfig, data: Any, out: Path, console: Console,
    group: ProcessGroup = SINGLE_PROCESS, callback: RunCallback | None = None,
) -> list[Outcome]:  # fmt: skip
    """Train on `data` until `config.steps`, resuming from the checkpoint in `out` if there is one.

    In distributed training every process calls this; the main process evaluates, writes and prints.

    Returns:
        The evaluations made by this call; the last one uses episodes of another seed.

    Raises:
        ValueError: `out` holds a run with another configuration, or other files, another process
            trains there, or the learner cannot train in several processes.
        Interrupted: SIGINT or SIGTERM arrived; everything is saved.
    """
    check(config, out)
    runtime.prepare(config.threads)
    learner = config.algo.start(config, data)
    if group.is_distributed:
        if not isinstance(learner, Distributable):
            raise ValueError(
                f"algo {configs.type_name(config.algo)!r} trains in one process; start it without "
                "torchrun"
            )
        learner.distribute(group)
        console = console if group.is_main else Console(quiet=True)
    others = learner.optimizers if isinstance(learner, HasOptimizers) else {}
    optimizer = Optimizer(config.optimizer, learner.module, config.steps, others)
    # On the CPU: a run draws the same numbers on every device.
    generator = torch.Generator().manual_seed(config.seed)
    trainer = _Trainer(config, out, learner, optimizer, generator, group, callback)
    # Only now: a configuration that cannot start leaves no files.
    with files.claim(out) if group.is_main else contextlib.nullcontext():
        if group.is_main:
            if not (out / "config.json").exists():
                out.mkdir(parents=True, exist_ok=True)
                text = json.dumps(configs.to_json(config), indent=1)
                files.write_text(out / "config.json", text + "\n")
            checkpoint.recover_folder(out / "checkpoint")
        group.barrier()
        return _train(trainer, console)


def _train(trainer: "_Trainer", console: Console) -> list[Outcome]:
    """Resume, run the updates that are left and evaluate; `out` is claimed."""
    config, out, group = trainer.config, trainer.out, trainer.group
    learner, optimizer = trainer.learner, trainer.optimizer
    trainer.resume()
    parameters = sum(p.numel() for p in learner.module.parameters())
    left = config.steps - optimizer.count
    console.print(f"{parameters:,} parameters, {left} updates to go, in {out}")
    results: list[Outcome] = []
    with trainer.open_log() as log:
        with stop_requests(KeyboardInterrupt) as stopped, _progress(console) as bar:
            results += trainer.train(log, bar, stopped)
        if stopped.is_set():
            raise Interrupted(f"saved after update {optimizer.count} of {config.steps}")
        final = config.eval.final_episodes and not (out / "evaluation.json").exists()
        weights = trainer.averaged() if group.any(bool(final) and group.is_main) else None
        if log is not None and weights is not None:
            result = learner.evaluate(
                weights, episodes=config.eval.final_episodes, seed=config.eval.seed + 1
            )
            files.write_json(out / "evaluation.json", result.to_json())
            log.write(optimizer.count, {f"eval/final_{result.metric}": result.rate})
            console.print(result.summary())
            results.append(result)
    group.barrier()
    return results


@dataclass(frozen=True)
class _Trainer:
    """A run in progress."""

    config: RunConfig
    out: Path
    learner: Learner
    optimizer: Optimizer
    generator: torch.Generator
    group: ProcessGroup
    callback: RunCallback | None

    def open_log(self) -> Any:
        """Return the metrics log as a context manager; None in all but the main process."""
        if not self.group.is_main:
            return contextlib.nullcontext()
        log = MetricsLog(self.out, self.optimizer.count, self.config.wandb_project)
        if self.callback is not None:
            log.callbacks.append(self.callback.on_metrics)
        return log

    def _connect(self, bar: rich.progress.Progress, line: rich.progress.TaskID) -> None:
        """Print the learner's warnings and show its activity."""
        if not isinstance(self.learner, HasCallbacks):
            return
        callbacks = Callbacks(
            on_warning=lambda text: bar.console.print(
                f"alarm: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True
            ),
            on_status=lambda text: bar.update(line, description=text or "training"),
        )
        if self.callback is not None:
            callbacks = replace(callbacks, on_rollouts=self.callback.on_rollouts)
        self.learner.callbacks = callbacks

    def train(
        self, log: MetricsLog | None, bar: rich.progress.Progress, stopped: threading.Event
    ) -> list[Outcome]:
        """Run the remaining updates, unless `stopped` is set; return the evaluations."""
        config, optimizer = self.config, self.optimizer
        line = bar.add_task("training", total=config.steps, completed=optimizer.count, rate=0.0)
        self._connect(bar, line)
        results: list[Outcome] = []
        samples, since = 0.0, time.perf_counter()
        while optimizer.count < config.steps and not stopped.is_set():
            self.learner.module.train()
            metrics = self.learner.update(self.learner.collect(), optimizer, self.generator)
            step, last = optimizer.count, optimizer.count == config.steps
            samples += metrics.get("samples", 0.0)
            if self.group.is_distributed and self.group.any(stopped.is_set()):
                stopped.set()  # in all processes, after the same update
            if log is not None and (step % config.log_every == 0 or last):
                seconds = time.perf_counter() - since
                rate = samples / seconds
                samples, since = 0.0, time.perf_counter()
                log.write(step, {**metrics, "samples_per_s": rate, "seconds": seconds})
                bar.update(line, completed=step, rate=rate)
            # The last weights may be the best; otherwise the final evaluation covers them.
            due = config.eval.keep_best if last else step % max(config.eval.every, 1) == 0
            weights = self.averaged() if config.eval.every and due else None
            if log is not None and weights is not None:
                result = self._evaluate(weights)
                log.write(
                    step, {f"eval/{result.metric}": result.rate, "eval/seconds": result.seconds}
                )
                results.append(result)
                since = time.perf_counter()
            # After the evaluation: a run killed during the evaluation repeats it.
            if step % config.save_every == 0 or last:
                self._save()
        if stopped.is_set():
            self._save()
        return results

    def averaged(self) -> Weights:
        """Return the averaged weights as full tensors; a collective operation."""
        return self.group.full_tensors(self.optimizer.average)

    def _evaluate(self, weights: Weights) -> Outcome:
        """Evaluate weights and keep them in OUT/best if they are the best so far."""
        learner, step, test = self.learner, self.optimizer.count, self.config.eval
        result = learner.evaluate(weights, episodes=test.episodes, seed=test.seed)
        if self.config.eval.keep_best and result.rate > _best(self.out):
            score = json.dumps({"step": step, result.metric: result.rate, "rate": result.rate})

            def also(folder: Path) -> None:
                (folder / "score.json").write_text(score + "\n")

            learner.save(weights, step, self.out / "best", also)
        return result

    def _save(self) -> None:
        """Write weights and trainer state atomically; the main process writes."""
        learner, optimizer = self.learner, self.optimizer
        saved = self.group.full_tensors(
            {**optimizer.tensors(), "generator": self.generator.get_state()}
        )
        bad = [name for name, value in saved.items() if not torch.isfinite(value).all()]
        if bad:
            raise ValueError(
                f"training diverged by update {optimizer.count}: {bad[0]} is not finite; the "
                f"checkpoint saved before stays in {self.out}; lower --optimizer.lr"
            )
        if not self.group.is_main:
            return

        def also(folder: Path) -> None:
            tensors = {name: value.detach().cpu().contiguous() for name, value in saved.items()}
            safetensors.torch.save_file(tensors, folder / "trainer.safetensors")
            state = {"step": optimizer.count, "learner": learner.state()}
            (folder / "trainer.json").write_text(json.dumps(state) + "\n")

        average = "average."
        weights = {n.removeprefix(average): v for n, v in saved.items() if n.startswith(average)}
        learner.save(weights, optimizer.count, self.out / "checkpoint", also)

    def resume(self) -> None:
        """Continue from OUT/checkpoint if there is one."""
        folder = self.out / "checkpoint"
        if not folder.exists():
            return
        damaged = (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError)
        try:
            state = json.loads((folder / "trainer.json").read_text())
            stored = safetensors.torch.load_file(folder / "trainer.safetensors")
            tensors = migrate.trainer(stored)
            self.generator.set_state(tensors.pop("generator"))
            self.optimizer.load(tensors, state["step"])
            self.learner.restore(state["learner"])
            self.learner.check_saved(folder)
        except damaged as error:
            raise ValueError(
                f"{folder}: cannot continue this run ({error}); delete {self.out} to start again"
            ) from error


def _best(out: Path) -> float:
    """Return the rate of the weights in OUT/best, minus infinity if there are none."""
    checkpoint.recover_folder(out / "best")
    path = out / "best" / "score.json"
    return float(json.loads(path.read_text())["rate"]) if path.exists() else -math.inf


def check(config: RunConfig, out: Path) -> None:
    """Raise ValueError unless `out` is new, empty, or holds a run with this configuration."""
    check_device(config.device)
    path, unfinished = out / "config.json", out / ".config.json.new"
    wanted = configs.to_json(config)
    if path.exists():
        try:
            stored = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path}: damaged ({error}); delete {out} to start again") from error
        if not isinstance(stored, dict):
            raise ValueError(f"{path}: damaged, no JSON object; delete {out} to start again")
        try:
            renamed = configs.to_json(configs.from_json(type(config), stored))
            # A setting that is missing would get a default, which may not be what the run had.
            stored = renamed if _count(renamed) == _count(stored) else stored
        except migrate.RemovedError as error:
            raise ValueError(f"{path}: {error}") from error
        except ValueError:
            pass  # the difference that is reported names the problem
        if stored != wanted:
            raise ValueError(
                f"{out} holds a run with another configuration "
                f"({configs.difference(stored, wanted)}); "
                "choose another --out, or delete it"
            )
        return
    if out.exists() and (not out.is_dir() or any(file != unfinished for file in out.iterdir())):
        raise ValueError(
            f"{out} is not empty and holds no run (no config.json); choose another --out"
        )


def _count(value: Any, group: str = "") -> int:
    """Return the number of values in JSON types, without those of settings that were removed or
    that came later.
    """
    if isinstance(value, dict):
        skipped = {*NOISE_ACTOR, *ADDED}
        return sum(
            _count(part, name)
            for name, part in value.items()
            if skipped.isdisjoint((name, f"{group}.{name}"))
        )
    return sum(map(_count, value)) if isinstance(value, list) else 1


def _progress(console: Console) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"), rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[rate]:.0f} samples/s"),
        rich.progress.TimeRemainingColumn(), console=console,
    )  # fmt: skip
