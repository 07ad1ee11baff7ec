"""What `make` cannot build is said plainly, and the containers fit the tree."""

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tomllib

from vla import cli

ROOT = Path(__file__).parents[1]
CONTAINERS = sorted((ROOT / "deploy" / "containers").glob("*.Dockerfile"))


@pytest.fixture
def bare(tmp_path):
    """A tree with the script alone, and a PATH on which each Python must be faked."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "venv.sh", tmp_path / "tools")
    (tmp_path / "requirements.lock").write_text("gizmo==1.0\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "bash",
        "dirname",
        "basename",
        "env",
        "mkdir",
        "grep",
        "tail",
        "flock",
        "cat",
        "chmod",
        "find",
        "rm",
        "sha256sum",
    ):
        (tools / name).symlink_to(shutil.which(name))

    def run(word, environ=None, free_kb=20_000_000, **fakes):
        df = f"echo Filesystem blocks; echo /dev/vda 50000000 1 {free_kb} 9% /"
        for name, script in {"df": df, **fakes}.items():
            path = tools / name.replace("_", ".")
            path.write_text(f"#!/bin/bash\n{script}\n")
            path.chmod(0o755)
        return subprocess.run(
            ["bash", "tools/venv.sh", word],
            cwd=tmp_path,
            env={"PATH": str(tools), **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_python_that_is_too_old_is_named_with_what_to_install(bare, tmp_path):
    old = 'if [ "$1" = --version ]; then echo "Python 3.9.2"; else exit 1; fi'
    done = bare("install", python3=old)
    assert done.returncode == 1
    assert done.stderr.startswith("Python 3.11, 3.12 or 3.13 is needed; found Python 3.9.2.")
    assert not (tmp_path / ".venv").exists()


def test_a_python_without_its_venv_module_is_answered_with_the_package(bare):
    without = 'if [[ "$2" == *ensurepip* ]]; then exit 1; fi'
    done = bare("install", python3_11=without)
    assert done.returncode == 1
    assert done.stderr == "python3.11 has no venv module: apt-get install python3.11-venv\n"


def test_a_disk_that_is_too_full_is_named_before_anything_is_installed(bare, tmp_path):
    done = bare("install", free_kb=3_100_000, python3_11="exit 0")
    assert done.returncode == 1
    assert "need 12 GB of disk, 3 GB are free" in done.stderr
    assert not (tmp_path / ".venv" / "bin").exists()


def test_another_lock_or_python_begins_anew_and_the_same_goes_on(bare, tmp_path):
    venv = (
        'if [ "$1" = --version ]; then echo "Python 3.12.1"; fi\n'
        'if [ "$2" = venv ]; then mkdir -p .venv/bin\n'
        "printf '#!/bin/bash\nexit 0\n' > .venv/bin/python; chmod +x .venv/bin/python; fi"
    )
    left = tmp_path / ".venv" / "left"

    def survives(**change):
        left.touch()
        assert bare("install", **change).returncode == 0
        return left.exists()

    assert bare("install", environ={"PYTHON": "python3.12"}, python3_12=venv).returncode == 0
    assert survives(environ={"PYTHON": "python3.12"})
    (tmp_path / "requirements.lock").write_text("gizmo==2.0\n")
    assert not survives(environ={"PYTHON": "python3.12"})
    assert not survives(environ={"PYTHON": "python3.13"}, python3_13=venv.replace("12.1", "13.0"))


def test_when_pip_fails_its_last_words_are_shown_without_the_noise(bare):
    pip = "echo 'WARNING: Location x is ignored'; echo 'ERROR: no matching gizmo'; exit 1"
    venv = (
        'if [ "$2" = venv ]; then mkdir -p .venv/bin\n'
        "cat > .venv/bin/python <<'E'\n#!/bin/bash\n"
        f'if [ "$3" = --version ]; then exit 0; fi; {pip}\nE\n'
        "chmod +x .venv/bin/python; fi"
    )
    done = bare("install", python3_11=venv)
    assert done.returncode == 1
    assert "ERROR: no matching gizmo" in done.stderr
    assert "is ignored" not in done.stderr
    assert "the whole log is in .venv/install.log" in done.stderr


@pytest.mark.parametrize("file", CONTAINERS, ids=lambda file: file.stem)
def test_a_container_starts_from_a_fixed_image_and_names_what_there_is(file, capsys):
    text = file.read_text()
    assert re.search(r"^FROM \S+:\S*\d\S*$", text, re.M), "an image that changes under its name"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"'\.\[(\w+)\]'", text):
        assert extra in project["optional-dependencies"]
    if "make .venv" in text:
        assert ".venv/.installed:" in (ROOT / "Makefile").read_text()
    command, *words = json.loads(re.search(r"^CMD (\[.*\])$", text, re.M)[1])
    with pytest.raises(SystemExit) if command == "doctor" else contextlib.nullcontext():
        cli.main([command, "--help"])
    said = capsys.readouterr().out
    assert f"vla {command}" in said
    for flag in (word for word in words if word.startswith("--")):
        assert flag in said, flag
    assert f"deploy/containers/{file.name}" in text, "how it is built"
