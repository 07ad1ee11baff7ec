"""The shape of the tree: walls between folders, empty `__init__`s, listed packages, small files."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[1]
PLUGIN = "lerobot_robot_mneme_ros2"
PLUGINS = (PLUGIN, "lerobot_policy_mneme")
FOLDERS = ("vla", "sim", "reward_models", "training", "deploy", "robot_bridge", *PLUGINS)
MAX_LINES = 450
SOURCES = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def relative(path):
    return path.relative_to(ROOT).as_posix()


def imports(path):
    """Yield (imported module, is it at the top of the file) for each import of a file."""
    tree = ast.parse(path.read_text(), filename=str(path))
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, id(node) in top


def lint_imports(folder):
    """Return (exit code, output) of import-linter on the tree in `folder`."""
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from importlinter.cli import lint_imports\n"
        "sys.exit(lint_imports(no_cache=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path):
    """A copy of our packages, in which a test may break the rules."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__", "*.xml", "*.stl", "*.obj")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    return tmp_path


def test_every_wall_between_the_folders_holds():
    code, output = lint_imports(ROOT)
    assert code == 0, output
    assert "0 broken" in output


@pytest.mark.parametrize(
    ("files", "broken"),
    [
        ({"vla/nn/up.py": "import sim.task"}, "A folder imports only from lower floors"),
        ({"vla/nn/up.py": "import vla.policies"}, "Inside vla: checkpoint, policies"),
        ({"training/up.py": "import deploy"}, "Only a checkpoint passes"),
        ({"deploy/up.py": "import sim.task"}, "Deployment knows neither simulator"),
        ({"robot_bridge/up.py": "import reward_models"}, "Deployment knows neither simulator"),
        ({"deploy/up.py": "import reward_models.curves"}, "Deployment knows neither simulator"),
        ({"reward_models/curves.py": "import reward_models.critic"}, "never reach torch"),
        ({"vla/robots/up.py": "def f():\n    import torch"}, "never reach torch"),
        (  # indirect: the contract sees through the file in between
            {"deploy/between.py": "import torch", "robot_bridge/up.py": "import deploy.between"},
            "never reach torch",
        ),
        ({"robot_bridge/convert.py": "import rclpy"}, "rclpy only in the nodes"),
        ({"robot_bridge/up.py": f"import {PLUGIN}.robot"}, "never reach torch"),
        (
            {"sim/tasks/up.py": "import sim.tasks.down", "sim/tasks/down.py": ""},
            "Plug-ins of sim.tasks never import each other",
        ),
    ],
)
def test_an_import_through_a_wall_is_found(tree, files, broken):
    for name, text in files.items():
        (tree / name).write_text(text + "\n")
    code, output = lint_imports(tree)
    assert code == 1, output
    assert any(broken in line and "BROKEN" in line for line in output.splitlines()), output


@pytest.mark.parametrize(
    "module",
    [
        "vla.cli",
        "vla.contracts.types",
        "vla.robots.so101",
        "sim.task",
        "deploy.critic.deployed",
        "robot_bridge.convert_bag",
        "robot_bridge.recording",
    ],
)
def test_what_the_robot_and_simulator_need_imports_without_torch_or_lerobot(module):
    code = (
        f"import sys, {module}\n"
        "sys.exit(' '.join({'torch', 'lerobot', 'transformers', 'rclpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


INITS = [p for p in SOURCES + TESTS if p.name == "__init__.py" and not set(PLUGINS) & set(p.parts)]


@pytest.mark.parametrize("path", INITS, ids=relative)
def test_an_init_file_holds_a_docstring_and_nothing_else(path):
    body = ast.parse(path.read_text()).body
    assert len(body) == 1, "an __init__.py holds one docstring and no code"
    assert isinstance(body[0], ast.Expr)
    assert isinstance(body[0].value, ast.Constant)
    assert isinstance(body[0].value.value, str)


def test_every_folder_with_code_is_a_package_and_listed_in_pyproject():
    folders = {".".join(p.parent.relative_to(ROOT).parts) for p in SOURCES}
    packages = {".".join(p.parent.relative_to(ROOT).parts) for p in SOURCES if p.stem == "__init__"}
    listed = project()["tool"]["setuptools"]["packages"]
    assert folders == packages, "a folder with code has no __init__.py"
    assert packages == set(listed)
    assert len(listed) == len(set(listed))


def test_launch_is_no_package_because_it_would_shadow_the_one_of_ros():
    assert not list((ROOT / "launch").rglob("__init__.py"))
    assert not any(p.startswith("launch") for p in project()["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=relative)
def test_a_file_holds_one_idea(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{lines} lines: split it"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_module_opens_with_what_it_does_and_reads_no_pickle(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "no module docstring"
    names = {name.split(".")[0] for name, _ in imports(path)}
    assert not names & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    for call in ("torch.load(", "torch.save(", "allow_pickle=True"):
        assert call not in text, f"{call} reads or writes a pickle: use safetensors and JSON"


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if not set(PLUGINS) & set(p.parts)], ids=relative
)
def test_lerobot_is_imported_only_inside_functions_because_it_takes_seconds(path):
    at_top = {name for name, top in imports(path) if top}
    assert not any(name.split(".")[0] == "lerobot" for name in at_top)


def extras(name):
    """Return the names of the packages an extra pulls in, through the extras it names."""
    project_table = project()["project"]
    found = set()
    for requirement in project_table["optional-dependencies"][name]:
        package = requirement.split(">")[0].split("=")[0].split("<")[0].strip()
        if package.startswith("mneme-vla["):
            found |= extras(package[len("mneme-vla[") : -1])
        else:
            found.add(package.split("[")[0])
    return found


@pytest.mark.parametrize("extra", ["sim", "deploy", "ros"])
def test_a_robot_or_a_simulator_installs_neither_torch_nor_lerobot(extra):
    heavy = {"torch", "torchvision", "lerobot", "transformers", "diffusers", "peft", "accelerate"}
    assert extras(extra) & heavy == set()


def test_the_lock_names_one_exact_version_of_everything_declared_and_no_host():
    text = (ROOT / "requirements.lock").read_text()
    rows = [r for r in text.splitlines() if r and not r.startswith("#")]
    assert all("==" in r.split(";")[0] for r in rows)
    assert "://" not in text
    assert "@" not in text
    locked = [r.split("==")[0] for r in rows]
    assert len(locked) == len(set(locked))
    declared = {r.split(">")[0] for r in project()["project"]["dependencies"]}
    for extra in project()["project"]["optional-dependencies"]:
        if extra != "scale":
            declared |= extras(extra)
    assert declared - set(locked) == set()


def test_the_ros_package_and_the_python_package_carry_the_same_version():
    manifest = (ROOT / "package.xml").read_text()
    assert f"<version>{project()['project']['version']}</version>" in manifest
    assert "<name>mneme_vla</name>" in manifest
