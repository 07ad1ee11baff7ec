"""Plug-ins by file name: list the names in a folder without importing them, load one by name."""

import difflib
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType


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


def check(package: str, name: str) -> str:
    """Return `name` if it is a plug-in of `package`.

    Raises:
        ValueError: it is not; the message offers the nearest names.
    """
    known = names(package)
    if name in known:
        return name
    folder = package.rsplit(".", 1)[-1]
    kind = f"{folder[:-3]}y" if folder.endswith("ies") else folder.rstrip("s")
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"unknown {kind} {name!r}: {hint}known names are {', '.join(known)}")


def load(package: str, name: str) -> ModuleType:
    """Import and return plug-in `name` of `package`.

    Raises:
        ValueError: no such plug-in; the message offers the nearest names.
    """
    return importlib.import_module(f"{package}.{check(package, name)}")
