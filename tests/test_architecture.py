"""The shape of the tree: walls between folders, empty `__init__`s, listed packages, small files."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import cli_docs
from vla import cli
from vla.contracts import renames

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[1]
PLUGIN = "lerobot_robot_mneme_ros2"
PLUGINS = (PLUGIN, "lerobot_policy_mneme")
FOLDERS = ("vla", "sim", "reward_models", "training", "deploy", "robot_bridge", *PLUGINS)
BENCHMARKS = "benchmarks"
MAX_LINES = 450
MAX_MODULES = 25
MAX_PRODUCT_LINES = 71_100
SOURCES = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
STUDIES = sorted((ROOT / BENCHMARKS).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BANNED = set(
    re.findall(r"\w+", """
    aimed aiming anew apart aside attended begun beside blind conductor execute eyes gatherer
    gated helped helper helpers hopeless judge judged lanes led lest lessons lifted looks mate
    mates mend optimiser optimisers optimising overheard own pessimism picture pictures pilot
    practice practise practised practitioner relay retold retried rewound saboteur sabotage
    sag said shaken silent somebody spots stale steer steered steering stranger stuck talker
    team told twin untold vitals whom worth
    """)
)  # fmt: skip
"""Private words for which the field has a term: docs/glossary.md."""
BANNED_NAMES = set(
    re.findall(r"\w+", """
    earlier environments fresh found given goes_on help kept known mine one preserve
    stand_in stand_ins this toward_noise tuned
    """)
)  # fmt: skip
"""As above, banned only as a whole name."""
VALUE_FUNCTIONS = (
    "actor_critic.py", "algos/asymmetric_ac.py", "algos/residual_ac.py", "algos/dppo.py",
    "algos/ogpo.py", "chunk_critics.py", "chunk_value.py",
)  # fmt: skip
"""Modules in which a critic is a value function or a Q-function, as in RL."""
VALUE_FLAGS = "--algo."
"""As above, how the flags of such settings begin."""


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


def imported(path):
    """Yield what `imports` does, and for `from a import b` also the name `a.b`."""
    tree = ast.parse(path.read_text(), filename=str(path))
    yield from imports(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", False) for alias in node.names)


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
    for folder in (*FOLDERS, BENCHMARKS):
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
        ({"vla/nn/up.py": "import sim.core.task"}, "A folder imports only from lower floors"),
        ({"vla/nn/up.py": "import vla.policies"}, "Inside vla: checkpoint, policies"),
        ({"training/up.py": "import deploy"}, "Only a checkpoint passes"),
        ({"deploy/up.py": "import sim.core.task"}, "Deployment knows neither simulator"),
        (
            {"robot_bridge/launching/up.py": "import reward_models"},
            "Deployment knows neither simulator",
        ),
        (
            {"deploy/up.py": "import reward_models.core.curves"},
            "Deployment knows neither simulator",
        ),
        (
            {"reward_models/core/curves.py": "import reward_models.core.interface"},
            "never reach torch",
        ),
        ({"vla/robots/up.py": "def f():\n    import torch"}, "never reach torch"),
        (  # indirect: the contract sees through the file in between
            {
                "deploy/between.py": "import torch",
                "robot_bridge/launching/up.py": "import deploy.between",
            },
            "never reach torch",
        ),
        ({"robot_bridge/sensing/convert.py": "import rclpy"}, "rclpy only in the nodes"),
        ({"robot_bridge/launching/up.py": f"import {PLUGIN}.robot"}, "never reach torch"),
        ({"training/core/up.py": "import benchmarks.sim"}, "A folder imports only from lower"),
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
        "sim.core.task",
        "deploy.reward_model.deployed",
        "robot_bridge.recording.convert_bag",
        "robot_bridge.recording.recorder",
    ],
)
def test_what_the_robot_and_simulator_need_imports_without_torch_or_lerobot(module):
    code = (
        f"import sys, {module}\n"
        "sys.exit(' '.join({'torch', 'lerobot', 'transformers', 'rclpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


INITS = [
    p
    for p in SOURCES + STUDIES + TESTS
    if p.name == "__init__.py" and not set(PLUGINS) & set(p.parts)
]


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


def test_every_template_and_style_sheet_is_installed():
    files = [
        p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in (".j2", ".css")
    ]
    data = project()["tool"]["setuptools"]["package-data"]
    assert len(files) > 5
    for path in files:
        patterns = data.get(".".join(path.parent.relative_to(ROOT).parts), [])
        assert any(path.match(pattern) for pattern in patterns), path


def test_launch_is_no_package_because_it_would_shadow_the_one_of_ros():
    assert not list((ROOT / "launch").rglob("__init__.py"))
    assert not any(p.startswith("launch") for p in project()["tool"]["setuptools"]["packages"])


def folders():
    """Return the modules of every product folder, by folder."""
    found = {}
    for path in SOURCES:
        if path.stem != "__init__":
            found.setdefault(path.parent, []).append(path)
    return found


def test_no_folder_has_too_many_modules_to_find_one():
    crowded = {relative(f): len(m) for f, m in folders().items() if len(m) > MAX_MODULES}
    assert crowded == {}


def test_product_code_stays_small():
    lines = sum(len(path.read_text().splitlines()) for path in SOURCES)
    assert lines <= MAX_PRODUCT_LINES


def test_imports_between_folders_have_no_cycle():
    home = {}
    for path in SOURCES:
        package = ".".join(path.relative_to(ROOT).parent.parts)
        home[package if path.stem == "__init__" else f"{package}.{path.stem}"] = package
    needs = {package: set() for package in home.values()}
    for path in SOURCES:
        package = ".".join(path.relative_to(ROOT).parent.parts)
        for name, _ in imported(path):
            if name in home and home[name] != package:
                needs[package].add(home[name])
    while free := {package for package, others in needs.items() if not others & needs.keys()}:
        needs = {package: others for package, others in needs.items() if package not in free}
    assert needs == {}, "these folders import each other"


@pytest.mark.parametrize("path", SOURCES + STUDIES + TESTS, ids=relative)
def test_a_file_holds_one_idea(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{lines} lines: split it"


@pytest.mark.parametrize("path", SOURCES + STUDIES, ids=relative)
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


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_names_one_exact_version_of_everything_declared(python):
    rows = [Requirement(row.rstrip(" \\")) for row in lock_rows()]
    place = {
        "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
        "platform_machine": "x86_64",
    }  # fmt: skip
    rows = [row for row in rows if row.marker is None or row.marker.evaluate(place)]
    assert all(str(row.specifier).startswith("==") for row in rows)
    locked = [row.name for row in rows]
    assert len(locked) == len(set(locked))
    declared = {r.split(">")[0] for r in project()["project"]["dependencies"]}
    for extra in project()["project"]["optional-dependencies"]:
        declared |= extras(extra)
    assert declared - set(locked) == set()


def test_the_lock_has_a_hash_of_everything_and_names_no_host():
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert "@" not in text
    blocks = re.split(r"\n(?=[a-z])", text)
    assert len([b for b in blocks if "==" in b]) == len(list(lock_rows()))
    assert all("--hash=sha256:" in block for block in blocks if "==" in block)


def lock_rows():
    """Yield the lines of the lock that name a package."""
    for row in (ROOT / "requirements.lock").read_text().splitlines():
        if row and not row.startswith(("#", " ")):
            yield row


def test_the_ros_package_and_the_python_package_carry_the_same_version():
    manifest = (ROOT / "package.xml").read_text()
    assert f"<version>{project()['project']['version']}</version>" in manifest
    assert "<name>mneme_vla</name>" in manifest


def public_names(path):
    """Yield the public names of a module: of itself, its classes, functions, methods, fields."""
    yield path.stem
    bodies = [ast.parse(path.read_text()).body]
    while bodies:
        for node in bodies.pop():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_":
                yield node.name
                if isinstance(node, ast.ClassDef):
                    bodies.append(node.body)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def private_words(name):
    """Return the banned words in a name, "_" for an underscore at its end."""
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}
    banned = words & (BANNED | {"critic", "critics"})
    return banned | ({name} & BANNED_NAMES) | ({"_"} if re.search(r"[^_]_$", name) else set())


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_public_names_are_words_of_the_field(path):
    allowed = {"critic", "critics"} if relative(path).endswith(VALUE_FUNCTIONS) else set()
    names = {n for n in public_names(path) if not n.startswith("_")} - {"__init__"}
    assert {name: words for name in names if (words := private_words(name) - allowed)} == {}


@pytest.mark.parametrize("verb", cli.VERBS)
def test_flags_are_words_of_the_field_and_not_those_of_an_earlier_release(verb):
    old = {**renames.FLAGS.get("", {}), **renames.FLAGS.get(verb, {})}
    wrong = set()
    for flag in cli_docs.flags(verb):
        name = flag.lstrip("-").replace("-", "_")
        words = set().union(*map(private_words, name.split(".")))
        if flag.startswith(VALUE_FLAGS) and not verb.startswith("reward-model"):
            words -= {"critic", "critics"}
        if (words and flag != "--help") or flag in old or flag.replace("-", "_") in old:
            wrong.add(flag)
    assert wrong == set()


def test_what_earlier_releases_called_otherwise_is_renamed():
    definitions = {}
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                fields = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
                definitions[f"{module}.{node.name}"] = fields
    assert set(renames.CONFIGS) <= set(definitions), "renames.CONFIGS names an unknown class"
    for name, renamed in renames.CONFIGS.items():
        assert not {old for old in renamed if old not in renamed.values()} & definitions[name]
    assert not set(renames.VERBS) & set(cli.VERBS)
