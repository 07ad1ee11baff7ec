"""Practice: a policy acts in simulation, and whole episodes with all that led to them come back."""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sim import vec_env
from training.rl.clock import Stopwatch
from training.rl.experience import OTHER, POLICY, Episode
from training.rl.help import Helper
from training.rl.stand_in import Moment
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.contracts.types import DenoiseTrace, EnvStep, Observation, PolicyState
from vla.noise import episode_noise
from vla.policies.vla import VLAPolicy


@dataclass(frozen=True, kw_only=True, eq=False)
class Acting:
    """Who acts in some episodes of a seed."""

    policy: VLAPolicy
    """In evaluation mode."""
    seed: int
    """Of episodes and of the policy's noise."""
    version: int
    """Updates that the policy has seen; kept with the episodes."""
    helper: Helper | None = None
    """Says where somebody else acts, and who, for as many environments as run; nobody if None."""

    @property
    def live(self) -> bool:
        """Whether somebody is asked at every control step."""
        return self.helper is not None and self.helper.stand_in.live


def practise(
    policy: VLAPolicy, task: PluginConfig, *, episodes: int, seed: int, version: int,
    environments: int = 32, helper: Helper | None = None, clock: Stopwatch | None = None,
) -> list[Episode]:  # fmt: skip
    """Return episodes 0 to `episodes` - 1 of `seed`, sampled stochastically.

    The result does not depend on how many environments run side by side. What a policy without
    memory could have decided on, every control step, is looked at and kept.

    Args:
        policy: In evaluation mode.
        task: Configuration of the task.
        episodes: How many.
        seed: Of episodes and of the policy's noise.
        version: Kept with the episodes.
        environments: How many run side by side.
        helper: Says where somebody else acts, and who, for as many environments as run; nobody if
            None.
        clock: Told of the seconds that inference, simulation and pictures took.
    """
    acting = Acting(policy=policy, seed=seed, version=version, helper=helper)
    with contextlib.closing(Stage(policy, task, min(environments, episodes), clock)) as stage:
        done = {episode.number: episode for episode in play(stage, acting, range(episodes))}
    return [done[k] for k in range(episodes)]


def play(stage: "Stage", acting: Acting, numbers: Iterable[int]) -> Iterator[Episode]:
    """Yield the episodes of some numbers, each as soon as it ends.

    Raises:
        ValueError: an arm was stopped.
    """
    left = deque(numbers)
    while left or stage.busy:
        now = [left.popleft() for _ in range(min(stage.free, len(left)))]
        stage.begin_([(acting, number) for number in now])
        yield from stage.step_()


