"""Quality gates: what misses a bound is named, what cannot be measured is left out and told."""

from pathlib import Path

import pytest

from reward_models.label_report import command, gates
from reward_models.label_report.gates import Gates
from reward_models.label_report.read import read
from tests.reward_models.label_report.made_up import write_labelled


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> Path:
    return write_labelled(tmp_path_factory.mktemp("gates") / "data")


def missed_of(labelled: Path, bounds: Gates) -> list[str]:
    found = gates.results(read(labelled).episodes, bounds)
    return [result.sentence for result in found if result.missed]


def test_each_missed_gate_gets_a_sentence_with_value_and_bound(labelled: Path):
    # Half of one of four episodes is abstained from: 87.5 % are covered.
    assert missed_of(labelled, Gates(coverage=0.9, confidence_error=1.0, false_gain=1.0)) == [
        "coverage: 0.875, expected at least 0.9"
    ]
    missed = missed_of(labelled, Gates())
    assert [sentence.split(":")[0] for sentence in missed] == [
        "calibration error of confidence", "false gain per second"
    ]  # fmt: skip


def test_a_value_at_its_bound_is_kept(labelled: Path):
    # done_prob is 0.1 where nothing is done and 0.9 where it is.
    found = {r.name: r for r in gates.results(read(labelled).episodes, Gates(done_error=0.1))}
    done = found["calibration error of done"]
    assert (done.value, done.missed) == (0.1, False)


def test_without_truth_only_coverage_is_checked_and_the_rest_is_told(tmp_path: Path):
    blind = write_labelled(tmp_path / "data", truth=False)
    strict = Gates(done_error=0.0, confidence_error=0.0, false_gain=0.0, coverage=0.0)
    assert missed_of(blind, strict) == []
    results = gates.results(read(blind).episodes, strict)
    assert [r.checked for r in results] == [True, False, False, False]
    assert results[1].sentence.endswith("not checked, the data set holds no true success")


def test_the_command_fails_when_a_gate_is_missed_and_says_which(labelled: Path, tmp_path, capsys):
    out = tmp_path / "page.html"
    bounds = Gates(false_gain=9.0, confidence_error=0.2)
    assert command.report(labelled, out, bounds, videos=0) == 1
    told = capsys.readouterr()
    # Measured are 21 frames of each episode. Of 63 that promise 0.9, 21 + 7 + 7 are within 0.1 of
    # the truth; all 10 that promise 0.3 and do not abstain are: (21.7 + 7) / 73.
    assert "gate missed: calibration error of confidence: 0.393" in told.err
    assert "gate passed: coverage: 0.875, expected at least 0.7" in told.out
    assert command.report(labelled, out, Gates(false_gain=9.0, confidence_error=1.0), videos=0) == 0
    assert out.is_file()


def test_bounds_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"gates\.coverage: got 70.0, expected 0 to 1"):
        Gates(coverage=70.0)
    with pytest.raises(ValueError, match=r"gates\.false_gain: got -1.0, expected 0 or more"):
        Gates(false_gain=-1.0)
