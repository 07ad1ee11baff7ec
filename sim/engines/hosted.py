"""A physics engine in another interpreter, driven over the process bridge; the worlds are there."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import mujoco
import numpy as np

from sim.bridge.client import HostError, Process
from sim.engines.batch import BatchVecEnv
from sim.engines.describe_scene import describe_scene
from sim.engines.engine import Reading, State
from sim.render import shared_renderer
from sim.scene import Scene, compile_scene
from sim.world import MujocoWorld
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec

HOSTS = Path(__file__).parents[1] / "hosts"
LOOKS = ("geom_rgba", "cam_pos", "cam_quat", "light_dir", "light_diffuse")
"""Fields of a model that matter to pictures alone: worlds have them of their own where we draw."""
STATE = ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat")


@runtime_checkable
class Caller(Protocol):
    """`sim.bridge.client.Process`, or `sim.bridge.local.LocalHost`."""

    arrays: dict[str, np.ndarray]
    announced: Any

    def call(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """Have the host do one thing."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class HostedEngine:
    """Satisfies `sim.engines.engine.Engine`.

    Where the simulator has no cameras, or is told not to use them, pictures are drawn here with
    MuJoCo from where things stand there: they are those of the other backends.
    """

    def __init__(self, scene: Scene, num_worlds: int, process: Caller) -> None:
        """Drive a host that holds `num_worlds` worlds of a scene; it is closed with this engine."""
        self.num_worlds = num_worlds
        self._scene = scene
        self._process = process
        self._arrays = process.arrays
        self._draws: bool = process.announced["draws"]
        self._there = frozenset(process.announced["varies"])
        looks = frozenset() if self._draws else frozenset(LOOKS)
        self.varies: frozenset[str] = self._there | looks
        """Of `VARIED`, what its worlds have of their own."""
        self._twin: MujocoWorld | None = None
        self._looks = {
            name: np.repeat(getattr(scene.model, name)[None], num_worlds, axis=0)
            for name in (*LOOKS, "body_pos", "body_quat")
            if not self._draws and name in self.varies
        }
        self._mocap = {
            name: np.zeros((num_worlds, scene.model.nmocap, length))
            for name, length in (("mocap_pos", 3), ("mocap_quat", 4))
        }
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def write(self, rows: np.ndarray, state: State, varied: Mapping[str, np.ndarray]) -> None:
        """Put some worlds where `state` says; see `sim.engines.engine.Engine`."""
        arrays = self._arrays
        for name in STATE:
            arrays[name][rows] = getattr(state, name)
        for name, kept in self._mocap.items():
            kept[rows] = getattr(state, name)
        told = [name for name in varied if name in self._there]
        for name in told:
            arrays["varied_" + name][rows] = varied[name]
        for name in self._looks.keys() & varied.keys():
            self._looks[name][rows] = varied[name]
        arrays["rows"][: len(rows)] = rows
        self._process.call("write", {"count": len(rows), "varied": told})

    def step(self, ctrl: np.ndarray, substeps: int, active: np.ndarray) -> None:
        """Hold position targets for some steps of physics."""
        self._arrays["ctrl"][:] = ctrl
        self._arrays["active"][:] = active
        self._process.call("step", {"substeps": substeps})

    def read(self) -> Reading:
        """Return where all worlds stand; kinematics and contacts are left to the caller."""
        return Reading(qpos=self._arrays["qpos"], qvel=self._arrays["qvel"])

    def faults(self) -> np.ndarray:
        """Return which worlds went wrong since they were written last, bool [e]."""
        return self._arrays["faults"].copy()

    def render(self, rows: np.ndarray) -> np.ndarray:
        """Return pictures of some worlds as they stand, u8 [n, v, h, w, 3]."""
        if not self._draws:
            return self._draw(rows)
        if len(rows):
            self._arrays["rows"][: len(rows)] = rows
            self._process.call("render", {"count": len(rows)})
        return self._arrays["images"][rows]

    def close(self) -> None:
        """End the simulator's process; twice does no harm."""
        self._process.close()
        self._arrays = {}
        if self._folder is not None:
            self._folder.cleanup()

    def _draw(self, rows: np.ndarray) -> np.ndarray:
        if self._twin is None:
            self._twin = MujocoWorld(self._scene, vary=False)
        twin, renderer = self._twin, shared_renderer(self._scene)
        images = np.zeros((len(rows), *self._scene.image_shape), np.uint8)
        for image, row in zip(images, rows, strict=True):
            for name, values in self._looks.items():
                getattr(twin.model, name)[:] = values[row]
            twin.data.qpos[:] = self._arrays["qpos"][row]
            for name, values in self._mocap.items():
                getattr(twin.data, name)[:] = values[row]
            mujoco.mj_kinematics(twin.model, twin.data)
            renderer.draw_([twin], [image])
        return images


