"""Plug-in of stock LeRobot: policy, environment and reward model `mneme`.

The policy and the reward model are ours, the environment is our simulated tasks.

LeRobot finds it by the name of this package, and its parts by the names of the modules.
"""

from importlib import import_module
from importlib.util import find_spec

from lerobot_policy_mneme.configuration_mneme import MnemeConfig
from lerobot_policy_mneme.env import MnemeEnvConfig, register
from lerobot_policy_mneme.modeling_mneme import MnemePolicy
from lerobot_policy_mneme.processor_mneme import make_mneme_pre_post_processors

__all__ = ["MnemeConfig", "MnemeEnvConfig", "MnemePolicy", "make_mneme_pre_post_processors"]

register()
if find_spec("lerobot.rewards"):  # LeRobot 0.6
    import_module("lerobot_policy_mneme.configuration_mneme_reward")
