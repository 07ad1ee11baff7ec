"""Metrics of a run: a JSON-lines file, TensorBoard, and Weights & Biases if requested."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vla.contracts import migrate
from vla.utils import files


class MetricsLog:
    """Appends scalars to `RUN/metrics.jsonl` and TensorBoard; a context manager."""

    def __init__(self, run: Path, step: int, wandb_project: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import: not for `vla eval`

        run.mkdir(parents=True, exist_ok=True)
        self.path = run / "metrics.jsonl"
        earlier = [row for row in read_metrics(run) if row["step"] <= step]
        files.write_text(self.path, "".join(json.dumps(row) + "\n" for row in earlier))
        self._file = self.path.open("a", buffering=1)
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        self._wandb = _open_wandb(run, wandb_project)
        self.callbacks: list[Callable[[int, dict[str, float]], None]] = []
        """Functions that also receive the metrics."""

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def write(self, step: int, values: dict[str, float]) -> None:
        """Record the metrics of one step."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(values, step=step)
        for callback in self.callbacks:
            callback(step, values)


def _open_wandb(run: Path, project: str | None) -> Any:
    if project is None:
        return None
    import wandb

    try:
        return wandb.init(project=project, dir=str(run), name=run.name, resume="allow")
    except wandb.errors.Error as error:
        raise ValueError(f"Weights & Biases: {error}; or leave out --wandb-project") from error


def read_metrics(run: Path) -> list[dict[str, int | float]]:
    """Return the rows of `RUN/metrics.jsonl`, oldest first, without damaged lines."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and "step" in row:
            rows.append(migrate.metrics(row))
    return rows
