"""A physics engine in another interpreter, which an env server drives."""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import mujoco
import numpy as np

from sim.core import step_buffers
from sim.core.render import shared_renderer
from sim.core.scene import Scene, compile_scene
from sim.core.world import MujocoWorld
from sim.engines.batch import BatchVecEnv
from sim.engines.describe_scene import describe_scene
from sim.engines.engine import STATE, Reading, State
from sim.env_server.client import AdapterError, Process, check_timeouts
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import RobotSpec

ADAPTERS = Path(__file__).parents[1] / "adapters"
APPEARANCE = ("geom_rgba", "cam_pos", "cam_quat", "light_dir", "light_diffuse")
"""Fields of a model that only change images; each world has its own where MuJoCo renders here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExternalEngineConfig(PluginConfig):
    """A simulator in its own interpreter; the backend is named as its file in `sim/adapters`."""

    workers: int = 1
    """Always 1: one process of the simulator holds all worlds."""
    randomize: bool = True
    """Whether episodes differ in colour and, as far as the renderer can, light and camera pose."""
    python: str = ""
    """The interpreter in which the simulator is installed."""
    device: str = "cuda:0"
    """"cuda:N" or "cpu", for physics."""
    renderer: Literal["engine", "mujoco"] = "engine"
    """The simulator's own cameras, or MuJoCo in this process, as in the other backends."""
    startup_timeout_s: float = 300.0
    """Seconds that the simulator may take to start."""
    step_timeout_s: float = 300.0
    """Seconds that a step may take."""

    is_realtime: ClassVar[bool] = False

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> BatchVecEnv:
        """Return `num_envs` environments of a task.

        Raises:
            ValueError: a number is out of range, there is no such interpreter, or the simulator
                cannot hold the task's scene.
        """
        step_buffers.check_num_envs(num_envs)
        if self.workers != 1:
            raise ValueError(
                f"workers: got {self.workers}, expected 1: one process of the simulator holds all "
                "worlds"
            )
        check_timeouts(self.startup_timeout_s, self.step_timeout_s)
        adapter, python = type_name(self), self.interpreter()
        if not Path(python).is_file():
            raise ValueError(
                f"backend.python: got {python!r}, expected the interpreter in which {adapter} is "
                "installed; give its path: --backend.python PATH (see docs/simulators.md)"
            )
        engine = start(
            compile_scene(task, robot), num_envs, adapter, Path(python), self.engine_options(),
            startup_timeout_s=self.startup_timeout_s, step_timeout_s=self.step_timeout_s,
        )  # fmt: skip
        try:
            return BatchVecEnv(task, robot, num_envs, engine, randomize=self.randomize)
        except BaseException:
            engine.close()
            raise

    def interpreter(self) -> str:
        """Return the path of the interpreter."""
        return self.python

    def engine_options(self) -> dict[str, Any]:
        """Return the adapter's options besides the description of the scene."""
        return {"device": self.device, "draws": self.renderer == "engine"}


