"""The ROS 2 package: what pip really lays down, where ROS looks for it, and old Pythons."""

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from robot_bridge.launching import graph, package_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PACKAGE = "mneme_vla"
NODES = {"safety_node", "policy_node", "sim_arm", "recorder", "monitor", "twist_teleop"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def copy(place):
    """Copy what is installed, since pip leaves folders behind where it builds."""
    place.mkdir()
    for name in ("README.md", "package.xml", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, place)
    for name in PROJECT["tool"]["setuptools"]["packages"]:
        if "." not in name:
            ignored = shutil.ignore_patterns("__pycache__", "*.stl", "*.obj")
            shutil.copytree(ROOT / name, place / name, ignore=ignored)
    shutil.copytree(ROOT / "launch", place / "launch")
    return place


@pytest.fixture(scope="module", params=["plain", "editable"])
def prefix(request, tmp_path_factory):
    """A fresh environment that sees this one's packages, with ours installed by pip."""
    place = tmp_path_factory.mktemp(request.param)
    source = copy(place / "source")
    venv.create(place / "venv", with_pip=False, symlinks=True)
    (packages,) = (place / "venv" / "lib").glob("python*/site-packages")
    (packages / "base.pth").write_text(str(Path(yaml.__file__).parents[1]))
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed", "--quiet"]
    words += ["--disable-pip-version-check", *(["-e"] if request.param == "editable" else [])]
    python = place / "venv" / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-m", "pip", "install", *words, "."],
        cwd=source, env=clean, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place / "venv"


def said(prefix, words, cwd):
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=cwd, env={**clean, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_pip_lays_everything_where_ros_looks_for_it(prefix):
    marker = prefix / "share" / "ament_index" / "resource_index" / "packages" / PACKAGE
    assert marker.is_file()
    place = prefix / "share" / PACKAGE
    assert (place / "package.xml").read_text() == (ROOT / "package.xml").read_text()
    for file in (ROOT / "launch").rglob("*"):
        if file.suffix in (".py", ".yaml", ".xml"):
            assert (place / file.relative_to(ROOT)).read_text() == file.read_text()
    programs = prefix / "lib" / PACKAGE
    assert {file.name for file in programs.iterdir()} == NODES
    assert all(os.access(file, os.X_OK) for file in programs.iterdir())
    assert {f"mneme_{name}" for name in NODES} < {f.name for f in (prefix / "bin").iterdir()}


def test_the_programs_of_the_package_run_by_the_interpreter_it_was_installed_with(prefix, tmp_path):
    """Whatever `python3` is on the path: there is none of ours on this one."""
    console = prefix / "bin" / "mneme_safety_node"
    assert console.read_text().splitlines()[0] == f"#!{prefix}/bin/python"
    console.write_text(f"#!{prefix}/bin/python\nimport sys\nprint(sys.prefix, sys.argv[1:])\n")
    out = said(
        prefix, [prefix / "lib" / PACKAGE / "safety_node", "--ros-args", "-p a:=1"], tmp_path
    )
    assert out == f"{prefix} ['--ros-args', '-p a:=1']\n"


def test_limits_are_found_from_anywhere(prefix, tmp_path):
    code = "from robot_bridge.launching import package_files; print(package_files.params())"
    found = Path(said(prefix, [prefix / "bin" / "python", "-c", code], tmp_path).strip())
    editable = prefix.parent / "source" / "launch" / "params"
    assert found in (prefix / "share" / PACKAGE / "launch" / "params", editable)
    assert (found / "so101_limits.yaml").is_file()


def test_stock_lerobot_finds_our_robot_and_our_policy_after_one_installation(prefix, tmp_path):
    pytest.importorskip("lerobot")
    pytest.importorskip("rclpy")
    code = (
        "from lerobot.utils.import_utils import register_third_party_plugins\n"
        "from lerobot.robots import RobotConfig\n"
        "from lerobot.teleoperators import TeleoperatorConfig\n"
        "from lerobot.configs.policies import PreTrainedConfig\n"
        "from lerobot.envs.configs import EnvConfig\n"
        "register_third_party_plugins()\n"
        "print({'mneme_ros2'} <= set(RobotConfig.get_known_choices()))\n"
        "print({'mneme_ros2_joints'} <= set(TeleoperatorConfig.get_known_choices()))\n"
        "print({'mneme'} <= set(PreTrainedConfig.get_known_choices()))\n"
        "print({'mneme'} <= set(EnvConfig.get_known_choices()))"
    )
    assert said(prefix, [prefix / "bin" / "python", "-c", code], tmp_path).split() == ["True"] * 4


def test_without_its_files_the_package_says_so(monkeypatch, tmp_path):
    alone = tmp_path / "site-packages" / "robot_bridge" / "share.py"
    monkeypatch.setattr(package_files, "__file__", str(alone))
    with pytest.raises(ValueError, match="no launch/params in"):
        package_files.folder()


BY_ROSDEP = {
    "filelock": "python3-filelock", "numpy": "python3-numpy", "pillow": "python3-pil",
    "opencv-python-headless": "python3-opencv", "pyyaml": "python3-yaml", "rich": "python3-rich",
}  # fmt: skip
"""Python packages that rosdep installs, by their names in pyproject.toml."""
IMPORTED_AS = {
    "cv2": "opencv-python-headless", "yaml": "pyyaml", "mcap_ros2": "mcap-ros2-support",
    "zstandard": "mcap", "lz4": "mcap", "PIL": "pillow",
}  # fmt: skip
"""Packages that bring a module, where they have another name."""


def manifest():
    """Return package.xml, what it depends on, and what it says has to be installed by pip."""
    text = (ROOT / "package.xml").read_text()
    root = ElementTree.fromstring(text)
    by_pip = {one for line in re.findall("pip install(.*)", text) for one in line.split("'")[1::2]}
    return root, {one.text for one in root.findall("exec_depend")}, by_pip


def package_name(requirement):
    return re.split(r"[<>\[]", requirement)[0]


def test_the_manifest_names_all_that_nodes_and_launch_files_import():
    root, named, by_pip = manifest()
    imported = set()
    for file in [*(ROOT / "robot_bridge").rglob("*.py"), *(ROOT / "launch").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {one.name.split(".")[0] for one in node.names}
    ours = {name for name in PROJECT["tool"]["setuptools"]["packages"] if "." not in name}
    packages = {IMPORTED_AS.get(name, name) for name in imported - sys.stdlib_module_names - ours}
    assert {"rclpy", "launch_ros", "builtin_interfaces", "opencv-python-headless"} <= packages
    missing = packages - named - {one for one in BY_ROSDEP if BY_ROSDEP[one] in named}
    assert missing - {package_name(one) for one in by_pip} == set()
    assert root.findtext("export/build_type") == "ament_python"
    assert {root.findtext("name"), (ROOT / "launch/resource" / PACKAGE).name} == {PACKAGE}


def test_the_manifest_names_every_python_package_of_the_robot_side():
    _, named, by_pip = manifest()
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {*PROJECT["project"]["dependencies"], *extras["deploy"], *extras["ros"]}
    assert by_pip <= wanted
    rest = {package_name(one) for one in wanted - by_pip} - {"mneme-vla"}
    rest = {one for one in rest if not one.startswith("ros-")}
    assert {BY_ROSDEP.get(one) for one in rest} == {one for one in named if "python3-" in one}


def test_every_node_of_a_description_has_a_program_and_a_console_script():
    scripts = PROJECT["project"]["scripts"]
    programs = {file.name: file.read_bytes() for file in (ROOT / "launch" / "lib").iterdir()}
    assert set(programs) == NODES
    assert len(set(programs.values())) == 1, "they differ by name alone"
    modules = {name: scripts[f"mneme_{name}"].split(":")[0] for name in NODES}
    uses = (
        graph.arm(graph.Arm(policy="unix:/x", reward_model=str(ROOT), twist=True)),
        graph.sim_arm(graph.SimArm()),
        graph.record(graph.Record(out="x")),
    )
    described = {node.name: node.module for nodes in uses for node in nodes}
    assert described == modules


# --- Python 3.10, which ROS 2 Humble has ---------------------------------------------------------

LATER = {
    "tomllib": (), "enum": ("StrEnum", "verify", "ReprEnum"), "datetime": ("UTC",),
    "typing": ("Self", "Never", "assert_never", "LiteralString", "Unpack", "TypeVarTuple",
               "NotRequired", "Required", "reveal_type", "override", "dataclass_transform"),
    "asyncio": ("TaskGroup", "timeout", "Runner"), "contextlib": ("chdir",),
    "hashlib": ("file_digest",), "itertools": ("batched",), "warnings": ("deprecated",),
}  # fmt: skip
"""What came after 3.10, by module; () for the whole module."""


def robot_side():
    """Yield the files that run on the robot: those that the import contracts keep from torch."""
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (free,) = (one for one in contracts if one["id"] == "torch-free")
    names = [
        *free["source_modules"],
        "vla.cli",
        "vla.utils.arguments",
        "vla.utils.interrupted",
        "vla.doctor",
    ]
    for name in names:
        place = ROOT / name.replace(".", "/")
        yield from place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]


ROBOT_SIDE = sorted({*robot_side(), *(ROOT / "launch").glob("*.py"), ROOT / "setup.py"})


@pytest.mark.parametrize("path", ROBOT_SIDE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_runs_on_a_robot_is_python_3_10(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        assert not isinstance(node, getattr(ast, "TryStar", ())), "except* came with 3.11"
        if isinstance(node, ast.Import):
            assert not any(a.name == "tomllib" for a in node.names), "tomllib came with 3.11"
        if isinstance(node, ast.ImportFrom) and node.module in LATER:
            assert LATER[node.module], f"{node.module} came after 3.10"
            late = {alias.name for alias in node.names} & set(LATER[node.module])
            assert not late, f"{late} came after 3.10"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.attr not in LATER.get(node.value.id, ()), f"{node.attr} came after 3.10"


def test_the_project_may_be_installed_on_python_3_10():
    assert PROJECT["project"]["requires-python"] == ">=3.10"
    assert PROJECT["tool"]["ruff"]["target-version"] == "py310"
