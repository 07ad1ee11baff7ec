"""Pretrained backbones: what transformers computes, what of it learns, what a checkpoint holds."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fake_episodes import fake_robot
from tests.fakes import (
    PX,
    STATISTICS,
    TASKS,
    as_batch,
    fake_noise,
    fake_observation,
    fake_rollout,
)
from tests.tiny_models import SMALL, TOWERS, VLMS
from training.core.optimizer import Optimizer, OptimizerConfig
from vla import checkpoint
from vla.backbones import vision_text, vlm
from vla.heads import diffusion
from vla.memory import bank
from vla.nn import families, qwen
from vla.nn.pretrained import PretrainedConfig
from vla.nn.token_pooling import resized
from vla.nn.transformers_versions import FIVE, image_processor
from vla.policies import vla
from vla.policies.vla import VLAPolicy

Models = Callable[[str], Path]
EVERY = (*VLMS, *TOWERS)
LINE = "press the red button now"


def settings(kind: str, folder: Path, **more: Any) -> PretrainedConfig:
    """Return the settings of the backbone that takes a family of models."""
    config = vision_text.Config if kind in TOWERS else vlm.Config
    return config(model=str(folder), **{**SMALL, **more})


def made(backbone: PretrainedConfig, steps: int = 2) -> VLAPolicy:
    """Return a small policy with a backbone."""
    config = vla.Config(
        chunk_size=4, n_action_steps=2, backbone=backbone, memory=bank.Config(slots=5, recent=1),
        head=diffusion.Config(num_inference_steps=steps),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  initial weights come from the global generator
        return config.build(fake_robot(PX), STATISTICS, backbone.tokenizer(TASKS)).eval()


def saved(policy: VLAPolicy, folder: Path) -> Path:
    origin = checkpoint.provenance({"type": "reach"}, TASKS, 7)
    checkpoint.save(policy, origin, folder, policy.state_dict())
    return folder


def acted(policy: VLAPolicy) -> Tensor:
    """Return what a policy does twice in a row."""
    rng = np.random.default_rng(5)
    state, found = policy.initial_state(2), []
    for t in (0.0, 0.8):
        chunk, state = policy.act(fake_observation(rng, 2, t), state, fake_noise(rng, policy, 2))
        found.append(chunk.values)
    return torch.cat(found)


def trained(policy: VLAPolicy, steps: int) -> list[float]:
    """Return the losses of some updates on one batch, always with the same noise."""
    rng = np.random.default_rng(3)
    batch = as_batch(list(fake_rollout(rng, 2, 3)), [3, 3], [1, 4, 5], 4, rng)
    optimizer = Optimizer(OptimizerConfig(lr=3e-3, warmup_steps=1), policy.train(), 1000)
    generator = torch.Generator()
    losses = []
    for _ in range(steps):
        loss, _ = policy.bc_loss(batch, generator.manual_seed(0))
        optimizer.step(loss)
        losses.append(float(loss.detach()))
    policy.eval()
    return losses


def straight(embeddings: Any) -> Callable[..., Tensor]:
    """Return SmolVLM's patch embedding with places in their order, as in the 16 bits it learned in.

    In 32 bits transformers 4.57 rounds every row and column but the first one down by one.
    """

    def forward(pixel_values: Tensor, patch_attention_mask: Tensor) -> Tensor:
        x = embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return x + embeddings.position_embedding.weight

    return forward


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # InternVL's processor
@pytest.mark.parametrize("kind", VLMS)
def test_a_prompt_gives_the_hidden_state_that_transformers_gives(
    kind: str, tiny_model: Models
) -> None:
    from transformers import AutoModelForImageTextToText

    folder = tiny_model(kind)
    config = settings(kind, folder)
    words = config.tokenizer(())
    net = config.build(2, 3, words.get_vocab_size(), 10).eval()
    model = AutoModelForImageTextToText.from_pretrained(folder).eval().model
    processor = families.load_processor(folder, model.config)
    images = np.random.default_rng(0).integers(0, 256, (1, 2, 32, 32, 3), np.uint8)
    if processor.chat_template:
        content = [{"type": "image"}] * 2 + [{"type": "text", "text": LINE}]
        asked = [{"role": "user", "content": content}]
        text = processor.apply_chat_template(asked, add_generation_prompt=True)
    else:
        text = f"<image><image>{LINE}"
    if kind == "smolvlm":
        embeddings = model.vision_model.embeddings
        embeddings.forward = straight(embeddings)
        pixels = torch.from_numpy(images).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
        ids = torch.tensor(processor(text=[text])["input_ids"])
        inputs = {"input_ids": ids, "pixel_values": pixels}
    else:
        cut = {"crop_to_patches": False} if kind == "internvl" else {}
        inputs = processor(
            text=[text], images=[list(images[0])], return_tensors="pt", images_kwargs=cut
        )
    told = torch.tensor([[*words.encode(LINE).ids, 0, 0]])
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state[:, -1]
        seen, last = net.features(torch.from_numpy(images), told)
    torch.testing.assert_close(last, expected, atol=1e-4, rtol=1e-4)
    assert seen.shape == (1, 2, net.net.size.tokens**2, 32)


@pytest.mark.parametrize("kind", TOWERS)
def test_a_tower_sees_what_transformers_sees(kind: str, tiny_model: Models) -> None:
    from transformers import AutoModel

    config = settings(kind, tiny_model(kind))
    words = config.tokenizer(TASKS)
    net = config.build(1, 3, words.get_vocab_size(), 10).eval()
    model = AutoModel.from_pretrained(tiny_model(kind)).eval()
    images = torch.randint(0, 256, (1, 1, 32, 32, 3), generator=torch.Generator().manual_seed(0))
    mean, std = net.mean, net.std
    pixels = (images[:, 0].permute(0, 3, 1, 2) / 255.0 - mean) / std
    told = torch.tensor([[*words.encode(LINE).ids, 0]])
    with torch.no_grad():
        seen, last = net.features(images, told)
        if kind == "dinov2":
            expected = model(pixels).last_hidden_state[:, 1:]
            assert torch.equal(last, told)  # it knows no words: ours are learned beside it
        else:
            expected = model.vision_model(pixels).last_hidden_state
            ids = torch.zeros(1, 16, dtype=torch.int64)
            ids[0, : told.shape[1] - 1] = told[0, :-1]
            assert_close(last, model.text_model(ids).pooler_output)
    assert_close(seen[:, 0], expected)


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("side", [24, 56])
def test_pictures_are_resized_as_torch_resizes_them(side: int) -> None:
    images = torch.rand(2, 3, 40, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.interpolate(
        images, (side, side), mode="bilinear", antialias=True
    )
    torch.testing.assert_close(resized(images, side), expected)


def test_windows_that_do_not_divide_a_picture_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    from benchmarks import tiny_models

    # Windows of 32 pixels, which are 2 x 2 tokens; a picture of 48 has 3 x 3.
    folder = tiny_models.save_qwen25(tmp_path / "model", tiny_models.Sizes(image_px=64, layers=3))
    tower = AutoModelForImageTextToText.from_pretrained(folder).eval().model.visual
    processor = image_processor(folder, torchvision=True)
    pictures = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    made = processor(images=list(pictures), return_tensors="pt", do_rescale=False)
    sight = qwen.QwenVision(tower, 3)
    assert sight.near.sum(1).unique().tolist() == [4, 8, 16]  # patches that a patch sees
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (processor.image_mean, processor.image_std))
    with torch.no_grad():
        expected = tower(made["pixel_values"], grid_thw=made["image_grid_thw"])
        expected = getattr(expected, "pooler_output", expected)
        found, deep = sight(tower, (pictures - mean) / std)
    torch.testing.assert_close(found.flatten(0, 1), expected, atol=1e-5, rtol=1e-5)
    assert deep == []


TUNED = [(kind, ("frozen", "lora", "full")[i % 3]) for i, kind in enumerate(EVERY)]


@pytest.mark.parametrize(("kind", "tune"), [*TUNED, ("qwen3_vl", "frozen"), ("smolvlm", "full")])
def test_it_learns_is_saved_and_loads_to_the_same_actions_without_the_models_folder(
    kind: str, tune: str, tiny_model: Models, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model(kind), tmp_path / "model")
    policy = made(settings(kind, folder, finetune_mode=tune, lora_rank=4))
    net = policy.backbone.net
    before = {name: value.clone() for name, value in net.state_dict().items()}
    losses = trained(policy, 8)
    assert losses[-1] < 0.9 * losses[0]
    learns = {name for name, weight in net.named_parameters() if weight.requires_grad}
    moved = {n for n, value in net.state_dict().items() if not torch.equal(value, before[n])}
    if tune == "full":
        assert len(moved) > 0.9 * len(before)
    else:
        assert moved == {name for name in before if "lora_" in name}
        assert bool(moved) == (tune == "lora")
    assert learns == (set(before) & learns if tune == "full" else moved)
    shutil.rmtree(folder)
    loaded, _ = checkpoint.load(saved(policy, tmp_path / "checkpoint"))
    assert loaded.config == policy.config
    assert torch.equal(acted(loaded), acted(policy))


def test_what_is_frozen_is_not_in_the_optimiser(tiny_model: Models) -> None:
    policy = made(settings("smolvlm", tiny_model("smolvlm"), finetune_mode="lora", lora_rank=2))
    inside = {id(p) for group in Optimizer(OptimizerConfig(), policy, 10).adam.param_groups
              for p in group["params"]}  # fmt: skip
    for name, weight in policy.named_parameters():
        assert (id(weight) in inside) == ("backbone.net." not in name or "lora_" in name)


@pytest.mark.parametrize("kind", EVERY)
def test_adapters_learn_the_same_from_activations_computed_twice(
    kind: str, tiny_model: Models
) -> None:
    found = []
    for checkpointing in (False, True):
        folder = tiny_model(kind)
        policy = made(
            settings(
                kind,
                folder,
                finetune_mode="lora",
                lora_rank=2,
                gradient_checkpointing=checkpointing,
            )
        )
        rng = np.random.default_rng(3)
        batch = as_batch(list(fake_rollout(rng, 2, 2)), [2, 2], [1, 3], 4, rng)
        policy.train().bc_loss(batch, torch.Generator().manual_seed(0))[0].backward()
        found.append({n: p.grad for n, p in policy.named_parameters() if "lora_B" in n})
    kept, twice = found
    assert any(grad.any() for grad in kept.values())
    assert all(torch.equal(grad, twice[name]) for name, grad in kept.items())


@pytest.mark.parametrize("kind", EVERY)
def test_activations_computed_twice_give_the_same_gradient(kind: str, tiny_model: Models) -> None:
    found = []
    for checkpointing in (False, True):
        tuned = settings(
            kind, tiny_model(kind), finetune_mode="full", gradient_checkpointing=checkpointing
        )
        policy = made(tuned).train()
        calls = []
        layers = policy.backbone.net.modules()
        first = next(m for m in layers if type(m).__name__.endswith(("MLP", "Mlp")))
        first.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        rng = np.random.default_rng(3)
        batch = as_batch(list(fake_rollout(rng, 2, 2)), [2, 2], [1, 3], 4, rng)
        policy.bc_loss(batch, torch.Generator().manual_seed(0))[0].backward()
        found.append((policy, len(calls)))
    (a, once), (b, twice) = found
    assert twice == 2 * once
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_the_model_runs_once_per_decision_however_often_is_denoised(tiny_model: Models) -> None:
    for steps in (1, 6):
        policy = made(settings("smolvlm", tiny_model("smolvlm")), steps=steps)
        calls: dict[str, int] = {"net": 0, "denoiser": 0}

        def count(name: str, calls: dict[str, int] = calls) -> Callable[..., None]:
            return lambda *_: calls.update({name: calls[name] + 1})

        policy.backbone.net.register_forward_hook(count("net"))
        policy.head.denoiser.register_forward_hook(count("denoiser"))
        acted(policy)
        assert calls == {"net": 2, "denoiser": 2 * steps}


def test_a_layer_may_be_the_last_and_another_the_one_that_looks(tiny_model: Models) -> None:
    folder = tiny_model("paligemma")
    whole, cut = (made(settings("paligemma", folder, num_vlm_layers=layer)) for layer in (0, 1))
    assert [len(p.backbone.net.language.layers) for p in (whole, cut)] == [2, 1]
    images = torch.zeros(1, 2, PX, PX, 3)
    words = whole.text(TASKS[:1], torch.device("cpu"))
    inner = made(settings("paligemma", folder, vision_feature_layer=1))
    (seen, last), (looked, same) = (p.backbone.features(images, words) for p in (whole, inner))
    assert torch.equal(last, same)
    assert not torch.allclose(seen, looked)
    assert not torch.allclose(last, cut.backbone.features(images, words)[1])


def test_many_frozen_weights_stay_in_the_models_folder(tiny_model: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("internvl"), tmp_path / "model")
    policy = made(settings("internvl", folder, finetune_mode="lora", lora_rank=2, embed_mib=0))
    trained(policy, 2)
    place = saved(policy, tmp_path / "checkpoint")
    names = set(policy.state_dict())
    assert names
    assert all("backbone.net." not in name or "lora_" in name for name in names)
    assert torch.equal(acted(checkpoint.load(place)[0]), acted(policy))
    weights = folder / "model.safetensors"
    shutil.move(weights, tmp_path / "kept")
    shutil.copy(tiny_model("qwen3_vl") / "model.safetensors", weights)
    with pytest.raises(ValueError, match=r"model: holds weights \w{12}, expected \w{12};"):
        checkpoint.load(place)
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match=r"is not on this machine; put its folder there again"):
        checkpoint.load(place)


@pytest.mark.parametrize(("kind", "tune"), [(k, ("lora", "frozen")[i % 2]) for i, k in
                                            enumerate((*EVERY, "qwen3_vl"))])  # fmt: skip
def test_sixteen_bits_hold_what_does_not_learn(
    kind: str, tune: str, tiny_model: Models, tmp_path: Path
) -> None:
    policy = made(settings(kind, tiny_model(kind), finetune_mode=tune, dtype="bfloat16"))
    kinds = {("lora_" in n, p.dtype) for n, p in policy.backbone.net.named_parameters()}
    adapters = {(True, torch.float32)} if tune == "lora" else set()
    assert kinds == {(False, torch.bfloat16), *adapters}
    losses = trained(policy, 6)
    assert losses[-1] < losses[0]
    loaded, _ = checkpoint.load(saved(policy, tmp_path / "checkpoint"))
    assert torch.equal(acted(loaded), acted(policy))


def test_a_checkpoint_says_whose_weights_it_began_with(tiny_model: Models, tmp_path: Path) -> None:
    place = tmp_path / "hub" / "models--owner--name" / "snapshots" / "0123abcd"
    shutil.copytree(tiny_model("smolvlm"), place)
    (place / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\n# A model\n")
    policy = made(settings("smolvlm", place))
    folder = saved(policy, tmp_path / "checkpoint")
    told = checkpoint.load(folder)[1].pretrained
    assert (told["name"], told["revision"], told["licence"]) == (
        str(place), "0123abcd", "apache-2.0",
    )  # fmt: skip
    assert len(told["sha256"]) == 64
    written = json.loads((folder / "policy.json").read_text())
    assert written["provenance"]["pretrained"] == told


def test_another_number_of_steps_keeps_the_weights(tiny_model: Models) -> None:
    policy = made(settings("smolvlm", tiny_model("smolvlm")))
    other = policy.with_steps(1)
    state = policy.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": ""}, r"policy.backbone.model: got none, expected a model"),
    "no such model": ({"model": "nobody/nothing"}, r"fetch it once: hf download nobody/nothing"),
    "too few layers": ({"num_vlm_layers": 3}, r"num_vlm_layers: got 3, expected 0 to .* 2"),
    "a layer that is not there": (
        {"vision_feature_layer": 3},
        r"vision_feature_layer: got 3, the model has 2",
    ),
    "a layer that is cut off": (
        {"num_vlm_layers": 1, "vision_feature_layer": 2},
        r"got 2, expected .* num_vlm_layers = 1",
    ),
    "small steps": (
        {"finetune_mode": "full", "dtype": "bfloat16"},
        r"dtype: got bfloat16 with finetune_mode full, expected float32",
    ),
    "no rank": ({"lora_rank": 0}, r"lora_rank: got 0, expected at least 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_said_in_one_sentence(name: str, tiny_model: Models) -> None:
    more, said = WRONG[name]
    with pytest.raises(ValueError, match=said) as error:
        made(replace(settings("smolvlm", tiny_model("smolvlm")), **more))
    assert "\n" not in str(error.value)


def test_other_models_and_other_words_are_refused(tiny_model: Models, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a dinov2, expected one of smolvlm, qwen3_vl"):
        vlm.Config(model=str(tiny_model("dinov2"))).build(1, 3, 9, 0)
    with pytest.raises(ValueError, match=r"is a smolvlm, expected one of siglip, dinov2"):
        vision_text.Config(model=str(tiny_model("smolvlm"))).build(1, 3, 9, 0)
    with pytest.raises(ValueError, match=r"got a tokenizer of 9 tokens, expected the model's"):
        settings("smolvlm", tiny_model("smolvlm")).build(1, 3, 9, 0)
    part = shutil.copytree(tiny_model("internvl"), tmp_path / "part")
    processor = next(  # transformers 5 writes one file for all of it
        name for name in ("processor_config.json", "preprocessor_config.json")
        if (part / name).is_file() and (FIVE or name != "processor_config.json")
    )  # fmt: skip
    for name, said in {
        processor: r"cannot be read \(.*\); copy the model whole",
        "tokenizer.json": r"has no tokenizer.json; copy the model whole",
        "config.json": r"no model there \(no config.json\); copy it whole",
    }.items():
        (part / name).unlink()
        with pytest.raises(ValueError, match=said):
            made(settings("internvl", part))
