"""Rollout collection: a policy acts in environments, and whole episodes come back."""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sim import vec_env
from training.rl.config import OnlineRLConfig
from training.rl.experience.episode import ActionSource, Episode
from training.rl.intervention.intervention import InterventionController
from training.rl.intervention.source import InterventionContext
from training.rl.rollout.explorer import Explorer
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.protocols import HasPrivilegedState, TellsReferents
from vla.contracts.specs import RobotSpec
from vla.contracts.types import DenoisingChain, EnvStep, Observation
from vla.policies.vla import VLAPolicy
from vla.runtime.noise import episode_noise
from vla.utils.arrays import to_numpy


def make_env(
    config: OnlineRLConfig, robot: RobotSpec, num_envs: int,
    backend: PluginConfig | str | None = None,
) -> Any:  # fmt: skip
    """Return environments like those in which a run collects rollouts, or of another backend."""
    return vec_env.make(
        vec_env.title(config.task), num_envs, robot=robot, task_config=config.task,
        backend=backend or config.backend,
    )  # fmt: skip


def env_spec(
    config: OnlineRLConfig, robot: RobotSpec, *, needs_state: bool = True
) -> tuple[int, tuple[str, ...]]:
    """Return the control steps of the longest episode, and the names of the simulator's state (none
    where it tells nothing).

    Raises:
        ValueError: the state is needed, and an arm has none.
    """
    if config.backend.is_realtime and needs_state:
        raise ValueError(
            f"the {configs.type_name(config.backend)} backend has no privileged state: an arm has "
            "only its sensors; use --algo.type asymmetric_ac with --algo.value.estimator of a run "
            f"in simulation, --algo.type filtered_bc in place of {configs.type_name(config.algo)}, "
            "or a simulator"
        )
    # An arm must not start for this.
    backend = vec_env.DEFAULT_BACKEND if config.backend.is_realtime else config.backend
    with contextlib.closing(make_env(config, robot, 1, backend)) as env:
        known = isinstance(env, HasPrivilegedState)
        return env.spec.max_episode_steps, env.privileged_state_names if known else ()


@dataclass(frozen=True, kw_only=True, eq=False)
class ActingPolicy:
    """The policy and the controller that act in some episodes of a seed."""

    policy: VLAPolicy | Explorer
    """In evaluation mode."""
    seed: int
    """Of episodes and of the policy's noise."""
    version: int
    """Updates that the policy has seen; stored with the episodes."""
    controller: InterventionController | None = None
    """Decides where another agent acts, for as many environments as run; nowhere if None."""

    @property
    def every_step(self) -> bool:
        """Whether an intervention source is asked at every control step."""
        return self.controller is not None and self.controller.source.every_step


def run_episodes(
    worker: "RolloutWorker", acting: ActingPolicy, numbers: Iterable[int]
) -> Iterator[Episode]:
    """Yield the episodes of some numbers, each as soon as it ends.

    Raises:
        ValueError: an arm was stopped.
    """
    left = deque(numbers)
    while left or worker.busy:
        now = [left.popleft() for _ in range(min(worker.num_free, len(left)))]
        worker.begin([(acting, number) for number in now])
        yield from worker.step()


