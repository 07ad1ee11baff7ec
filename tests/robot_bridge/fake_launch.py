"""Stand-ins for ROS 2's `launch` and `launch_ros` that know the recorded signatures alone."""

import json
from pathlib import Path
from types import ModuleType

API = json.loads((Path(__file__).parent / "launch_api.json").read_text())


def make(path):
    """Return a class that keeps what it is given, if the real one would take it."""
    known = API[path]

    class Kept:
        def __init__(self, *values, **named):
            assert len(values) <= len(known["in_place"]), f"{path} takes {known['in_place']}"
            self.given = dict(zip(known["in_place"], values, strict=False))
            unknown = set(named) - set(known["by_name"])
            assert not unknown, f"{path} knows no {unknown}"
            assert not set(named) & set(self.given), f"{path} got a value twice"
            self.given |= named
            missing = set(known["required"]) - set(self.given)
            assert not missing, f"{path} needs {missing}"

    Kept.__name__ = path.rsplit(".", 1)[1]
    return Kept


def modules():
    """Return the stand-ins by module name."""
    found = {}
    for path in API:
        if path == "source":
            continue
        name, attribute = path.rsplit(".", 1)
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:length]), ModuleType(".".join(parts[:length])))
        setattr(found[name], attribute, make(path))
    return found
