"""Command-line flags of configurations: tyro, plus `--a.b.type NAME` to select plug-ins."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from vla.contracts import migrate, registry
from vla.utils import arguments

T = TypeVar("T")


def take(argv: list[str], flag: str, default: str) -> tuple[str, list[str]]:
    """Return the value of `flag` in `argv`, or the default, and the other arguments.

    Raises:
        ValueError: the flag has no value.
    """
    rest, value, words = [], default, iter(argv)
    for word in words:
        name, joined, inline = word.partition("=")
        if name == flag:
            value = inline if joined else next(words, "")
            if not value:
                raise ValueError(f"{flag} needs a value")
        else:
            rest.append(word)
    return value, rest


def choose_plugins(config: T, argv: list[str]) -> tuple[T, list[str]]:
    """Replace the plug-ins that `--a.b.type NAME` selects by their default configurations.

    Returns:
        The configuration and the remaining arguments.

    Raises:
        ValueError: an unknown plug-in, or a type flag of a field that is no plug-in.
    """
    for word in list(argv):
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag.endswith(".type"):
            name, argv = take(argv, flag, "")
            path = flag[2:].removesuffix(".type").replace("-", "_")
            config = _with_plugin(config, path.split("."), flag, name)
    return config, argv


def read_args(kind: Callable[..., T], train: Any, argv: list[str], prog: str) -> T:
    """Return the arguments `kind`, whose field `train` is a configuration that flags change.

    Raises:
        ValueError: an unknown plug-in or flag.
    """
    train, rest = choose_plugins(train, argv)
    return arguments.read(functools.partial(kind, train=train), rest, prog)


def _with_plugin(config: Any, path: list[str], flag: str, name: str) -> Any:
    fields = (
        {f.name: f for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else {}
    )
    head, *tail = path
    if head not in fields:
        raise ValueError(
            f"{flag}: no field {head!r}; expected one of {', '.join(fields) or 'none'}"
        )
    if tail:
        value = _with_plugin(getattr(config, head), tail, flag, name)
    elif "package" in fields[head].metadata:
        package = fields[head].metadata["package"]
        if migrate.plugin(package, name) != name:
            raise ValueError(f"{flag}: {name} is now {migrate.plugin(package, name)}")
        value = registry.load(package, name).Config()
    else:
        raise ValueError(f"{flag}: {head!r} is not a plug-in")
    return dataclasses.replace(config, **{head: value})