class AdapterEngine:
    """Satisfies `sim.engines.engine.Engine`.

    Without the simulator's cameras MuJoCo renders here, as in the other backends, from the
    simulator's state.
    """

    def __init__(
        self,
        scene: Scene,
        num_worlds: int,
        process: Any,
        folder: "tempfile.TemporaryDirectory[str] | None" = None,
    ) -> None:
        """Take over a `Process` or `InProcessAdapter` and the scene's files; `close` ends both."""
        self.num_worlds = num_worlds
        self._scene = scene
        self._process = process
        self._arrays = process.arrays
        self._draws: bool = process.announced["draws"]
        self._adapter_varies = frozenset(process.announced["varies"])
        appearance = frozenset() if self._draws else frozenset(APPEARANCE)
        self.varies: frozenset[str] = self._adapter_varies | appearance
        """Fields of `VARIED` that differ between its worlds."""
        self._mirror: MujocoWorld | None = None
        self._appearance = {
            name: np.repeat(getattr(scene.model, name)[None], num_worlds, axis=0)
            for name in (*APPEARANCE, "body_pos", "body_quat")
            if not self._draws and name in self.varies
        }
        self._mocap = {
            name: np.zeros((num_worlds, scene.model.nmocap, length))
            for name, length in (("mocap_pos", 3), ("mocap_quat", 4))
        }
        self._folder = folder

    def write(self, rows: np.ndarray, state: State, varied: Mapping[str, np.ndarray]) -> None:
        """Set some worlds to `state`; see `sim.engines.engine.Engine`."""
        arrays = self._arrays
        for name in STATE:
            arrays[name][rows] = getattr(state, name)
        for name, values in self._mocap.items():
            values[rows] = getattr(state, name)
        sent = [name for name in varied if name in self._adapter_varies]
        for name in sent:
            arrays["varied_" + name][rows] = varied[name]
        for name in self._appearance.keys() & varied.keys():
            self._appearance[name][rows] = varied[name]
        arrays["rows"][: len(rows)] = rows
        self._process.call("write", {"count": len(rows), "varied": sent})

    def step(self, ctrl: np.ndarray, substeps: int, active: np.ndarray) -> None:
        """Hold position targets for some steps of physics."""
        self._arrays["ctrl"][:] = ctrl
        self._arrays["active"][:] = active
        self._process.call("step", {"substeps": substeps})

    def read(self) -> Reading:
        """Return the state of all worlds; the caller computes kinematics and contacts."""
        return Reading(qpos=self._arrays["qpos"], qvel=self._arrays["qvel"])

    def faults(self) -> np.ndarray:
        """Return the worlds that failed since their last write, bool [e]."""
        return self._arrays["faults"].copy()

    def render(self, rows: np.ndarray) -> np.ndarray:
        """Return images of some worlds, u8 [n, v, h, w, 3]."""
        if not self._draws:
            return self._draw(rows)
        if len(rows):
            self._arrays["rows"][: len(rows)] = rows
            self._process.call("render", {"count": len(rows)})
        return self._arrays["images"][rows]

    def close(self) -> None:
        """End the simulator's process; calling it twice does no harm."""
        self._process.close()
        self._arrays = {}
        if self._folder is not None:
            self._folder.cleanup()

    def _draw(self, rows: np.ndarray) -> np.ndarray:
        if self._mirror is None:
            self._mirror = MujocoWorld(self._scene, vary=False)
        mirror, renderer = self._mirror, shared_renderer(self._scene)
        images = np.zeros((len(rows), *self._scene.image_shape), np.uint8)
        for image, row in zip(images, rows, strict=True):
            for name, values in self._appearance.items():
                getattr(mirror.model, name)[:] = values[row]
            mirror.data.qpos[:] = self._arrays["qpos"][row]
            for name, values in self._mocap.items():
                getattr(mirror.data, name)[:] = values[row]
            mujoco.mj_kinematics(mirror.model, mirror.data)
            renderer.draw([mirror], [image])
        return images


def start(
    scene: Scene, num_worlds: int, adapter: str, python: Path, options: dict[str, Any],
    *, startup_timeout_s: float, step_timeout_s: float,
) -> AdapterEngine:  # fmt: skip
    """Start a simulator in its own interpreter with worlds of a scene.

    `adapter` is the name of a file in `sim/adapters`; it gets `options` besides the description of
    the scene.

    Raises:
        ValueError: no such interpreter, or the adapter refuses the scene.
        EnvServerError: the process ended or hung while it started.
    """
    folder = tempfile.TemporaryDirectory(prefix="mneme-scene-")
    try:
        described = describe_scene(scene, num_worlds, Path(folder.name))
        process = Process(
            python, ADAPTERS / f"{adapter}.py", {**described, **options},
            startup_timeout_s=startup_timeout_s, step_timeout_s=step_timeout_s,
        )  # fmt: skip
    except BaseException as error:
        folder.cleanup()
        if isinstance(error, AdapterError) and error.kind == "ValueError":
            raise ValueError(f"{adapter}: {error.sentence}") from error
        raise
    return AdapterEngine(scene, num_worlds, process, folder)
