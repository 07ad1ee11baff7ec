"""What every registered reward model must satisfy; a pretrained one as a tiny model of its
class.
"""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import tiny_models
from reward_models.core.calibration import Calibration
from reward_models.core.curves import LEAST_SHARE, ScorerConfig
from reward_models.core.interface import FrameScores, Reference, RewardModelNetwork
from reward_models.core.scorer import Scorer
from tests.fake_reward_models import take
from tests.fakes import PX, TASKS, liven_
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.types import Example, Frames, Progress
from vla.nn.text import train_tokenizer

LENGTHS = (9, 1, 5)
ROWS = (TASKS[0], TASKS[1], TASKS[0])
FIELDS = ("value", "delta", "trend", "done_prob", "match", "confidence")


@functools.cache
def tiny_model(folder: Path) -> Path:
    return tiny_models.save_qwen(folder)


def settings(name: str, folder: Path) -> Any:
    """Return the default settings, with a model small enough for tests where there is one."""
    config = registry.load("reward_models.models", name).Config()
    if hasattr(config, "model"):
        return replace(config, model=str(tiny_model(folder)), image_px=PX, dtype="float32")
    return config


def side_px(config: Any) -> int:
    return getattr(getattr(config, "backbone", config), "image_px", 8)


def episodes(config: Any, cameras: int, lengths: tuple[int, ...] = LENGTHS) -> Frames:
    """Return random episodes at irregular times, with everything that any reward model reads."""
    rng = np.random.default_rng(0)
    times = [np.append(0.0, np.cumsum(rng.uniform(0.05, 0.9, n - 1))) for n in lengths]
    count, px = sum(lengths), side_px(config)
    progress = rng.random(count, np.float32)
    return Frames(
        images=rng.integers(0, 256, (count, cameras, px, px, 3), np.uint8),
        image_ok=np.ones((count, cameras), bool),
        time_s=np.concatenate(times),
        episode_index=np.repeat(np.arange(len(lengths)), lengths),
        end_s=np.repeat([float(t[-1]) for t in times], lengths),
        truth=np.stack([progress, progress > 0.8], 1).astype(np.float32),
    )


