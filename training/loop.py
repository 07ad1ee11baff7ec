"""The only training loop: get data, update, log, evaluate, save; resume where a run was stopped.

It knows no algorithm and no task. A run that is killed and started again ends, on CPU, with the
same weights to the bit as one that was left alone.
"""

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import rich.progress
import safetensors.torch
import torch
from rich.console import Console
from safetensors import SafetensorError

from training import flags, host
from training.config import RunConfig
from training.listener import Listener, Watcher
from training.metrics import MetricsLog
from training.optimiser import Optimiser
from training.team import ALONE, Team
from vla import checkpoint, files
from vla.contracts import config as configs
from vla.interrupted import Interrupted

Weights = dict[str, torch.Tensor]
"""A state dict."""


@runtime_checkable
class Outcome(Protocol):
    """What an evaluation found."""

    seconds: float
    """Wall time of the evaluation."""

    @property
    def figure(self) -> str:
        """What `rate` is, in one word."""
        ...

    @property
    def rate(self) -> float:
        """The one number that says how good the weights are; more is better."""
        ...

    def sentence(self) -> str:
        """Return the result for people."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        ...


@runtime_checkable
class Learner(Protocol):
    """What an algorithm plug-in's `Config.start(train, data)` returns."""

    module: torch.nn.Module
    """What learns, on its device."""

    def collect(self) -> Any:
        """Return the data of the next update."""
        ...

    def update(
        self, data: Any, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Improve the module on `data`; the metric "samples" counts what was learned from."""
        ...

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Outcome:
        """Judge weights (the averaged ones) and leave the module as it is."""
        ...

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write weights, what describes them and what `also` adds to `folder`, by one rename."""
        ...

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless what `save` wrote is whole."""
        ...

    def state(self) -> dict[str, Any]:
        """Return, as JSON types, what `restore_` needs to continue the same stream of data."""
        ...

    def restore_(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        ...


@runtime_checkable
class Shareable(Protocol):
    """A learner that can be one of several processes."""

    def share_(self, team: Team) -> None:
        """Learn from this process's share of every batch from now on."""
        ...


@runtime_checkable
class Talker(Protocol):
    """A learner that does more than learn, and says so."""

    listener: Listener
    """Whom it tells."""


@dataclass(frozen=True)
class _Run:
    """What a run works on."""

    config: RunConfig
    out: Path
    learner: Learner
    optimiser: Optimiser
    generator: torch.Generator
    team: Team
    watcher: Watcher | None


def run(
    config: RunConfig, data: Any, out: Path, console: Console, team: Team = ALONE,
    watcher: Watcher | None = None,
) -> list[Outcome]:  # fmt: skip
    """Train on `data` until `config.steps`, going on from what is in `out`.

    Of several processes each calls this; the first one evaluates, writes and speaks. A watcher, if
    there is one, is shown what is written.

    Returns:
        The evaluations made by this call, the last one on episodes of a seed of their own.

    Raises:
        ValueError: `out` holds a run of another configuration, or something else, or what learns
            cannot do so in several processes.
        Interrupted: SIGINT or SIGTERM arrived; everything is saved.
    """
    check(config, out)
    host.prepare(config.threads)
    learner = config.algo.start(config, data)
    if team.together:
        if not isinstance(learner, Shareable):
            raise ValueError(
                f"algo {configs.type_name(config.algo)!r} learns in one process; start it without "
                "torchrun"
            )
        learner.share_(team)
        console = console if team.leads else Console(quiet=True)
    optimiser = Optimiser(config.optimiser, learner.module, config.steps)
    generator = torch.Generator(config.device).manual_seed(config.seed)
    this = _Run(config, out, learner, optimiser, generator, team, watcher)
    if team.leads:
        _claim(config, out)  # only now: settings that nothing could start with leave no trace
        checkpoint.recover_folder(out / "checkpoint")
    team.wait()
    _resume_(this)
    parameters = sum(p.numel() for p in learner.module.parameters())
    left = config.steps - optimiser.count
    console.print(f"{parameters:,} parameters, {left} updates to go, in {out}")
    results: list[Outcome] = []
    with _log(this) as log:
        with _signals() as stopped, _progress(console) as bar:
            results += _train(this, log, bar, stopped)
        if stopped.is_set():
            raise Interrupted(f"saved after update {optimiser.count} of {config.steps}")
        final = config.eval.final_episodes and not (out / "evaluation.json").exists()
        weights = _averaged(this) if team.any(bool(final) and team.leads) else None
        if log is not None and weights is not None:
            result = learner.evaluate(
                weights, episodes=config.eval.final_episodes, seed=config.eval.seed + 1
            )
            files.write_json(out / "evaluation.json", result.to_json())
            log.write(optimiser.count, {f"eval/final_{result.figure}": result.rate})
            console.print(result.sentence())
            results.append(result)
    team.wait()
    return results


def _log(this: _Run) -> Any:
    """Return where figures go: a context manager; None in a process that writes nothing."""
    if not this.team.leads:
        return contextlib.nullcontext()
    log = MetricsLog(this.out, this.optimiser.count, this.config.wandb_project)
    if this.watcher is not None:
        log.listeners.append(this.watcher.metrics)
    return log


def _train(
    this: _Run, log: MetricsLog | None, bar: rich.progress.Progress, stopped: threading.Event
) -> list[Outcome]:
    config, optimiser = this.config, this.optimiser
    line = bar.add_task("training", total=config.steps, completed=optimiser.count, rate=0.0)
    if isinstance(this.learner, Talker):
        this.learner.listener = Listener(
            say=lambda said: bar.console.print(
                f"alarm: {said}", style="yellow", markup=False, highlight=False, soft_wrap=True
            ),
            doing=lambda what: bar.update(line, description=what or "training"),
        )
        if this.watcher is not None:
            told = replace(this.learner.listener, practised=this.watcher.practised)
            this.learner.listener = told
    results: list[Outcome] = []
    samples, since = 0.0, time.perf_counter()
    while optimiser.count < config.steps and not stopped.is_set():
        this.learner.module.train()
        metrics = this.learner.update(this.learner.collect(), optimiser, this.generator)
        step, last = optimiser.count, optimiser.count == config.steps
        samples += metrics.get("samples", 0.0)
        if this.team.together and this.team.any(stopped.is_set()):
            stopped.set()  # all of them, after the same update
        if log is not None and (step % config.log_every == 0 or last):
            seconds = time.perf_counter() - since
            rate = samples / seconds
            samples, since = 0.0, time.perf_counter()
            log.write(step, {**metrics, "samples_per_s": rate, "seconds": seconds})
            bar.update(line, completed=step, rate=rate)
        # The last weights may be the best; otherwise the final evaluation judges them.
        due = config.eval.keep_best if last else step % max(config.eval.every, 1) == 0
        weights = _averaged(this) if config.eval.every and due else None
        if log is not None and weights is not None:
            result = _evaluate(this, weights)
            log.write(step, {f"eval/{result.figure}": result.rate, "eval/seconds": result.seconds})
            results.append(result)
            since = time.perf_counter()
        # After the evaluation: a kill during it repeats it.
        if step % config.save_every == 0 or last:
            _save(this)
    if stopped.is_set():
        _save(this)
    return results


def _averaged(this: _Run) -> Weights:
    """Return the averaged weights, whole; all processes have to ask for them."""
    return this.team.whole(this.optimiser.average)


def _evaluate(this: _Run, weights: Weights) -> Outcome:
    """Judge weights and keep them in OUT/best if none before were better."""
    learner, step, test = this.learner, this.optimiser.count, this.config.eval
    result = learner.evaluate(weights, episodes=test.episodes, seed=test.seed)
    if this.config.eval.keep_best and result.rate > _best(this.out):
        score = json.dumps({"step": step, result.figure: result.rate, "rate": result.rate})

        def also(folder: Path) -> None:
            (folder / "score.json").write_text(score + "\n")

        learner.save(weights, step, this.out / "best", also)
    return result


def _best(out: Path) -> float:
    """Return the rate of the weights in OUT/best, minus infinity if there are none."""
    checkpoint.recover_folder(out / "best")
    path = out / "best" / "score.json"
    return float(json.loads(path.read_text())["rate"]) if path.exists() else -math.inf


def _save(this: _Run) -> None:
    """Write weights and trainer state together, by one rename; of several processes one does."""
    learner, optimiser = this.learner, this.optimiser
    kept = this.team.whole({**optimiser.tensors(), "generator": this.generator.get_state()})
    if not this.team.leads:
        return

    def also(folder: Path) -> None:
        tensors = {name: value.detach().cpu().contiguous() for name, value in kept.items()}
        safetensors.torch.save_file(tensors, folder / "trainer.safetensors")
        state = {"step": optimiser.count, "learner": learner.state()}
        (folder / "trainer.json").write_text(json.dumps(state) + "\n")

    weights = {n.removeprefix("average."): v for n, v in kept.items() if n.startswith("average.")}
    learner.save(weights, optimiser.count, this.out / "checkpoint", also)


def _resume_(this: _Run) -> None:
    folder = this.out / "checkpoint"
    if not folder.exists():
        return
    damaged = (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError)
    try:
        state = json.loads((folder / "trainer.json").read_text())
        tensors = safetensors.torch.load_file(folder / "trainer.safetensors")
        this.generator.set_state(tensors.pop("generator"))
        this.optimiser.load_(tensors, state["step"])
        this.learner.restore_(state["learner"])
        this.learner.check_saved(folder)
    except damaged as error:
        raise ValueError(
            f"{folder}: cannot continue this run ({error}); delete {this.out} to start it afresh"
        ) from error


def check(config: RunConfig, out: Path) -> None:
    """Raise ValueError unless `out` can hold this run: it is new, empty, or holds it already."""
    flags.check_device(config.device)
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


def _claim(config: RunConfig, out: Path) -> None:
    """Write the run's configuration, whole or not at all, unless it is there."""
    path = out / "config.json"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(path, json.dumps(configs.to_json(config), indent=1) + "\n")


def _difference(a: Any, b: Any, name: str = "config") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            if key not in a or key not in b:
                return f"{name}.{key} is known to only one of them: another version made it"
            if a[key] != b[key]:
                return _difference(a[key], b[key], f"{name}.{key}")
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
