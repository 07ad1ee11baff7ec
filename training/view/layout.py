"""How a viewer arranges what a recording holds: a tab per episode, cameras over curves."""

from collections.abc import Sequence
from typing import Any


def send(stream: Any, tabs: Sequence[Any], timeline: str = "time") -> None:
    """Send a layout with these tabs, along one of the recording's time lines."""
    import rerun.blueprint as rrb

    stream.send_blueprint(rrb.Blueprint(
        rrb.Tabs(*tabs), rrb.TimePanel(state="collapsed", timeline=timeline),
        rrb.SelectionPanel(state="hidden"),
    ))  # fmt: skip


def episode(
    place: str, name: str, cameras: Sequence[str], *, critic: bool = False, memory: bool = False,
    chunk: bool = False,
) -> Any:  # fmt: skip
    """Return the tab of one episode: what is seen above, what is measured and done below."""
    import rerun.blueprint as rrb

    seen = [rrb.Spatial2DView(origin=f"{place}/camera/{c}", name=c) for c in cameras]
    words = rrb.TextDocumentView(origin=f"{place}/task", name="task")
    bare = rrb.PlotLegend(visible=False)  # of many series it would hide them
    curves: list[Any] = [
        rrb.TimeSeriesView(origin=f"{place}/state", name="state"),
        rrb.TimeSeriesView(origin=f"{place}/action", name="action", plot_legend=bare),
    ]
    if critic:
        curves.append(rrb.TimeSeriesView(origin=f"{place}/critic", name="critic"))
    if chunk:
        line = rrb.Spatial2DView(origin=f"{place}/chunk/line", name="chunk, share of limits")
        curves.append(line)
    rows: list[Any] = [
        rrb.Horizontal(words, *seen, column_shares=[1] + [2] * len(seen)),
        rrb.Grid(*curves),
    ]
    if memory:
        rows.append(rrb.Horizontal(
            rrb.TensorView(origin=f"{place}/memory/share", name="which decisions a slot holds"),
            *(rrb.TimeSeriesView(origin=f"{place}/memory/{part}", name=title, plot_legend=bare)
              for part, title in MEMORY.items()),
        ))  # fmt: skip
    return rrb.Vertical(*rows, row_shares=[4, 3, 3][: len(rows)], name=name)


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