class Stage:
    """Environments side by side, each at an episode of its own or free.

    What an episode is follows from its seed and number, from who acts and from nothing beside it,
    but for the rounding of batches of another size.

    Args:
        policy: One like all that will act here: its robot, cadence and memory.
        task: Configuration of the task.
        width: How many environments.
        clock: Told of the seconds that inference, simulation and pictures took.
        backend: Where: the `Config` of a file in `sim/backends`; MuJoCo in this process if None.
    """

    def __init__(
        self, policy: VLAPolicy, task: PluginConfig, width: int, clock: Stopwatch | None = None,
        backend: PluginConfig | None = None,
    ) -> None:  # fmt: skip
        self.clock = clock or Stopwatch()
        self._execute, self._remembers = policy.config.execute, policy.remembers
        self._beat = self._execute if policy.remembers else 1
        self._env = vec_env.make(
            configs.type_name(task), width, robot=policy.robot, task_config=task,
            backend=backend or vec_env.DEFAULT_BACKEND,
        )  # fmt: skip
        self._limit_s = self._env.spec.max_episode_steps / policy.robot.control_hz
        self._obs: Observation | None = None
        self._state = _copied(policy.initial_state(width))
        self._running: list[_Running | None] = [None] * width
        self._plan = np.zeros((width, self._execute, len(policy.robot.channels)), np.float32)
        self._taken, self._asked = np.zeros(width, np.int64), np.zeros(width, np.bool_)

    @property
    def free(self) -> int:
        """Environments at no episode."""
        return self._running.count(None)

    @property
    def busy(self) -> bool:
        """Whether any is at one."""
        return self.free < len(self._running)

    def begin_(self, episodes: Sequence[tuple[Acting, int]]) -> None:
        """Begin episodes, by who acts in them and number, in as many free environments."""
        if not episodes:
            return
        rows = [row for row, one in enumerate(self._running) if one is None][: len(episodes)]
        for row, (acting, number) in zip(rows, episodes, strict=True):
            self._running[row] = _Running(acting, number)
            self._taken[row], self._asked[row] = 0, False
        seeds = np.array([acting.seed for acting, _ in episodes])
        with self.clock.on("step"):
            self._obs = self._env.begin(
                np.array(rows), seeds, np.array([number for _, number in episodes])
            )

    def step_(self) -> list[Episode]:
        """Act until the next moment that is looked at, or for one control step where somebody acts
        live; return the episodes that ended.
        """
        obs = self._obs
        assert obs is not None
        due = [(row, one) for row, one in self._at_work if self._taken[row] == 0]
        ended: list[Episode] = []
        for acting in dict.fromkeys(one.acting for _, one in due):
            rows = [(row, one) for row, one in due if one.acting is acting]
            ended += self._give_up_(acting, rows, obs) if acting.helper else []
            rows = [(row, one) for row, one in rows if self._running[row]]
            if rows:
                self._decide_(acting, rows, obs)
        busy = self._at_work
        if not busy:
            return ended
        beat = 1 if any(one.acting.live for _, one in busy) else self._beat
        for row, one in busy:
            if self._taken[row] % self._beat == 0:
                one.see_(obs, row)
        scripted = self._give_way_(busy, obs)
        ahead = self._taken[:, None] + np.arange(beat)
        now = self._plan[np.arange(len(self._plan))[:, None], ahead]
        idle = np.array([one is None for one in self._running])
        with self.clock.on("step"):
            step = self._env.step_chunk(now, scripted, idle)
        self._taken = (self._taken + beat) % self._execute
        self._obs = step.obs
        for row, one in busy:
            one.arrive_(step, row)
            if step.terminated[row] or step.truncated[row]:
                over, success = bool(step.terminated[row]), bool(step.info["success"][row])
                end = _moment(step.final_obs, row)
                ended.append(one.episode(end, self._execute, terminated=over, success=success))
                self._running[row] = None
        return ended

    @property
    def _at_work(self) -> list[tuple[int, "_Running"]]:
        return [(row, one) for row, one in enumerate(self._running) if one is not None]

    def _give_up_(
        self, acting: Acting, due: list[tuple[int, "_Running"]], obs: Observation
    ) -> list[Episode]:
        """Let the helper look where a decision is due; return the episodes that it gives up."""
        assert acting.helper is not None
        rows, number, decision = _places(due)
        self._asked[rows] = acting.helper.helped(_rows(obs, rows), rows, number, decision)
        hopeless = acting.helper.hopeless(rows)
        ended = []
        for (row, one), lost in zip(due, hopeless, strict=True):
            if lost:
                # As where the time limit cuts it: what might have come is left open.
                end = _moment(obs, row)
                ended.append(one.episode(end, self._execute, terminated=False, success=False))
                self._running[row] = None
        return ended

    def _give_way_(self, busy: list[tuple[int, "_Running"]], obs: Observation) -> np.ndarray:
        """Let others act where they will; return where it is the environment's expert, bool [e]."""
        scripted = np.zeros(len(self._running), np.bool_)
        for acting in dict.fromkeys(one.acting for _, one in busy if one.acting.helper):
            assert acting.helper is not None
            ours = [(row, one) for row, one in busy if one.acting is acting]
            rows = np.array([row for row, _ in ours])
            move = acting.helper.stand_in.act(Moment(
                obs=obs, rows=rows, asked=self._asked[rows], limit_s=self._limit_s,
                decision=np.array([len(one.decisions) - 1 for _, one in ours]),
                progress=acting.helper.progress(rows),
            ))  # fmt: skip
            for i in np.flatnonzero(move.acts):
                row, one = ours[i]
                one.give_way_()
                acting.helper.meet_(row)
                if move.actions is None:
                    scripted[row] = True
                else:
                    rest = self._plan[row, self._taken[row] :]
                    told = np.minimum(np.arange(len(rest)), len(move.actions[i]) - 1)
                    rest[:] = move.actions[i][told]
        return scripted

    def _decide_(self, acting: Acting, due: list[tuple[int, "_Running"]], obs: Observation) -> None:
        """Plan what is done next where a decision is due and the same policy acts."""
        rows, number, decision = _places(due)
        seen, policy = _rows(obs, rows), acting.policy
        noise = episode_noise(acting.seed, number, decision, policy.noise_shape)
        past = _picked(self._state, rows) if self._remembers else policy.initial_state(len(rows))
        with self.clock.on("infer"):
            chunk, trace, after = policy.sample(seen, past, noise)
        if self._remembers:
            for name in _STATE:
                getattr(self._state, name)[rows] = getattr(after, name)
        plan, by = _numpy(chunk.values)[:, : self._execute].copy(), np.full(len(rows), POLICY)
        if acting.helper:
            by = acting.helper.retried(policy.robot, rows, np.asarray(seen.proprio), plan)
        self._plan[rows] = plan
        for i, (_, one) in enumerate(due):
            one.decide_(i, trace, int(by[i]))

    def close(self) -> None:
        """Release the environments; what is not finished is dropped."""
        self.clock.add_("render", self._env.render_s)
        self._env.close()


