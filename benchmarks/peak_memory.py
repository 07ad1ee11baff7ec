"""Peak memory of a process that only decides: `python -m benchmarks.peak_memory FOLDER`.

In a process of its own, since memory that was once used is not given back, and a process that has
loaded torch would count it for everybody.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

from vla.contracts.types import Observation
from vla.runtime import policy_loader

DECISIONS = 20


def peak_mb(folder: Path) -> float:
    """Return megabytes, measured in a process of its own.

    Raises:
        ValueError: there is no policy in the folder; the process has said why.
    """
    line = [sys.executable, "-m", "benchmarks.peak_memory", str(folder)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{folder}: no policy decides there; fix the error above")
    return float(done.stdout)


def main() -> None:
    """Open a policy, let it decide a few times and print the peak in megabytes."""
    policy = policy_loader.open_policy(Path(sys.argv[1]), threads=1).policy
    robot, state = policy.robot, policy.initial_state(1)
    camera, count = robot.cameras[0], len(robot.cameras)
    obs = Observation(
        images=np.zeros((1, count, camera.height_px, camera.width_px, 3), np.uint8),
        image_ok=np.ones((1, count), np.bool_), proprio=np.array([robot.home], np.float32),
        task=("go",), time_s=np.zeros(1),
    )  # fmt: skip
    for _ in range(DECISIONS):
        _, state = policy.act(obs, state, np.zeros((1, *policy.noise_shape), np.float32))
    # Of this program alone: getrusage would count what its parent was before it became this one.
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e6)


if __name__ == "__main__":
    main()
