"""The cache of engines: built once, verified before use, whole or not there."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.targets import _engine_cache
from deploy.targets._engine_cache import Key

ROOT = Path(__file__).parents[2]
KEY = Key(
    onnx="ab" * 32, tensorrt="10.3.0", gpu="Orin", capability=(8, 7), system="Linux aarch64",
    precision="fp32", profile={"token_ids": ((1, 1), (1, 4), (1, 256))}, flags=("tf32 False",),
)  # fmt: skip
OTHER = {
    "onnx": "cd" * 32, "tensorrt": "10.3.1", "gpu": "Thor", "capability": (8, 9),
    "system": "Linux x86_64", "precision": "int8",
    "profile": {"token_ids": ((1, 1), (1, 5), (1, 256))}, "flags": ("tf32 True",),
}  # fmt: skip
SLOW = f"""
import sys, time
from pathlib import Path
from deploy.targets import _engine_cache
from deploy.targets._engine_cache import Key
key, folder = {KEY!r}, Path(sys.argv[1])
def build():
    with (folder / "builds").open("a") as file:
        file.write("built\\n")
    time.sleep(float(sys.argv[2]))
    return b"engine" * 1000
found = _engine_cache.get_or_build(_engine_cache.prepare(folder), key, build)
print(found.built, len(found.data))
"""


def unbuilt():
    raise AssertionError("it was to come from the cache")


@pytest.fixture
def folder(tmp_path):
    return _engine_cache.prepare(tmp_path / "engines")


def start(folder, seconds):
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True,
        cwd=ROOT,
    )  # fmt: skip


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_built_comes_from_the_cache_with_a_description(folder):
    assert _engine_cache.get_or_build(folder, KEY, lambda: b"one") == (b"one", True)
    assert _engine_cache.get_or_build(folder, KEY, unbuilt) == (b"one", False)
    said = json.loads((folder / f"{KEY.name}.json").read_text())
    assert said["sha256"] == hashlib.sha256(b"one").hexdigest()
    assert set(said["about"]) == {*OTHER}
    assert said["about"]["capability"] == [8, 7]


def test_the_key_has_no_part_that_is_not_tried_here():
    assert set(OTHER) == set(Key.__dataclass_fields__)


@pytest.mark.parametrize("part", OTHER)
def test_an_engine_that_differs_in_one_part_is_another(folder, part):
    other = replace(KEY, **{part: OTHER[part]})
    _engine_cache.get_or_build(folder, KEY, lambda: b"one")
    assert _engine_cache.get_or_build(folder, other, lambda: b"two") == (b"two", True)
    assert _engine_cache.get_or_build(folder, KEY, unbuilt).data == b"one"
    # Files of one key under the name of another, as a hand that copies would leave them.
    for kind in ("bin", "json"):
        (folder / f"{KEY.name}.{kind}").write_bytes((folder / f"{other.name}.{kind}").read_bytes())
    assert _engine_cache.get_or_build(folder, KEY, lambda: b"three") == (b"three", True)


def tamper(name, change):
    def damage(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return damage


DAMAGE = {
    "one bit": tamper(f"{KEY.name}.bin", lambda b: b[:-1] + bytes([b[-1] ^ 1])),
    "cut": tamper(f"{KEY.name}.bin", lambda b: b[:2]),
    "emptied": tamper(f"{KEY.name}.bin", lambda _: b""),
    "other hash": tamper(f"{KEY.name}.json", lambda b: b.replace(b'"sha256": "', b'"sha256": "0')),
    "other description": tamper(f"{KEY.name}.json", lambda b: b.replace(b"Orin", b"Thor")),
    "description cut": tamper(f"{KEY.name}.json", lambda b: b[:20]),
    "description a list": tamper(f"{KEY.name}.json", lambda _: b"[]"),
    "description lost": lambda folder: (folder / f"{KEY.name}.json").unlink(),
    "engine lost": lambda folder: (folder / f"{KEY.name}.bin").unlink(),
    "others may write it": lambda folder: (folder / f"{KEY.name}.bin").chmod(0o666),
    "others may describe it": lambda folder: (folder / f"{KEY.name}.json").chmod(0o620),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_was_tampered_with_is_built_anew_and_never_used(folder, case):
    _engine_cache.get_or_build(folder, KEY, lambda: b"one")
    DAMAGE[case](folder)
    assert _engine_cache.get_or_build(folder, KEY, lambda: b"again") == (b"again", True)
    assert _engine_cache.get_or_build(folder, KEY, unbuilt).data == b"again"


def test_what_is_discarded_is_built_anew(folder):
    _engine_cache.get_or_build(folder, KEY, lambda: b"one")
    _engine_cache.discard(folder, KEY)
    assert _engine_cache.get_or_build(folder, KEY, lambda: b"two").built


def test_a_build_that_fails_leaves_nothing_and_no_lock(folder):
    with pytest.raises(ValueError, match="no memory"):
        _engine_cache.get_or_build(
            folder, KEY, lambda: (_ for _ in ()).throw(ValueError("no memory"))
        )
    assert not [*folder.glob(f"{KEY.name}.*")]
    assert _engine_cache.get_or_build(folder, KEY, lambda: b"one").built


def test_of_two_processes_one_builds(folder):
    pair = [start(folder, 1.0) for _ in range(2)]
    said = sorted(one.communicate(timeout=60)[0].split()[0] for one in pair)
    assert said == ["False", "True"]
    assert (folder / "builds").read_text() == "built\n"


def test_a_process_killed_while_it_builds_leaves_no_engine_and_no_lock(folder):
    killed = start(folder, 600)
    wait_for(folder / "builds")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(10)
    assert not [*folder.glob(f"{KEY.name}.*")]
    began = time.monotonic()
    assert _engine_cache.get_or_build(folder, KEY, lambda: b"mine") == (b"mine", True)
    assert time.monotonic() - began < 5
    killed.stdout.close()


@pytest.mark.parametrize("at", [1, 2])
def test_killed_while_it_writes_the_old_engine_is_not_taken_for_the_new(folder, at):
    """The process kills itself at each rename: before the engine's, and before the description's"""
    _engine_cache.get_or_build(folder, KEY, lambda: b"old")
    (folder / f"{KEY.name}.json").write_text("{}")  # so that it is built again
    code = f"""
