"""The worker in other Pythons than ours, each with a numpy of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sim.env_server_study import MARK, POINT
from sim.env_server.client import AdapterError, Process

VERSIONS = (
    "3.8", "3.12", pytest.param("3.10", marks=pytest.mark.slow),
    pytest.param("3.13", marks=pytest.mark.slow),
)  # fmt: skip
OPTIONS = {"rows": [0, 1], "num_envs": 1, "fault": "", "at": 3}
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


def interpreter(version: str) -> Path:
    """Return a Python of another version on this machine; skip if there is none."""
    found = [shutil.which(f"python{version}"), *PYENV.glob(f"{version}.*/bin/python")]
    for python in filter(None, found):
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return Path(python)
    pytest.skip(f"no Python {version} with venv on this machine")


@pytest.fixture(scope="module", params=VERSIONS)
def python(request, tmp_path_factory) -> Path:
    """Return an interpreter that has numpy and nothing else."""
    version = request.param
    place = tmp_path_factory.mktemp(f"python{version}")
    subprocess.run([interpreter(version), "-m", "venv", place], check=True)
    program = place / "bin" / "python"
    install = [program, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "numpy"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"numpy for Python {version} cannot be had: {done.stderr.strip()[-200:]}")
    return program


@pytest.fixture
def mark() -> str:
    return f"pythons {os.getpid()}."


def test_steps_are_those_of_our_own_python(python: Path, mark: str) -> None:
    rows = []
    for program in (Path(sys.executable), python):
        process = Process(program, POINT, OPTIONS, environ={MARK: mark})
        process.call("reset", {"seed": 7})
        process.arrays["actions"][:] = np.linspace(-1, 1, process.arrays["actions"].size).reshape(
            process.arrays["actions"].shape
        )
        for _ in range(3):
            process.call("step", {"length": 1})
        rows.append({name: array.copy() for name, array in process.arrays.items()})
        process.close()
    ours, theirs = rows
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_an_error_of_the_host_is_a_sentence(python: Path, mark: str) -> None:
    process = Process(python, POINT, {**OPTIONS, "fault": "raise"}, environ={MARK: mark})
    process.call("reset", {"seed": 0})
    for _ in range(OPTIONS["at"] - 1):
        process.call("step", {"length": 1})
    with pytest.raises(AdapterError) as caught:
        process.call("step", {"length": 1})
    assert caught.value.sentence
    process.close()
