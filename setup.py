"""For colcon and for editable installations; everything else is said in pyproject.toml."""

from pathlib import Path
from typing import Any

import setuptools

if int(setuptools.__version__.split(".")[0]) < 61:
    # It would not read pyproject.toml and install an empty package without a word.
    raise SystemExit(
        f"setuptools {setuptools.__version__}, expected 61 to 79: "
        "python3 -m pip install --user 'setuptools>=68,<80'"
    )


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
        self.python_requires = str(self.python_requires)
        self.metadata.python_requires = self.python_requires


setuptools.setup(distclass=Distribution)
