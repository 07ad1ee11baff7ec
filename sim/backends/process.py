"""Environments whose rows are played by hosts: in other processes and interpreters, or in this one.

What a suite's task needs to run is asked of its `Config` (`sim.suites._suite.Suite`); what plays
the rows is `sim/hosts/_rows.py`. A worker that dies makes a step fail with one clear sentence; the
next reset starts it anew.
"""

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from sim import report
from sim.bridge.client import HostError, Process
from sim.bridge.local import LocalHost
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import EnvSpec, RobotSpec
from vla.contracts.types import EnvStep, Observation

TOLERANCE = 1e-5
"""By how much the limits of a host and of its robot may differ."""
OBSERVED = ("images", "proprio", "instruction", "time_s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How the environments are run."""

    workers: int = 1
    """Processes among which environments are shared out; a suite that needs no interpreter of its
    own stays in this process with 1."""
    randomize: bool = True
    """Whether episodes differ in looks, where the suite can vary them."""
    open_s: float = 300.0
    """Seconds that a simulator may take to start."""
    call_s: float = 120.0
    """Seconds that a reset or a step may take before its process is killed."""

    live: ClassVar[bool] = False
    """Whether there is one arm alone, in real time."""

    def __post_init__(self) -> None:
        """Refuse times that are none."""
        for name in ("open_s", "call_s"):
            if not getattr(self, name) > 0.0:  # NaN is not
                raise ValueError(f"backend.{name}: got {getattr(self, name)}, expected above 0")

    def build(self, task: PluginConfig, robot: RobotSpec, num_envs: int) -> "HostedVecEnv":
        """Return `num_envs` environments of a suite's task.

        Raises:
            ValueError: a number is out of range, the task is not a suite's, its environment is not
                installed, or the robot is not the one that acts in it.
        """
        report.check_num_envs(num_envs)
        if not 1 <= self.workers <= num_envs:
            raise ValueError(
                f"workers: got {self.workers}, expected 1 to {num_envs}, the number of environments"
            )
        if not type(task).__module__.startswith("sim.suites."):
            raise ValueError(
                f"backend process: got the task {type_name(task)!r}, expected one of a suite, such "
                "as metaworld/push-v3; leave --backend out"
            )
        start = starter(task, self, num_envs)
        return HostedVecEnv(f"{type_name(task)}/{task.name}", robot, num_envs, start, self.workers)


@runtime_checkable
class Worker(Protocol):
    """What plays a share of the rows: `client.Process` or `local.LocalHost`."""

    arrays: dict[str, np.ndarray]
    announced: Any

    @property
    def closed(self) -> bool:
        """Whether it can be called no more."""
        ...

    def send(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        """Begin a call."""
        ...

    def receive(self) -> Any:
        """Wait for its answer."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def starter(task: Any, config: Config, num_envs: int) -> Callable[[range], Worker]:
    """Return what starts the worker of some rows of a suite's task.

    Raises:
        ValueError: the suite's environment is not installed.
    """
    python, host = task.python(), task.host()
    shared = {"num_envs": num_envs, "randomize": config.randomize, **task.options()}

    def start(rows: range) -> Worker:
        options = {"rows": [rows.start, rows.stop], **shared}
        if python is None and config.workers == 1:
            return LocalHost(host, options)
        try:
            return Process(
                python or Path(sys.executable),
                host,
                options,
                open_s=config.open_s,
                call_s=config.call_s,
                environ=task.environ(),
            )
        except HostError as error:
            if error.kind == "ValueError":  # what the user asked for is wrong, in so many words
                raise ValueError(error.sentence) from error
            raise

    return start


class HostedVecEnv:
    """Satisfies `vla.contracts.protocols.VecEnv`; also steps whole action chunks."""

    render_s = 0.0
    """Not known: pictures are part of a host's step."""

    def __init__(
        self,
        task: str,
        robot: RobotSpec,
        num_envs: int,
        start: Callable[[range], Worker],
        workers: int,
    ) -> None:
        """Start the workers, side by side; call `reset` or `begin` before the first step.

        Args:
            task: Name of the task.
            robot: Who acts in it.
            num_envs: Number E of environments.
            start: Starts the worker of some rows.
            workers: How many.

        Raises:
            ValueError: hosts and robot do not fit, or a host refuses what it is asked for.
            BridgeError: a simulator does not start.
        """
        self.num_envs = num_envs
        bounds = np.linspace(0, num_envs, workers + 1).round().astype(int).tolist()
        self._shares = [range(a, b) for a, b in itertools.pairwise(bounds)]
        self._start = start
        self._workers: list[Worker] = []
        self._started = np.zeros(num_envs, np.bool_)
        self._closed = False
        self._open()
        told = self._workers[0].announced
        try:
            self._check(robot)
        except ValueError:
            self.close()
            raise
        self._together = bool(told.get("together", False))
        if told.get("final_obs", "all") != "all":
            what = "observation" if told["final_obs"] == "lost" else "pictures"
            warnings.warn(
                f"{task}: its simulator resets before it tells the last {what} of an episode; "
                "final_obs repeats what was seen before the last step",
                stacklevel=2,
            )
        self.has_expert = bool(told["has_expert"])
        """Whether somebody in the simulator knows how to do the task."""
        self.spec = EnvSpec(
            task=task,
            robot=robot,
            instructions=tuple(told["instructions"]),
            max_episode_steps=int(told["max_episode_steps"]),
        )
        self._instructions = np.array(told["instructions"], dtype=object)

    @property
    def host_s(self) -> float:
        """Seconds that the slowest host itself took for the last call; 0 in this process."""
        return max((getattr(worker, "taken_s", 0.0) for worker in self._workers), default=0.0)

    def reset(self, seed: int) -> Observation:
        """Start episodes 0 to E-1 of a seed (>= 0); workers that are gone are started anew.

        Raises:
            ValueError: the seed is below 0, or the environments were closed.
            BridgeError: a simulator died, hung or refused.
        """
        report.check_seed(seed)
        if self._closed:
            raise ValueError("reset after close: make the environments anew")
        if not self._workers:
            self._open()
        self._call("reset", [{"seed": int(seed)}] * len(self._workers))
        self._started[:] = True
        return self._observation("")

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> Observation:
        """Start other episodes in some rows at once; what they were at is dropped.

        Args:
            rows: i64 [n], each once.
            seed: i64 [n], seed of each one's episode, 0 or more.
            index: i64 [n], its index among those of the seed, 0 or more.

        Returns:
            What is seen in all rows now.

        Raises:
            ValueError: a number is out of range, the environments were closed, or their simulator
                begins all rows together and this is not what `reset` does.
            BridgeError: a simulator died, hung or refused.
        """
        rows, seed, index = report.checked_start(self.num_envs, rows, seed, index)
        if self._closed:
            raise ValueError("begin after close: make the environments anew")
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
            orders.append(
                {
                    "rows": (rows[ours] - share.start).tolist(),
                    "seed": seed[ours].tolist(),
                    "index": index[ours].tolist(),
                }
            )
        self._call("begin", orders)
        self._started[rows] = True
        return self._observation("")

    def step(self, action: np.ndarray) -> EnvStep:
        """Apply one action, float32, shape (e, u), for one control step."""
        return self.step_chunk(np.asarray(action)[:, None])

    def step_chunk(
        self, actions: np.ndarray, helped: np.ndarray | None = None, idle: np.ndarray | None = None
    ) -> EnvStep:
        """Apply up to h actions one after the other and observe after the last.

        An environment whose episode ends stops there, is reset, and idles for the rest; where the
        simulator steps all rows together, all stop there.

        Args:
            actions: In the units of the robot's channels, float32, shape (e, h, u), h to 256.
            helped: Rows in which the suite's expert acts instead, bool, shape (e,).
            idle: Rows that stand still and cost nothing, bool, shape (e,); whatever their actions.

        Returns:
            The step; `reward` is the sum, `info["steps"]` the number of actions executed and
            `info["actions"]` which ones, float32, shape (e, h, u).

        Raises:
            ValueError: a shape is wrong, a value is not finite, or there is no expert to help.
            BridgeError: a simulator died, hung or refused; the next `reset` starts it anew.
        """
        helped, idle = self._check_step(actions, helped, idle)
        length = np.shape(actions)[1]
        for share, worker in zip(self._shares, self._workers, strict=True):
            rows = slice(share.start, share.stop)
            worker.arrays["actions"][:, :length] = actions[rows]
            worker.arrays["helped"][:] = helped[rows]
            worker.arrays["idle"][:] = idle[rows]
        self._call("step", [{"length": length}] * len(self._workers))
        return self._env_step(length)

    def close(self) -> None:
        """End the simulators; the environments cannot be used afterwards."""
        self._closed = True
        self._end()

    def _check_step(
        self, actions: np.ndarray, helped: np.ndarray | None, idle: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        # Without workers nothing has begun.
        report.checked_actions(
            actions, helped, idle, started=self._started & bool(self._workers),
            channels=len(self.spec.robot.channels),
        )  # fmt: skip
        none = np.zeros(self.num_envs, np.bool_)
        marks = [none if given is None else np.asarray(given) for given in (helped, idle)]
        if self._together and marks[1].any() and not marks[1].all():
            raise ValueError(
                f"idle: got some rows, expected all or none: the simulator of {self.spec.task} "
                "steps all rows together"
            )
        if marks[0].any() and not self.has_expert:
            raise ValueError(f"helped: {self.spec.task} has no expert who could help")
        return marks[0], marks[1]

    def _open(self) -> None:
        """Start all workers side by side; none is left if one fails."""
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
        """Have every worker do its part at the same time; all are ended if one fails."""
        try:
            for worker, order in zip(self._workers, orders, strict=True):
                worker.send(command, order)
            for worker in self._workers:
                worker.receive()
        except BaseException:
            # Some are in the middle of something whose answer nobody would read.
            self._end()
            raise

    def _end(self) -> None:
        self._started[:] = False
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _check(self, robot: RobotSpec) -> None:
        """Raise ValueError unless all hosts agree with one another and with the robot."""
        told = self._workers[0].announced
        if any(worker.announced != told for worker in self._workers):
            raise ValueError("workers: their hosts announce different environments")
        _, height, width, _ = told["image_shape"]
        sizes = {(c.height_px, c.width_px) for c in robot.cameras}
        for what, got, expected in (
            ("channels", list(robot.names), told["channels"]),
            ("cameras", [c.name for c in robot.cameras], told["cameras"]),
            ("picture sizes", sorted(sizes), [(height, width)]),
            ("control_hz", robot.control_hz, told["control_hz"]),
        ):
            if got != expected:
                raise ValueError(
                    f"robot {robot.name!r}: got {what} {got}, expected {expected}, those of its "
                    "simulator; leave --robot out"
                )
        for what, limits in (("low", robot.low), ("high", robot.high)):
            if not np.allclose(limits, told[what], rtol=TOLERANCE, atol=TOLERANCE):
                raise ValueError(
                    f"robot {robot.name!r}: got {what} {limits}, expected {told[what]}, that of "
                    "its simulator; leave --robot out"
                )

    def _gather(self, name: str) -> np.ndarray:
        """Return a copy of an array of all rows."""
        return np.concatenate([worker.arrays[name] for worker in self._workers])

    def _observation(self, prefix: str, ended: np.ndarray | None = None) -> Observation:
        """Return what is seen; with `ended`, in those rows before their reset."""
        seen = {name: self._gather(name) for name in OBSERVED}
        if ended is not None:
            for name in OBSERVED:
                seen[name][ended] = self._gather(prefix + name)[ended]
        return Observation(
            images=seen["images"],
            image_ok=np.ones(seen["images"].shape[:2], np.bool_),
            proprio=seen["proprio"],
            task=tuple(self._instructions[seen["instruction"]]),
            time_s=seen["time_s"],
        )

    def _env_step(self, length: int) -> EnvStep:
        obs = self._observation("")
        terminated, truncated = self._gather("terminated"), self._gather("truncated")
        ended = terminated | truncated
        actions = [worker.arrays["actions"][:, :length] for worker in self._workers]
        return EnvStep(
            obs=obs,
            reward=self._gather("reward"),
            terminated=terminated,
            truncated=truncated,
            final_obs=self._observation("final_", ended) if ended.any() else obs,
            info={
                **{
                    name: self._gather(name) for name in ("success", "progress", "steps", "episode")
                },
                "actions": np.concatenate(actions),
            },
        )
