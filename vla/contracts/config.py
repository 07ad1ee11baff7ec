"""Configurations: frozen dataclasses to and from JSON, with plug-ins named by file.

A plug-in's `Config` derives from `PluginConfig`; in JSON it carries "type" (the file name). The
folder it may come from is written on the field that holds it, so a file read from disk can name a
plug-in of that folder and nothing else.
"""

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

from vla.contracts import migrate, registry


@dataclasses.dataclass(frozen=True, kw_only=True)
class PluginConfig:
    """Base of every plug-in's `Config`; its module's file name is its registry key."""

    def check(self) -> None:
        """Raise ValueError unless files and packages that it needs are on this machine.

        Called before long work; it builds nothing.
        """

    if typing.TYPE_CHECKING:
        # `build` and other methods of a folder's plug-ins take that folder's arguments.
        def __getattr__(self, name: str) -> Any: ...


def plugin(package: registry.Packages, name: str) -> Any:
    """Return a field that holds the Config of a plug-in of `package`, `name` by default."""
    return dataclasses.field(
        default_factory=lambda: registry.load(package, name).Config(), metadata={"package": package}
    )


def type_name(config: PluginConfig) -> str:
    """Return the registry key of a plug-in's configuration."""
    return type(config).__module__.rsplit(".", 1)[-1]


def title(value: dict[str, Any]) -> str:
    """Return the name of a plug-in's configuration in JSON: TYPE, or TYPE/NAME if it has one."""
    return "/".join(str(value[key]) for key in ("type", "name") if key in value)


def validate_min(config: Any, **minimum: int) -> None:
    """Raise ValueError unless each named field of `config` is at least its number."""
    for name, low in minimum.items():
        value = getattr(config, name)
        if not value >= low:  # NaN is not
            raise ValueError(f"{name}: got {value}, expected at least {low}")


def validate_max(config: Any, **maximum: int) -> None:
    """Raise ValueError unless each named field of `config` is at most its number."""
    for name, high in maximum.items():
        value = getattr(config, name)
        if not value <= high:
            raise ValueError(f"{name}: got {value}, expected at most {high}")


def difference(a: Any, b: Any, name: str = "config") -> str:
    """Return in words the first setting in which configurations in JSON, not equal, differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            if key not in a or key not in b:
                return f"{name}.{key} exists on one side only: another version wrote it"
            if a[key] != b[key]:
                return difference(a[key], b[key], f"{name}.{key}")
    return f"{name} is {a!r} there, {b!r} here"


def to_json(value: Any) -> Any:
    """Return `value` (dataclasses, tuples, dicts, scalars) as JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, PluginConfig):
            return {"type": type_name(value), **fields}
        return fields
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def from_json(
    kind: Any, value: Any, where: str = "config", package: registry.Packages | None = None
) -> Any:
    """Return an instance of `kind` from the result of `to_json`.

    Args:
        kind: A dataclass, or the annotation of one of its fields.
        value: JSON types.
        where: Name of the value, for error messages.
        package: Folder or folders the plug-in must come from, if `value` is one's configuration.

    Raises:
        ValueError: a field is unknown, missing or of the wrong type; a `RemovedError` if it is of
            a part that was removed.
    """
    if package is not None:
        kind = _plugin_kind(value, where, package)
        value = {k: v for k, v in value.items() if k != "type"}
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_json(kind, value, where)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_from_json(typing.get_args(kind), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list, got {value!r}")
        args = typing.get_args(kind)
        inner = args[:1] * len(value) if args[-1] is Ellipsis else args
        if len(inner) != len(value):
            raise ValueError(f"{where}: expected {len(inner)} values, got {len(value)}")
        return tuple(
            from_json(k, v, f"{where}[{i}]")
            for i, (k, v) in enumerate(zip(inner, value, strict=True))
        )
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected an object, got {value!r}")
        key_kind, value_kind = typing.get_args(kind)
        return {key_kind(k): from_json(value_kind, v, f"{where}.{k}") for k, v in value.items()}
    if origin is typing.Literal:
        if value not in typing.get_args(kind):
            raise ValueError(f"{where}: expected one of {typing.get_args(kind)}, got {value!r}")
        return value
    return _scalar_from_json(kind, value, where)


def _plugin_kind(value: Any, where: str, package: registry.Packages) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ValueError(f"{where}: expected an object with a 'type' from {package}, got {value!r}")
    name = migrate.plugin(package, value["type"])
    try:
        return registry.load(package, name).Config
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _dataclass_from_json(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {value!r}")
    value = migrate.config(kind, value)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(fields)}")
    hints = typing.get_type_hints(kind)
    values = {
        name: from_json(hints[name], v, f"{where}.{name}", fields[name].metadata.get("package"))
        for name, v in value.items()
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def of_file(path: Path, error: ValueError, advice: str = "") -> ValueError:
    """Return an error about a value in a file; the value's own class does not know which file.

    Args:
        path: The file.
        error: The error.
        advice: What to do, unless the error says it; ends the sentence.
    """
    where = "" if str(path) in str(error) else f"{path}: "
    return ValueError(f"{where}{error}{'; ' * bool(advice)}{advice}")


def _union_from_json(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    errors = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return from_json(kind, value, where)
        except ValueError as error:
            errors.append(str(error))
    raise ValueError("; ".join(errors))


def _scalar_from_json(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(kind, type) or not isinstance(value, kind) or (kind is int and value is True):
        raise ValueError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {value!r}")
    return value
