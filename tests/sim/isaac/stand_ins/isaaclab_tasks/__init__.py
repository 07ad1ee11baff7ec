"""Registers tasks: of both workflows, and one for each thing that can be odd."""

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
