"""Actuators of articulations."""

from isaaclab.sim import configuration

ImplicitActuatorCfg = configuration(
    "ImplicitActuatorCfg", "joint_names_expr", "stiffness", "damping", "effort_limit_sim",
    "armature",
)  # fmt: skip
