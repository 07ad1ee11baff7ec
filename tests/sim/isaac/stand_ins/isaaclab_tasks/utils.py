"""Registers tasks, of both workflows and odd in one way each; configurations by their names."""

from typing import Any

import gymnasium
from isaaclab.envs import DirectRLEnv, EnvCfg, ManagerBasedRLEnv

for _name, _kind, _changes in (
    ("Manager", ManagerBasedRLEnv, {}),
    ("Direct", DirectRLEnv, {}),
    ("Limited", DirectRLEnv, {"limits": (-0.5, 0.25)}),
    ("Open", DirectRLEnv, {"solves": "open"}),
    ("Unnamed", ManagerBasedRLEnv, {"solves": "lifted"}),
    ("Unsaid", DirectRLEnv, {"solves": "lifted"}),
    ("Blind", ManagerBasedRLEnv, {"camera": False, "normalize": True}),
    ("Normal", ManagerBasedRLEnv, {"normalize": True}),
):
    gymnasium.register(
        id=f"Isaac-{_name}-v0", entry_point=_kind, disable_env_checker=True,
        kwargs={"env_cfg_entry_point": lambda changes=_changes: EnvCfg(**changes)},
    )  # fmt: skip


def parse_env_cfg(
    task_name: str, device: str = "cuda:0", num_envs: int | None = None,
    use_fabric: bool | None = None,
) -> Any:  # fmt: skip
    cfg = gymnasium.spec(task_name.rsplit(":", 1)[-1]).kwargs["env_cfg_entry_point"]()
    cfg.sim.device = device
    if num_envs is not None:
        cfg.scene.num_envs = num_envs
    return cfg
