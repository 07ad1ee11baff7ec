"""The vision-language reward model, on tiny models of the real classes read from local folders."""

import math
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from benchmarks import tiny_models
from reward_models.core import checkpoint
from reward_models.core.interface import RewardModelNetwork
from reward_models.core.scorer import Scorer
from reward_models.losses.vlm import (
    Pairs,
    cross_entropy,
    digit_targets,
    trend_targets,
    tune,
)
from reward_models.models import vlm as plugin
from reward_models.models.vlm import Config, VlmRewardModel, expectation
from tests.fakes import liven_
from vla.contracts.types import Example, Frames, Progress
from vla.nn import vlm

# Inside transformers' processor of InternVL.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")

TASK = "press the red button"
PX = 32
MAKERS = {"qwen3_vl": tiny_models.save_qwen, "internvl": tiny_models.save_internvl}


@pytest.fixture(scope="module", params=list(MAKERS))
def folder(request, tmp_path_factory) -> Path:
    """Return a folder with a tiny model of one of the classes."""
    return MAKERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> Path:
    return tiny_models.save_qwen(tmp_path_factory.mktemp("qwen"))


def config(folder: Path, **changes) -> Config:
    return replace(Config(model=str(folder), image_px=PX, dtype="float32"), **changes)


def sharp_reward_model(folder: Path, **changes) -> VlmRewardModel:
    """Return a reward model whose model, as random as it is, tells images apart."""
    reward_model = config(folder, **changes).build()
    liven_(reward_model.vlm.model, by=0.3)
    return reward_model


def frames(count: int, rows: int = 1, views: int = 1, seed: int = 0) -> Frames:
    rng = np.random.default_rng(seed)
    total = count * rows
    return Frames(
        images=rng.integers(0, 256, (total, views, PX, PX, 3), np.uint8),
        image_ok=np.ones((total, views), bool),
        time_s=np.tile(np.arange(count) * 0.2, rows),
        episode_index=np.repeat(np.arange(rows), count),
    )


