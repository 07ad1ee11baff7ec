"""Features of a frozen backbone are kept whole, read back the same, never for something else."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny_models import SMALL
from tests.training.tiny_run import PX, run, tiny_config
from training.algos import bc
from training.core.config import TrainConfig
from training.core.metrics import read_metrics
from training.data import features
from vla import checkpoint
from vla.backbones import tiny, vision_text, vlm


def plan(**changes) -> TrainConfig:
    """Return a tiny run whose backbone begins frozen."""
    config = tiny_config()
    backbone = tiny.Config(image_px=PX, frozen=True)
    return replace(config, policy=replace(config.policy, backbone=backbone), **changes)


def start(data: Path, **changes) -> bc.BehaviorCloning:
    config = plan(**changes)
    return config.algo.start(config, data)


@pytest.mark.parametrize("unit", ["sequence", "frame"])
def test_losses_are_those_of_looking_every_time(unit, arm_dataset, tmp_path) -> None:
    algo = replace(plan().algo, sampling=unit)
    runs = [
        run(
            plan(cache_frozen_features=cached, algo=algo),
            arm_dataset,
            tmp_path / f"cached_{cached}",
        )
        for cached in (False, True)
    ]
    losses = [[row["loss"] for row in read_metrics(one)] for one in runs]
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-4)
    policies = [checkpoint.load(one)[0].state_dict() for one in runs]
    fresh = start(arm_dataset).module.state_dict()
    for name, value in policies[0].items():
        if name.startswith(("backbone.stem", "backbone.look")):
            assert torch.equal(value, fresh[name]), name
            assert torch.equal(policies[1][name], fresh[name]), name


def test_a_batch_has_features_in_place_of_pictures(arm_dataset) -> None:
    plain, kept = (
        start(arm_dataset).collect()[0],
        start(arm_dataset, cache_frozen_features=True).collect()[0],
    )
    learner = start(arm_dataset, cache_frozen_features=True)
    assert kept.images.shape == (*plain.images.shape[:2], 0, 0, 3)
    words = learner.module.text(plain.task, torch.device("cpu"))[plain.episode_index]
    seen = learner.module.backbone.frozen_features(plain.images, words)
    assert kept.features.keys() == seen.keys()
    for name, value in seen.items():
        torch.testing.assert_close(kept.features[name], value, atol=1e-5, rtol=1e-4)


def test_a_store_is_looked_at_once_and_another_where_anything_differs(
    arm_dataset, tmp_path, monkeypatch
) -> None:
    learner = start(arm_dataset)
    first = features.load(learner.module, learner.arms[0].store, tmp_path)
    calls = []
    look = features.encode
    monkeypatch.setattr(features, "encode", lambda *a: calls.append(a) or look(*a))
    again = features.load(learner.module, learner.arms[0].store, tmp_path)
    assert not calls
    assert all(np.array_equal(first[k], again[k]) for k in first)
    name = features.name(learner.module, learner.arms[0].store)
    with torch.no_grad():
        learner.module.backbone.think.weight.add_(1)  # learns: what it is has no say
    assert features.name(learner.module, learner.arms[0].store) == name
    with torch.no_grad():
        learner.module.backbone.stem[0].bias[0] += 1e-3
    other = features.load(learner.module, learner.arms[0].store, tmp_path)
    assert calls
    assert not np.array_equal(other["maps"], first["maps"])
    later = replace(learner.arms[0].store, frame_time=learner.arms[0].store.frame_time + 1)
    assert features.name(learner.module, later) != features.name(
        learner.module, learner.arms[0].store
    )


def test_what_was_killed_on_the_way_goes_on_and_is_whole_or_absent(
    arm_dataset, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(features, "BLOCK", 4)
    learner = start(arm_dataset)
    whole = features.load(learner.module, learner.arms[0].store, tmp_path / "whole")
    look, rows = features.encode, []

    def dying(policy, store, chosen):
        rows.append(int(chosen[0]))
        if len(rows) == 3:
            raise KeyboardInterrupt
        return look(policy, store, chosen)

    monkeypatch.setattr(features, "encode", dying)
    place = tmp_path / "some"
    with pytest.raises(KeyboardInterrupt):
        features.load(learner.module, learner.arms[0].store, place)
    assert not list(place.glob("features-*.zarr"))
    found = features.load(learner.module, learner.arms[0].store, place)
    assert rows[:4] == [0, 4, 8, 8]
    assert all(np.array_equal(whole[k], found[k]) for k in whole)


@pytest.mark.parametrize("how", ["a chunk", "a feature", "bytes"])
def test_a_damaged_store_is_made_anew(how, arm_dataset, tmp_path) -> None:
    learner = start(arm_dataset)
    whole = features.load(learner.module, learner.arms[0].store, tmp_path)
    (place,) = tmp_path.glob("features-*.zarr")
    chunk = next(p for p in (place / "maps").rglob("0") if p.is_file())
    if how == "a chunk":
        chunk.unlink()
    elif how == "bytes":
        data = bytearray(chunk.read_bytes())
        data[10] ^= 1
        chunk.write_bytes(data)
    else:
        (place / "cells" / "zarr.json").unlink()
    found = features.load(learner.module, learner.arms[0].store, tmp_path)
    assert all(np.array_equal(whole[k], found[k]) for k in whole)
    assert json.loads((place / "done.json").read_text())["names"] == ["cells", "maps"]


def test_what_learns_has_nothing_to_keep_and_shaken_pictures_are_refused(arm_dataset) -> None:
    config = tiny_config(cache_frozen_features=True)
    with pytest.raises(ValueError, match="'tiny' has no frozen part; freeze it"):
        config.algo.start(config, arm_dataset)
    with pytest.raises(
        ValueError, match=r"got algo\.random_shift_px 2 and algo\.brightness_jitter 0\.1"
    ):
        plan(cache_frozen_features=True, algo=bc.Config(random_shift_px=2, brightness_jitter=0.1))


def test_features_that_do_not_fit_into_memory_are_refused(
    arm_dataset, tmp_path, monkeypatch
) -> None:
    learner = start(arm_dataset)
    monkeypatch.setattr(features, "available_bytes", lambda: 100)
    with pytest.raises(
        ValueError, match="learn from fewer episodes, or leave --cache-frozen-features out"
    ):
        features.load(learner.module, learner.arms[0].store, tmp_path)


def pretrained(kind: str, model: Path, **more: Any) -> TrainConfig:
    """Return a tiny run whose backbone is a frozen pretrained one."""
    config, plugged = plan(), vlm if kind == "smolvlm" else vision_text
    backbone = plugged.Config(model=str(model), **{**SMALL, **more})
    return replace(config, policy=replace(config.policy, backbone=backbone), steps=3)


@pytest.mark.parametrize("kind", ["smolvlm", "siglip", "dinov2"])
def test_a_frozen_pretrained_backbone_looks_once_and_learns_the_same(
    kind, tiny_model: Callable[[str], Path], arm_dataset, tmp_path
) -> None:
    config = pretrained(kind, tiny_model(kind))
    runs = [
        run(
            replace(config, cache_frozen_features=cached),
            arm_dataset,
            tmp_path / f"cached_{cached}",
        )
        for cached in (False, True)
    ]
    losses = [[row["loss"] for row in read_metrics(one)] for one in runs]
    assert len(losses[0]) == 3
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-4)
    learner = replace(config, cache_frozen_features=True).algo.start(
        replace(config, cache_frozen_features=True), arm_dataset
    )
    called = []
    for part in learner.module.backbone.net.modules():
        part.register_forward_hook(lambda *_: called.append(1))
    learner.module.bc_loss(learner.collect()[0], torch.Generator())
    assert not called
    assert set(learner.features) == ({"seen"} if kind == "dinov2" else {"seen", "last"})


def test_pretrained_features_are_those_of_a_frame_an_instruction_a_size_a_layer_and_weights(
    tiny_model: Callable[[str], Path], arm_dataset
) -> None:
    def name(tasks: tuple[str, ...] = (), kind: str = "smolvlm", **more: Any) -> str:
        config = pretrained("smolvlm", tiny_model(kind), **more)
        learner = config.algo.start(config, arm_dataset)
        info = learner.arms[0].store.info
        store = replace(learner.arms[0].store, info=replace(info, tasks=tasks or info.tasks))
        return features.name(learner.module, store)

    names = [
        name(), name(("something else",) * 3), name(num_vlm_layers=1), name(vision_feature_layer=1),
        name(image_px=64), name(dtype="bfloat16"), name(kind="internvl"),
        name(embed_mib=0),
    ]  # fmt: skip
    assert len(set(names)) == len(names)
    assert name() == names[0]


def test_adapters_that_learn_leave_nothing_to_keep(
    tiny_model: Callable[[str], Path], arm_dataset
) -> None:
    config = pretrained("smolvlm", tiny_model("smolvlm"), finetune_mode="lora", lora_rank=2)
    config = replace(config, cache_frozen_features=True)
    with pytest.raises(ValueError, match=r"pretrained ones: .*backbone.finetune_mode frozen"):
        config.algo.start(config, arm_dataset)
