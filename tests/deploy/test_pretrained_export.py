"""Pretrained backbones as graphs: what onnxruntime computes is what torch computes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from deploy.commands import export, verify_export
from deploy.commands.verify_export import VerifyExportArgs
from deploy.export import graph
from deploy.runtime import artefact as artefacts
from deploy.targets import onnxruntime as target
from tests.deploy.conftest import made_up, origin
from tests.fakes import PX, TASKS, liven_
from tests.vla.test_pretrained import EVERY, made, settings

QUICK = ("qwen3_vl", "siglip")
"""Whose graph is made in every run of the tests; those of the others take as long each."""


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in EVERY]
)
def test_the_graph_that_sees_and_reads_is_the_backbone(
    kind: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    policy = made(settings(kind, tiny_model(kind)))
    liven_(policy, by=0.02)
    traced = graph.trace(policy, 1)["encode"]
    graph.export(policy, traced, tmp_path / "encode.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "encode.onnx"))
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (1, 2, PX, PX, 3), np.uint8))
    proprio = torch.from_numpy(rng.standard_normal((1, 2), np.float32))
    short = policy.text(TASKS[:1], torch.device("cpu"))
    for words in (short, torch.cat([short, torch.zeros(1, 9, dtype=torch.int64)], 1)):
        given = {"images": images, "proprio": proprio, "token_ids": words}
        asked = {one.name: given[one.name].numpy() for one in session.get_inputs()}
        with torch.no_grad():
            expected = traced.function(*given.values())
        for ours, theirs in zip(expected, session.run(None, asked), strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY)
def test_a_policy_with_it_passes_parity(
    kind: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    policy = made(settings(kind, tiny_model(kind), finetune_mode="lora", lora_rank=2))
    liven_(policy, by=0.02)
    export.export(policy, origin(), tmp_path / "out")
    artefact = artefacts.read(tmp_path / "out")
    assert artefact.manifest.pretrained == policy.config.backbone.source
    assert artefact.manifest.pretrained["name"] == str(tiny_model(kind))
    engine = target.Config().open(artefact)
    args = VerifyExportArgs(reference_checkpoint=tmp_path, dataset=tmp_path, decisions=20, stages=3)
    found = verify_export.compare(policy, artefact, engine, made_up(), args)
    assert max(one.worst for one in found.stages.values()) < 2e-5
    assert not verify_export.failures(found, None, "fp32")
