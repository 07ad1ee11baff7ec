"""What a user of `vla train rl` can get wrong: one sentence, an exit code, nothing written."""

import pytest

from tests.commands.lines import only_sentence
from vla import cli

LINE = "train rl --out {new} --from {start} --demos {demos}"
WRONG_WORDS = {
    "nothing": ("train rl --out {new}", "--from"),
    "task": (LINE + " --task fly", "fly"),
    "algorithm": (LINE + " --algo.type reinforce", "reinforce"),
    "cloning": (LINE + " --algo.type bc --reward sparse", "use `vla train`"),
    "reward": (LINE + " --reward praise", "--reward"),
    "no critic": (LINE, "reward 'critic' needs a critic; give one with --critic"),
    "critic nowhere": (LINE + " --critic {new}x", "no critic there"),
    "policy nowhere": ("train rl --out {new} --from {new}x --demos {demos}", "no checkpoint there"),
    "demos nowhere": (
        "train rl --out {new} --from {start} --demos {new}x --reward sparse",
        "{new}x",
    ),
    "earlier nowhere": (LINE + " --reward sparse --also {new}x", "no experience there"),
    "candidates": (
        LINE + " --reward sparse --algo.type steer --algo.candidates 8",
        "candidates: got 8, expected at most 7",
    ),
    "tuned": (
        LINE + " --reward sparse --algo.type dppo --algo.tuned 7",
        "tuned: got 7, the policy denoises in 6 steps",
    ),
    "helped by nobody": (
        LINE + " --reward sparse --help.attended 2",
        "expected shares up to 1",
    ),
    "nobody calls for help": (
        LINE + " --reward sparse --help.attended 0.5",
        "a critic has to see that there is no progress",
    ),
    "no leads to draw": (LINE + " --reward sparse --help.curriculum", "such as --help.led 0.5"),
    "rounds": (LINE + " --rounds 3", "as many steps in every round"),
    "lag alone": (LINE + " --reward sparse --runtime.lag 1", "add --runtime.processes"),
    "gamma": (LINE + " --gamma 1.1", "gamma of at most 1"),
    "episodes": (LINE + " --episodes 0", "episodes: got 0, expected at least 1"),
}


@pytest.mark.parametrize(("line", "said"), WRONG_WORDS.values(), ids=list(WRONG_WORDS))
def test_it_is_told_in_one_sentence_and_nothing_is_written(line, said, run, data, tmp_path, capsys):
    paths = {"new": tmp_path / "new", "start": run, "demos": data}
    assert cli.main(line.format(**paths).split()) == 1
    assert said.format(**paths) in only_sentence(capsys.readouterr().err)
    assert not paths["new"].exists()
