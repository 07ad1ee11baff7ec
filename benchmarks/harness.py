"""What the studies share: arguments, `vla` commands, resumed results, intervals, tables, plots."""

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from vla.utils import arguments, charts, files
from vla.utils.interrupted import Interrupted
from vla.utils.statistics import wilson

T = TypeVar("T")

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""
MORE = "--more"
"""Flag after which all words belong to every `vla train` of a study."""


def read(kind: type[T], argv: Sequence[str] | None, module: str) -> T:
    """Return a study's arguments.

    Args:
        kind: Dataclass; with a field `more`, it receives the words after `--more` as they are.
        argv: Command line; the process's if None.
        module: Name of the study's module, for messages.

    Raises:
        ValueError: an argument is unknown, missing or out of range.
    """
    words, more = list(sys.argv[1:] if argv is None else argv), None
    if MORE in words and MORE[2:] in {field.name for field in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        split = words.index(MORE)
        words, more = words[:split], tuple(words[split + 1 :])
    args = arguments.read(kind, words, f"python -m benchmarks.{module}")
    return args if more is None else dataclasses.replace(args, more=more)  # type: ignore[type-var]


# --- commands ------------------------------------------------------------------------------------


def run(words: list[str], console: Console) -> int:
    """Print a command, run it in another process and return its exit code.

    Ctrl-C reaches the command, which saves its state and ends with exit code 130; this waits.

    Args:
        words: Words after `vla`.
        console: Where the command is printed.
    """
    console.print(f"\n$ vla {' '.join(words)}", highlight=False, markup=False, soft_wrap=True)
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run([sys.executable, "-m", "vla.cli", *words], check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def must(words: list[str], console: Console) -> None:
    """As `run`, but end the study if the command fails.

    Raises:
        Interrupted: Ctrl-C ended the command.
        SystemExit: the command failed and printed why; it carries the exit code.
    """
    code = run(words, console)
    if code == INTERRUPTED:
        raise Interrupted("results so far are saved")
    if code:
        raise SystemExit(code)


def check_names(field: str, names: Collection[str], known: Collection[str]) -> None:
    """Raise ValueError unless a field has names, and known ones alone."""
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(f"{field}: got {unknown}, expected some of {', '.join(known)}")


# --- results -------------------------------------------------------------------------------------


class Results:
    """Finished cells of a study in a JSON file, which the same command resumes."""

    def __init__(
        self, path: Path, settings: Mapping[str, Any] | None = None, key: str = ""
    ) -> None:
        """Read the cells that an earlier call measured.

        Args:
            path: File.
            settings: JSON types that every cell depends on; stored next to the cells.
            key: Name of the cells in the file; if empty, the file holds nothing else.

        Raises:
            ValueError: the file holds results of other settings.
        """
        self.path, self.settings, self.key = path, dict(settings or {}), key
        self.cells: dict[str, Any] = {}
        if not path.exists():
            return
        stored = json.loads(path.read_text())
        self.cells = stored.pop(key, {}) if key else stored
        if key and stored != self.settings:
            different = {k: v for k, v in stored.items() if self.settings.get(k) != v}
            raise ValueError(
                f"{path}: got a study with {different or stored}, expected {self.settings}; "
                "continue with the same settings, or choose another --out"
            )

    def measure(self, name: str, function: Callable[[], Any]) -> Any:
        """Return a cell; if it is missing, call `function` and save its result."""
        if name not in self.cells:
            self.cells[name] = function()
            self.save()
        return self.cells[name]

    def save(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(
            self.path, {**self.settings, self.key: self.cells} if self.key else self.cells
        )


def load(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text())


def evaluation(run: Path) -> dict[str, Any]:
    """Return the evaluation that `vla train` or `vla eval` wrote to a folder."""
    return load(run / "evaluation.json")


def pooled(evaluations: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Return successes and episodes of several evaluations."""
    success = [ok for evaluation in evaluations for ok in evaluation["success"]]
    return sum(success), len(success)


# --- tables and plots ----------------------------------------------------------------------------


def rate(successes: int, trials: int) -> str:
    """Return a share for a table; a dash without trials."""
    return f"{successes / trials:.1%}" if trials else "-"


def interval(successes: int, trials: int, digits: int = 1) -> str:
    """Return the 95 % interval (Wilson) of a share for a table; a dash without trials."""
    if not trials:
        return "-"
    low, high = wilson(successes, trials)
    return f"{low:.{digits}%} to {high:.{digits}%}"


def share(successes: int, trials: int) -> str:
    """Return a share with its 95 % interval (Wilson) for a table; empty without trials."""
    if not trials:
        return ""
    low, high = wilson(successes, trials)
    return f"{rate(successes, trials)} ({100 * low:.1f} to {100 * high:.1f})"


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]] = (), left: int = 1
) -> Table:
    """Return a table.

    Args:
        title: Its title.
        columns: Their headings.
        rows: Cells.
        left: Number of columns with text, which are aligned on the left; the others hold numbers.
    """
    sheet = Table(title=title or None)
    for i, column in enumerate(columns):
        sheet.add_column(column, justify="left" if i < left else "right")
    for row in rows:
        sheet.add_row(*map(str, row))
    return sheet


def show(sheet: Table, width: int | None = None) -> None:
    """Print a table.

    Args:
        sheet: The table.
        width: Columns of text; those of the terminal if None.
    """
    Console(highlight=False, soft_wrap=True, width=width).print(sheet)


def plot(series: Sequence[Sequence[tuple[float, float]]], *, x: str, y: str, **style: Any) -> str:
    """Return curves as an SVG drawing.

    Args:
        series: Points (x, y) of each curve.
        x: Label of the x axis.
        y: Label of the y axis.
        style: Further arguments of `vla.utils.charts.curves`.
    """
    return charts.svg(charts.curves(series, x_label=x, y_label=y, **style))
