"""Configurations survive JSON unchanged; a wrong file is answered with the place of the error."""

import json
import sys
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla.contracts import config


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A nested configuration."""

    name: str = "a"
    size: tuple[int, int] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Outer:
    """One field of each kind that configurations use."""

    steps: int
    rate: float
    quiet: bool = False
    mode: Literal["mlp", "transformer"] = "mlp"
    note: str | None = None
    widths: tuple[float, ...] = ()
    parts: dict[str, Inner]
    inner: Inner = Inner()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A plug-in package `gadgets` with one plug-in, `hammer`."""
    package = tmp_path / "gadgets"
    package.mkdir()
    (package / "__init__.py").write_text('"""Gadgets."""\n')
    (package / "hammer.py").write_text(
        "import dataclasses\n"
        "from vla.contracts.config import PluginConfig\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class Config(PluginConfig):\n"
        "    weight: float = 3.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "gadgets"
    for name in [n for n in sys.modules if n.split(".")[0] == "gadgets"]:
        del sys.modules[name]


finite = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, name=st.text(), size=st.tuples(st.integers(), st.integers()))
outers = st.builds(
    Outer,
    steps=st.integers(),
    rate=finite,
    quiet=st.booleans(),
    mode=st.sampled_from(["mlp", "transformer"]),
    note=st.none() | st.text(),
    widths=st.lists(finite).map(tuple),
    parts=st.dictionaries(st.text(), inners),
    inner=inners,
)


@given(outers)
def test_any_configuration_survives_a_trip_through_a_json_file(value):
    text = json.dumps(config.to_json(value), allow_nan=False)
    assert config.from_json(Outer, json.loads(text)) == value


def test_fields_left_out_take_their_defaults_and_whole_numbers_become_floats():
    got = config.from_json(Outer, {"steps": 3, "rate": 1, "parts": {}})
    assert got == Outer(steps=3, rate=1.0, parts={})
    assert type(got.rate) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 1}, "config: unknown field 'stepz'; known are steps, rate"),
        ({"steps": "3"}, "config.steps: expected int, got '3'"),
        ({"steps": True}, "config.steps: expected int, got True"),
        ({"rate": "fast"}, "config.rate: expected float, got 'fast'"),
        ({"quiet": 1}, "config.quiet: expected bool, got 1"),
        ({"mode": "lstm"}, r"config.mode: expected one of \('mlp', 'transformer'\), got 'lstm'"),
        ({"widths": 4}, "config.widths: expected a list, got 4"),
        ({"widths": [1.0, "x"]}, r"config.widths\[1\]: expected float, got 'x'"),
        ({"inner": {"size": [1]}}, "config.inner.size: expected 2 values, got 1"),
        ({"inner": 5}, "config.inner: expected an object, got 5"),
        ({"parts": {"left": {"name": 1}}}, "config.parts.left.name: expected str, got 1"),
        ({"parts": [1]}, "config.parts: expected an object"),
    ],
)
def test_an_error_names_the_place_what_was_got_and_what_was_expected(change, message):
    value = {"steps": 3, "rate": 1.0, "parts": {}, **change}
    with pytest.raises(ValueError, match=message):
        config.from_json(Outer, value)


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="config:.*'steps'"):
        config.from_json(Outer, {"rate": 1.0, "parts": {}})


def test_a_plugin_is_written_with_its_file_name_and_read_from_its_folder_only(folder):
    hammer = config.registry.load(folder, "hammer").Config(weight=5.0)
    value = config.to_json(hammer)
    assert value == {"type": "hammer", "weight": 5.0}
    assert config.from_json(config.PluginConfig, value, package=folder) == hammer
    with pytest.raises(ValueError, match="unknown gadget 'axe'"):
        config.from_json(config.PluginConfig, {"type": "axe"}, package=folder)
    for wrong in (3, {}, {"type": 3}):
        with pytest.raises(ValueError, match="expected an object with a 'type' from gadgets"):
            config.from_json(config.PluginConfig, wrong, package=folder)
