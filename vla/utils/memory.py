"""Memory of this machine."""

from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the bytes that this process can still take without swapping: what the system has, or
    the whole limit of its control group (of a container) if that is less.
    """
    rows = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
    available = int(rows["MemAvailable"].split()[0]) * 1024
    limits = [place.read_text().strip() for place in _limit_files() if place.is_file()]
    return min([available, *(int(limit) for limit in limits if limit.isdigit())])


def _limit_files() -> Iterator[Path]:
    """Yield where limits may stand, in versions 2 and 1 of control groups: of the process's group,
    and of the uppermost that a container sees.
    """
    for row in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = row.split(":", 2)
        for path in (group.lstrip("/"), ""):
            if not controllers:
                yield GROUPS / path / "memory.max"
            elif "memory" in controllers.split(","):
                yield GROUPS / "memory" / path / "memory.limit_in_bytes"