class RolloutWorker:
    """Environments side by side, each in an episode of its own or free.

    An episode follows from its seed, its number and who acts, whatever runs next to it, but for
    the rounding of batches of another size.

    Args:
        policy: One like all that will act here: its robot, cadence and memory.
        task: Configuration of the task.
        num_envs: Environments.
        backend: The `Config` of a file in `sim/backends`; MuJoCo in this process if None.

    Raises:
        ValueError: the policy is an `Explorer` that needs the simulator's state, and there is none.
    """

    def __init__(
        self, policy: VLAPolicy | Explorer, task: PluginConfig, num_envs: int,
        backend: PluginConfig | None = None,
    ) -> None:  # fmt: skip
        self._n_action_steps, self._remembers = policy.config.n_action_steps, policy.remembers
        at_decisions = policy.remembers or isinstance(policy, Explorer)
        self._frame_steps = self._n_action_steps if at_decisions else 1
        """Control steps from one stored frame to the next."""
        self._env = vec_env.make(
            vec_env.title(task), num_envs, robot=policy.robot, task_config=task,
            backend=backend or vec_env.DEFAULT_BACKEND,
        )  # fmt: skip
        self._simulator: HasPrivilegedState | None = None
        if isinstance(policy, Explorer) and policy.needs_simulator:
            self._simulator = vec_env.with_privileged_state(self._env)
        self._labeller: TellsReferents | None = None
        tells = isinstance(self._env, TellsReferents) and self._env.has_referents
        wanted = isinstance(policy, VLAPolicy) and policy.has_queries and policy.grounding_loss_coef
        if tells and wanted:
            self._labeller = self._env
        self._time_limit_s = self._env.spec.max_episode_steps / policy.robot.control_hz
        self._obs: Observation | None = None
        # The first state may be one row expanded to many; the rows here are written to.
        self._state = policy.initial_state(num_envs).map(torch.clone)
        self._running: list[_RunningEpisode | None] = [None] * num_envs
        channels = len(policy.robot.channels)
        self._plan = np.zeros((num_envs, self._n_action_steps, channels), np.float32)
        self._steps_taken = np.zeros(num_envs, np.int64)
        """Of the present plan."""
        self._requested = np.zeros(num_envs, np.bool_)

    @property
    def num_free(self) -> int:
        """Environments without an episode."""
        return self._running.count(None)

    @property
    def busy(self) -> bool:
        """Whether any environment has one."""
        return self.num_free < len(self._running)

    def begin(self, episodes: Sequence[tuple[ActingPolicy, int]]) -> None:
        """Begin episodes, given by who acts and number, in as many free environments."""
        if not episodes:
            return
        rows = [row for row, e in enumerate(self._running) if e is None][: len(episodes)]
        for row, (acting, number) in zip(rows, episodes, strict=True):
            self._running[row] = _RunningEpisode(acting, number)
            self._steps_taken[row], self._requested[row] = 0, False
        seeds = np.array([acting.seed for acting, _ in episodes])
        numbers = np.array([number for _, number in episodes])
        self._obs = self._env.begin(np.array(rows), seeds, numbers)

    def step(self) -> list[Episode]:
        """Act until the next stored frame, or for one control step where an intervention source is
        asked at each; return the episodes that ended.
        """
        obs = self._obs
        assert obs is not None
        due = [(row, e) for row, e in self._occupied if self._steps_taken[row] == 0]
        ended: list[Episode] = []
        for acting in dict.fromkeys(e.acting for _, e in due):
            rows = [(row, e) for row, e in due if e.acting is acting]
            ended += self._terminate_early(acting, rows, obs) if acting.controller else []
            rows = [(row, e) for row, e in rows if self._running[row]]
            if rows:
                self._decide(acting, rows, obs)
        busy = self._occupied
        if not busy:
            return ended
        steps = 1 if any(e.acting.every_step for _, e in busy) else self._frame_steps
        observed = [(row, e) for row, e in busy if self._steps_taken[row] % self._frame_steps == 0]
        where = self._labeller.referents() if self._labeller and observed else None
        for row, episode in observed:
            episode.add_frame(obs, row, where)
        scripted = self._intervene(busy, obs)
        ahead = self._steps_taken[:, None] + np.arange(steps)
        actions = self._plan[np.arange(len(self._plan))[:, None], ahead]
        free = np.array([episode is None for episode in self._running])
        step = self._env.step_chunk(actions, scripted, free)
        self._steps_taken = (self._steps_taken + steps) % self._n_action_steps
        self._obs = step.obs
        for row, episode in busy:
            episode.add_step(step, row)
            if step.terminated[row] or step.truncated[row]:
                self._running[row] = None
                ended.append(episode.finish(
                    _frame(step.final_obs, row), self._n_action_steps,
                    terminated=bool(step.terminated[row]), success=bool(step.info["success"][row]),
                ))  # fmt: skip
        return ended

    @property
    def _occupied(self) -> list[tuple[int, "_RunningEpisode"]]:
        return [(row, e) for row, e in enumerate(self._running) if e is not None]

    def _terminate_early(
        self, acting: ActingPolicy, due: list[tuple[int, "_RunningEpisode"]], obs: Observation
    ) -> list[Episode]:
        """Let the controller look where a decision is due; return the episodes that it ends."""
        assert acting.controller is not None
        rows, number, decision = _indices(due)
        controller = acting.controller
        self._requested[rows] = controller.needs_intervention(
            obs.rows(rows), rows, number, decision
        )
        ended = []
        for (row, episode), ends in zip(due, controller.should_terminate(rows), strict=True):
            if ends:
                # As where the time limit cuts it.
                last = _frame(obs, row)
                ended.append(
                    episode.finish(last, self._n_action_steps, terminated=False, success=False)
                )
                self._running[row] = None
        return ended

    def _intervene(self, busy: list[tuple[int, "_RunningEpisode"]], obs: Observation) -> np.ndarray:
        """Let intervention sources act; return where the environment's expert does, bool [e]."""
        scripted = np.zeros(len(self._running), np.bool_)
        for acting in dict.fromkeys(e.acting for _, e in busy if e.acting.controller):
            assert acting.controller is not None
            episodes = [(row, e) for row, e in busy if e.acting is acting]
            rows = np.array([row for row, _ in episodes])
            intervention = acting.controller.source.act(InterventionContext(
                obs=obs, rows=rows, requested=self._requested[rows],
                time_limit_s=self._time_limit_s,
                decision=np.array([len(e.decisions) - 1 for _, e in episodes]),
                progress=acting.controller.progress(rows),
            ))  # fmt: skip
            for i in np.flatnonzero(intervention.active):
                row, episode = episodes[i]
                episode.decisions[-1]["action_source"] = np.int8(ActionSource.INTERVENTION)
                acting.controller.on_intervention(row)
                if intervention.actions is None:
                    scripted[row] = True
                else:
                    rest = self._plan[row, self._steps_taken[row] :]
                    actions = intervention.actions[i]
                    rest[:] = actions[np.minimum(np.arange(len(rest)), len(actions) - 1)]
        return scripted

    def _decide(
        self, acting: ActingPolicy, due: list[tuple[int, "_RunningEpisode"]], obs: Observation
    ) -> None:
        """Sample a plan where a decision is due and the same policy acts."""
        rows, number, decision = _indices(due)
        seen, policy = obs.rows(rows), acting.policy
        simulator = self._simulator.privileged_state()[rows] if self._simulator else None
        noise = episode_noise(acting.seed, number, decision, policy.noise_shape)
        past = self._state.rows(rows) if self._remembers else policy.initial_state(len(rows))
        if isinstance(policy, Explorer):
            chunk, chain, after = policy.sample(seen, past, noise, simulator)
        else:
            chunk, chain, after = policy.sample(seen, past, noise)
        if self._remembers:
            for name, value in after.tensors.items():
                self._state[name][rows] = value
        plan = to_numpy(chunk.values)[:, : self._n_action_steps].copy()
        sources = np.full(len(rows), ActionSource.POLICY)
        if acting.controller:
            sources = acting.controller.apply_retries(
                policy.robot, rows, np.asarray(seen.proprio), plan
            )
        self._plan[rows] = plan
        for i, (_, episode) in enumerate(due):
            episode.add_decision(i, chain, int(sources[i]), simulator)

    def close(self) -> None:
        """Release the environments; unfinished episodes are dropped."""
        self._env.close()


