"""The `vla` command: instant help, near names for wrong verbs, one sentence for users' mistakes."""

import errno
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vla import cli


@pytest.fixture
def verb(monkeypatch):
    """Install a verb `try` that raises or returns what it is given and records its arguments."""
    calls = []

    def install(outcome):
        def function(argv):
            calls.append(argv)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(cli, "_load", lambda target: function)
        return calls

    monkeypatch.setitem(cli.VERBS, "try", ("nowhere:main", "for tests"))
    monkeypatch.delenv("MNEME_DEBUG", raising=False)
    return install


@pytest.fixture
def state_home(tmp_path, monkeypatch):
    """Return the folder of the user's logs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_help_has_one_line_per_verb_and_imports_nothing_heavy():
    code = (
        "import sys; from vla import cli; cli.main(['--help'])\n"
        "heavy = {'numpy', 'torch', 'mujoco', 'rich', 'tyro', 'jaxtyping'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in cli.VERBS:
        assert sum(line.startswith(f"  {name}  ") for line in done.stdout.splitlines()) == 1


@pytest.mark.parametrize(("outcome", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_verb_gets_the_remaining_words_and_gives_the_exit_code(verb, outcome, code):
    calls = verb(outcome)
    assert cli.main(["try", "--episodes", "3"]) == code
    assert calls == [["--episodes", "3"]]


def test_a_verb_of_two_words_is_found(verb, monkeypatch):
    calls = verb(None)
    seen = []
    monkeypatch.setattr(cli, "run", lambda target, argv, debug: seen.append((target, argv)) or 0)
    assert cli.main(["bench", "policy", "--threads", "1"]) == 0
    assert seen == [("benchmarks.deploy.policy_latency:main", ["--threads", "1"])]
    assert calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown verb 'trian': did you mean train? known verbs are doctor, tasks"),
        (
            ["bench", "polcy"],
            "unknown verb 'polcy': did you mean policy? known verbs are tiny-model",
        ),
        (["zzz"], "unknown verb 'zzz': known verbs are doctor"),
    ],
)
def test_a_wrong_verb_is_answered_with_the_nearest_and_exit_code_two(words, message, capsys):
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_a_group_alone_lists_its_verbs(capsys):
    assert cli.main(["bench"]) == 2
    assert cli.main(["bench", "--help"]) == 0
    assert capsys.readouterr().out.count("bench policy") == 2


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("K must be\n at least 2"), "vla: K must be at least 2\n"),
        (FileNotFoundError(errno.ENOENT, "gone", "a/b"), "vla: no such file or folder: a/b\n"),
        (PermissionError(errno.EACCES, "No", "a/b"), "vla: no: a/b; give another path"),
        (
            OSError(errno.ENOSPC, "full", "a/b"),
            "vla: disk full at a/b: free space and run the same",
        ),
        (
            RuntimeError("write: No space left on device (os error 28)"),
            "vla: disk full: free space",
        ),
        (
            OSError(errno.EIO, "Input/output error", "a/b"),
            "vla: [Errno 5] Input/output error: 'a/b': see whether the disk is sound, and run",
        ),
        (
            PermissionError(errno.EACCES, "Failed to open local file 'a/b'. Permission denied"),
            "vla: Failed to open local file 'a/b'. Permission denied; give another path, or fix",
        ),
        (ModuleNotFoundError("x", name="lerobot"), "vla: package lerobot is not installed: `vla"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence_and_exit_code_one(verb, error, sentence, capsys):
    verb(error)
    assert cli.main(["try"]) == 1
    assert capsys.readouterr().err.startswith(sentence)


def test_debug_shows_the_traceback(verb, monkeypatch):
    verb(ValueError("K"))
    with pytest.raises(ValueError, match="K"):
        cli.main(["--debug", "try"])
    monkeypatch.setenv("MNEME_DEBUG", "1")
    with pytest.raises(ValueError, match="K"):
        cli.main(["try"])


def test_a_defect_of_ours_is_one_sentence_and_keeps_its_traceback(verb, capsys, state_home):
    verb(ZeroDivisionError("ours"))
    assert cli.main(["try", "--episodes", "3"]) == cli.DEFECT
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "vla: ZeroDivisionError: ours: a defect of this program; report it with" in said
    log = state_home / "mneme-vla" / "errors.log"
    assert str(log) in said
    assert "Traceback (most recent call last)" in log.read_text()
    assert "nowhere:main --episodes 3" in log.read_text()
    assert log.parent.stat().st_mode & 0o77 == 0
    with pytest.raises(ZeroDivisionError, match="ours"):
        cli.main(["--debug", "try"])


def test_an_error_in_a_thread_of_a_library_is_one_sentence_too(monkeypatch, capsys, state_home):
    def main(argv):
        def fail():
            raise OSError(errno.ENOSPC, "full", "a/b")

        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()

    before = threading.excepthook
    monkeypatch.setattr(cli, "_load", lambda target: main)
    assert cli.run("nowhere:main", []) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("vla: a thread ended: disk full at a/b: free space and run the same")
    assert "Traceback" in (state_home / "mneme-vla" / "errors.log").read_text()
    assert threading.excepthook is before


def test_the_log_of_errors_stays_small(verb, state_home, monkeypatch):
    monkeypatch.setattr(cli, "LOG_BYTES", 2000)
    verb(ValueError("x" * 900))
    for _ in range(30):
        assert cli.main(["try"]) == 1
    logs = sorted((state_home / "mneme-vla").iterdir())
    assert [log.name for log in logs] == ["errors.log", "errors.log.1"]
    assert all(log.stat().st_size < 4000 for log in logs)


def test_a_home_that_cannot_be_written_does_not_hide_the_error(verb, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    verb(ZeroDivisionError("ours"))
    assert cli.main(["try"]) == cli.DEFECT
    assert "ours: a defect of this program; report it with what `vla --debug`" in (
        capsys.readouterr().err
    )


def test_a_panic_of_a_library_is_a_defect_and_no_memory_is_a_sentence(verb, capsys, state_home):
    verb(type("PanicException", (BaseException,), {})("in Rust"))
    assert cli.main(["try"]) == cli.DEFECT
    verb(MemoryError("Unable to allocate 8.00 TiB"))
    assert cli.main(["try"]) == 1
    assert "out of memory (Unable to allocate 8.00 TiB): free memory" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error():
    code = "import sys; from vla import cli; sys.exit(cli.main(['--help']))"
    shell = f"'{sys.executable}' -u -c \"{code}\" | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert "BrokenPipe" not in done.stderr
    assert done.stdout.startswith("usage: vla")


def test_a_full_disk_names_the_file_that_is_written(verb, capsys, state_home):
    verb(OSError(errno.ENOSPC, "No space left on device", "/source/a", None, "/target/a"))
    assert cli.main(["try"]) == 1
    assert "disk full at /target/a: free space" in capsys.readouterr().err


def test_an_interrupted_verb_exits_as_shells_expect(verb):
    verb(KeyboardInterrupt())
    assert cli.main(["try"]) == 128 + 2


@pytest.mark.parametrize("name", sorted(cli.VERBS))
def test_every_verb_leads_to_a_module_that_exists(name):
    module, function = cli.VERBS[name][0].split(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"no module {module}"
    assert f"\ndef {function}(argv: list[str])" in Path(spec.origin).read_text()
