"""What a user of `vla train rl` can get wrong: one sentence, an exit code, nothing written."""

import pytest

from tests.commands.lines import only_sentence
from vla import cli

LINE = "train rl --out {new} --policy.path {start} --dataset {demos}"
WRONG_WORDS = {
    "nothing": ("train rl --out {new}", "--policy.path"),
    "task": (LINE + " --task fly", "fly"),
    "algorithm": (LINE + " --algo.type reinforce", "reinforce"),
    "cloning": (LINE + " --algo.type bc --reward sparse", "use `vla train`"),
    "reward": (LINE + " --reward praise", "--reward"),
    "no reward model": (
        LINE,
        "reward 'learned' needs a reward model; give one with --reward-model",
    ),
    "reward model nowhere": (LINE + " --reward-model {new}x", "no reward model there"),
    "policy nowhere": (
        "train rl --out {new} --policy.path {new}x --dataset {demos}",
        "no checkpoint there",
    ),
    "dataset nowhere": (
        "train rl --out {new} --policy.path {start} --dataset {new}x --reward sparse",
        "{new}x",
    ),
    "prior run nowhere": (LINE + " --reward sparse --prior-runs {new}x", "no experience there"),
    "removed algorithm": (
        LINE + " --reward sparse --algo.type dsrl",
        "algo: got 'dsrl', expected one of asymmetric_ac, aux_bc, bc, distill, dppo, filtered_bc, "
        "ogpo, residual_ac, reward_model: DSRL was removed",
    ),
    "fine-tuned steps": (
        LINE + " --reward sparse --algo.type dppo --algo.ft-denoising-steps 7",
        "ft_denoising_steps: got 7, the policy denoises in 2 steps",
    ),
    "intervention share": (
        LINE + " --reward sparse --intervention.fraction 2",
        "intervention.fraction: got 2.0, expected at most 1",
    ),
    "intervention without progress": (
        LINE + " --reward sparse --intervention.fraction 0.5",
        "a reward model has to see that there is no progress",
    ),
    "no jump starts to draw": (
        LINE + " --reward sparse --jump-start.curriculum",
        "such as --jump-start.fraction 0.5",
    ),
    "iterations": (LINE + " --n-iterations 3", "as many steps in every iteration"),
    "lag alone": (
        LINE + " --reward sparse --runtime.max-policy-lag 1",
        "add --runtime.distributed",
    ),
    "gamma": (LINE + " --gamma 1.1", "gamma of at most 1"),
    "episodes": (
        LINE + " --episodes-per-iteration 0",
        "episodes_per_iteration: got 0, expected at least 1",
    ),
    "old source": ("train rl --out {new} --from {start}", "--from is now --policy.path"),
    "old group": (LINE + " --help.led 0.5", "--help.led is now --jump-start.fraction"),
    "old algorithm flag": (LINE + " --algo.trace 0.9", "--algo.trace is now --algo.gae-lambda"),
}


@pytest.mark.parametrize(("line", "sentence"), WRONG_WORDS.values(), ids=list(WRONG_WORDS))
def test_it_is_told_in_one_sentence_and_nothing_is_written(
    line, sentence, run, data, tmp_path, capsys
):
    paths = {"new": tmp_path / "new", "start": run, "demos": data}
    assert cli.main(line.format(**paths).split()) == 1
    assert sentence.format(**paths) in only_sentence(capsys.readouterr().err)
    assert not paths["new"].exists()
