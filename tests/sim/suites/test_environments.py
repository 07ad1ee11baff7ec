"""`vla env`: environments are whole or absent, tried before they count as working, and listed."""

import dataclasses
import fcntl
import json
import sys

import pytest

import sim.suites
from benchmarks.sim import suite_study
from sim.env_server import env_command, suite_installs
from tests.sim.suites.tiny import ADAPTER, write_suite
from vla import cli

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def known(folder):
    """Make `tiny` a suite of ours while this module's tests run."""
    suites = str(write_suite(folder, VERSION))
    sim.suites.__path__.append(suites)
    yield
    sim.suites.__path__.remove(suites)
    sys.modules.pop("sim.suites.tiny", None)


@pytest.fixture(scope="module")
def installed(folder, known):
    """Install it for all tests that do not take it away; returns what was said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MNEME_ENVS", str(folder / "envs"))
        patch.setenv("PIP_NO_INDEX", "1")
        # What a killed call has left.
        (folder / "envs" / "tiny" / "lib").mkdir(parents=True)
        assert suite_installs.state("tiny") == "half"
        assert cli.main(["env", "add", "tiny"]) == 0
    return folder / "envs"


@pytest.fixture
def there(installed, monkeypatch):
    monkeypatch.setenv("MNEME_ENVS", str(installed))
    return installed


@pytest.fixture
def nowhere(known, tmp_path, monkeypatch):
    monkeypatch.setenv("MNEME_ENVS", str(tmp_path / "envs"))
    return tmp_path / "envs"


def change(monkeypatch, **fields):
    """Change how the environment of the tiny suite is made."""
    module = suite_installs.module("tiny")
    changed = dataclasses.replace(module.ENVIRONMENT, **fields)
    monkeypatch.setattr(module, "ENVIRONMENT", changed)


def test_what_is_added_is_whole_tried_and_written_down(there):
    note = suite_installs.note("tiny")
    assert suite_installs.state("tiny") == "installed"
    assert note.python == VERSION
    assert note.health == suite_installs.Health(
        works=True, detail="tiny/count opens, resets, steps and renders"
    )
    assert note.megabytes > 1
    assert suite_installs.interpreter("tiny") == there / "tiny" / "bin" / "python"


def test_adding_again_changes_nothing(there, capsys):
    before = (there / "tiny" / "pyvenv.cfg").stat().st_mtime_ns
    assert env_command.add(["tiny"]) == 0
    assert (there / "tiny" / "pyvenv.cfg").stat().st_mtime_ns == before
    assert "tiny: 2 tasks" in capsys.readouterr().out


def test_the_list_shows_versions_health_and_what_to_type(there, capsys):
    assert env_command.list_environments([]) == 0
    said = capsys.readouterr().out
    assert f"tiny, Python {VERSION}" in said
    assert "tiny: vla demos tiny/count" in said
    assert "metaworld: vla env add metaworld" in said
    assert str(there) in said


def test_a_suite_that_has_stopped_working_is_found_by_trying_it_again(there, folder, capsys):
    adapter = folder / "adapters" / "tiny.py"
    adapter.write_text(ADAPTER.replace("import tiny_simulator", "raise ValueError('no licence')"))
    try:
        assert env_command.list_environments(["--check"]) == 0
        assert "tiny/count fails: no licence" in capsys.readouterr().out
        assert not suite_installs.note("tiny").health.works
        assert env_command.add(["tiny"]) == 1
    finally:
        adapter.write_text(ADAPTER)
    assert env_command.examine("tiny").works


def test_blank_images_are_no_health(there, folder):
    adapter = folder / "adapters" / "tiny.py"
    adapter.write_text(ADAPTER.replace("self.rng.integers(0, 255, self.image_shape)", "7"))
    try:
        assert env_command.examine("tiny").detail == (
            "tiny/count fails: its first images are blank, its images are blank"
        )
    finally:
        adapter.write_text(ADAPTER)
    assert env_command.examine("tiny").works


def test_an_environment_of_older_pins_is_told_so(there, monkeypatch, capsys):
    change(monkeypatch, requirements=("tiny-simulator==2.0",))
    with pytest.raises(ValueError, match="tiny: installed in older versions; run `vla env add"):
        suite_installs.interpreter("tiny")
    env_command.list_environments([])
    assert "tiny: vla env add tiny" in capsys.readouterr().out


def test_another_python_than_the_installed_one_is_refused(there):
    with pytest.raises(ValueError, match="run `vla env remove tiny` first"):
        suite_installs.make("tiny", "/no/such/python", print)


def test_the_study_of_experts_goes_on_from_what_it_has_written(there, tmp_path, capsys):
    out = tmp_path / "experts.json"
    words = ["tiny", "--episodes", "3", "--out", str(out)]
    assert suite_study.main([*words, "--tasks", "count"]) == 0
    assert json.loads(out.read_text())["tasks"]["count"] == [
        {"index": i, "success": True, "steps": 3} for i in range(3)
    ]
    # One task of two is no longer enough; the other is not played again.
    capsys.readouterr()
    assert suite_study.main(words) == 1
    said = capsys.readouterr().out
    assert "never: 0/3" in said
    assert "count: 3/3" not in said
    assert "1 of 2 tasks at 95% or more" in said
    with pytest.raises(ValueError, match="choose another --out"):
        suite_study.main([*words, "--seed", "1"])


def test_a_failure_of_pip_leaves_nothing_but_its_log(nowhere, monkeypatch):
    change(monkeypatch, requirements=("/no/such/thing.whl",))
    with pytest.raises(ValueError, match=r"tiny: pip failed: ERROR.*thing\.whl.*tiny\.log"):
        suite_installs.make("tiny", None, lambda text: None)
    assert suite_installs.state("tiny") == "no"
    assert "thing.whl" in (nowhere / "tiny.log").read_text()


def test_an_interruption_leaves_nothing(nowhere):
    def say(text):
        if "1 of 1" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        suite_installs.make("tiny", None, say)
    assert suite_installs.state("tiny") == "no"
    assert not suite_installs.place("tiny").exists()


def test_what_is_removed_is_gone_and_removing_it_again_says_so(nowhere, capsys):
    (nowhere / "tiny").mkdir(parents=True)
    (nowhere / "tiny" / suite_installs.NOTE).write_text("{}")
    assert env_command.remove(["tiny"]) == 0
    assert not (nowhere / "tiny").exists()
    assert env_command.remove(["tiny"]) == 0
    assert capsys.readouterr().out == "tiny: removed\ntiny: was not installed; nothing to do\n"


def test_two_calls_do_not_make_the_same_environment_at_once(nowhere):
    nowhere.mkdir()
    with (nowhere / ".tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is installing or removing it"):
            suite_installs.make("tiny", None, print)


def test_a_missing_python_is_one_sentence(nowhere, monkeypatch):
    change(monkeypatch, pythons=("2.1",))
    with pytest.raises(ValueError, match=r"no Python 2\.1 found here; install one \(apt-get"):
        suite_installs.make("tiny", None, print)
    with pytest.raises(ValueError, match=r"--python: got /no/python: no Python that runs"):
        suite_installs.make("tiny", "/no/python", print)
    with pytest.raises(ValueError, match=rf"Python {VERSION}, expected Python 2\.1 \(tiny\)"):
        suite_installs.make("tiny", sys.executable, print)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("env add metawold", "unknown suite 'metawold': did you mean metaworld"),
        ("env remove gymnasium_env", "unknown suite 'gymnasium_env'"),
        ("demos metaworld/push-v3 --out out", "metaworld: not installed; run `vla env add metaw"),
        ("demos metaworld/push-v9 --out out", "got the task 'push-v9', expected one of its 50"),
    ],
)
def test_bad_input_is_one_sentence(nowhere, capsys, monkeypatch, tmp_path, line, said):
    monkeypatch.chdir(tmp_path)
    assert cli.main(line.split()) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith("vla: ")
    assert said in complaint


def test_names_may_be_written_as_package_indexes_do():
    assert suite_installs.check("gym-aloha") == "gym_aloha"
    assert suite_installs.check("gymnasium-robotics") == "gymnasium_robotics"


def test_the_folder_is_the_users_data_folder_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("MNEME_ENVS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert suite_installs.root() == tmp_path / "mneme-vla" / "envs"
