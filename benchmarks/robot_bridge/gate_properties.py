"""Property tests of the safety gate: whatever comes, and whenever, the reference keeps every limit.

`python -m benchmarks.robot_bridge.gate_properties --examples 100000`

Hypothesis draws what happens, in which order and for how many ticks: chunks of a policy and a
person, good and bad, joint states that are partial, damaged, late, frozen or of the future, actions
of an operator, jumps of clocks. `benchmarks.robot_bridge.gate_player` plays it as `safety_node`
would, with ticks that are late or missed, and checks: no limit of position, velocity, acceleration
and jerk is broken, a wall is not passed, nothing moves once the arm is disabled or latched, a stop
ends, and after the last tick the arm comes to rest in the time that the gate states.
"""

import sys
import time
import traceback
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from benchmarks.robot_bridge import gate_player
from benchmarks.robot_bridge.gate_player import Example, Tally
from vla.contracts.config import validate_min
from vla.utils import arguments

ROBOTS = ("so101", "panda")
EVENTS = {
    "policy": 14, "teleop": 3, "joints": 3, "wait": 2, "enable": 1, "disable": 1, "estop": 1,
    "reset": 1, "rearm": 3, "press": 2, "release": 1, "scale": 3, "push": 2, "died": 1, "fail": 1,
    "clock": 1,
}  # fmt: skip
"""What may happen, and how frequent it is."""
EXAMPLES = st.builds(
    Example,
    robot=st.sampled_from(ROBOTS),
    speed=st.sampled_from([1.0, 1.0, 0.5, 0.1, 0.01]),
    seed=st.integers(0, 2**32 - 1),
    steps=st.lists(
        st.tuples(
            st.sampled_from([name for name, count in EVENTS.items() for _ in range(count)]),
            st.integers(0, 15),
        ),
        min_size=2, max_size=12,
    ),
)  # fmt: skip
BATCH = 500
"""Examples of one run of hypothesis, whose memory of them grows."""
REPORT_S = 30.0
"""Time between two lines of progress."""
MOST_FAILURES = 5
"""Failures after which the study ends."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Look for an example in which the gate breaks a limit."""

    examples: int = 2000
    """Number of examples."""
    seed: int = 0
    """Seed of the first 500; each further 500 have the next."""

    def __post_init__(self) -> None:
        validate_min(self, examples=1, seed=0)


def main() -> int:
    """Run the study; 1 if an example broke something."""
    args = arguments.read(
        StudyArgs, sys.argv[1:], "python -m benchmarks.robot_bridge.gate_properties"
    )
    tally, failures = Tally(), 0
    begin_s = last_s = time.monotonic()
    for number, first in enumerate(range(0, args.examples, BATCH)):
        count = min(BATCH, args.examples - first)
        try:
            search(count, args.seed + number, tally)
        except Exception as error:  # noqa: BLE001  whatever it is, with the example in its notes
            failures += 1
            print(f"seed {args.seed + number}:", flush=True)
            traceback.print_exception(error, file=sys.stdout)
        if failures >= MOST_FAILURES:
            break
        now_s = time.monotonic()
        if now_s - last_s > REPORT_S:
            last_s, done = now_s, first + count
            rate = done / (now_s - begin_s)
            left_min = (args.examples - done) / rate / 60
            worst = ", ".join(f"{name} {value:.6g}" for name, value in tally.worst.items())
            print(
                f"{done} of {args.examples}, {rate:.0f}/s, {left_min:.0f} min left, "
                f"{failures} failures; worst: {worst}",
                flush=True,
            )
    Console(highlight=False).print(sheet(tally, failures, time.monotonic() - begin_s))
    return int(failures > 0)


def search(examples: int, seed: int, tally: Tally) -> None:
    """Play examples; the first that breaks something is made smaller and raised."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, database=None, deadline=None, print_blob=False,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(EXAMPLES)
    def holds(example: Example) -> None:
        gate_player.play(example, tally)

    holds()


def sheet(tally: Tally, failures: int, took_s: float) -> Table:
    """Return sums and worst values as a table."""
    table = Table(title=f"{tally.examples} examples in {took_s:.0f} s")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("ticks", f"{tally.ticks:,}")
    table.add_row("trajectories at the controller", f"{tally.messages:,}")
    table.add_row("batches with a failure", str(failures))
    table.add_section()
    for name, value in tally.worst.items():
        far = name not in ("velocity", "acceleration", "jerk")
        table.add_row(f"worst {name}", f"{value:.2e}" if far else f"{value:.8f} of its limit")
    table.add_section()
    for name, count in tally.stages.most_common():
        table.add_row(f"examples with {name}", f"{count:,}")
    return table


if __name__ == "__main__":
    raise SystemExit(main())
