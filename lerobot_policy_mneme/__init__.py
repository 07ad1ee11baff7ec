"""Plug-in of stock LeRobot: policy and environment `mneme`, our policy and our simulated tasks.

LeRobot finds it by the name of this package, and its parts by the names of the modules.
"""

from lerobot_policy_mneme.configuration_mneme import MnemeConfig
from lerobot_policy_mneme.env import MnemeEnvConfig, register
from lerobot_policy_mneme.modeling_mneme import MnemePolicy
from lerobot_policy_mneme.processor_mneme import make_mneme_pre_post_processors

__all__ = ["MnemeConfig", "MnemeEnvConfig", "MnemePolicy", "make_mneme_pre_post_processors"]

register()
