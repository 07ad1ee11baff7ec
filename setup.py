"""For colcon and for editable installations; everything else is said in pyproject.toml."""

import sysconfig
from pathlib import Path
from typing import Any

import setuptools

if int(setuptools.__version__.split(".")[0]) < 61:
    # It would not read pyproject.toml and install an empty package without a word.
    raise SystemExit(
        f"setuptools {setuptools.__version__}, expected 61 to 79: "
        "python3 -m pip install --user 'setuptools>=68,<80'"
    )


PLUGINS = ("lerobot_policy_mneme", "lerobot_robot_mneme_ros2")


def plugins() -> list[tuple[str, list[str]]]:
    """Return where the markers belong, below the prefix, by which LeRobot finds our plug-ins.

    It imports what is installed under a name that begins with `lerobot_robot_` or
    `lerobot_policy_`, and asks for no entry points: further installed names, with nothing in them,
    save users further installations.
    """
    paths = {name: Path(path) for name, path in sysconfig.get_paths().items()}
    if paths["data"] not in paths["purelib"].parents:
        return []
    place = paths["purelib"].relative_to(paths["data"])
    return [
        ((place / f"{name}-1.dist-info").as_posix(), [f"launch/resource/{name}/METADATA"])
        for name in PLUGINS
    ]


class Distribution(setuptools.Distribution):
    """What setuptools makes of pyproject.toml, with what ROS needs."""

    def has_data(self) -> bool:
        """Return whether there are files for ROS to lay down.

        For an editable installation setuptools asks for this name, which nothing else has: without
        it the launch files and the marker by which ROS finds the package would be left out.
        """
        return bool(self.has_data_files())

    def parse_config_files(self, filenames: Any = None, *args: Any, **kwargs: Any) -> None:
        """Read pyproject.toml: that beside this file, and into plain values.

        `colcon build --symlink-install` runs a link to this file in a folder without the other, and
        prints the values to read them back as literals.
        """
        beside = str(Path(__file__).resolve().parent / "pyproject.toml")
        super().parse_config_files(filenames or [beside], *args, **kwargs)
        self.data_files = [*(self.data_files or []), *plugins()]
        self.python_requires = str(self.python_requires)
        self.metadata.python_requires = self.python_requires


setuptools.setup(distclass=Distribution)
