"""Quality gates: bounds that the labels of a data set must keep, and which of them they miss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reward_models.label_report import figures
from reward_models.label_report.read import Episode


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Bounds; all but coverage need the truth and are left out where it is not known."""

    done_error: float = 0.1
    """Largest calibration error of done_prob, in [0, 1]."""
    confidence_error: float = 0.15
    """Largest calibration error of confidence, in [0, 1]."""
    false_gain: float = 0.05
    """Largest gain of progress per second where the truth stands still."""
    coverage: float = 0.7
    """Least share of frames for which progress is given, in [0, 1]."""

    def __post_init__(self) -> None:
        """Refuse bounds out of range."""
        for name in ("done_error", "confidence_error", "coverage"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"gates.{name}: got {getattr(self, name)}, expected 0 to 1")
        if not self.false_gain >= 0:
            raise ValueError(f"gates.false_gain: got {self.false_gain}, expected 0 or more")


class Result(NamedTuple):
    """What became of one gate."""

    name: str
    value: float
    """To three digits, as it is printed and compared; NaN if it could not be measured."""
    bound: float
    at_most: bool
    """Whether the bound is the largest value allowed; else it is the least."""
    needs: str
    """What it is measured on."""

    @property
    def checked(self) -> bool:
        """Whether there was anything to measure."""
        return not math.isnan(self.value)

    @property
    def missed(self) -> bool:
        """Whether the bound is broken."""
        return self.value > self.bound if self.at_most else self.value < self.bound

    @property
    def sentence(self) -> str:
        """One clause: the value, and the bound it keeps or misses."""
        side = "at most" if self.at_most else "at least"
        if not self.checked:
            return f"{self.name}: not checked, the data set holds no {self.needs}"
        return f"{self.name}: {self.value:.3f}, expected {side} {self.bound:g}"


def results(episodes: Sequence[Episode], gates: Gates) -> list[Result]:
    """Return what became of each gate."""
    done = figures.calibration_error(*figures.done_pairs(episodes))
    sure = figures.calibration_error(*figures.confidence_pairs(episodes))
    gain, covered = figures.false_gain(episodes), figures.coverage(episodes)
    still = "stretch on which true progress stands still"
    found: list[tuple[str, float, float, bool, str]] = [
        ("coverage", covered, gates.coverage, False, "frames"),
        ("calibration error of done", done, gates.done_error, True, "true success"),
        ("calibration error of confidence", sure, gates.confidence_error, True, "true progress"),
        ("false gain per second", gain, gates.false_gain, True, still),
    ]  # fmt: skip
    return [Result(*row)._replace(value=round(row[1], 3)) for row in found]
