"""Where the files that come with the package are: launch files, limits, parameters."""

from pathlib import Path


def folder() -> Path:
    """Return the folder that holds `launch`: the source tree's root, or share/mneme_vla.

    Installed by pip or colcon, packages lie in PREFIX/lib/.../site-packages and the files in
    PREFIX/share/mneme_vla; in the source tree, which an editable installation points to, they lie
    beside the package.

    Raises:
        ValueError: they are in neither place.
    """
    here = Path(__file__).resolve().parents[1]
    for place in (here, *(parent / "share" / "mneme_vla" for parent in here.parents)):
        if (place / "launch" / "params").is_dir():
            return place
    raise ValueError(f"no launch/params beside {here}, nor in share/mneme_vla; install it again")


def params() -> Path:
    """Return the folder with limits and parameters of each robot."""
    return folder() / "launch" / "params"
