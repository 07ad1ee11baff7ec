"""The TensorRT target against its recorded interfaces; no GPU here, so engines are ONNX Runtime's.

What is real: the calls, their order and arguments, the cache, addresses, shapes and streams. What
is not: that NVIDIA's builder takes the graphs, and every time.
"""

import gc
import importlib
import inspect
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest

from deploy.runtime import artefact as artefacts
from deploy.runtime.policy import DeployedPolicy
from deploy.targets import onnxruntime, tensorrt
from deploy.targets._cuda import Device
from tests.deploy import fake_cuda, fake_tensorrt
from tests.fakes import fake_noise, fake_observation

TEN = [v for v in fake_tensorrt.VERSIONS if v.startswith("10.")]
ELEVEN = [v for v in fake_tensorrt.VERSIONS if v.startswith("11.")]


@pytest.fixture
def cuda(monkeypatch):
    made = fake_cuda.Runtime()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", made)
    return made


@pytest.fixture
def install(cuda, monkeypatch):
    """Return a function that installs a version of TensorRT."""

    def put(version):
        made = fake_tensorrt.Library(version, cuda)
        monkeypatch.setitem(sys.modules, "tensorrt", made)
        return made

    return put


@pytest.fixture
def config(tmp_path):
    return tensorrt.Config(cache=tmp_path / "engines")


@pytest.fixture
def artefact(exported):
    return artefacts.read(exported["remembers"])


def sides(artefact, config, **more):
    """Return the policy by ONNX Runtime and by TensorRT."""
    return [
        DeployedPolicy(artefact, one.open(artefact), **more)
        for one in (onnxruntime.Config(), config)
    ]


def same(first, second, rows, decisions, seed=0):
    """Let both decide with a memory each; they must agree."""
    rng = np.random.default_rng(seed)
    states = [first.initial_state(rows), second.initial_state(rows)]
    for k in range(decisions):
        obs, noise = fake_observation(rng, rows, 0.8 * k), fake_noise(rng, first, rows)
        ours, states[0] = first.act(obs, states[0], noise)
        theirs, states[1] = second.act(obs, states[1], noise)
        np.testing.assert_allclose(theirs.values, ours.values, rtol=0, atol=1e-6)
        for name, one in states[0].tensors.items():
            np.testing.assert_allclose(states[1][name], one, rtol=0, atol=1e-6)


# --- the whole way -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", fake_tensorrt.VERSIONS)
@pytest.mark.parametrize("split", [False, True])
def test_it_decides_as_onnx_runtime_does(version, split, artefact, config, install, cuda):
    library = install(version)
    ours, theirs = sides(artefact, config, split=split)
    same(ours, theirs, 1, 12)
    assert all(network.typed for network in library.networks)
    assert library.builds == (4 if split else 1)
    assert cuda.launched > 0
    assert all(one["cuda_graph"] for one in theirs.runner.stats().values())


def test_rows_in_groups_do_not_overwrite_each_other(exported, config, install):
    install(TEN[0])
    for split in (False, True):
        ours, theirs = sides(artefacts.read(exported["another"]), config, split=split)
        same(ours, theirs, 5, 3)


def test_an_instruction_of_another_length_is_run_and_what_was_recorded_is_not(
    artefact, config, install, cuda
):
    install(ELEVEN[0])
    ours, theirs = sides(artefact, config)
    rng, launched = np.random.default_rng(0), []
    state = ours.initial_state(1)
    for task in ["press the red button"] * 3 + ["red"] * 3 + ["press the red button"] * 2:
        obs = replace(fake_observation(rng, 1), task=(task,))
        noise = fake_noise(rng, ours, 1)
        ours_, theirs_ = ours.act(obs, state, noise)[0], theirs.act(obs, state, noise)[0]
        np.testing.assert_allclose(theirs_.values, ours_.values, rtol=0, atol=1e-6)
        launched.append(cuda.launched)
    assert launched == [0, 1, 2, 2, 3, 4, 4, 5]
    with pytest.raises(ValueError, match=r"token_ids: got \(1, 300\), .* at most 256 .* shorten"):
        theirs.act(replace(obs, task=("red " * 300,)), state, noise)


def test_without_recording_every_run_is_enqueued(artefact, config, install, cuda):
    install(TEN[0])
    same(*sides(artefact, replace(config, use_cuda_graph=False)), 1, 4)
    assert cuda.launched == 0


def test_a_network_that_cannot_be_recorded_runs_all_the_same(artefact, config, install, cuda):
    install(TEN[0])
    cuda.broken["cudaGraphInstantiate"] = fake_cuda.cudaError_t.cudaErrorInvalidValue
    ours, theirs = sides(artefact, config)
    same(ours, theirs, 1, 4)
    assert theirs.runner.stats()["act"]["cuda_graph"] is False


