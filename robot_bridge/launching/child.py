"""Runs the `main` of a node's module in this process, and ends with its parent process."""

import ctypes
import importlib
import os
import signal
import sys

SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl(2)."""


def main() -> int:
    """Run `python -m robot_bridge.launching.child PARENT MODULE [ARGUMENTS]`."""
    parent, module, *rest = sys.argv[1:]
    if sys.platform == "linux":
        # However `vla ros launch` ends, no node keeps moving an arm that nobody can stop.
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent ended before prctl
        return 1
    sys.argv = [module, *rest]
    return int(importlib.import_module(module).main() or 0)


if __name__ == "__main__":
    sys.exit(main())