class _RunningEpisode:
    """An episode that is not over."""

    def __init__(self, acting: ActingPolicy, number: int) -> None:
        self.acting, self.number = acting, number
        self.task = ""
        self.frames: list[dict[str, Any]] = []
        self.referents: list[np.ndarray] = []
        """Of every frame, where the environment tells them."""
        self.decisions: list[dict[str, Any]] = []
        self.actions: list[np.ndarray] = []
        self.executed: list[int] = []
        """Control steps from each frame to the next."""
        self.after: list[tuple[float, float]] = []
        """Progress at the end of these, and their reward."""

    def add_decision(
        self, i: int, chain: DenoisingChain, source: int, simulator: np.ndarray | None
    ) -> None:
        """Store row i of what was sampled at the frame to come, who acts, and of the simulator's
        state.
        """
        self.decisions.append({
            "decision_index": len(self.frames),
            "action_source": np.int8(source),
            "latents": to_numpy(chain.latents[i]).copy(),
            "log_prob": to_numpy(chain.log_prob[i]).copy(),
        })  # fmt: skip
        for name, rows in (("features", chain.features), ("simulator_state", simulator)):
            if rows is not None:
                self.decisions[-1][name] = to_numpy(rows[i]).copy()

    def add_frame(self, obs: Observation, row: int, referents: np.ndarray | None) -> None:
        """Store an observation, and of all rows where the things are that instructions name."""
        if self.frames and obs.task[row] != self.task:
            raise ValueError(
                f"task: the instruction changes within an episode, from {self.task!r} to "
                f"{obs.task[row]!r}, and online RL keeps one; train such a task by vla train"
            )
        self.task = obs.task[row]
        self.frames.append(_frame(obs, row))
        if referents is not None:
            self.referents.append(referents[row])
        self.executed.append(0)
        self.after.append((0.0, 0.0))

    def add_step(self, step: EnvStep, row: int) -> None:
        """Store what was executed, and its outcome."""
        count = int(step.info["steps"][row])
        self.actions.append(step.info["actions"][row][:count].copy())
        self.executed[-1] += count
        earned = self.after[-1][1] + float(step.reward[row])
        self.after[-1] = float(step.info["progress"][row]), earned

    def finish(
        self, last: dict[str, Any], n_action_steps: int, *, terminated: bool, success: bool
    ) -> Episode:
        """Return the episode, which ended at the frame `last`."""
        frames = [*self.frames, last]
        arrays = {name: np.stack([f[name] for f in frames]) for name in last}
        arrays |= {name: np.stack([d[name] for d in self.decisions]) for name in self.decisions[0]}
        if self.referents:
            arrays["referents"] = np.stack(
                [*self.referents, np.full_like(self.referents[0], np.nan)]
            )
        progress, reward = np.array(self.after, np.float32).T
        return Episode(
            **arrays, step=np.cumsum([0, *self.executed]), actions=self._plans(n_action_steps),
            progress=np.append(np.float32(0), progress),
            reward=np.add.reduceat(reward, arrays["decision_index"]),
            terminated=terminated, success=success, task=self.task, number=self.number,
            seed=self.acting.seed, version=self.acting.version,
        )  # fmt: skip

    def _plans(self, n_action_steps: int) -> np.ndarray:
        """Return the actions of each decision f32 [t, x, u]; the last repeated where it ended."""
        done = np.concatenate(self.actions)
        index = np.arange(len(self.decisions) * n_action_steps).reshape(-1, n_action_steps)
        return done[np.minimum(index, len(done) - 1)]


def _indices(due: list[tuple[int, _RunningEpisode]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return environment, number of the episode and decisions before this one, i64 [d] each."""
    indices = [(row, e.number, len(e.decisions)) for row, e in due]
    rows, number, decision = np.array(indices, np.int64).T
    return rows, number, decision


def _frame(obs: Observation, row: int) -> dict[str, Any]:
    # The environment fills the same buffers again at the next step.
    return {
        "images": to_numpy(obs.images)[row].copy(),
        "proprio": to_numpy(obs.proprio)[row].copy(),
        "time_s": np.float64(to_numpy(obs.time_s)[row]),
    }
