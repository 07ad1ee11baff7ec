"""Measures mujoco_warp against the number of worlds, with and without cameras; writes a report.

`python -m benchmarks.sim.gpu_study --worlds 256 1024 4096 16384 --out FOLDER` needs an NVIDIA GPU;
with `--device cpu` and few worlds it runs anywhere. FOLDER/report.json holds the results,
FOLDER/report.html shows them.
"""

import dataclasses
import gc
import importlib
import json
import resource
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks import harness
from sim import vec_env
from sim.core.scene import compile_scene
from sim.core.step_buffers import LONGEST_CHUNK
from sim.core.world import MujocoWorld
from sim.engines.engine import State
from vla import cli
from vla.contracts import config as configs
from vla.contracts import registry
from vla.utils import pages

BACKEND = "mujoco_warp"
SWING_RAD = 0.15
SERIES = {
    "physics_per_s": "physics alone",
    "without_per_s": "environments, no camera",
    "with_per_s": "environments, every camera in every step",
}
"""Field of a `Measured` and its legend, in the order of the plot."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Results for a number of worlds; rates are control steps per second of all together."""

    worlds: int
    """Number of worlds."""
    physics_per_s: float = 0.0
    """Steps of the engine with its state read, without task rules or resets."""
    without_per_s: float = 0.0
    """Environments; images are rendered once, after the last step."""
    with_per_s: float = 0.0
    """Environments with images after every step."""
    reset_s: float = 0.0
    """Seconds of the first reset of all worlds, compilation included."""
    memory_mb: float = 0.0
    """Memory in use on the device; on a CPU, the peak of the process."""
    faults: int = 0
    """Episodes that ended because the simulation failed."""
    error: str = ""
    """Why there are no results."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Measure mujoco_warp against the number of worlds."""

    worlds: tuple[int, ...] = (256, 1024, 4096, 16384)
    """Numbers of worlds."""
    task: str = "pick_place"
    """Task."""
    steps: int = 20
    """Control steps."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Device."""
    out: Path
    """Folder of the report."""

    def __post_init__(self) -> None:
        if min(self.worlds, default=0) < 1:
            raise ValueError(f"worlds: got {self.worlds}, expected numbers of at least 1")
        if not 1 <= self.steps <= LONGEST_CHUNK:
            raise ValueError(f"steps: got {self.steps}, expected 1 to {LONGEST_CHUNK}")


def main(argv: list[str]) -> int:
    """Measure, print a line per number of worlds, and write the report.

    Raises:
        ValueError: a name is unknown, a number out of range, or there is no GPU.
    """
    args = harness.read(Study, argv, "sim.gpu_study")
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out: {args.out} is a file, expected a folder")
    vec_env.load_task(args.task)
    config = registry.load("sim.backends", BACKEND).Config(device=args.device)
    device = (
        importlib.import_module("sim.engines.warp_start").wp.get_device(config.find_device()).name
    )
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[Measured] = []
    for worlds in sorted(set(args.worlds)):
        rows.append(measure(config, args.task, worlds, args.steps))
        print(_describe(rows[-1]), flush=True)
        write(args.out, device, args.task, args.steps, rows)
    print(f"report: {args.out / 'report.html'}")
    return 0


def measure(config: Any, task: str, worlds: int, steps: int) -> Measured:
    """Return the results for a number of worlds over some control steps of swinging arms."""
    gc.collect()  # releases the memory of the previous worlds
    env = None
    try:
        physics_per_s = _time_physics(config, task, worlds, steps)
        start_s = time.perf_counter()
        env = vec_env.make(task, worlds, backend=config)
        env.reset(0)
        reset_s = time.perf_counter() - start_s
        swing = _swing(env, steps)
        env.step(swing[:, 0])
        start_s, faults = time.perf_counter(), 0
        faults += int(env.step_chunk(swing).info["fault"].sum())
        without_per_s = worlds * steps / (time.perf_counter() - start_s)
        start_s = time.perf_counter()
        for k in range(steps):
            faults += int(env.step(swing[:, k]).info["fault"].sum())
        _wait()
        with_per_s = worlds * steps / (time.perf_counter() - start_s)
        return Measured(
            worlds=worlds,
            physics_per_s=physics_per_s,
            without_per_s=without_per_s,
            with_per_s=with_per_s,
            reset_s=reset_s,
            memory_mb=_memory_mb(config),
            faults=faults,
        )
    except (MemoryError, RuntimeError) as error:  # Warp's word for a GPU that is full
        return Measured(worlds=worlds, error=str(error).strip().splitlines()[0])
    finally:
        if env is not None:
            env.close()