def start(
    scene: Scene, num_worlds: int, host: str, python: Path, options: dict[str, Any],
    *, open_s: float, call_s: float, environ: Mapping[str, str] | None = None,
) -> HostedEngine:  # fmt: skip
    """Start a simulator in its own interpreter with worlds of a scene.

    Args:
        scene: The scene.
        num_worlds: Number of worlds.
        host: Name of a file in `sim/hosts`.
        python: The interpreter.
        options: Of the host, beside the description of the scene.
        open_s: Seconds that it may take to start.
        call_s: Seconds that one call may take.
        environ: Variables it runs with.

    Raises:
        ValueError: no such interpreter, or the host refuses the scene.
        BridgeError: it ended or hung while it started.
    """
    folder = tempfile.TemporaryDirectory(prefix="mneme-scene-")
    try:
        told = describe_scene(scene, num_worlds, Path(folder.name))
        process = Process(
            python, HOSTS / f"{host}.py", {**told, **options}, open_s=open_s, call_s=call_s,
            environ=environ,
        )  # fmt: skip
    except HostError as error:
        folder.cleanup()
        if error.kind == "ValueError":
            raise ValueError(f"{host}: {error.sentence}") from error
        raise
    except BaseException:
        folder.cleanup()
        raise
    engine = HostedEngine(scene, num_worlds, process)
    engine._folder = folder  # noqa: SLF001
    return engine


def build(
    task: PluginConfig, robot: RobotSpec, num_envs: int, host: str, settings: PluginConfig,
    options: dict[str, Any],
) -> BatchVecEnv:  # fmt: skip
    """Return environments of a task on a simulator in its own interpreter.

    Args:
        task: The task's configuration.
        robot: The arm.
        num_envs: Number of environments.
        host: Name of a file in `sim/hosts`, and of the backend.
        settings: Of the backend: `workers`, `randomize`, `python`, `open_s` and `call_s` of it.
        options: Of the host, beside the description of the scene.

    Raises:
        ValueError: a number is out of range, there is no such interpreter, or the simulator cannot
            hold the scene.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs: got {num_envs}, expected at least 1")
    if settings.workers != 1:
        raise ValueError(
            f"workers: got {settings.workers}, expected 1: one process of the simulator holds all "
            "worlds"
        )
    for name in ("open_s", "call_s"):
        if not getattr(settings, name) > 0.0:  # NaN is not
            raise ValueError(f"backend.{name}: got {getattr(settings, name)}, expected above 0")
    if not Path(settings.python).is_file():
        raise ValueError(
            f"backend.python: got {settings.python!r}, expected the interpreter in which {host} is "
            f"installed; give its path: --backend.python PATH (see docs/simulators.md)"
        )
    engine = start(
        compile_scene(task, robot), num_envs, host, Path(settings.python), options,
        open_s=settings.open_s, call_s=settings.call_s,
    )  # fmt: skip
    try:
        return BatchVecEnv(task, robot, num_envs, engine, randomize=settings.randomize)
    except BaseException:
        engine.close()
        raise