class _Running:
    """An episode that is not over."""

    def __init__(self, acting: Acting, number: int) -> None:
        self.acting, self.number = acting, number
        self.task = ""
        self.moments: list[dict[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self.actions: list[np.ndarray] = []
        self.executed: list[int] = []
        """Control steps since each moment, up to the next."""
        self.after: list[tuple[float, float]] = []
        """Progress at the end of these, and their reward."""

    def decide_(self, i: int, trace: DenoiseTrace, by: int) -> None:
        """Keep row i of what was decided at the moment to be seen next, and who acts."""
        self.decisions.append({
            "at": len(self.moments),
            "by": np.int8(by),
            "latents": _numpy(trace.latents[i]).copy(),
            "log_prob": _numpy(trace.log_prob[i]).copy(),
        })  # fmt: skip

    def give_way_(self) -> None:
        """Keep that in the present decision somebody else acts."""
        self.decisions[-1]["by"] = np.int8(OTHER)

    def see_(self, obs: Observation, row: int) -> None:
        """Keep what was seen."""
        self.task = obs.task[row]
        self.moments.append(_moment(obs, row))
        self.executed.append(0)
        self.after.append((0.0, 0.0))

    def arrive_(self, step: EnvStep, row: int) -> None:
        """Keep what was done, and what came of it."""
        count = int(step.info["steps"][row])
        self.actions.append(step.info["actions"][row][:count].copy())
        self.executed[-1] += count
        earned = self.after[-1][1] + float(step.reward[row])
        self.after[-1] = float(step.info["progress"][row]), earned

    def episode(
        self, end: dict[str, Any], execute: int, *, terminated: bool, success: bool
    ) -> Episode:
        """Return the episode, which ended at the moment `end`."""
        moments = [*self.moments, end]
        kept = {name: np.stack([m[name] for m in moments]) for name in moments[0]}
        kept |= {name: np.stack([d[name] for d in self.decisions]) for name in self.decisions[0]}
        progress, reward = np.array(self.after, np.float32).T
        return Episode(
            **kept, step=np.cumsum([0, *self.executed]), actions=self._planned(execute),
            progress=np.append(np.float32(0), progress), reward=np.add.reduceat(reward, kept["at"]),
            terminated=terminated, success=success, task=self.task, number=self.number,
            seed=self.acting.seed, version=self.acting.version,
        )  # fmt: skip

    def _planned(self, execute: int) -> np.ndarray:
        """Return the actions of each decision f32 [t, x, u]; the last repeated where it ended."""
        done = np.concatenate(self.actions)
        wanted = np.arange(len(self.decisions) * execute).reshape(-1, execute)
        return done[np.minimum(wanted, len(done) - 1)]


def _places(due: list[tuple[int, _Running]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return environment, number of the episode and decisions before this one, i64 [d] each."""
    places = [(row, one.number, len(one.decisions)) for row, one in due]
    rows, number, decision = np.array(places, np.int64).T
    return rows, number, decision


def _rows(obs: Observation, rows: np.ndarray) -> Observation:
    parts = {k: np.asarray(getattr(obs, k))[rows] for k in _PARTS}
    return replace(obs, **parts, task=tuple(obs.task[row] for row in rows))


_PARTS = ("images", "image_ok", "proprio", "time_s")
_STATE = ("tokens", "slot_time", "slot_count")


def _picked(state: PolicyState, rows: np.ndarray) -> PolicyState:
    return PolicyState(**{name: getattr(state, name)[rows] for name in _STATE})


def _copied(state: PolicyState) -> PolicyState:
    # The first state of a policy may be one row seen many times; rows of ours are written to.
    return PolicyState(**{name: getattr(state, name).clone() for name in _STATE})


def _moment(obs: Observation, row: int) -> dict[str, Any]:
    # The environment fills the same buffers again at the next step.
    return {
        "images": _numpy(obs.images)[row].copy(),
        "proprio": _numpy(obs.proprio)[row].copy(),
        "time_s": np.float64(_numpy(obs.time_s)[row]),
    }


def _numpy(values: object) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
