"""Parameters of the policy node. This module does not import ROS."""

from dataclasses import dataclass

from robot_bridge.launching.node_settings import check, chosen, ranged
from robot_bridge.sensing.sync import SyncConfig
from vla.runtime.rtc_scheduler import MODES


@dataclass(frozen=True, kw_only=True)
class Settings(SyncConfig):
    """Parameters of `policy_node`."""

    robot: str = ""
    """Robot, a file name under vla/robots; the policy's own if empty."""
    policy: str = ""
    """Folder of `vla export`, a checkpoint, or the address of `vla serve`: unix:PATH or
    HOST:PORT."""
    token_file: str = ""
    """File with the server's token."""
    authority: str = ""
    """Certificate of the authority that signed the server's certificate."""
    jpeg: int = ranged(0, 0, 100)
    """JPEG quality of images sent to the server; 0 sends them raw."""
    targets: tuple[str, ...] = ()
    """Fallback list of inference targets; ONNX Runtime if empty."""
    threads: int = ranged(1, 1, 64)
    """CPU threads of the policy."""
    instruction: str = ""
    """Instruction from activation on; topic `instruction` changes it."""
    require_safety_enabled: bool = True
    """Whether an episode needs the enabled safety node; else it begins with the instruction."""
    cameras: tuple[str, ...] = ()
    """Cameras in view order; those of the robot if empty."""
    mode: str = chosen("skip", *MODES)
    """Real-time mode, which hides the latency of decisions: see vla.runtime.rtc_scheduler."""
    delay: int = ranged(1, 0, 100)
    """Longest latency of a decision in control steps."""
    seed: int = ranged(0, 0, 2**31 - 1)
    """Seed of the policy's noise."""
    compressed: bool = False
    """Whether images come as cameras/NAME/image_raw/compressed."""
    driver: str = ""
    """Driver file, or its name under launch/drivers, with the names of joints."""
    max_observation_age_s: float = ranged(0.2, 0.01, 10.0)
    """Largest age in s of any part of an observation."""
    decision_timeout_s: float = ranged(1.0, 0.05, 60.0)
    """Time in s without a decision, beyond their interval, after which no chunk is sent and the
    safety node stops the arm."""
    time_limit_s: float = ranged(300.0, 1.0, 86400.0)
    """Time limit in s of an instruction of the action that names none."""
    hold_s: float = ranged(60.0, 0.0, 3600.0)
    """Time in s for which the arm is held after an instruction of the action has ended; then it is
    disabled."""
    log: str = ""
    """Folder for observations and decisions, one file per episode; none if empty."""

    def __post_init__(self) -> None:
        check(self)
        if not self.policy:
            raise ValueError(
                "policy: not given; name a folder of `vla export`, or the address of `vla serve`"
            )
