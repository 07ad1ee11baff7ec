"""The launcher, without which nothing else can be imported."""

from typing import Any

running: list[dict] = []


class AppLauncher:
    def __init__(self, launcher_args: Any = None, **kwargs: Any) -> None:
        if running:
            raise RuntimeError("AppLauncher: a process holds one app")
        unknown = set(kwargs) - {"headless", "enable_cameras", "device"}
        if unknown:
            raise ValueError(f"AppLauncher: unknown arguments {unknown}")
        running.append(kwargs)


def check_running() -> None:
    """Raise as the real modules do while there is no app."""
    if not running:
        raise ModuleNotFoundError("No module named 'omni': start the AppLauncher first")
