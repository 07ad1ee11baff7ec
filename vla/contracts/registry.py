"""Plug-ins by file name: list the names in a folder without importing them, load one by name.

Plug-ins of several folders that serve one purpose are searched in order.
"""

import difflib
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

Packages = str | tuple[str, ...]
"""A folder of plug-ins such as "sim.tasks", or several whose file names differ."""

KINDS = {"reward_models.models": "reward model", "training.algos": "algorithm"}
"""Names of plug-ins in messages, where the folder's name is not one."""


def names(package: str) -> tuple[str, ...]:
    """Return the plug-ins of a package such as "sim.tasks", sorted; imports none of them.

    Raises:
        ValueError: there is no such package.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ValueError(f"no plug-in folder named {package!r}")
    files = (f for place in spec.submodule_search_locations for f in Path(place).glob("*.py"))
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_")))


def check(package: Packages, name: str) -> str:
    """Return `name` if it is a plug-in of `package`; ValueError with the nearest names if not."""
    _home(package, name)
    return name


def load(package: Packages, name: str) -> ModuleType:
    """Import and return plug-in `name` of `package`; ValueError with the nearest names if none."""
    return importlib.import_module(f"{_home(package, name)}.{name}")


def _home(package: Packages, name: str) -> str:
    """Return the folder in which a plug-in is."""
    folders = (package,) if isinstance(package, str) else package
    for folder in folders:
        if name in names(folder):
            return folder
    every = [plugin for folder in folders for plugin in names(folder)]
    folder = folders[0].rsplit(".", 1)[-1]
    kind = f"{folder[:-3]}y" if folder.endswith("ies") else folder.removesuffix("s")
    kind = KINDS.get(folders[0], kind.replace("_", " "))
    near = _near(name, every)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"unknown {kind} {name!r}: {hint}known names are {', '.join(every)}")


def _near(name: str, every: list[str]) -> list[str]:
    """Return the names that may have been meant: the most similar one, and others about as much."""

    def similarity(other: str) -> float:
        return difflib.SequenceMatcher(None, name, other).ratio()

    near = difflib.get_close_matches(name, every, n=3, cutoff=0.4)
    return [other for other in near if similarity(other) > similarity(near[0]) - 0.15]
