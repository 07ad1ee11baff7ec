"""Command-line flags from configurations: tyro, plus `--a.b.type NAME` to choose plug-ins."""

import dataclasses
from typing import Any, TypeVar

import torch

from vla.contracts import registry

T = TypeVar("T")


def take(argv: list[str], flag: str, default: str) -> tuple[str, list[str]]:
    """Return the value of `flag` in `argv`, or the default, and the other words.

    Raises:
        ValueError: the flag has no value.
    """
    rest, value, words = [], default, iter(argv)
    for word in words:
        name, joined, given = word.partition("=")
        if name == flag:
            value = given if joined else next(words, "")
            if not value:
                raise ValueError(f"{flag} needs a value")
        else:
            rest.append(word)
    return value, rest


def check_device(device: str) -> None:
    """Raise ValueError if `device` is cuda and torch cannot compute there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device: got cuda, but torch finds no GPU that it can use; take --device cpu, or see "
            "what `vla doctor` says"
        )


def choose_plugins(config: T, argv: list[str]) -> tuple[T, list[str]]:
    """Put the defaults of the plug-ins named by `--a.b.type NAME` into `config`.

    Returns:
        The configuration, and the words that are left.

    Raises:
        ValueError: an unknown plug-in, or a type flag where no plug-in is.
    """
    for word in list(argv):
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag.endswith(".type"):
            name, argv = take(argv, flag, "")
            path = flag[2:].removesuffix(".type").replace("-", "_")
            config = _with_plugin(config, path.split("."), flag, name)
    return config, argv


def _with_plugin(config: Any, path: list[str], flag: str, name: str) -> Any:
    fields = (
        {f.name: f for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else {}
    )
    head, *tail = path
    if head not in fields:
        raise ValueError(f"{flag}: no field {head!r}; known are {', '.join(fields) or 'none'}")
    if tail:
        value = _with_plugin(getattr(config, head), tail, flag, name)
    elif "package" in fields[head].metadata:
        value = registry.load(fields[head].metadata["package"], name).Config()
    else:
        raise ValueError(f"{flag}: {head!r} is not a plug-in")
    return dataclasses.replace(config, **{head: value})
