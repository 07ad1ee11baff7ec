"""Viewer layouts: a tab per episode, with cameras above curves."""

from collections.abc import Sequence
from typing import Any


def send(stream: Any, tabs: Sequence[Any], timeline: str = "time") -> None:
    """Send a layout with these tabs and one of the recording's timelines."""
    import rerun.blueprint as rrb

    stream.send_blueprint(rrb.Blueprint(
        rrb.Tabs(*tabs), rrb.TimePanel(state="collapsed", timeline=timeline),
        rrb.SelectionPanel(state="hidden"),
    ))  # fmt: skip


def episode(
    place: str, name: str, cameras: Sequence[str], *, reward_model: bool = False,
    memory: Sequence[str] = (), chunk: bool = False,
) -> Any:  # fmt: skip
    """Return the tab of one episode: cameras above state and action; `memory` names the memory's
    curves.
    """
    import rerun.blueprint as rrb

    views_2d = [rrb.Spatial2DView(origin=f"{place}/camera/{c}", name=c) for c in cameras]
    words = rrb.TextDocumentView(origin=f"{place}/task", name="task")
    bare = rrb.PlotLegend(visible=False)  # a legend of many series would hide them
    curves: list[Any] = [
        rrb.TimeSeriesView(origin=f"{place}/state", name="state"),
        rrb.TimeSeriesView(origin=f"{place}/action", name="action", plot_legend=bare),
    ]
    if reward_model:
        curves.append(rrb.TimeSeriesView(origin=f"{place}/reward_model", name="reward_model"))
    if chunk:
        line = rrb.Spatial2DView(origin=f"{place}/chunk/line", name="chunk, share of limits")
        curves.append(line)
    rows: list[Any] = [
        rrb.Horizontal(words, *views_2d, column_shares=[1] + [2] * len(views_2d)),
        rrb.Grid(*curves),
    ]
    if memory:
        views: list[Any] = [
            rrb.TimeSeriesView(
                origin=f"{place}/memory/{part}", name=SLOTS.get(part, f"size of {part}"),
                plot_legend=bare,
            )
            for part in memory
        ]  # fmt: skip
        if set(memory) == set(SLOTS):
            share = rrb.TensorView(
                origin=f"{place}/memory/share", name="which decisions a slot holds"
            )
            views.insert(0, share)
        rows.append(rrb.Horizontal(*views))
    return rrb.Vertical(*rows, row_shares=[4, 3, 3][: len(rows)], name=name)


SLOTS = {
    "similarity": "similarity of slots and observation",
    "slot_count": "decisions in each slot",
    "slot_time": "mean time of each slot, s",
}
"""Time series of a slot memory and their titles."""


def rollouts(rows: int, cameras: Sequence[str]) -> list[Any]:
    """Return the tabs of a run of online RL: some rollouts, and its metrics."""
    import rerun.blueprint as rrb

    views = [
        rrb.Vertical(
            rrb.Horizontal(
                *(rrb.Spatial2DView(origin=f"rollout_{k}/camera/{c}", name=c) for c in cameras)
            ),
            rrb.TimeSeriesView(origin=f"rollout_{k}/reward", name="reward, progress, intervention"),
            rrb.TextLogView(origin=f"rollout_{k}/outcome", name="outcome"),
            row_shares=[3, 2, 1], name=f"environment {k}",
        )
        for k in range(rows)
    ]  # fmt: skip
    return [rrb.Grid(*views, name="rollouts"), rrb.TimeSeriesView(origin="metrics", name="metrics")]
