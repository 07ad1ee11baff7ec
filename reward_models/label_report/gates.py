"""Quality gates: bounds of the labels of a data set, and their results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reward_models.label_report import figures
from reward_models.label_report.read import Episode


@dataclass(frozen=True, kw_only=True)
class Gates:
    """Bounds; all but coverage need the simulator's truth."""

    done_error: float = 0.1
    """Largest calibration error of done_prob, in [0, 1]."""
    confidence_error: float = 0.15
    """Largest calibration error of confidence, in [0, 1]."""
    false_gain: float = 0.05
    """Largest gain of progress per second where the truth stands still."""
    coverage: float = 0.7
    """Least share of frames without abstention, in [0, 1]."""

    def __post_init__(self) -> None:
        for name in ("done_error", "confidence_error", "coverage"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"gates.{name}: got {getattr(self, name)}, expected 0 to 1")
        if not self.false_gain >= 0:
            raise ValueError(f"gates.false_gain: got {self.false_gain}, expected 0 or more")


class Result(NamedTuple):
    """Result of one gate."""

    name: str
    value: float
    """Rounded to three digits, as printed and compared; NaN if it was not measured."""
    bound: float
    at_most: bool
    """Whether the bound is an upper one."""
    needs: str
    """Data that it needs."""

    @property
    def checked(self) -> bool:
        """Whether it was measured."""
        return not math.isnan(self.value)

    @property
    def missed(self) -> bool:
        """Whether the bound is missed."""
        return self.value > self.bound if self.at_most else self.value < self.bound

    @property
    def sentence(self) -> str:
        """The value and the bound, as a clause."""
        side = "at most" if self.at_most else "at least"
        if not self.checked:
            return f"{self.name}: not checked, the data set holds no {self.needs}"
        return f"{self.name}: {self.value:.3f}, expected {side} {self.bound:g}"


def results(episodes: Sequence[Episode], gates: Gates) -> list[Result]:
    """Return the result of each gate."""
    done = figures.calibration_error(*figures.done_pairs(episodes))
    sure = figures.calibration_error(*figures.confidence_pairs(episodes))
    gain, covered = figures.false_gain(episodes), figures.coverage(episodes)
    still = "stretch on which true progress stands still"
    rows: list[tuple[str, float, float, bool, str]] = [
        ("coverage", covered, gates.coverage, False, "frames"),
        ("calibration error of done", done, gates.done_error, True, "true success"),
        ("calibration error of confidence", sure, gates.confidence_error, True, "true progress"),
        ("false gain per second", gain, gates.false_gain, True, still),
    ]  # fmt: skip
    return [Result(*row)._replace(value=round(row[1], 3)) for row in rows]