import os, pathlib, signal, sys
from deploy.targets import _engine_cache
from deploy.targets._engine_cache import Key
count, real = 0, pathlib.Path.replace
def replace(self, target):
    global count
    count += 1
    if count == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)
pathlib.Path.replace = replace
_engine_cache.get_or_build(pathlib.Path({str(folder)!r}), {KEY!r}, lambda: b"new")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert _engine_cache.get_or_build(folder, KEY, lambda: b"third") == (b"third", True)
    assert not list(folder.glob(".*.new"))


def test_a_folder_that_others_may_write_is_refused(tmp_path):
    for mode in (0o777, 0o1777, 0o770, 0o702):
        place = tmp_path / f"{mode:o}"
        place.mkdir()
        place.chmod(mode)
        with pytest.raises(ValueError, match=rf"mode {mode:o}; engines are code, .* chmod 700"):
            _engine_cache.prepare(place)


def test_a_folder_inside_one_that_others_may_change_is_refused(tmp_path):
    place = tmp_path / "open" / "engines"
    place.mkdir(parents=True)
    place.parent.chmod(0o777)
    with pytest.raises(ValueError, match=r"open: anyone may replace what is in it \(mode 777\)"):
        _engine_cache.prepare(place)
    place.parent.chmod(0o1777)  # sticky: nobody but its owner may
    assert _engine_cache.prepare(place) == place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_of_somebody_else_is_refused(tmp_path):
    place = tmp_path / "theirs"
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)
    with pytest.raises(ValueError, match=r"owner 65534"):
        _engine_cache.prepare(place)


def test_the_folder_is_made_private_and_can_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MNEME_ENGINES", str(tmp_path / "named"))
    assert _engine_cache.default_folder() == tmp_path / "named"
    assert _engine_cache.prepare(_engine_cache.default_folder()).stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("MNEME_ENGINES")
    assert _engine_cache.default_folder().parts[-3:] == (".cache", "mneme-vla", "engines")


def test_what_helps_builds_is_kept_under_its_description(folder):
    about = {"kind": "timing cache", "gpu": "Orin", "capability": [8, 7]}
    assert _engine_cache.load(folder, about) == b""
    _engine_cache.store(folder, about, b"timings")
    assert _engine_cache.load(folder, about) == b"timings"
    assert _engine_cache.load(folder, {**about, "gpu": "Thor"}) == b""
    file = next(folder.glob("*.bin"))
    file.write_bytes(b"timing!")
    assert _engine_cache.load(folder, about) == b""
