"""Steps EnvPool's environments for `benchmarks.sim.throughput_envpool`, in an interpreter that
need not have ours.

Reads numbers of steps, one a line, and answers each with the seconds they took.
"""

import sys
import time

import envpool
import numpy as np


def main() -> None:
    """Serve until standard input ends."""
    name, num_envs, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    env = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=threads)
    env.reset()
    actions = np.zeros((num_envs, *env.action_space.shape), env.action_space.dtype)
    print("ready", envpool.__version__, flush=True)
    for line in sys.stdin:
        start_s = time.perf_counter()
        for _ in range(int(line)):
            env.step(actions)
        print(time.perf_counter() - start_s, flush=True)


if __name__ == "__main__":
    main()
