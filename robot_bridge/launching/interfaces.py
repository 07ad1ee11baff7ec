"""`vla ros interfaces`: builds the ROS 2 interfaces of this package where ROS 2 is from PyPI.

With ROS 2 of the system, colcon builds launch/interfaces like any other package.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from robot_bridge.launching import package_files
from vla.utils import arguments

PACKAGE = "mneme_vla_interfaces"
RPATH = "$ORIGIN;$ORIGIN/../../.."
"""Where the libraries look for others: beside themselves, and from site-packages in lib."""


@dataclass(frozen=True, kw_only=True)
class InterfacesArgs:
    """Build the actions of the nodes into this Python environment.

    Needs the extra `ros-interfaces` and a C++ compiler. With ROS 2 of the system, use colcon.
    """

    jobs: int = 2
    """Compilers at a time."""


def available() -> bool:
    """Return whether the interfaces are installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def main(argv: list[str]) -> int:
    """Run `vla ros interfaces`; return the exit code.

    Raises:
        ValueError: something that is needed is missing, or the build fails.
    """
    args = arguments.read(InterfacesArgs, argv, "vla ros interfaces")
    build(package_files.folder() / "launch" / "interfaces", Path(sys.prefix), args.jobs)
    print(f"{PACKAGE}: built into {sys.prefix}")
    return 0


def build(source: Path, prefix: Path, jobs: int = 2) -> None:
    """Build an interface package with CMake and install it below a prefix.

    Args:
        source: Folder with CMakeLists.txt and package.xml.
        prefix: Where it goes; ROS 2 from PyPI is found in this Python's own prefix.
        jobs: Compilers at a time.

    Raises:
        ValueError: something that is needed is missing, or the build fails.
    """
    if importlib.util.find_spec("ament_package") is None:
        raise ValueError(
            "no ament_package in this environment: pip install 'mneme-vla[ros-interfaces]'; "
            "with ROS 2 of the system, colcon builds launch/interfaces"
        )
    own = sys.prefix
    paths = os.pathsep.join([str(Path(own) / "bin"), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": paths, "AMENT_PREFIX_PATH": own}
    with tempfile.TemporaryDirectory() as folder:
        _run(
            ["cmake", "-S", str(source), "-B", folder, "-G", "Ninja", "-DBUILD_TESTING=OFF",
             "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_INSTALL_RPATH={RPATH};{own}/lib",
             f"-DCMAKE_PREFIX_PATH={own}", f"-DCMAKE_INSTALL_PREFIX={prefix}",
             f"-DPython3_EXECUTABLE={sys.executable}"],
            environment,
        )  # fmt: skip
        _run(["cmake", "--build", folder, "--parallel", str(jobs), "--target", "install"],
             environment)  # fmt: skip


def _run(words: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ValueError(
            f"no {words[0]} in this environment: pip install 'mneme-vla[ros-interfaces]'"
        ) from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise ValueError(
            f"{words[0]} failed; a C++ compiler and Python's headers are needed (on Debian: "
            f"apt-get install g++ python3-dev); it said: {' | '.join(said[-12:])}"
        )
