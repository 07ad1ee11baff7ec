"""`vla bench policy` times what it says it times, and writes it down."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.deploy import policy_latency
from benchmarks.deploy.policy_latency import BenchArgs
from deploy.runtime import artefact as artefacts
from deploy.runtime.policy import DeployedPolicy
from deploy.targets import onnxruntime
from tests.deploy.conftest import made, origin
from tests.fakes import fake_policy
from training.commands import report
from vla import checkpoint


@pytest.fixture
def folder(tmp_path) -> Path:
    policy = made("remembers")
    checkpoint.save(policy, origin(), tmp_path / "run", policy.state_dict())
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_target_is_timed_and_what_was_found_is_written(folder, exported, tmp_path, capsys):
    out = tmp_path / "out"
    words = [
        "--checkpoint", str(folder), "--exported", str(exported["remembers"]), "--calls", "12",
        "--decisions", "12", "--pairs", "3", "--no-lerobot", "--out", str(out),
    ]  # fmt: skip
    assert policy_latency.main(words) == 0
    told = json.loads((out / "latency.json").read_text())
    assert set(told["seconds"]) == {
        policy_latency.EAGER,
        policy_latency.WHOLE,
        policy_latency.INT8,
        policy_latency.SPLIT,
    }
    assert (
        told["peak_mb"][policy_latency.WHOLE] < 0.5 * told["peak_mb"][policy_latency.EAGER]
    )  # no torch in there
    page = report.deployed(exported["remembers"], out)
    assert f"{1e3 * told['seconds'][policy_latency.INT8]['p99']:.2f}" in page
    assert "has not been compared with its checkpoint" in page
    assert all(0 < one["p50"] <= one["p95"] <= one["p99"] for one in told["seconds"].values())
    assert list(told["stages"]) == list(artefacts.STAGES)
    assert told["growth"] > 0
    assert (out / "latency.svg").read_text().startswith("<svg")
    assert policy_latency.SPLIT in (out / "latency.html").read_text()
    assert "decision 12 takes" in capsys.readouterr().out


def test_both_decide_on_the_same_and_the_order_changes():
    policy, seen = made("remembers"), []

    def side(name):
        def decide(obs, noise):
            seen.append((name, float(obs.images.sum()) + float(noise.sum())))
            return 1.0 if name == "a" else 2.0

        return decide

    times = policy_latency.race({"a": side("a"), "b": side("b")}, policy, BenchArgs(calls=10))
    assert times["a"].tolist() == [1.0] * 10
    assert times["b"].tolist() == [2.0] * 10
    pairs = list(zip(seen[::2], seen[1::2], strict=True))
    assert all(first[1] == second[1] for first, second in pairs)
    assert [first[0] for first, _ in pairs[:4]] == ["a", "b", "a", "b"]


def test_ours_is_as_large_as_lerobots_and_both_take_the_same_steps():
    policy = fake_policy()
    theirs = policy_latency.lerobots(policy)
    parameters = sum(p.numel() for p in theirs.parameters())
    wide = policy_latency.widened(policy, parameters)
    count = sum(p.numel() for p in wide.parameters())
    assert 0.97 <= count / parameters <= 1.2
    assert wide.noise_shape == theirs.noise_shape == policy.noise_shape
    rng = np.random.default_rng(0)
    camera = policy.robot.cameras[0]
    obs = policy_latency.observe(policy.robot, 3, 0.8, rng)
    assert obs.images.shape[2:4] == (camera.height_px, camera.width_px)
    assert policy_latency.Driver(theirs)(obs, np.zeros((1, *theirs.noise_shape), np.float32)) > 0


def test_an_exported_policy_of_another_checkpoint_is_refused(exported):
    policy = made("remembers")
    other = checkpoint.provenance({"type": "reach"}, ("press",), 8)
    with pytest.raises(ValueError, match="the checkpoint has 8 on reach"):
        policy_latency.exported(policy, other, exported["remembers"], split=False)


def test_a_folder_that_is_no_exported_policy_is_refused(folder):
    with pytest.raises(ValueError, match="no exported policy there"):
        policy_latency.exported(made("remembers"), origin(), folder, split=False)


def test_a_warm_engine_is_asked_for_its_own_graphs_alone(exported):
    artefact = artefacts.read(exported["remembers"])
    engine = onnxruntime.Config().open(artefact)
    whole = DeployedPolicy(artefact, engine)
    noise = np.zeros((1, *whole.noise_shape), np.float32)
    obs = policy_latency.observe(whole.robot, 0, 0.8, np.random.default_rng(0))
    whole.act(obs, whole.initial_state(1), noise)
    assert set(engine.sessions) == {artefacts.ACT}
