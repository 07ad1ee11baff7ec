"""An exported policy decides as its checkpoint does, and needs no torch to do so."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from deploy.runtime import artefact as artefacts
from deploy.runtime import chain
from deploy.runtime.policy import CACHED, DeployedPolicy, InstructionTokenizer
from deploy.targets import onnxruntime
from tests.deploy.conftest import made, with_steps
from tests.fakes import fake_noise, fake_observation
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Prefix
from vla.nn import diffusion, flow

CLOSE = {"sample": 2e-5, "epsilon": 1e-3, "velocity": 2e-5}
"""Channels of the fake arm range over a few units; FP32 has seven digits. Who predicts the noise
divides what is left of it by the signal, a thousandth of it at the first step.
"""


def deployed(artefact, **more):
    return DeployedPolicy(artefact, onnxruntime.Config().open(artefact), **more)


def together(policy, other, batch, decisions, seed=0):
    """Let both decide on the same observations; return their chunks and slot counts."""
    rng = np.random.default_rng(seed)
    states = [policy.initial_state(batch), other.initial_state(batch)]
    for k in range(decisions):
        # Every row begins anew in the middle, at a time of its own.
        times = [0.0 if k == 10 + row else 0.8 * k + row for row in range(batch)]
        obs, noise = fake_observation(rng, batch, times), fake_noise(rng, policy, batch)
        ours, states[0] = policy.act(obs, states[0], noise)
        theirs, states[1] = other.act(obs, states[1], noise)
        yield ours.values.numpy(), theirs.values, states


@pytest.mark.parametrize("split", [False, True])
def test_it_decides_as_the_checkpoint_does_and_merges_the_same_entries(pair, split):
    policy, artefact = pair
    batch = artefact.manifest.batch
    for ours, theirs, (mine, other) in together(policy, deployed(artefact, split=split), batch, 30):
        assert theirs.dtype == np.float32
        np.testing.assert_allclose(
            theirs, ours, rtol=0, atol=CLOSE[policy.config.head.prediction_type]
        )
        assert other.tensors.keys() == mine.tensors.keys()
        for name, value in other.tensors.items():
            np.testing.assert_allclose(value, mine[name].numpy(), rtol=1e-5, atol=1e-4)


def settled(policy, rng, counts, guided=False):
    """Return a prefix of so many actions in each row, soft behind them if it guides."""
    _, chunk, channels = policy.noise_shape
    weight = np.arange(chunk) < np.array(counts)[:, None]
    soft = 0.5 if guided else 0.0
    return Prefix(
        values=rng.uniform(-0.3, 0.3, (len(counts), chunk, channels)).astype(np.float32),
        mask=np.where(weight, 1.0, soft).astype(np.float32), guided=guided,
    )  # fmt: skip


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("guided", [False, True])
def test_it_goes_on_from_settled_actions_as_the_checkpoint_does(pair, split, guided):
    policy, artefact = pair
    other, rng = deployed(artefact, split=split), np.random.default_rng(1)
    assert other.max_prefix_len == policy.max_prefix_len > 1
    obs, noise = fake_observation(rng, 4, 0.0), fake_noise(rng, policy, 4)
    state = policy.initial_state(4)
    prefix = settled(policy, rng, [0, 1, 2, policy.max_prefix_len], guided)
    ours = policy.act(obs, state, noise, prefix)[0].values.numpy()
    theirs = np.asarray(other.act(obs, other.initial_state(4), noise, prefix)[0].values)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=CLOSE[policy.config.head.prediction_type])
    for values in (ours, theirs):
        done = prefix.mask == 1
        np.testing.assert_allclose(values[done], prefix.values[done], rtol=0, atol=1e-5)
    free = policy.act(obs, state, noise)[0].values.numpy()
    if not guided:  # the first row has no settled action
        np.testing.assert_allclose(ours[0], free[0], rtol=0, atol=1e-5)
    assert np.abs(ours - free)[3, policy.max_prefix_len :].max() > 1e-3  # what follows is another


@pytest.mark.parametrize("torch", [False, True])
def test_a_prefix_that_it_cannot_go_on_from_is_refused(exported, torch):
    policy = made("remembers")
    other = policy if torch else deployed(artefacts.read(exported["remembers"]))
    rng = np.random.default_rng(1)
    obs, noise = fake_observation(rng, 1, 0.0), fake_noise(rng, policy, 1)
    good, far = settled(policy, rng, [5]), settled(policy, rng, [6])
    wrong = {
        "got 6 actions, .* at most 5; train with --policy.head.max_prefix_len 6": far,
        "not 1 for the first actions": replace(good, mask=good.mask[:, ::-1].copy()),
        "a mask from 0.0 to 2.0": replace(good, mask=2 * good.mask),
        r"values float32 \(1, 16, 1\)": replace(good, values=good.values[..., :1]),
        r"expected finite float32 \(1, 16, 2\)": replace(good, values=good.values * np.nan),
    }
    for said, prefix in wrong.items():
        with pytest.raises(ValueError, match=said):
            other.act(obs, other.initial_state(1), noise, prefix)
    other.act(obs, other.initial_state(1), noise, replace(far, guided=True))


def test_rows_that_do_not_fill_its_batch_are_decided_in_groups(exported):
    policy, artefact = made("another"), artefacts.read(exported["another"])
    assert artefact.manifest.batch == 3
    for ours, theirs, _ in together(policy, deployed(artefact), 5, 2):
        assert theirs.shape == ours.shape
        np.testing.assert_allclose(
            theirs, ours, rtol=0, atol=CLOSE[policy.config.head.prediction_type]
        )


def test_the_number_of_denoising_steps_is_chosen_when_it_runs(exported):
    policy, artefact = made("remembers"), artefacts.read(exported["remembers"])
    three = deployed(artefact, num_inference_steps=3)
    assert three.noise_shape == (4, *policy.noise_shape[1:])
    for ours, theirs, _ in together(with_steps(policy, 3), three, 1, 3):
        np.testing.assert_allclose(
            theirs, ours, rtol=0, atol=CLOSE[policy.config.head.prediction_type]
        )


def test_steps_that_have_a_network_of_their_own_are_not_renumbered(exported):
    artefact = artefacts.read(exported["another"])
    with pytest.raises(ValueError, match="got 3, expected 4: the last 2 have a network"):
        deployed(artefact, num_inference_steps=3)


@pytest.mark.parametrize("steps", [1, 3, 6, 7, 100])
def test_the_chain_without_torch_is_the_one_with(steps):
    alphas = diffusion.cosine_alphas(100)
    theirs = diffusion.make_chain(alphas, steps)
    ours = chain.steps("diffusion", [float(a) for a in alphas], steps)
    assert tuple(s.timestep for s in ours) == theirs.timesteps
    np.testing.assert_allclose([s.signal**2 for s in ours], theirs.alphas)
    np.testing.assert_allclose([s.signal_next**2 for s in ours], theirs.alphas_prev)
    np.testing.assert_allclose([s.noise**2 + s.signal**2 for s in ours], 1)


@pytest.mark.parametrize("steps", [1, 3, 6, 7, 1000])
def test_the_flow_without_torch_is_the_one_with(steps):
    theirs = flow.make_chain(1000, steps)
    ours = chain.steps("flow", [float((1 - t) ** 2) for t in flow.times(1000)], steps)
    assert tuple(s.timestep for s in ours) == theirs.timesteps
    np.testing.assert_allclose([s.noise for s in ours], theirs.times, atol=1e-6)
    np.testing.assert_allclose([s.noise_next for s in ours], theirs.times_next, atol=1e-6)
    np.testing.assert_allclose([s.noise + s.signal for s in ours], 1)
    x, clean = np.ones((1, 1, 1), np.float32), np.full((1, 1, 1), 0.5, np.float32)
    tensors, times = map(torch.from_numpy, (x, clean)), (theirs.times[0], theirs.times_next[0])
    mean, _ = flow.transition(*tensors, *times, 0.0, 0.0)
    np.testing.assert_allclose(chain.step(x, clean, ours[0]), mean, rtol=1e-6)


def test_more_steps_than_noise_levels_are_refused():
    with pytest.raises(ValueError, match=r"\[1, 10\], got 11"):
        chain.steps("diffusion", [0.5] * 10, 11)


def test_a_stale_memory_is_forgotten_at_the_first_observation_even_if_it_is_not_a_number(exported):
    policy, artefact = made("remembers"), artefacts.read(exported["remembers"])
    rng = np.random.default_rng(0)
    obs, noise = fake_observation(rng, 1, 0.0), fake_noise(rng, policy, 1)
    other = deployed(artefact)
    empty = other.initial_state(1)
    stale = empty.map(lambda value: value + np.nan)
    for split in (False, True):
        other = deployed(artefact, split=split)
        fresh, again = other.act(obs, empty, noise)[0], other.act(obs, stale, noise)[0]
        np.testing.assert_array_equal(fresh.values, again.values)


def test_what_is_not_a_number_is_not_turned_into_a_command(exported):
    artefact = artefacts.read(exported["remembers"])
    policy, rng = deployed(artefact), np.random.default_rng(0)
    noise = np.zeros((1, *policy.noise_shape), np.float32)
    memory = policy.initial_state(1).map(lambda value: value + np.nan)
    assert np.isnan(policy.act(fake_observation(rng, 1, 1.0), memory, noise)[0].values).all()


def test_what_does_not_fit_its_cameras_arm_or_memory_is_refused_by_name(exported):
    policy = deployed(artefacts.read(exported["remembers"]))
    good, noise = fake_observation(np.random.default_rng(0), 1), np.zeros((1, *policy.noise_shape))
    noise, state = noise.astype(np.float32), policy.initial_state(1)
    wrong = {
        "images: got uint8 .1, 2, 16": (replace(good, images=good.images[:, :, ::2]), state, noise),
        "slot_tokens: got float32 .2": (good, policy.initial_state(2), noise),
        "latent: got float64": (good, state, noise.astype(np.float64)),
    }
    for said, given in wrong.items():
        with pytest.raises(ValueError, match=rf"{said}.* expected .*cameras front, wrist"):
            policy.act(*given)


def test_it_is_a_policy_that_knows_its_arm(pair):
    policy, artefact = pair
    other = deployed(artefact)
    assert isinstance(other, ArmPolicy)
    assert isinstance(policy, ArmPolicy)
    assert (other.n_action_steps, other.noise_shape) == (policy.n_action_steps, policy.noise_shape)
    assert other.robot == policy.robot


def test_it_runs_without_torch(exported):
    code = f"""
