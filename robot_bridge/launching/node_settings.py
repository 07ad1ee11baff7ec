"""Settings of a node: a frozen dataclass that becomes ROS parameters with texts and ranges."""

import ast
import dataclasses
import inspect
import textwrap
import typing
from typing import Any


def ranged(default: Any, low: int | float, high: int | float) -> Any:
    """Return a field for a number in a closed range."""
    return dataclasses.field(default=default, metadata={"range": (low, high)})


def chosen(default: str, *names: str) -> Any:
    """Return a field for one of several names."""
    return dataclasses.field(default=default, metadata={"names": names})


def descriptions(kind: type[Any]) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, inherited ones included."""
    texts = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, doc in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                text = ast.literal_eval(doc.value)
                texts[ast.unparse(field.target)] = " ".join(text.split())
    return texts


def check(settings: Any) -> None:
    """Raise ValueError unless every field is in its range, or one of its names."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        low, high = field.metadata.get("range", (None, None))
        if low is not None and not low <= value <= high:  # NaN is not
            raise ValueError(f"{field.name}: got {value}, expected {low} to {high}")
        names = field.metadata.get("names")
        if names and value not in names:
            raise ValueError(f"{field.name}: got {value!r}, expected {' or '.join(names)}")


def read(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return settings from parameter values by name.

    Raises:
        ValueError: a value has the wrong type, or is out of range.
    """
    hints = typing.get_type_hints(kind)
    fields = {}
    for field in dataclasses.fields(kind):
        value = values[field.name]
        if typing.get_origin(hints[field.name]) is tuple:
            value = tuple(item for item in value if item != "")  # ROS has no empty list of strings
        fields[field.name] = value
    return kind(**fields)
