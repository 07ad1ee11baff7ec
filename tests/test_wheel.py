"""The wheel that users install: what it holds, and the whole chain of commands from it alone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.sim.env_server.test_pythons import interpreter
from tests.test_architecture import FOLDERS, ROOT
from tests.training.small_policy import small_policy, write_run
from vla import cli

CHAIN = (
    "demos reach --episodes 4 --workers 1 --out data",
    "train --recipe reach --dataset data --out run --steps 4 --save-every 4 --threads 1 "
    "--algo.batch-size 4 --eval.final-episodes 0",
    "eval run --episodes 2 --videos 0",
    "export run --out deployed",
    "eval deployed --episodes 2 --videos 0 --out again",
)  # fmt: skip
"""What a new user does, as small as it gets."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from a copy of the tree."""
    place = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__", "runs", "shared", ".*", "build", "*.egg-info")
    shutil.copytree(ROOT, place / "tree", ignore=ignore)
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(place)!r})"
    subprocess.run(
        [sys.executable, "-c", code], cwd=place / "tree", capture_output=True, check=True
    )
    (made,) = place.glob("*.whl")
    return made


def environment(place: Path) -> Path:
    """Return the programs of a new and empty environment."""
    venv.create(place, with_pip=True)
    return place / "bin"


def run(cwd: Path, program: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `vla` outside the tree, so that nothing of it is found by accident."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [program, *words], cwd=cwd, env=clean, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip


def follow_chain(bin_dir: Path, cwd: Path) -> None:
    """Run the chain of commands in an empty folder, each to its good end."""
    for words in CHAIN:
        done = run(cwd, bin_dir / "vla", *words.split())
        assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr[-2000:])


def test_it_holds_the_product_and_neither_benchmarks_nor_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
    top = {name.split("/")[0] for name in files}
    assert {name for name in top if not name.startswith("mneme_vla-")} == set(FOLDERS)
    assert not any({"benchmarks", "tests"} & set(name.split("/")) for name in files)


def test_its_files_alone_do_what_users_do(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are borrowed from this environment; the slow test installs them."""
    programs = environment(tmp_path / "env")
    place = next((tmp_path / "env").glob("lib/python*/site-packages"))
    (place / "borrowed.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    install = [programs / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, capture_output=True, check=True)
    home = run(tmp_path, programs / "python", "-c", "import vla; print(vla.__file__)")
    assert str(place) in home.stdout, home.stderr
    follow_chain(programs, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_brings_what_it_needs_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Needs the package registry. Without extras, a command says which one it lacks."""
    programs = environment(tmp_path / "env")
    install = [programs / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, wheel], check=True)
    said = run(tmp_path, programs / "vla", "doctor")
    assert "torch" in said.stdout, said.stderr
    refused = run(tmp_path, programs / "vla", *CHAIN[0].split())
    assert refused.returncode == 1
    assert "vla doctor" in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr
    subprocess.run([*install, f"{wheel}[train,deploy]"], check=True)
    follow_chain(programs, tmp_path)
    said = run(tmp_path, programs / "vla", "doctor")
    assert "make demo can run" in said.stdout, said.stdout + said.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_robot_side_runs_on_python_3_10_as_jetpack_6_has_it(
    wheel: Path, tmp_path: Path
) -> None:
    """Needs the package registry. The commands are those of deploy/containers/jetson.Dockerfile."""
    policy = small_policy()
    write_run(policy, tmp_path / "run")
    assert cli.main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 0
    place = tmp_path / "env"
    subprocess.run([interpreter("3.10"), "-m", "venv", place], check=True)
    install = [place / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, f"{wheel}[deploy]"], check=True)
    words = "engines model --targets onnxruntime --out engines.json --calls 20"
    done = run(tmp_path, place / "bin" / "vla", *words.split())
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "engines.json").read_text())
    assert told["host"]["python"].startswith("3.10."), told["host"]