def _swing(env: Any, steps: int) -> np.ndarray:
    """Return actions f32 [e, h, u] that swing every joint about home, each world in its phase."""
    phase = np.arange(env.num_envs)[:, None, None] + np.arange(steps)[None, :, None] / 3.0
    robot = env.spec.robot
    swing = np.array(robot.home) + SWING_RAD * np.sin(phase)
    return np.clip(swing, robot.low, robot.high).astype(np.float32)


def _time_physics(config: Any, task: str, worlds: int, steps: int) -> float:
    """Return control steps per second of the engine alone, all worlds in the same episode."""
    scene = compile_scene(vec_env.load_task(task), vec_env.load_robot(None))
    engine = config.engine(scene, worlds)
    world = MujocoWorld(scene)
    world.reset(0, 0)
    names = [field.name for field in dataclasses.fields(State)]
    every = np.arange(worlds)
    engine.write(
        every, State(**{n: np.stack([getattr(world.data, n)] * worlds) for n in names}), {}
    )
    ctrl, active = np.stack([world.data.ctrl] * worlds), np.ones(worlds, np.bool_)
    engine.step(ctrl, scene.substeps, active)  # compiles, and records the graph
    start_s = time.perf_counter()
    for _ in range(steps):
        engine.step(ctrl, scene.substeps, active)
        engine.read()
    rate = worlds * steps / (time.perf_counter() - start_s)
    engine.close()
    return rate


def _wait() -> None:
    """Wait for what a GPU was told to do."""
    importlib.import_module("sim.engines.warp_start").wp.synchronize()


def _memory_mb(config: Any) -> float:
    if config.device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    device = importlib.import_module("sim.engines.warp_start").wp.get_device("cuda:0")
    return (device.total_memory - device.free_memory) / 2**20


def _describe(row: Measured) -> str:
    if row.error:
        return f"{row.worlds:6} worlds: {row.error}"
    rates = ", ".join(f"{getattr(row, name):.0f} {what}" for name, what in SERIES.items())
    return (
        f"{row.worlds:6} worlds, control steps/s: {rates}; {row.memory_mb:.0f} MB, "
        f"begun in {row.reset_s:.1f} s, {row.faults} faults"
    )


def write(out: Path, device: str, task: str, steps: int, rows: list[Measured]) -> None:
    """Write report.json and report.html to a folder."""
    about = {
        "task": task,
        "steps": steps,
        "device": device,
        **{name: metadata.version(name) for name in ("mujoco", "mujoco-warp", "warp-lang")},
    }
    report = {**about, "rows": configs.to_json(rows)}
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "report.html").write_text(_page(about, rows))


def _page(about: dict[str, Any], rows: list[Measured]) -> str:
    title = f"{BACKEND} on {about['task']}: speed against worlds"
    sound = [row for row in rows if not row.error]
    drawing = ""
    if sound:
        curves = [[(row.worlds, getattr(row, name)) for row in sound] for name in SERIES]
        drawing = harness.plot(curves, x="worlds", y="control steps/s", log=True)
    head = ("worlds", *SERIES.values(), "memory, MB", "begun in, s", "faults", "")
    cells = [
        [
            row.worlds,
            *(f"{getattr(row, name):.0f}" if not row.error else pages.NONE for name in SERIES),
            f"{row.memory_mb:.0f}",
            f"{row.reset_s:.1f}",
            row.faults,
            row.error,
        ]
        for row in rows
    ]
    return pages.render(
        "vla/utils/tables.html.j2", title=title,
        about=", ".join(f"{k} {v}" for k, v in about.items()),
        tables=[("", head, cells)], numbers=range(len(head) - 1), drawing=drawing,
        names=list(SERIES.values()), caption="Control steps per second, all worlds together.",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.sim.gpu_study:main", sys.argv[1:]))
