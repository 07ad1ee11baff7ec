"""How a viewer arranges what a recording holds: a tab per episode, cameras over curves."""

from collections.abc import Sequence
from typing import Any


def send(stream: Any, tabs: Sequence[Any]) -> None:
    """Send a layout with these tabs."""
    import rerun.blueprint as rrb

    stream.send_blueprint(rrb.Blueprint(
        rrb.Tabs(*tabs), rrb.TimePanel(state="collapsed"), rrb.SelectionPanel(state="hidden"),
    ))  # fmt: skip


def episode(
    place: str, name: str, cameras: Sequence[str], *, critic: bool = False, memory: bool = False,
    chunk: bool = False,
) -> Any:  # fmt: skip
    """Return the tab of one episode: what is seen above, what is measured and done below."""
    import rerun.blueprint as rrb

    seen = [rrb.Spatial2DView(origin=f"{place}/camera/{c}", name=c) for c in cameras]
    words = rrb.TextDocumentView(origin=f"{place}/task", name="task")
    curves: list[Any] = [
        rrb.TimeSeriesView(origin=f"{place}/state", name="state"),
        rrb.TimeSeriesView(origin=f"{place}/action", name="action"),
    ]
    if critic:
        curves.append(rrb.TimeSeriesView(origin=f"{place}/critic", name="critic"))
    if chunk:
        line = rrb.Spatial2DView(origin=f"{place}/chunk/line", name="chunk, share of limits")
        curves.append(line)
    rows: list[Any] = [rrb.Horizontal(words, *seen), rrb.Grid(*curves)]
    if memory:
        rows.append(rrb.Horizontal(
            rrb.TensorView(origin=f"{place}/memory/share", name="which decisions a slot holds"),
            *(rrb.TimeSeriesView(origin=f"{place}/memory/{part}", name=title)
              for part, title in MEMORY.items()),
        ))  # fmt: skip
    return rrb.Vertical(*rows, name=name)


MEMORY = {
    "similarity": "likeness of slots to what is seen",
    "slot_count": "decisions in each slot",
    "slot_time": "mean time of each slot, s",
}
"""Time series of a slot memory, and what they are."""


def practice(rows: int, cameras: Sequence[str]) -> list[Any]:
    """Return the tabs of practice: what some environments show, and figures of the run."""
    import rerun.blueprint as rrb

    own = [
        rrb.Vertical(
            rrb.Horizontal(
                *(rrb.Spatial2DView(origin=f"rollout_{k}/camera/{c}", name=c) for c in cameras)
            ),
            rrb.TimeSeriesView(origin=f"rollout_{k}/worth", name="reward, critic, help"),
            rrb.TextLogView(origin=f"rollout_{k}/outcome", name="outcome"),
            row_shares=[3, 2, 1], name=f"environment {k}",
        )
        for k in range(rows)
    ]  # fmt: skip
    return [rrb.Grid(*own, name="practice"), rrb.TimeSeriesView(origin="metrics", name="figures")]
