"""Test set-up: shapes and types are checked at run time in every module of ours; one thread."""

import gc
import os
import signal
from pathlib import Path

# Before torch, MuJoCo and rclpy are first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Forced: tests never talk to a robot that happens to be on the network.
LOOPBACK = Path(__file__).parents[1] / "launch" / "params" / "fastdds_loopback.xml"
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "SYSTEM_DEFAULT"
os.environ["FASTDDS_DEFAULT_PROFILES_FILE"] = str(LOOPBACK)
os.environ.pop("RMW_IMPLEMENTATION", None)

import hypothesis
import jaxtyping

# A job in the background of a script ignores Ctrl-C, and so would the commands that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules imported from here on raise when an argument's shape or dtype is not what they say.
FOLDERS = ["vla", "sim", "reward_models", "training", "deploy", "robot_bridge"]
jaxtyping.install_import_hook(FOLDERS, "beartype.beartype")

hypothesis.settings.register_profile(
    "mneme", deadline=None, derandomize=True, max_examples=50, print_blob=True
)
# `--hypothesis-profile long`: for hours, or for the one test that says so.
hypothesis.settings.register_profile("long", deadline=None, max_examples=100_000, print_blob=True)
hypothesis.settings.load_profile("mneme")

# Fixtures of all folders; imported here, once the hook is installed.
from tests.datasets import arm_dataset, fake_dataset
from tests.tiny_models import tiny_model

__all__ = ["arm_dataset", "fake_dataset", "tiny_model"]


def pytest_collection_finish() -> None:
    """Leave what thousands of tests brought with them out of every later garbage collection."""
    gc.collect()
    gc.freeze()
