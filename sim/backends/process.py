"""Tasks of suites as a `VecEnv`, in other processes and interpreters or in this one.

The task's `Config` (`sim.suites._suite.Suite`) names interpreter and adapter; the adapter's rows
are `sim/adapters/_rows.py`. A step of a worker that has died raises one clear error; the next
reset starts it again.
"""

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sim.core import step_buffers
from sim.env_server.client import AdapterError, Process, check_timeouts
from sim.env_server.in_process import InProcessAdapter
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import EnvSpec, RobotSpec
from vla.contracts.types import EnvStep, Observation

TOLERANCE = 1e-5
"""Largest difference between the limits of an adapter and of its robot."""
OBSERVED = ("images", "proprio", "instruction", "time_s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the environments are run."""

    workers: int = 1
    """Processes that share the environments; with 1, a suite without its own interpreter stays in
    this process."""
    randomize: bool = True
    """Whether episodes differ in appearance, where the suite can vary it."""
    startup_timeout_s: float = 300.0
    """Seconds that a simulator may take to start."""
    step_timeout_s: float = 120.0
    """Seconds that a reset or a step may take before its process is killed."""

    is_realtime: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_timeouts(self.startup_timeout_s, self.step_timeout_s)

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> "AdapterVecEnv":
        """Return `num_envs` environments of a suite's task.

        Raises:
            ValueError: a number is out of range, the task is not a suite's, its environment is not
                installed, or the robot is not the one that acts in it.
        """
        step_buffers.check_workers(self.workers, num_envs)
        if not type(task).__module__.startswith("sim.suites."):
            raise ValueError(
                f"backend process: got the task {type_name(task)!r}, expected one of a suite, such "
                "as metaworld/push-v3; leave --backend.type out"
            )
        start = _starter(task, self, num_envs)
        return AdapterVecEnv(f"{type_name(task)}/{task.name}", robot, num_envs, start, self.workers)


Worker = Process | InProcessAdapter
"""What runs a share of the rows."""


def _starter(task: Any, config: Config, num_envs: int) -> Callable[[range], Worker]:
    """Return what starts the worker of some rows of a suite's task."""
    python, adapter = task.python(), task.adapter()
    shared = {"num_envs": num_envs, "randomize": config.randomize, **task.options()}

    def start(rows: range) -> Worker:
        options = {"rows": [rows.start, rows.stop], **shared}
        if python is None and config.workers == 1:
            return InProcessAdapter(adapter, options)
        try:
            return Process(
                python or Path(sys.executable),
                adapter,
                options,
                startup_timeout_s=config.startup_timeout_s,
                step_timeout_s=config.step_timeout_s,
            )
        except AdapterError as error:
            if error.kind == "ValueError":  # the user's settings are wrong
                raise ValueError(error.sentence) from error
            raise

    return start


class AdapterVecEnv:
    """Satisfies `VecEnv`, `HasPrivilegedState` and `TellsReferents`: `vla.contracts.protocols`."""

    render_time_s = 0.0
    """Not known: an adapter's step includes rendering."""

    def __init__(
        self,
        task: str,
        robot: RobotSpec,
        num_envs: int,
        start: Callable[[range], Worker],
        workers: int,
    ) -> None:
        """Start `workers`, side by side; call `reset` or `begin` before the first step.

        Raises:
            ValueError: adapters and robot do not fit, or an adapter refuses its options.
            EnvServerError: a simulator does not start.
        """
        self.num_envs = num_envs
        bounds = np.linspace(0, num_envs, workers + 1).round().astype(int).tolist()
        self._shares = [range(a, b) for a, b in itertools.pairwise(bounds)]
        self._start = start
        self._workers: list[Worker] = []
        self._started = np.zeros(num_envs, np.bool_)
        self._closed = False
        self._open()
        announced = self._workers[0].announced
        try:
            self._check(robot)
        except ValueError:
            self.close()
            raise
        self._together = bool(announced.get("together", False))
        if announced.get("final_obs", "all") != "all":
            what = "observation" if announced["final_obs"] == "lost" else "images"
            warnings.warn(
                f"{task}: its simulator resets before it returns the last {what} of an episode; "
                "final_obs repeats those before the last step",
                stacklevel=2,
            )
        self.has_expert = bool(announced["has_expert"])
        """Whether the suite has a scripted expert."""
        self.privileged_state_names = tuple(announced.get("privileged_state_names", ()))
        """What each number of `privileged_state` is; empty if the suite tells none."""
        self.has_referents = bool(announced.get("has_referents", False))
        """Whether there are `referents`."""
        self.spec = EnvSpec(
            task=task,
            robot=robot,
            instructions=tuple(announced["instructions"]),
            max_episode_steps=int(announced["max_episode_steps"]),
        )
        self._instructions = np.array(announced["instructions"], dtype=object)

    @property
    def adapter_time_s(self) -> float:
        """Seconds that the slowest adapter itself took for the last call; 0 in this process."""
        return max((worker.taken_s for worker in self._workers), default=0.0)

    def reset(self, seed: int) -> Observation:
        """Start episodes 0 to E-1 of a seed (>= 0); workers that have ended are started again.

        Raises:
            ValueError: the seed is below 0, or the environments were closed.
            EnvServerError: a simulator died, hung or refused.
        """
        step_buffers.check_seed(seed)
        if self._closed:
            raise ValueError("reset after close: make new environments")
        if not self._workers:
            self._open()
        self._call("reset", [{"seed": int(seed)}] * len(self._workers))
        self._started[:] = True
        return self._observation()

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> Observation:
        """Start other episodes in some rows; see `vla.contracts.protocols.VecEnv`.

        Raises:
            ValueError: a number is out of range, the environments were closed, or their simulator
                begins all rows together and this is not what `reset` does.
            EnvServerError: a simulator died, hung or refused.
        """
        rows, seed, index = step_buffers.checked_start(self.num_envs, rows, seed, index)
        if self._closed:
            raise ValueError("begin after close: make new environments")
        whole = np.array_equal(np.sort(rows), np.arange(self.num_envs))
        if self._together and not (whole and np.all(seed == seed[0]) and np.all(index == rows)):
            raise ValueError(
                f"begin: got rows {rows}, seeds {seed} and indices {index}, expected all rows with "
                f"one seed and indices from 0: the simulator of {self.spec.task} draws all its "
                "episodes from one stream; use reset(seed)"
            )
        if not self._workers:
            self._open()
        orders = []
        for share in self._shares:
            ours = (rows >= share.start) & (rows < share.stop)
            parts = {"rows": rows - share.start, "seed": seed, "index": index}
            orders.append({name: values[ours].tolist() for name, values in parts.items()})
        self._call("begin", orders)
        self._started[rows] = True
        return self._observation()

    def step(self, action: np.ndarray) -> EnvStep:
        """Apply one action, float32, shape (e, u), for one control step."""
        return self.step_chunk(np.asarray(action)[:, None])

    def step_chunk(
        self,
        actions: np.ndarray,
        use_expert: np.ndarray | None = None,
        frozen: np.ndarray | None = None,
    ) -> EnvStep:
        """Apply up to h actions and observe at the end; see `vla.contracts.protocols.VecEnv`.

        Where the simulator steps all rows together, all stop at the first end of an episode.

        Raises:
            ValueError: a shape is wrong, a value is not finite, or the suite has no expert.
            EnvServerError: a simulator died, hung or refused; the next `reset` starts it again.
        """
        use_expert, frozen = self._check_step(actions, use_expert, frozen)
        length = np.shape(actions)[1]
        for share, worker in zip(self._shares, self._workers, strict=True):
            rows = slice(share.start, share.stop)
            worker.arrays["actions"][:, :length] = actions[rows]
            worker.arrays["use_expert"][:] = use_expert[rows]
            worker.arrays["frozen"][:] = frozen[rows]
        self._call("step", [{"length": length}] * len(self._workers))
        return self._env_step(length)

    def privileged_state(self) -> np.ndarray:
        """Return f32 [e, p]; see `vla.contracts.protocols.HasPrivilegedState`.

        Raises:
            ValueError: no row has begun, or the task has none.
            EnvServerError: a simulator died, hung or refused.
        """
        if not self.privileged_state_names:
            raise ValueError(f"privileged_state: {self.spec.task} has none")
        return self._asked_for("privileged_state")

    def referents(self) -> np.ndarray:
        """Return f32 [e, v, r, 2]; see `vla.contracts.protocols.TellsReferents`.

        Raises:
            ValueError: no row has begun, or the suite does not say where things are.
            EnvServerError: a simulator died, hung or refused.
        """
        if not self.has_referents:
            raise ValueError(f"referents: {self.spec.task} has none")
        return self._asked_for("referents")

    def close(self) -> None:
        """End the simulators; the environments cannot be used afterwards."""
        self._closed = True
        self._end()

    def _check_step(
        self, actions: np.ndarray, use_expert: np.ndarray | None, frozen: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        # Without workers nothing has begun.
        step_buffers.checked_actions(
            actions, use_expert, frozen, started=self._started & bool(self._workers),
            channels=len(self.spec.robot.channels),
        )  # fmt: skip
        none = np.zeros(self.num_envs, np.bool_)
        marks = [none if mark is None else np.asarray(mark) for mark in (use_expert, frozen)]
        if self._together and marks[1].any() and not marks[1].all():
            raise ValueError(
                f"frozen: got some rows, expected all or none: the simulator of {self.spec.task} "
                "steps all rows together"
            )
        if marks[0].any() and not self.has_expert:
            raise ValueError(f"use_expert: {self.spec.task} has no scripted expert")
        return marks[0], marks[1]

    def _open(self) -> None:
        """Start all workers at the same time; if one fails, end all."""
        if len(self._shares) == 1:
            self._workers = [self._start(self._shares[0])]
            return
        with ThreadPoolExecutor(len(self._shares)) as pool:
            opening = [pool.submit(self._start, share) for share in self._shares]
        errors = [e for e in (future.exception() for future in opening) if e]
        self._workers = [future.result() for future in opening if not future.exception()]
        if errors:
            self._end()
            raise errors[0]

    def _call(self, command: str, orders: Sequence[dict[str, Any]]) -> None:
        """Call all workers at the same time; if one fails, end all."""
        try:
            for worker, order in zip(self._workers, orders, strict=True):
                worker.send(command, order)
            for worker in self._workers:
                worker.receive()
        except BaseException:
            # Others may still be at work on an answer that nothing will read.
            self._end()
            raise

    def _end(self) -> None:
        self._started[:] = False
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _check(self, robot: RobotSpec) -> None:
        """Raise ValueError unless all adapters agree with each other and with the robot."""
        announced = self._workers[0].announced
        if any(worker.announced != announced for worker in self._workers):
            raise ValueError("workers: their adapters describe different environments")
        _, height, width, _ = announced["image_shape"]
        sizes = {(c.height_px, c.width_px) for c in robot.cameras}
        for what, got, expected in (
            ("channels", list(robot.names), announced["channels"]),
            ("cameras", [c.name for c in robot.cameras], announced["cameras"]),
            ("image sizes", sorted(sizes), [(height, width)]),
            ("control_hz", robot.control_hz, announced["control_hz"]),
        ):
            if got != expected:
                raise ValueError(
                    f"robot {robot.name!r}: got {what} {got}, expected {expected}, those of its "
                    "simulator; leave --robot out"
                )
        for what, limits in (("low", robot.low), ("high", robot.high)):
            if not np.allclose(limits, announced[what], rtol=TOLERANCE, atol=TOLERANCE):
                raise ValueError(
                    f"robot {robot.name!r}: got {what} {limits}, expected {announced[what]}, that "
                    "of its simulator; leave --robot out"
                )

    def _asked_for(self, name: str) -> np.ndarray:
        step_buffers.check_started(self._started, name)
        self._call(name, [{}] * len(self._workers))
        return self._gather(name)

    def _gather(self, name: str) -> np.ndarray:
        """Return a copy of an array of all rows."""
        return np.concatenate([worker.arrays[name] for worker in self._workers])

    def _observation(self) -> Observation:
        seen = {name: self._gather(name) for name in OBSERVED}
        return step_buffers.observation(seen, seen["images"], self._instructions)

    def _env_step(self, length: int) -> EnvStep:
        buffers = {name: self._gather(name) for name in (*OBSERVED, *step_buffers.RESULTS)}
        actions = [worker.arrays["actions"][:, :length] for worker in self._workers]
        buffers["actions"] = np.concatenate(actions)
        if (buffers["terminated"] | buffers["truncated"]).any():
            buffers.update({f"final_{name}": self._gather(f"final_{name}") for name in OBSERVED})
        return step_buffers.env_step(buffers, buffers["images"], None, self._instructions, length)
