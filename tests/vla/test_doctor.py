"""The doctor survives probes that crash, hang or fail, and says what to run to mend them."""

import json

import pytest

from vla import doctor, probes

FAKES = """
import os, signal, time
from vla.probes import Missing

def fine():
    print("a library that chats on standard output")
    return "all is well"

def absent():
    raise Missing("package gizmo is not installed")

def failing():
    raise RuntimeError("first line\\nsecond line")

def crashing():
    os.kill(os.getpid(), signal.SIGSEGV)

def hanging():
    time.sleep(60)

def leaving():
    os._exit(0)

def quitting():
    os._exit(3)
"""


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Return a function that makes a probe out of one of the fakes."""
    (tmp_path / "fakes.py").write_text(FAKES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(function, *, required=False):
        return doctor.Probe(
            name=function,
            target=f"fakes:{function}",
            fix="turn it off and on",
            required=required,
            timeout_s=1.0 if function == "hanging" else 30.0,
        )

    return make


@pytest.mark.parametrize(
    ("function", "status", "detail"),
    [
        ("fine", "works", "all is well"),
        ("absent", "missing", "package gizmo is not installed"),
        ("failing", "broken", "RuntimeError: first line second line"),
        ("crashing", "broken", "crashed with signal 11"),
        ("hanging", "broken", "no answer in 1 s"),
        ("leaving", "broken", "ended without an answer"),
        ("quitting", "broken", "exit code 3"),
        ("no_such_function", "broken", "AttributeError: module 'fakes' has no"),
    ],
)
def test_whatever_a_probe_does_becomes_one_finding(probe, function, status, detail):
    finding = doctor.examine(probe(function))
    assert finding.status == status
    assert finding.detail.startswith(detail)
    assert finding.fix == (None if status == "works" else "turn it off and on")


def test_a_line_says_status_name_detail_and_below_it_the_command_that_mends(probe):
    assert doctor.line(doctor.examine(probe("fine"))) == "works    fine         all is well"
    first, second = doctor.line(doctor.examine(probe("absent"))).splitlines()
    assert first == "missing  absent       package gizmo is not installed"
    assert second.strip() == "-> turn it off and on"


@pytest.mark.parametrize(
    ("required", "code", "verdict"), [(True, 1, "cannot run"), (False, 0, "can run")]
)
def test_only_what_the_demo_needs_decides_the_exit_code(
    probe, monkeypatch, capsys, required, code, verdict
):
    monkeypatch.setattr(
        doctor, "PROBES", (probe("fine", required=True), probe("failing", required=required))
    )
    assert doctor.main([]) == code
    assert f"make demo {verdict}" in capsys.readouterr().out
    assert doctor.main(["--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["ready"] is (code == 0)
    assert [part["status"] for part in report["parts"]] == ["works", "broken"]


def test_every_probe_exists_and_says_how_to_mend():
    for probe in doctor.PROBES:
        assert probe.target == ""
        assert callable(getattr(probes, probe.name))
        assert probe.fix


@pytest.mark.parametrize("name", ["egl", "torch", "video"])
def test_what_the_tests_themselves_need_works_here(name):
    (probe,) = (p for p in doctor.PROBES if p.name == name)
    finding = doctor.examine(probe)
    assert finding.status == "works", finding


@pytest.mark.ros
def test_a_message_from_another_process_arrives_over_dds():
    (probe,) = (p for p in doctor.PROBES if p.name == "rclpy")
    finding = doctor.examine(probe)
    assert finding.status == "works", finding
    assert "heard another process" in finding.detail


def test_a_port_of_shared_memory_that_was_never_completed_is_named(tmp_path, monkeypatch):
    for name, size in (
        ("fastdds_port7411", 0),
        ("fastdds_port7413", 9),
        ("fastdds_port7413_el", 0),
    ):
        (tmp_path / name).write_bytes(bytes(size))
    monkeypatch.setattr(probes, "SHARED_MEMORY", tmp_path)
    with pytest.raises(RuntimeError, match=r"fastdds_port7411 is empty: .* remove the file"):
        probes.rclpy()
    (tmp_path / "fastdds_port7411").unlink()
    assert probes.broken_ports(tmp_path) == []