def test_the_profile_comes_from_the_instructions_it_was_trained_on(artefact):
    ids = [len(artefact.tokenizer.encode(line).ids) for line in artefact.manifest.instructions]
    graph = artefact.manifest.graphs["act"]
    found = tensorrt.profile(graph, tensorrt.usual_tokens(artefact))
    assert found == {"token_ids": ((1, 1), (1, max(ids)), (1, artefacts.MAX_LENGTH))}


def test_memory_of_the_gpu_is_given_back(artefact, config, install, cuda):
    install(TEN[0])
    same(*sides(artefact, config), 1, 2)
    assert cuda.memory
    gc.collect()
    assert not cuda.memory
    assert not cuda.streams


# --- the cache -----------------------------------------------------------------------------------


def test_an_engine_is_built_once_and_timings_help_the_next(artefact, config, install):
    library = install(TEN[0])
    for _ in range(2):
        same(*sides(artefact, config), 1, 2)
    assert library.builds == 1
    same(*sides(artefact, replace(config, builder_optimization_level=5)), 1, 2)
    assert library.builds == 2
    kept = [f.read_bytes() for f in config.cache.glob("*.bin")]
    assert b"timed;timed;" in kept


def test_a_cached_engine_that_was_changed_is_built_anew(artefact, config, install):
    library = install(TEN[0])
    same(*sides(artefact, config), 1, 2)
    plans = [f for f in config.cache.glob("*.bin") if f.stat().st_size > 10_000]
    plans[0].write_bytes(plans[0].read_bytes()[:-1] + b"!")
    same(*sides(artefact, config), 1, 2)
    assert library.builds == 2


def test_an_engine_of_another_version_is_not_loaded(artefact, config, install):
    for version in fake_tensorrt.VERSIONS:
        library = install(version)
        same(*sides(artefact, config), 1, 2)
        assert library.builds == 1


def test_what_the_runtime_does_not_load_is_built_once_more_and_then_refused(
    artefact, config, install, monkeypatch
):
    library = install(TEN[0])
    monkeypatch.setattr(fake_tensorrt._Runtime, "deserialize_cuda_engine", lambda *_, **__: None)
    with pytest.raises(ValueError, match=r"act.onnx: TensorRT does not load what it built"):
        same(*sides(artefact, config), 1, 1)
    assert library.builds == 2


# --- refusals ------------------------------------------------------------------------------------


def test_what_is_missing_is_named_with_what_to_install(artefact, config, monkeypatch, install):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(ValueError, match=r"TensorRT is not installed; on a Jetson .* JetPack"):
        config.open(artefact)
    library = install(TEN[0])
    library.__version__ = "8.5.2"
    with pytest.raises(ValueError, match=r"TensorRT 8.5.2 is installed, expected 10 or 11"):
        config.open(artefact)
    install(TEN[0])
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(ValueError, match=r"binding is not installed; pip install cuda-bindings"):
        config.open(artefact)


def test_what_goes_wrong_on_the_gpu_is_one_sentence(artefact, config, install, cuda):
    errors = fake_cuda.cudaError_t
    install(TEN[0])
    cuda.broken["cudaMalloc"] = errors.cudaErrorMemoryAllocation
    with pytest.raises(ValueError, match=r"CUDA: cudaErrorMemoryAllocation: .*free the GPU's"):
        same(*sides(artefact, config), 1, 1)
    cuda.broken = {"cudaGetDeviceCount": errors.cudaErrorInsufficientDriver}
    with pytest.raises(ValueError, match=r"CUDA finds no GPU .cudaErrorInsufficientDriver."):
        config.open(artefact)


def test_what_the_parser_or_builder_says_is_in_the_refusal(artefact, config, install, monkeypatch):
    install(ELEVEN[0])
    del fake_tensorrt.API["operators"]["ArgMin"]
    try:
        with pytest.raises(ValueError, match=r"does not read it: no importer .* ArgMin; export"):
            same(*sides(artefact, config), 1, 1)
    finally:
        fake_tensorrt.API["operators"]["ArgMin"] = ["FP32"]
    monkeypatch.setattr(tensorrt, "profile", lambda *_: {})
    with pytest.raises(ValueError, match=r"builds no engine: token_ids: dynamic input is missing"):
        same(*sides(artefact, config), 1, 1)


def test_bytes_made_for_cpus_are_refused(artefact, config, install):
    install(TEN[0])
    manifest = replace(artefact.manifest, precision="int8")
    with pytest.raises(ValueError, match=r"int8 is made for CPUs .* export with --precision fp16"):
        config.open(replace(artefact, manifest=manifest))


def test_a_graph_that_was_changed_since_it_was_opened_is_refused(
    exported, config, install, tmp_path
):
    install(TEN[0])
    folder = shutil.copytree(exported["remembers"], tmp_path / "copy")
    artefact = artefacts.read(folder)
    policy = DeployedPolicy(artefact, config.open(artefact))
    (folder / "act.onnx").write_bytes(b"another")
    obs = fake_observation(np.random.default_rng(0), 1)
    with pytest.raises(ValueError, match=r"act.onnx: was changed since it was opened"):
        policy.act(obs, policy.initial_state(1), np.zeros((1, *policy.noise_shape), np.float32))


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="builder_optimization_level: got 6, expected at most 5"):
        tensorrt.Config(builder_optimization_level=6)
    with pytest.raises(ValueError, match="workspace_mib: got 0, expected at least 1"):
        tensorrt.Config(workspace_mib=0)


