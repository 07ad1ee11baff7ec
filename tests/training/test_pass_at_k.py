"""pass@k: the estimator by hand and against drawing, its interval, its words, and real tries."""

import itertools
import json
import re

import numpy as np
import pytest

from sim.tasks import reach
from tests.training.small_policy import small_policy, write_run
from training.commands import eval as eval_cli
from training.evaluation import pass_at_k
from training.evaluation.evaluate import evaluate
from training.evaluation.pass_at_k import Attempts, interval, solved
from vla.memory import none


def tries(success: np.ndarray) -> Attempts:
    return Attempts(task={"type": "reach"}, seed=3, success=success)


def test_the_estimator_is_the_share_of_all_draws_of_k_that_hold_a_success() -> None:
    success = np.array([[0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], bool)
    for k in range(1, 6):
        draws = [success[:, list(chosen)].any(1) for chosen in itertools.combinations(range(5), k)]
        np.testing.assert_allclose(solved(success, k), np.mean(draws, 0), atol=1e-12)
    # One of five: 1 - C(4, 2) / C(5, 2) = 1 - 6 / 10.
    assert solved(success, 2)[3] == pytest.approx(0.4)
    for k in (0, 6):
        with pytest.raises(ValueError, match=f"got k = {k}, expected 1 to 5"):
            solved(success, k)


def test_the_interval_is_over_start_states_and_doubts_even_what_is_all_alike() -> None:
    rng = np.random.default_rng(0)
    few, many = (rng.random(n).round() for n in (20, 500))
    for shares in (few, many):
        low, high = interval(shares)
        assert low < shares.mean() < high
    assert interval(many)[1] - interval(many)[0] < 0.1 < interval(few)[1] - interval(few)[0]
    # Half 0, half 1: the deviation of a mean of 500 is 0.5 / sqrt(500) = 0.0224.
    assert interval(many)[1] - interval(many)[0] == pytest.approx(2 * 1.96 * 0.0224, rel=0.1)
    assert interval(np.zeros(10)) == (0.0, pytest.approx(0.2775, abs=1e-3))  # Wilson, 0 of 10
    assert interval(np.ones(10))[0] == pytest.approx(1 - 0.2775, abs=1e-3)


@pytest.mark.parametrize(
    ("success", "said"),
    [
        (np.zeros((40, 4), bool), "online RL has no success to reinforce"),
        (np.repeat(np.arange(40) % 2 == 0, 4).reshape(40, 4), "attempts end alike"),
        (np.arange(160).reshape(40, 4) % 4 == 0, "online RL can gain up to 75.0%"),
    ],
)
def test_the_sentence_says_whether_online_rl_can_help(success, said) -> None:
    found = tries(success)
    *rows, sentence = found.lines()
    assert [row[:7] for row in rows] == ["pass@1:", "pass@2:", "pass@3:", "pass@4:"]
    assert re.search(said, sentence)
    assert "seed 3" in sentence


def test_tries_start_alike_and_go_their_own_ways_with_noise_at_every_transition(
    monkeypatch,
) -> None:
    policy, task = small_policy(none.Config()), reach.Config()
    sample, seen = policy.sample, []

    def recorded(obs, state, noise):
        found = sample(obs, state, noise)
        seen.append((np.array(obs.images), noise, found[0].values.numpy()))
        return found

    monkeypatch.setattr(policy, "sample", recorded)
    found = pass_at_k.run(policy, task, k=2, episodes=2, seed=3)
    assert found.success.shape == (2, 2)
    half = len(seen) // 2
    (first_seen, first_noise, first), (seen_again, other_noise, other) = seen[0], seen[half]
    np.testing.assert_array_equal(first_seen, seen_again)
    assert np.abs(np.corrcoef(first_noise.ravel(), other_noise.ravel())[0, 1]) < 0.2
    assert np.abs(first - other).max() > 0.01
    evaluate(policy, task, episodes=2, seed=3, attempt=2)
    np.testing.assert_array_equal(seen[-half][2], other)
    seen.clear()
    evaluate(policy, task, episodes=2, seed=3)
    assert seen == []  # acting draws nothing but the noise it starts from


def test_the_command_prints_every_k_and_keeps_the_tries(tmp_path, capsys) -> None:
    write_run(small_policy(), tmp_path / "run")
    words = [str(tmp_path / "run"), "--pass-at", "2", "--episodes", "2", "--threads", "1"]
    assert eval_cli.main(words) == 0
    said = capsys.readouterr().out
    assert "pass@1: " in said
    assert "pass@2: " in said
    assert "at least one of 2 in" in said
    kept = json.loads((tmp_path / "run/pass_at_k.json").read_text())
    assert np.array(kept["success"]).shape == (2, 2)
    assert len(kept["pass_at"]) == len(kept["intervals"]) == 2
    assert kept["step"] == 7
    assert not (tmp_path / "run/evaluation.json").exists()
    with pytest.raises(ValueError, match="pass_at: got -1, expected at least 0"):
        eval_cli.main([*words, "--pass-at", "-1"])
