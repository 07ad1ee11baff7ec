"""Builds the gripper actions of control_msgs where ROS 2 is from PyPI, which has no control_msgs.

`python -m benchmarks.robot_bridge.gripper_interfaces` builds them into this Python environment, for
`vla bench bridge --driver` with a gripper that is an action. Only what the wire needs is here: with
ROS 2 of the system, take its control_msgs.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

from robot_bridge.launching import interfaces, package_files

PACKAGE = "control_msgs"
_STATE = "bool stalled\nbool reached_goal\n"
_SIMPLE = f"float64 position\nfloat64 effort\n{_STATE}"
_PARALLEL = f"sensor_msgs/JointState state\n{_STATE}"
FILES = {
    "msg/GripperCommand.msg": "float64 position\nfloat64 max_effort\n",
    "action/GripperCommand.action": f"GripperCommand command\n---\n{_SIMPLE}---\n{_SIMPLE}",
    "action/ParallelGripperCommand.action": (
        f"sensor_msgs/JointState command\n---\n{_PARALLEL}---\n{_PARALLEL}"
    ),
}
"""Names and definitions."""


def build(prefix: Path) -> None:
    """Build the package and install it below a prefix.

    Raises:
        ValueError: something that is needed is missing, or the build fails.
    """
    ours = package_files.folder() / "launch" / "interfaces"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        for name, text in FILES.items():
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).write_text(text)
        manifest = (ours / "package.xml").read_text().replace(interfaces.PACKAGE, PACKAGE)
        needs = "<depend>builtin_interfaces</depend><depend>sensor_msgs</depend>"
        manifest = manifest.replace("<depend>builtin_interfaces</depend>", needs)
        (source / "package.xml").write_text(manifest)
        names = "\n  ".join(f'"{name}"' for name in FILES)
        cmake = (ours / "CMakeLists.txt").read_text().replace(interfaces.PACKAGE, PACKAGE)
        cmake = cmake.replace('"action/ExecuteInstruction.action"', names)
        cmake = cmake.replace("builtin_interfaces REQUIRED", "sensor_msgs REQUIRED")
        cmake = cmake.replace("DEPENDENCIES builtin_interfaces", "DEPENDENCIES sensor_msgs")
        (source / "CMakeLists.txt").write_text(cmake)
        interfaces.build(source, prefix)


def main() -> int:
    """Build into this environment, unless there is a control_msgs."""
    if importlib.util.find_spec(PACKAGE) is None:
        build(Path(sys.prefix))
        print(f"{PACKAGE}: its gripper actions are built into {sys.prefix}")
    else:
        print(f"{PACKAGE}: there is one already")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
