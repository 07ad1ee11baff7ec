"""The table of figures: its order, its lines, its marks; the truth reaches every bar."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from reward_models.metrics.episodes import Episodes
from reward_models.metrics.table import ROWS, Metric, Predictions, compare, table
from tests.fake_reward_models import judged


def truthful(rng: np.random.Generator) -> Episodes:
    """Successes, partial and failed episodes of two tasks, judged by the truth itself."""
    ends = [(1.0, 1.0), (1.0, 1.0), (0.6, 0.5), (0.9, 0.1), (1.0, 0.2), (1.0, 1.0), (0.4, 0.4)]
    truth = [[*np.linspace(0, top, 6), end, end] for top, end in ends * 2]
    flat = np.concatenate(truth)
    episodes = judged(
        truth,
        task=["push", "pick"] * len(ends),
        behaviour=["expert", "near_miss"] * len(ends),
        done=[[float(p >= 1.0) for p in row] for row in truth],
        confidence=np.ones(len(flat), np.float32),
        match=np.ones(len(flat), np.float32),
    )
    trend = np.sign(episodes.progress - episodes.progress[episodes.anchor]).astype(int) + 1
    return replace(episodes, trend=np.eye(3, dtype=np.float32)[trend])


def everything(own: Episodes) -> Predictions:
    zero = np.zeros_like(own.value)
    backward = judged(
        [row[::-1] for row in own.cut(own.value)], success=[r[::-1] for r in own.cut(own.success)],
        task=own.task,
    )  # fmt: skip
    return Predictions(
        matched=own, abstaining=own, backward=backward,
        mismatched=replace(own, value=zero, done_prob=zero, match=zero),
        frozen=replace(own, value=zero), recolored=replace(own, value=zero, done_prob=zero),
        curves=np.stack([own.value] * 3),
        changes=np.stack([own.delta, -own.delta]) * 0, resampled=own.value,
    )  # fmt: skip


def printed(shown: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200).print(shown)
    return out.getvalue().splitlines()


def test_the_truth_reaches_every_bar_and_lines_keep_their_order() -> None:
    own = truthful(np.random.default_rng(0))
    found = table(everything(own), np.random.default_rng(0), 20)
    assert list(found) == [row.name for row in ROWS]
    assert {name for name, figure in found.items() if figure.holds is False} == set()
    for name in ("Spearman with truth", "direction macro-F1", "done AUROC", "outcome AUROC"):
        assert found[name].value == pytest.approx(1.0)
    assert found["MAE of truth"].value == found["near miss predicted done"].value == 0.0


def test_lines_that_lack_their_part_are_left_out() -> None:
    found = table(
        Predictions(matched=truthful(np.random.default_rng(0))), np.random.default_rng(0), 2
    )
    assert {row.name for row in ROWS} - set(found) == {
        "VROC", "VOC-F1", "coverage", "false gain/s, frozen", "diagonal margin",
        "mismatch rejected",
        "other colour rejected", "mismatch rejected throughout", "match AUROC", "path agreement",
        "mirror error",
        "frame-rate error",
    }  # fmt: skip


def test_parts_about_other_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="mismatched: got 1 episodes, expected the 2 of `matched`"):
        Predictions(matched=judged([[0, 1], [0, 1]]), mismatched=judged([[0, 1]]))


def test_equal_generators_give_reward_models_the_same_rounds() -> None:
    own = truthful(np.random.default_rng(0))
    a, b = (table(Predictions(matched=own), np.random.default_rng(3), 10) for _ in range(2))
    assert repr(a) == repr(b)


def figure(value: float, better: str = "more", bar: float | None = 0.5) -> Metric:
    return Metric(value=value, low=value - 0.1, high=value + 0.1, better=better, bound=bar)


def test_a_missed_bar_and_a_control_that_is_better_are_marked() -> None:
    reward_model = {"up": figure(0.4), "down": figure(0.4, "less"), "none": figure(float("nan"))}
    control = {"up": figure(0.7), "down": figure(0.7, "less"), "none": figure(0.1)}
    lines = [
        re.split("[│┃]", line) for line in printed(compare({"ours": reward_model, "t/T": control}))
    ]
    rows = {cells[1].strip(): [c.strip() for c in cells[2:-1]] for cells in lines if len(cells) > 5}
    assert rows["metric"] == ["bound", "ours (95 % interval)", "t/T"]
    assert rows["up"] == ["≥ 0.5", "0.400 (0.300 to 0.500) x", "0.700 !"]
    assert rows["down"] == ["≤ 0.5", "0.400 (0.300 to 0.500)", "0.700"]
    assert rows["none"] == ["≥ 0.5", "-", "0.100"]


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="no reward model to compare"):
        compare({})