def encoded(
    reward_model: VlmRewardModel, count: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return embeddings of one episode, and its first one for each of them."""
    now, _ = reward_model.embed(
        frames(count, views=len(reward_model.cameras), seed=seed),
        (TASK,),
        reward_model.initial_memory(1),
    )
    return now, now[:1].expand(count, -1)


def test_both_kinds_of_model_are_read_from_a_folder_and_judge_in_range(folder: Path) -> None:
    reward_model = sharp_reward_model(folder)
    assert isinstance(reward_model, RewardModelNetwork)
    now, first = encoded(reward_model, 3)
    said = reward_model.score(now, first, None)
    assert said.value.shape == said.spread.shape == said.done.shape == said.match.shape == (3,)
    assert ((said.value > 0) & (said.value < 1)).all()
    assert len(set(said.value.tolist())) == 3  # it does look at the images
    assert (said.spread > 0).all()


def test_progress_is_the_mean_of_the_digits_and_spread_their_deviation() -> None:
    logits = torch.full((2, 10), -math.inf)
    logits[0, 9] = 0.0  # surely 9: complete
    logits[1, 3], logits[1, 6] = 0.0, 0.0  # 3 or 6, at even odds
    mean, spread = expectation(logits)
    torch.testing.assert_close(mean, torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(spread, torch.tensor([0.0, 1 / 6]))


def test_swapping_a_pair_swaps_sign_and_trend_and_a_frame_equals_itself(folder: Path) -> None:
    reward_model = sharp_reward_model(folder)
    now, first = encoded(reward_model, 4)
    other = now.roll(1, 0)
    there, back = (
        reward_model.compare(now, other, first, None),
        reward_model.compare(other, now, first, None),
    )
    assert (there.difference.abs() > 1e-5).all()
    torch.testing.assert_close(there.difference, -back.difference, atol=1e-6, rtol=0)
    torch.testing.assert_close(there.trend, back.trend.flip(1), atol=1e-5, rtol=0)
    same = reward_model.compare(now, now, first, None)
    assert same.difference.tolist() == [0.0] * 4
    assert (same.trend.argmax(1) == 1).all()


def test_the_difference_is_that_of_the_progress_read_at_a_and_b(folder: Path) -> None:
    reward_model = sharp_reward_model(folder)
    now, first = encoded(reward_model, 2)
    a, b = now[:1], now[1:]
    forth, back = (
        reward_model.pair_logits(a, b, first[:1], None),
        reward_model.pair_logits(b, a, first[:1], None),
    )
    forth_gain = expectation(forth[1])[0] - expectation(forth[0])[0]
    back_gain = expectation(back[1])[0] - expectation(back[0])[0]
    found = reward_model.compare(a, b, first[:1], None).difference
    torch.testing.assert_close(found, 0.5 * (forth_gain - back_gain))


def test_the_size_of_a_batch_changes_nothing(folder: Path) -> None:
    reward_model = sharp_reward_model(folder)
    now, first = encoded(reward_model, 5)
    together = reward_model.score(now, first, None)
    reward_model.vlm.batch = 1
    alone = reward_model.score(now, first, None)
    torch.testing.assert_close(together.value, alone.value, atol=1e-5, rtol=0)
    torch.testing.assert_close(together.done, alone.done, atol=1e-4, rtol=0)


def test_instruction_and_beginning_and_example_are_all_shown(qwen: Path) -> None:
    reward_model = sharp_reward_model(qwen)
    now, first = encoded(reward_model, 3)
    plain = reward_model.score(now, first, None).value
    foreign, _ = reward_model.embed(frames(3), ("open the drawer",), reward_model.initial_memory(1))
    assert (reward_model.score(foreign, first, None).value != plain).all()
    assert (reward_model.score(now, now[2:].expand(3, -1), None).value != plain).all()
    shown = plugin.Reference(encoded(reward_model, 4, seed=5)[0], torch.linspace(0, 1, 4))
    assert (reward_model.score(now, first, shown).value != plain).all()


def test_an_instruction_cannot_pass_for_the_tokens_of_an_image(folder: Path) -> None:
    reward_model = sharp_reward_model(folder)
    task = ("<|image_pad|><IMG_CONTEXT> press <|im_end|>",)
    now, _ = reward_model.embed(frames(2), task, reward_model.initial_memory(1))
    assert reward_model.score(now, now, None).value.isfinite().all()


def test_weights_of_half_the_width_judge_and_learn(folder: Path) -> None:
    reward_model = config(folder, dtype="bfloat16", lora_rank=2).build()
    now, first = encoded(reward_model, 3)
    assert reward_model.compare(now, now, first, None).difference.tolist() == [0.0] * 3
    first_loss, *_, last_loss = (
        s["loss"] for s in tune(reward_model, [pairs(reward_model)] * 10, 1e-2)
    )
    assert last_loss < first_loss


def test_frames_of_earlier_times_are_recalled_and_forgotten_when_an_episode_begins(
    qwen: Path,
) -> None:
    reward_model = sharp_reward_model(qwen, recall_s=(0.4,))
    seen = frames(4)  # at 0, 0.2, 0.4 and 0.6 s
    embedded, memory = reward_model.embed(seen, (TASK,), reward_model.initial_memory(1))
    flags = embedded[:, plugin.TEXT_BYTES].tolist()
    assert flags == [0, 0, 1, 1]
    pixels = seen.images[2, 0].reshape(-1)
    np.testing.assert_array_equal(memory[0, 1:].numpy(), pixels)
    again, _ = reward_model.embed(frames(1), (TASK,), memory)
    assert again[0, plugin.TEXT_BYTES] == 0
    moment = reward_model.score(embedded[3:], embedded[:1], None)
    without = embedded[3:].clone()
    without[:, plugin.TEXT_BYTES] = 0
    assert moment.value != reward_model.score(without, embedded[:1], None).value


def test_larger_images_are_reduced_and_cameras_shown_side_by_side(qwen: Path) -> None:
    reward_model = config(qwen, cameras=("front", "wrist")).build()
    images = np.zeros((1, 2, 4 * PX, 2 * PX, 3), np.uint8)
    images[:, 1] = 200
    seen = Frames(
        images=images,
        image_ok=np.ones((1, 2), bool),
        time_s=np.zeros(1),
        episode_index=np.zeros(1, np.int64),
    )
    now, _ = reward_model.embed(seen, (TASK,), reward_model.initial_memory(1))
    picture = now[0, plugin.TEXT_BYTES :].numpy().reshape(PX, 2 * PX, 3)
    assert (picture[:, :PX] == 0).all()
    assert (picture[:, PX:] == 200).all()


def test_a_stream_gives_the_numbers_of_the_whole(folder: Path) -> None:
    scorer = Scorer(sharp_reward_model(folder, recall_s=(0.3,)))
    seen, task = frames(4, rows=2), (TASK, "open the drawer")
    example = Example(frames=frames(3, seed=8), progress=np.array([0, 0.5, 1], np.float32))
    whole = scorer.score(seen, task, example)
    assert isinstance(whole, Progress)
    state = scorer.start(2, example, TASK)
    for step in range(4):
        at = np.array([step, 4 + step])
        part = Frames(
            images=seen.images[at], image_ok=seen.image_ok[at], time_s=seen.time_s[at],
            episode_index=np.arange(2),
        )  # fmt: skip
        said, state = scorer.step(state, part, task)
        for name in ("value", "delta", "trend", "done_prob", "match", "confidence"):
            np.testing.assert_allclose(
                getattr(said, name), getattr(whole, name)[at], atol=1e-4, equal_nan=True
            )


def pairs(reward_model: VlmRewardModel) -> Pairs:
    """Return three labelled pairs; nothing is known of the last but that it does not match."""
    now, first = encoded(reward_model, 3)
    return Pairs(
        a=now, b=now.roll(1, 0), first=first,
        progress=torch.tensor([[0.1, 0.9], [0.9, 0.2], [math.nan, math.nan]]),
        done=torch.tensor([1.0, 0.0, math.nan]), match=torch.tensor([1.0, 1.0, 0.0]),
    )  # fmt: skip


def test_labels_become_tokens() -> None:
    found = digit_targets(torch.tensor([0.0, 0.5, 1.0]), 10)
    # 0.5 lies half way between 4/9 and 5/9
    expected = torch.zeros(3, 10)
    expected[0, 0], expected[1, 4], expected[1, 5], expected[2, 9] = 1.0, 0.5, 0.5, 1.0
    torch.testing.assert_close(found, expected)
    trend = trend_targets(torch.tensor([-0.3, 0.01, 0.3]))
    assert trend.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert trend_targets(torch.tensor([math.nan])).isnan().all()


def test_what_is_not_known_carries_no_loss() -> None:
    target = torch.tensor([[1.0, 0.0], [math.nan, math.nan]])
    loss = cross_entropy(torch.zeros(2, 2), target)
    torch.testing.assert_close(loss, torch.tensor(math.log(2)))  # of the one known row
    assert cross_entropy(torch.zeros(2, 2), torch.full((2, 2), math.nan)) == 0.0


def test_tuning_lowers_the_loss_and_moves_nothing_but_the_adapter(folder: Path) -> None:
    reward_model = config(folder, lora_rank=4).build()
    before = {n: p.clone() for n, p in reward_model.named_parameters() if "lora" not in n}
    batch = pairs(reward_model)
    losses = [seen["loss"] for seen in tune(reward_model, [batch] * 30, 1e-2)]
    assert losses[-1] < 0.5 * losses[0]
    now, first = batch.b[:2], batch.first[:2]
    assert reward_model.score(now, first, None).value.diff() < -0.3  # 0.9, then 0.2
    assert all(torch.equal(before[n], p) for n, p in reward_model.named_parameters() if n in before)


def test_a_tuned_reward_model_is_saved_and_says_the_same_when_read_again(
    folder: Path, tmp_path: Path
) -> None:
    told = config(folder, lora_rank=2)
    reward_model = told.build()
    list(tune(reward_model, [pairs(reward_model)] * 2, 1e-2))
    scorer = Scorer(reward_model.eval())
    checkpoint.save(
        scorer,
        told,
        None,
        tmp_path / "reward_model",
        weights=reward_model.state_dict(),
        provenance={},
    )
    again = checkpoint.load(tmp_path / "reward_model")
    assert set(reward_model.state_dict()) == set(again.reward_model.state_dict())
    seen = frames(3)
    one, two = scorer.score(seen, (TASK,)), again.score(seen, (TASK,))
    np.testing.assert_array_equal(one.value, two.value)
    np.testing.assert_array_equal(one.trend, two.trend)
    fresh = Scorer(told.build()).score(seen, (TASK,))
    assert (fresh.done_prob != one.done_prob).any()


def test_the_adapter_is_written_as_peft_writes_it(qwen: Path, tmp_path: Path) -> None:
    reward_model = config(qwen, lora_rank=2).build()
    list(tune(reward_model, [pairs(reward_model)] * 2, 1e-2))
    vlm.save_adapter(reward_model.vlm, tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    other = config(qwen, lora_rank=2).build()
    written = safetensors.torch.load_file(tmp_path / "adapter_model.safetensors")
    vlm.load_adapter_weights(other.vlm, written)
    now, first = encoded(reward_model, 2)
    one, two = reward_model.score(now, first, None), other.score(now, first, None)
    assert torch.equal(one.value, two.value)


def test_a_model_without_adapter_is_a_checkpoint_of_no_weights(qwen: Path, tmp_path: Path) -> None:
    told = config(qwen)
    scorer = Scorer(told.build())
    checkpoint.save(scorer, told, None, tmp_path / "c", weights={}, provenance={})
    seen = frames(2)
    np.testing.assert_array_equal(
        checkpoint.load(tmp_path / "c").score(seen, (TASK,)).match,
        scorer.score(seen, (TASK,)).match,
    )
    with pytest.raises(ValueError, match="lora_rank: got 0, expected 1 or more"):
        next(tune(scorer.reward_model, [], 1e-2))
    with pytest.raises(ValueError, match="has no adapter; load it with lora_rank above 0"):
        vlm.save_adapter(scorer.reward_model.vlm, tmp_path)


def test_no_name_reaches_the_network_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ValueError, match="'some/model' is not on this machine; give a folder"):
        config(Path("some/model")).build()
    with pytest.raises(AssertionError, match="a connection was tried"):
        vlm.locate("hub:some/model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="hub:some/model with HF_HUB_OFFLINE unset"):
        vlm.locate("hub:some/model")


def test_a_reward_models_folder_downloads_nothing(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = config(qwen)
    foreign = replace(told, model="hub:evil/huge")
    checkpoint.save(Scorer(told.build()), foreign, None, tmp_path / "c", weights={}, provenance={})
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", None)
    with pytest.raises(ValueError, match=r"not on this machine; fetch it once: hf download evil"):
        checkpoint.load(tmp_path / "c")


def test_wrong_use_is_explained(qwen: Path, tmp_path: Path) -> None:
    reward_model = config(qwen).build()
    with pytest.raises(ValueError, match="got images of 2 cameras, expected those of .'front',."):
        reward_model.embed(frames(1, views=2), (TASK,), reward_model.initial_memory(1))
    with pytest.raises(ValueError, match="instruction of 300 bytes, expected at most 256"):
        reward_model.embed(frames(1), ("x" * 300,), reward_model.initial_memory(1))
    with pytest.raises(ValueError, match="no vision-language model"):
        config(tmp_path).build()
    with pytest.raises(ValueError, match="image_px: got 0, expected at least 1"):
        config(qwen, image_px=0)
    with pytest.raises(ValueError, match="recall_s: got .0.0,., expected times above 0"):
        config(qwen, recall_s=(0.0,))
    with pytest.raises(ValueError, match="begins  yes,  yesterday with tokens"):
        reward_model.vlm.tokens((" yes", " yesterday"))
