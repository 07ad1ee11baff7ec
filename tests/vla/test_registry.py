"""The registry lists files without importing them and answers wrong names with the nearest."""

import sys

import pytest

from vla.contracts import registry


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A plug-in package `gadgets` with two plug-ins, one of which cannot be imported."""
    package = tmp_path / "gadgets"
    package.mkdir()
    (package / "__init__.py").write_text('"""Gadgets."""\n')
    (package / "hammer.py").write_text("WEIGHT = 3\n")
    (package / "saw.py").write_text("raise ImportError('no blade')\n")
    (package / "_shared.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "gadgets"
    for name in [n for n in sys.modules if n.split(".")[0] == "gadgets"]:
        del sys.modules[name]


def test_names_are_sorted_file_names_and_importing_nothing_finds_them(folder):
    assert registry.names(folder) == ("hammer", "saw")
    assert "gadgets.hammer" not in sys.modules


def test_load_imports_only_the_named_plugin(folder):
    assert registry.load(folder, "hammer").WEIGHT == 3
    with pytest.raises(ImportError, match="no blade"):
        registry.load(folder, "saw")


def test_an_unknown_name_offers_the_nearest_and_all_names(folder):
    with pytest.raises(
        ValueError, match="unknown gadget 'hamer': did you mean hammer.*hammer, saw"
    ):
        registry.check(folder, "hamer")


def test_a_name_far_from_all_gets_the_list_without_a_guess(folder):
    with pytest.raises(ValueError, match="unknown gadget 'zzz': known names are hammer, saw"):
        registry.check(folder, "zzz")


@pytest.mark.parametrize("name", ["../hammer", "_shared", "__init__", "os", ""])
def test_nothing_outside_the_folder_can_be_named(folder, name):
    with pytest.raises(ValueError, match="unknown gadget"):
        registry.load(folder, name)


@pytest.mark.parametrize("package", ["no_such_package", "json.decoder"])
def test_a_package_that_is_not_a_folder_is_named_in_the_error(package):
    with pytest.raises(ValueError, match=package):
        registry.names(package)
