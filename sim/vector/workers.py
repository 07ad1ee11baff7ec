"""Environments in spawned processes that write results to shared memory.

Pipes carry commands only. Processes are spawned, never forked: a fork of a process with an EGL
context hangs.
"""

import multiprocessing
import traceback
import weakref
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from sim.core.scene import compile_scene
from sim.core.step_buffers import Buffers, layout
from sim.env_server.worker import map_arrays, total_bytes
from sim.vector.env_slice import EnvSlice
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec


class Pool:
    """Worker processes, each with a share of the environments."""

    def __init__(
        self, task: PluginConfig, robot: RobotSpec, num_envs: int, count: int, vary: bool
    ) -> None:
        """Start `count` processes and wait until each has made its environments.

        Raises:
            RuntimeError: a worker failed; the message holds its traceback.
        """
        scene = compile_scene(task, robot)
        fields = layout(scene, num_envs)
        self._memory = SharedMemory(create=True, size=total_bytes(fields))
        self.buffers = map_arrays(self._memory.buf, fields)
        context = multiprocessing.get_context("spawn")
        bounds = np.linspace(0, num_envs, count + 1).round().astype(int)
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        # Also runs when the pool is garbage or the interpreter ends.
        self._release = weakref.finalize(
            self, _release, self._pipes, self._processes, self.buffers, self._memory
        )
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work,
                args=(theirs, self._memory.name, task, robot, range(start, stop), num_envs, vary),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._wait()

    def begin(self, rows: np.ndarray, seed: np.ndarray, index: np.ndarray) -> None:
        """Start other episodes in some rows."""
        self._call("begin", rows, seed, index)

    def step(
        self,
        actions: np.ndarray,
        use_expert: np.ndarray | None = None,
        frozen: np.ndarray | None = None,
    ) -> None:
        """Apply actions, f32 [num_envs, h, u]; see `EnvSlice.step`."""
        self._call("step", actions, use_expert, frozen)

    def write_privileged_state(self) -> None:
        """Write the privileged state of all rows to the buffers."""
        self._call("write_privileged_state")

    def write_referents(self) -> None:
        """Write the referents of all rows to the buffers."""
        self._call("write_referents")

    def close(self) -> None:
        """End the processes and free the shared memory; the buffers are empty afterwards."""
        self._release()

    def _call(self, command: str, *arguments: np.ndarray | None) -> None:
        for pipe in self._pipes:
            pipe.send((command, arguments))
        self._wait()

    def _wait(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            try:
                error = pipe.recv()
            except EOFError as end:
                process.join(timeout=1.0)
                raise RuntimeError(
                    f"an environment worker died with exit code {process.exitcode}"
                ) from end
            if error:
                raise RuntimeError(f"an environment worker failed:\n{error}")


def _work(
    pipe: Connection,
    memory_name: str,
    task: PluginConfig,
    robot: RobotSpec,
    rows: range,
    num_envs: int,
    vary: bool,
) -> None:
    """Serve one share of the environments until the pool closes the pipe."""
    memory = SharedMemory(memory_name)
    scene = compile_scene(task, robot)
    buffers = map_arrays(memory.buf, layout(scene, num_envs))
    try:
        _serve(pipe, EnvSlice(scene, buffers, rows, num_envs, vary=vary))
    except EOFError:
        pass
    except Exception:
        pipe.send(traceback.format_exc())
        raise
    finally:
        buffers.clear()
        memory.close()


def _serve(pipe: Connection, envs: EnvSlice) -> None:
    pipe.send("")
    while True:
        command, arguments = pipe.recv()
        getattr(envs, command)(*arguments)
        pipe.send("")


def _release(
    pipes: list[Connection], processes: list[BaseProcess], buffers: Buffers, memory: SharedMemory
) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join()
    buffers.clear()
    memory.close()
    memory.unlink()
