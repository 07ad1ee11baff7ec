"""Environments of both workflows: joints that go where actions push them, in all rows at once.

Ends are told in buffers that are written over, and rows are reset before what is seen is computed,
as the real ones do. A row is solved when its first joint is far up, and lost when it is far down.
"""

import copy
import os
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch

from isaaclab.app import check_running, running

check_running()
THIRD = os.environ.get("MNEME_STAND_IN_LAB") == "3"
HEIGHT, WIDTH = 12, 16
SOLVED, LOST = 0.9, -0.9


class ProxyArray:
    """What data are in 3.x: not a tensor, but with one."""

    def __init__(self, held: torch.Tensor) -> None:
        self.torch = held


class EnvCfg:
    """Fields of a configuration that matter here; no others can be set."""

    def __init__(self, **changes: Any) -> None:
        values = {
            "sim": SimpleNamespace(device="cuda:0", dt=0.01, use_fabric=True),
            "scene": SimpleNamespace(num_envs=1), "seed": None, "decimation": 5,
            "episode_length_s": 1.0, "num_rerenders_on_reset": 0,
            "limits": None, "solves": "success", "camera": True, "normalize": False,
        }  # fmt: skip
        if THIRD:
            values["compute_final_obs"] = False
        self.__dict__.update(values)
        for name, value in changes.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        self.__dict__[name] = value


class Camera:
    """A tiled camera of the scene: shows what was there when the app drew last."""

    def __init__(self, num_envs: int) -> None:
        if not running[0].get("enable_cameras"):
            raise RuntimeError("a camera was spawned without enable_cameras")
        self.held = torch.zeros(num_envs, HEIGHT, WIDTH, 3 if THIRD else 4, dtype=torch.uint8)

    @property
    def data(self) -> Any:
        return SimpleNamespace(output={"rgb": ProxyArray(self.held) if THIRD else self.held})


class _Env(gymnasium.Env):
    def __init__(self, cfg: Any, render_mode: Any = None, **kwargs: Any) -> None:
        self.cfg, n = cfg, cfg.scene.num_envs
        if cfg.sim.device != running[0]["device"]:
            raise RuntimeError(f"device: the app has {running[0]['device']}, not {cfg.sim.device}")
        self.num_envs, self.device = n, cfg.sim.device
        self.step_dt = cfg.sim.dt * cfg.decimation
        self.max_episode_length = int(np.ceil(cfg.episode_length_s / self.step_dt))
        low, high = cfg.limits or (-np.inf, np.inf)
        self.single_action_space = gymnasium.spaces.Box(low, high, (2,))
        self.chance = torch.Generator()
        self.position = torch.zeros(n, 2)
        self.episode_length_buf = torch.zeros(n, dtype=torch.long)
        self.reset_terminated = torch.zeros(n, dtype=torch.bool)
        self.reset_time_outs = torch.zeros(n, dtype=torch.bool)
        self.obs_buf = torch.zeros(n, 4)
        self.extras: dict[str, Any] = {}
        sensors = {"contact": SimpleNamespace(data=SimpleNamespace(net_forces_w=None))}
        self.eye = Camera(n) if cfg.camera else None
        if self.eye:
            sensors["tiled_camera"] = self.eye
        self.scene = SimpleNamespace(sensors=sensors, num_envs=n)
        self.solved = torch.zeros(n, dtype=torch.bool)

    def seed(self, seed: int) -> None:
        self.chance.manual_seed(seed)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self.seed(seed)
        self._reset_idx(torch.arange(self.num_envs))
        return self._see(), self.extras

    def step(self, action: Any) -> Any:
        if not isinstance(action, torch.Tensor) or action.shape != (self.num_envs, 2):
            raise TypeError("step: expected a tensor with as many rows as there are worlds")
        if action.abs().max() > 1.0:
            raise ValueError("step: actions beyond their limits")
        self.position += 0.1 * action.to(self.device)
        self._draw()
        self.episode_length_buf += 1
        self.solved[:] = self.position[:, 0] > SOLVED
        lost = self.position[:, 0] < LOST
        ends = self.cfg.solves != "open"
        self.reset_terminated[:] = (self.solved & torch.tensor(ends)) | lost
        self.reset_time_outs[:] = self.episode_length_buf >= self.max_episode_length
        over = (self.reset_terminated | self.reset_time_outs).nonzero().squeeze(-1)
        self.extras.pop("final_obs", None)
        if len(over):
            if THIRD and self.cfg.compute_final_obs:
                self.extras["final_obs"] = copy.deepcopy(self._see())
            self._reset_idx(over)
        self._after()
        return self._see(), torch.zeros(self.num_envs), *self._ends(), self.extras

    def close(self) -> None:
        pass

    def _ends(self) -> Any:
        return self.reset_terminated, self.reset_time_outs

    def _after(self) -> None:
        pass

    def _reset_idx(self, ids: torch.Tensor) -> None:
        self.position[ids] = torch.rand(len(ids), 2, generator=self.chance) * 0.4 - 0.2
        self.episode_length_buf[ids] = 0
        for _ in range(self.cfg.num_rerenders_on_reset):
            self._draw()

    def _draw(self) -> None:
        if self.eye:
            self.eye.held[:] = _shade(self.position)
            self.eye.held[..., 3:] = 255

    def _see(self) -> Any:
        self.obs_buf[:, :2] = self.position
        return {"policy": self.obs_buf}


def _shade(position: torch.Tensor) -> torch.Tensor:
    return (128 + 100 * position[:, :1]).to(torch.uint8).reshape(-1, 1, 1, 1)


class DirectRLEnv(_Env):
    def _after(self) -> None:
        self.extras[self.cfg.solves if self.cfg.solves != "open" else "success"] = self.solved


class ManagerBasedRLEnv(_Env):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [None]}

    def __init__(self, cfg: Any, render_mode: Any = None, **kwargs: Any) -> None:
        super().__init__(cfg)
        self.termination_manager = SimpleNamespace(
            active_terms=["time_out", "dropped", cfg.solves],
            get_term=lambda name: {cfg.solves: self.solved}[name],
        )

    def _see(self) -> Any:
        if not THIRD:
            return super()._see()
        picture = _shade(self.position).expand(-1, HEIGHT, WIDTH, 4).clone()
        normal = picture.float() / 255.0 - 0.5
        return {
            "policy": {
                "actions": torch.zeros(self.num_envs, 2), "joint_pos": self.position.clone(),
                "wrist": normal if self.cfg.normalize else picture, "flow": normal,
            },
            "reward_model": torch.zeros(self.num_envs, 7),
        }  # fmt: skip