class Probe:
    """A reward model with frames that fit it and what it makes of them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.config = settings(name, folder)
        self.reward_model = self.config.build(train_tokenizer(TASKS))
        liven_(self.reward_model)
        self.reward_model.eval()
        self.cameras = max(1, len(self.reward_model.cameras))
        self.frames = episodes(self.config, self.cameras)
        self.embedded = self.embed(self.frames)

    @torch.no_grad()
    def embed(self, frames: Frames, rows: tuple[str, ...] = ROWS) -> Tensor:
        return self.reward_model.embed(frames, rows, self.reward_model.initial_memory(len(rows)))[0]

    @torch.no_grad()
    def compare(self, a: Tensor, b: Tensor, shown: Reference | None = None) -> Any:
        return self.reward_model.compare(a, b, self.embedded[:1].expand_as(a), shown)

    @torch.no_grad()
    def score(self, a: Tensor, shown: Reference | None = None) -> FrameScores:
        return self.reward_model.score(a, self.embedded[:1].expand_as(a), shown)

    def scorer(self, **settings: Any) -> Scorer:
        # Never silent: silence is tested apart.
        return Scorer(
            self.reward_model, ScorerConfig(**{"abstain_below": 0.0, **settings}), Calibration()
        )


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(params=registry.names("reward_models.models"))
def probe(request: pytest.FixtureRequest, model_folder: Path) -> Probe:
    return Probe(request.param, model_folder)


def assert_close(a: Any, b: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=atol, rtol=1e-5)


def assert_same(a: Progress, b: Progress) -> None:
    for name in FIELDS:
        # A share of the work divides by as little as 0.05, and rounding with it.
        atol = 1e-5 / LEAST_SHARE if name == "delta" else 1e-5
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=atol, err_msg=name)


def shown(probe: Probe) -> Reference:
    return Reference(probe.embedded[:4], torch.linspace(0, 1, 4))


def stream(probe: Probe, scorer: Scorer, lanes: list[Frames], steps: int) -> list[Progress]:
    """Play lanes side by side, each starting over when it ends; return what was said per step."""
    state, heard = scorer.start(len(lanes)), []
    for t in range(steps):
        parts = [take(lane, [t % len(lane.episode_index)]) for lane in lanes]
        names = [n for n, v in vars(parts[0]).items() if v is not None and n != "episode_index"]
        now = {n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
        progress, state = scorer.step(
            state, Frames(episode_index=np.arange(len(lanes)), **now), ROWS
        )
        heard.append(progress)
    return heard


# --- the reward model
# ----------------------------------------------------------------------------------


def test_it_satisfies_the_protocol(probe: Probe) -> None:
    assert isinstance(probe.reward_model, RewardModelNetwork)


def test_its_configuration_survives_a_round_trip(probe: Probe) -> None:
    there = configs.to_json(probe.config)
    back = configs.from_json(configs.PluginConfig, there, package="reward_models.models")
    assert back == probe.config


def test_every_frame_has_an_embedding_and_every_episode_a_memory(probe: Probe) -> None:
    before = probe.reward_model.initial_memory(len(ROWS))
    with torch.no_grad():
        found, after = probe.reward_model.embed(probe.frames, ROWS, before)
    assert found.shape[0] == sum(LENGTHS)
    assert after.shape == before.shape
    assert found.isfinite().all()


def test_an_embedding_does_not_depend_on_later_frames(probe: Probe) -> None:
    early = np.isin(np.arange(sum(LENGTHS)), [0, 1, 2, 3, 9, 10, 11])
    assert_close(probe.embed(take(probe.frames, early)), probe.embedded[early])


def test_an_embedding_does_not_depend_on_other_episodes(probe: Probe) -> None:
    alone = probe.frames.episode_index == 2
    assert_close(probe.embed(take(probe.frames, alone), ROWS[2:]), probe.embedded[alone])


def test_memory_carries_an_episode_from_one_call_to_the_next(probe: Probe) -> None:
    first, rest = (take(probe.frames, list(part)) for part in (range(4), range(4, 9)))
    with torch.no_grad():
        a, memory = probe.reward_model.embed(first, ROWS[:1], probe.reward_model.initial_memory(1))
        b, _ = probe.reward_model.embed(rest, ROWS[:1], memory)
    # Sums in another order: rounding is relative to the largest of what was added.
    atol = 1e-5 * max(1.0, float(probe.embedded.abs().max()))
    assert_close(torch.cat([a, b]), probe.embedded[:9], atol)


def test_time_zero_empties_memory(probe: Probe) -> None:
    one = take(probe.frames, list(range(9)))
    with torch.no_grad():
        _, full = probe.reward_model.embed(one, ROWS[:1], probe.reward_model.initial_memory(1))
        again, _ = probe.reward_model.embed(one, ROWS[:1], full)
    assert_close(again, probe.embedded[:9])


def test_embedding_does_not_change_the_memory_it_was_given(probe: Probe) -> None:
    memory = probe.reward_model.initial_memory(len(ROWS))
    before = memory.clone()
    with torch.no_grad():
        probe.reward_model.embed(probe.frames, ROWS, memory)
    assert torch.equal(memory, before)


@pytest.mark.parametrize("with_example", [False, True])
def test_values_and_spreads_are_in_range(probe: Probe, with_example: bool) -> None:
    moment = probe.score(probe.embedded, shown(probe) if with_example else None)
    assert all(part.shape == (sum(LENGTHS),) and part.isfinite().all() for part in moment)
    assert ((moment.value >= 0) & (moment.value <= 1)).all()
    assert ((moment.spread >= 0) & (moment.spread <= 0.5)).all()


@pytest.mark.parametrize("with_example", [False, True])
def test_a_frame_beside_itself_is_exactly_no_change(probe: Probe, with_example: bool) -> None:
    change = probe.compare(probe.embedded, probe.embedded, shown(probe) if with_example else None)
    assert torch.equal(change.difference, torch.zeros(sum(LENGTHS)))
    assert torch.equal(change.trend[:, 0], change.trend[:, 2])


@pytest.mark.parametrize("with_example", [False, True])
def test_the_order_swapped_gives_minus(probe: Probe, with_example: bool) -> None:
    a, b = probe.embedded, probe.embedded.flip(0)
    example = shown(probe) if with_example else None
    forth, back = probe.compare(a, b, example), probe.compare(b, a, example)
    assert_close(forth.difference, -back.difference, atol=1e-6)
    assert_close(forth.trend.softmax(1), back.trend.softmax(1).flip(1), atol=1e-6)
    assert (forth.difference.abs() <= 1).all()


def test_frames_are_judged_alone(probe: Probe) -> None:
    together, alone = probe.score(probe.embedded), probe.score(probe.embedded[3:4])
    for a, b in zip(together, alone, strict=True):
        assert_close(a[3:4], b)


# --- scored --------------------------------------------------------------------------------------


def test_everything_said_is_in_range(probe: Probe) -> None:
    progress = probe.scorer().score(probe.frames, ROWS)
    for name in ("value", "done_prob", "match", "confidence", "trend"):
        part = getattr(progress, name)
        assert ((part >= 0) & (part <= 1)).all(), name
    assert (np.abs(progress.delta) <= 1).all()
    assert_close(progress.trend.sum(1), np.ones(sum(LENGTHS)))


def test_a_stream_with_resets_says_what_scoring_at_once_says(probe: Probe) -> None:
    # Rows of 9, 1 and 5 irregular frames; the shorter ones start over, as environments do.
    scorer = probe.scorer()
    at_once = scorer.score(probe.frames, ROWS)
    lanes = [take(probe.frames, probe.frames.episode_index == b) for b in range(3)]
    heard = stream(probe, scorer, lanes, steps=18)
    begin = np.cumsum((0, *LENGTHS[:-1]))
    for t, progress in enumerate(heard):
        frames = begin + t % np.array(LENGTHS)
        assert_same(progress, Progress(**{n: getattr(at_once, n)[frames] for n in FIELDS}))


def test_nothing_said_depends_on_later_frames(probe: Probe) -> None:
    scorer = probe.scorer()
    half = scorer.score(take(probe.frames, list(range(5))), ROWS[:1])
    whole = scorer.score(probe.frames, ROWS)
    assert_same(half, Progress(**{n: getattr(whole, n)[:5] for n in FIELDS}))


def test_chunks_of_any_size_say_the_same(probe: Probe) -> None:
    at_once = probe.scorer().score(probe.frames, ROWS)
    assert_same(probe.scorer(chunk=2).score(probe.frames, ROWS), at_once)


def test_a_reference_episode_may_be_shown(probe: Probe) -> None:
    one = take(probe.frames, list(range(9)))
    example = Example(frames=one, progress=np.linspace(0, 1, 9, dtype=np.float32))
    progress = probe.scorer().score(probe.frames, ROWS, example)
    assert np.isfinite(progress.value).all()


def test_where_it_is_not_sure_it_abstains_and_says_so(probe: Probe) -> None:
    spoken = probe.scorer().score(probe.frames, ROWS)
    bound = float(np.median(spoken.confidence))
    silent = probe.scorer(abstain_below=bound).score(probe.frames, ROWS)
    unsure = spoken.confidence < bound
    np.testing.assert_array_equal(np.isnan(silent.value), unsure)
    np.testing.assert_array_equal(np.isnan(silent.delta), unsure)
    assert np.isfinite(silent.confidence).all()
    all_silent = probe.scorer(abstain_below=1.1).score(probe.frames, ROWS)
    assert np.isnan(all_silent.value).all()


@pytest.mark.parametrize(("name", "field"), [("time", "end_s"), ("oracle", "truth")])
def test_a_control_that_lacks_what_it_reads_says_so(name: str, field: str, tmp_path: Path) -> None:
    probe = Probe(name, tmp_path)
    with pytest.raises(ValueError, match=f"reward model '{name}' needs"):
        probe.embed(replace(probe.frames, **{field: None}))
