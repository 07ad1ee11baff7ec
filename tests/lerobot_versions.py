"""What LeRobot 0.4 (Python 3.11) and 0.6 (from Python 3.12 on) name differently."""

import importlib
import importlib.metadata
from typing import Any

NEW = tuple(map(int, importlib.metadata.version("lerobot").split(".")[:2])) >= (0, 6)
"""Whether this is LeRobot 0.6 or newer."""
EVAL_FREQ = "env_eval_freq" if NEW else "eval_freq"
"""Flag of `lerobot-train`: updates between evaluations in simulation."""
_HOME = {
    "RABCWeights": ("utils.rabc", "rewards.sarm.rabc"),
    "dataset_to_policy_features": ("datasets.utils", "utils.feature_utils"),
    "get_hf_features_from_features": ("datasets.utils", "datasets.feature_utils"),
    "load_info": ("datasets.utils", "datasets.io_utils"),
    "load_stats": ("datasets.utils", "datasets.io_utils"),
}


def stock(name: str) -> Any:
    """Return a function or class of LeRobot, wherever the installed version has it."""
    return getattr(importlib.import_module(f"lerobot.{_HOME[name][NEW]}"), name)


def features_of(folder: Any) -> dict[str, dict]:
    """Return the features of a data set on disk, as LeRobot reads them."""
    info = stock("load_info")(folder)
    return info.features if NEW else info["features"]


def rabc_flags(progress: Any) -> list[str]:
    """Return flags of `lerobot-train` for reward-aligned cloning by a sidecar."""
    if NEW:
        return ["--sample_weighting.type=rabc", f"--sample_weighting.progress_path={progress}"]
    return ["--use_rabc=true", f"--rabc_progress_path={progress}"]


def codec(name: str) -> dict[str, Any]:
    """Return the argument of `LeRobotDataset.create` that chooses the codec of videos."""
    if NEW:
        return {"rgb_encoder": importlib.import_module("lerobot.configs").RGBEncoderConfig(name)}
    return {"vcodec": name}