import sys
from pathlib import Path
import numpy as np
from vla.runtime import policy_loader
from vla.contracts.types import Observation
policy = policy_loader.open_policy(Path({str(exported["remembers"])!r}), threads=1).policy
camera = policy.robot.cameras[0]
obs = Observation(
    images=np.zeros((1, 2, camera.height_px, camera.width_px, 3), np.uint8),
    image_ok=np.ones((1, 2), bool), proprio=np.zeros((1, 2), np.float32),
    task=("press the red button",), time_s=np.zeros(1),
)
noise = np.zeros((1, *policy.noise_shape), np.float32)
chunk, state = policy.act(obs, policy.initial_state(1), noise)
assert np.isfinite(chunk.values).all() and state["slot_count"].sum() == 1
heavy = {{"torch", "lerobot", "transformers", "mujoco"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_provider_that_is_not_installed_is_refused(exported):
    artefact = artefacts.read(exported["remembers"])
    with pytest.raises(ValueError, match="installed are .*CPUExecutionProvider"):
        onnxruntime.Config(providers=("TensorrtExecutionProvider",)).open(artefact)


def test_the_tokens_of_the_latest_instructions_alone_are_kept(exported):
    tokenize = InstructionTokenizer(artefacts.read(exported["remembers"]).tokenizer)
    first = tokenize(("press the red button",))
    for i in range(CACHED + 50):
        tokenize((f"press button {i}",))
    kept = tokenize.ids.cache_info()
    assert (kept.currsize, kept.maxsize) == (CACHED, CACHED)
    np.testing.assert_array_equal(tokenize(("press the red button",)), first)


def test_what_the_memory_would_never_forget_is_refused(pair):
    policy = deployed(pair[1])
    rng = np.random.default_rng(0)
    obs, noise = fake_observation(rng, 2), fake_noise(rng, policy, 2)
    obs.proprio[1, 0] = np.nan
    with pytest.raises(ValueError, match="proprio: is not finite; hold the arm, and observe again"):
        policy.act(obs, policy.initial_state(2), noise)