# --- the recorded interface ----------------------------------------------------------------------


@pytest.mark.parametrize("version", ELEVEN)
def test_a_name_that_was_removed_is_an_error_and_what_is_there_is_not(version, cuda):
    library = fake_tensorrt.Library(version, cuda)
    for name in ("FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS"):
        with pytest.raises(AttributeError):
            getattr(library.BuilderFlag, name)
    with pytest.raises(AttributeError):
        _ = library.NetworkDefinitionCreationFlag.EXPLICIT_BATCH
    assert library.BuilderFlag.TF32
    assert fake_tensorrt.Library(TEN[0], cuda).BuilderFlag.FP16  # it was there before


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (ELEVEN[0], "settings.set_flag(trt.BuilderFlag.FP16)"),
        (ELEVEN[0], "builder.create_network(1 << int("
         "trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))"),
        (ELEVEN[0], "builder.platform_has_fast_fp16"),
        (TEN[0], "builder.max_workspace_size = 1"),
        (TEN[0], "settings.max_workspace_size = 1"),
    ],
)  # fmt: skip
def test_a_target_that_used_what_is_not_there_would_fail(version, code, install):
    trt = install(version)
    builder = trt.Builder(tensorrt._log(trt))
    names = {"trt": trt, "builder": builder, "settings": builder.create_builder_config()}
    with pytest.raises(AttributeError):
        exec(code, names)


def test_arguments_that_no_signature_takes_are_an_error(install):
    trt = install(TEN[0])
    builder = trt.Builder(logger=tensorrt._log(trt))
    settings = builder.create_builder_config()
    for wrong in (
        lambda: settings.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE),
        lambda: settings.set_timing_cache(settings.create_timing_cache(b""), mismatch=False),
        lambda: builder.create_network(0, 1),
    ):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            wrong()
    with pytest.raises(AttributeError, match="build_engine is not in TensorRT"):
        builder.build_engine(None, None)
    with pytest.raises(NotImplementedError):
        builder.reset()
    with pytest.raises(TypeError, match="its base was not initialised"):
        trt.Builder(object())


@pytest.mark.parametrize("version", TEN)
def test_a_network_of_ten_without_the_flag_is_not_strongly_typed(version, install):
    trt = install(version)
    builder = trt.Builder(tensorrt._log(trt))
    builder.create_network(0)
    builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert [network.typed for network in trt.networks] == [False, True]


def test_graphs_give_the_parser_types_that_it_takes(exported):
    for folder in exported.values():
        for name in artefacts.read(folder).manifest.graphs:
            assert fake_tensorrt.refused((folder / f"{name}.onnx").read_bytes()) == []


def test_bytes_that_are_more_than_cast_would_be_refused():
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])]
    ports = [helper.make_tensor_value_info(n, kinds.UINT8, [2, 3]) for n in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:]))
    assert fake_tensorrt.refused(model.SerializeToString()) == ["Transpose of UINT8"]


def test_calls_of_cuda_are_those_of_the_real_binding():
    real = pytest.importorskip("cuda.bindings.runtime")
    for name in re.findall(
        r"runtime\.(cuda\w+)", inspect.getsource(sys.modules[Device.__module__])
    ):
        theirs, ours = getattr(real, name), getattr(fake_cuda.Runtime, name)
        if inspect.isfunction(ours):
            given = re.search(r"\((.*)\)", theirs.__doc__.split("\n")[0])[1]
            named = [part.split(":")[0].split()[-1] for part in given.split(",") if part]
            assert [*inspect.signature(ours).parameters][1:] == named, name
    for kind in ("cudaMemcpyKind", "cudaStreamCaptureMode", "cudaError_t"):
        for member in getattr(fake_cuda, kind):
            assert int(getattr(getattr(real, kind), member.name)) == member.value


def test_the_real_binding_without_a_gpu_is_refused():
    real = pytest.importorskip("cuda.bindings.runtime")
    if real.cudaGetDeviceCount()[0] == real.cudaError_t.cudaSuccess:
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"CUDA finds no GPU \(cudaError\w+\); install"):
        Device()


@pytest.mark.trt
def test_the_real_library_decides_as_onnx_runtime_does(artefact, config):
    """Needs TensorRT and a GPU: it has never been run by us."""
    importlib.import_module("tensorrt")
    ours, theirs = sides(artefact, config)
    rng, state = np.random.default_rng(0), ours.initial_state(1)
    for k in range(12):
        obs, noise = fake_observation(rng, 1, 0.8 * k), fake_noise(rng, ours, 1)
        chunk, new = ours.act(obs, state, noise)
        np.testing.assert_allclose(theirs.act(obs, state, noise)[0].values, chunk.values, atol=1e-3)
        state = new
