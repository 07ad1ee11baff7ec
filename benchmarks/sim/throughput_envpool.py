"""The second table of `vla bench sim`: EnvPool, on a model that it has, since it cannot run ours.

State only: EnvPool's own MuJoCo draws nothing here. Everybody steps Gymnasium's half cheetah.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from mujoco import rollout

MODEL = "HalfCheetah-v5"
CHILD = Path(__file__).with_name("envpool_child.py")
START_S = 60.0

Contender = Callable[[int], float]
"""Takes a number of steps, returns the seconds they took."""


class EnvPool:
    """EnvPool's environments in another interpreter."""

    def __init__(self, python: str, num_envs: int, threads: int) -> None:
        """Start them.

        Raises:
            ValueError: they do not start; the message is the last line of what they said.
        """
        words = [python, str(CHILD), MODEL, str(num_envs), str(threads)]
        try:
            self._child = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        except OSError as error:
            raise ValueError(f"{python}: {error.strerror}") from error
        ready = self._read().split()
        while ready and ready[0] != "ready":  # whatever EnvPool says as it starts
            ready = self._read().split()
        if not ready:
            errors = self._child.communicate()[1].strip().splitlines()
            raise ValueError(errors[-1] if errors else "it ended without a word")
        self.version = ready[1]

    def __call__(self, steps: int) -> float:
        """Return the seconds that so many steps took."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{steps}\n")
        self._child.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        """End the child."""
        self._child.communicate()

    def _read(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline()


class _Physics:
    """The physics alone, by MuJoCo's own threads."""

    def __init__(self, num_envs: int, threads: int) -> None:
        env = gymnasium.make(MODEL).unwrapped
        self._model, self._frames = env.model, env.frame_skip  # type: ignore[attr-defined]
        env.close()
        self._data = [mujoco.MjData(self._model) for _ in range(threads)]
        self._pool = rollout.Rollout(nthread=threads)
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        state = np.empty(mujoco.mj_stateSize(self._model, kind))
        mujoco.mj_getState(self._model, self._data[0], state, kind)
        self._state = np.tile(state, (num_envs, 1))

    def __call__(self, steps: int) -> float:
        start_s = time.perf_counter()
        control = np.zeros((len(self._state), steps * self._frames, self._model.nu))
        models = [self._model] * len(self._state)
        state, _ = self._pool.rollout(models, self._data, self._state, control)
        self._state = np.ascontiguousarray(state[:, -1])
        return time.perf_counter() - start_s


def measure(
    num_envs: int, steps: int, turns: int, threads: int, python: str
) -> tuple[dict[str, list[float]], str]:
    """Return steps per second of each contender in each turn, and what is to be said of EnvPool."""
    many = {
        f"Gymnasium {kind}VectorEnv": gymnasium.make_vec(
            MODEL, num_envs, vectorization_mode=kind.lower()
        )
        for kind in ("Sync", "Async")
    }
    contenders: dict[str, Contender] = {name: _stepper(env) for name, env in many.items()}
    contenders[f"mujoco.rollout, {threads} threads (physics alone)"] = _Physics(num_envs, threads)
    pool, note = None, ""
    try:
        pool = EnvPool(python or sys.executable, num_envs, threads)
        contenders[f"EnvPool {pool.version}, {threads} threads"] = pool
    except ValueError as error:
        note = f"EnvPool is not in this table ({error}); --envpool names a Python that has it"
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    try:
        for turn in range(turns + 1):
            for name, contender in contenders.items():
                seconds = contender(steps)
                if turn:  # the first turn warms up
                    rates[name].append(num_envs * steps / seconds)
    finally:
        for env in many.values():
            env.close()
        if pool is not None:
            pool.close()
    return rates, note


def _stepper(env: Any) -> Contender:
    env.reset(seed=0)
    actions = np.zeros(env.action_space.shape, np.float32)

    def step(steps: int) -> float:
        start_s = time.perf_counter()
        for _ in range(steps):
            env.step(actions)
        return time.perf_counter() - start_s

    return step
