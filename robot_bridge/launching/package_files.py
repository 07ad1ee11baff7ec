"""Folders of the files in the package: launch files, limits, parameters."""

from pathlib import Path


def folder() -> Path:
    """Return the folder that contains `launch`: the source tree's root, or share/mneme_vla.

    With pip or colcon, packages are in PREFIX/lib/.../site-packages and the files in
    PREFIX/share/mneme_vla; in a source tree (editable installation) both are in its root.

    Raises:
        ValueError: the files are in neither place.
    """
    here = Path(__file__).resolve().parents[2]
    for place in (here, *(parent / "share" / "mneme_vla" for parent in here.parents)):
        if (place / "launch" / "params").is_dir():
            return place
    raise ValueError(f"no launch/params in {here}, nor in share/mneme_vla; install it again")


def params() -> Path:
    """Return the folder with limits and parameters of each robot."""
    return folder() / "launch" / "params"
