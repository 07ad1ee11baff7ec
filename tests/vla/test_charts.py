"""Charts show the figures they are given; as SVG they are small, plain and always the same."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from vla.utils import charts
from vla.utils.charts import Interval


def lines_of(drawing):
    """Return the curves of a chart as lists of points, without what is not drawn."""
    lines = [line for line in drawing.axes[0].lines if line.get_gid() != "chance"]
    return [[tuple(point) for point in line.get_xydata().tolist()] for line in lines]


def texts(drawing) -> list[str]:
    root = ET.fromstring(charts.svg(drawing))
    return [element.text for element in root.iter() if element.tag.endswith("text")]


def test_a_curve_shows_its_points_over_all_of_the_horizontal_axis():
    drawing = charts.curves([[(0, 1.0), (10, 3.0)]], x_label="updates", y_label="loss")
    assert lines_of(drawing) == [[(0, 1), (10, 3)]]
    assert drawing.axes[0].get_xlim() == (0, 10)
    assert {"updates", "loss"} <= set(texts(drawing))


def test_numbers_on_the_axes_are_plain():
    drawing = charts.curves([[(0, 0.15), (3000, 0.3)]], x_label="updates", y_label="loss")
    assert {"1,000", "0.2"} <= set(texts(drawing))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.01, 1, {"0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"}),
        (1e-4, 1, {"0.0001", "0.001", "0.01", "0.1", "1"}),
        (0.21, 0.63, {"0.3", "0.4", "0.5", "0.6"}),
    ],
)
def test_a_logarithmic_axis_has_one_two_and_five_or_equal_steps_within_a_decade(
    low, high, expected
):
    drawing = charts.curves([[(0, low), (9, high)]], x_label="x", y_label="loss", log=True)
    assert drawing.axes[0].get_yscale() == "log"
    assert expected <= set(texts(drawing))


def test_what_cannot_be_drawn_is_left_out_and_nothing_at_all_is_an_error():
    series = [[], [(0, float("nan")), (1, 2.0), (2, 4.0), (3, -1.0)]]
    drawing = charts.curves(series, x_label="x", y_label="y", log=True)
    assert lines_of(drawing) == [[(1, 2), (2, 4)]]
    # The second series keeps its own colour although the first is empty.
    assert drawing.axes[0].lines[0].get_color() == charts.colour(1)
    with pytest.raises(ValueError, match="no usable point of 'loss'"):
        charts.curves([[(0, float("nan"))]], x_label="x", y_label="loss", diagonal=True)


def test_a_flat_curve_and_a_single_point_at_zero_are_drawn():
    for series in ([[(0, 2.0), (1, 2.0)]], [[(0, 0.0)]]):
        assert "<use" in charts.svg(charts.curves(series, x_label="x", y_label="y"))


def test_few_points_are_marked_and_of_many_those_alone():
    few = charts.curves([[(k, k) for k in range(4)]], x_label="x", y_label="y")
    assert few.axes[0].lines[0].get_markevery() == [True] * 4
    values = np.ones(40)
    values[[3, 5]] = np.nan
    series = [np.stack([np.arange(40), values], 1)]
    many = charts.curves(series, x_label="x", y_label="y", gaps=True)
    assert np.flatnonzero(many.axes[0].lines[0].get_markevery()).tolist() == [4]


def test_intervals_lie_on_an_axis_from_zero_to_one_hundred_percent():
    rows = [None, Interval("<a>", 0.5, 0.25, 0.75)]
    drawing = charts.intervals(rows, 0.25)
    chance, dot = drawing.axes[0].lines
    assert chance.get_xdata() == [0.25, 0.25]
    assert dot.get_xydata().tolist() == [[0.5, 1]]  # the second row
    (bar,) = drawing.axes[0].collections
    assert bar.get_segments()[0].tolist() == [[0.25, 1], [0.75, 1]]
    assert {"0%", "25%", "100%", "chance", "<a>"} <= set(texts(drawing))
    assert drawing.axes[0].yaxis_inverted()


def test_a_seventh_series_is_dashed():
    series = [[(0, k), (1, k)] for k in range(7)]
    drawing = charts.curves(series, x_label="x", y_label="y")
    assert [line.get_linestyle() for line in drawing.axes[0].lines] == ["-"] * 6 + ["--"]


def test_a_line_breaks_where_a_point_is_missing_if_gaps_are_wanted():
    series = [[(0, 0.0), (1, 1.0), (2, float("nan")), (3, 1.0), (4, 0.0)]]
    (joined,) = lines_of(charts.curves(series, x_label="x", y_label="y"))
    assert [x for x, _ in joined] == [0, 1, 3, 4]
    (broken,) = lines_of(charts.curves(series, x_label="x", y_label="y", gaps=True))
    assert np.isnan(broken[2][1])


def test_the_diagonal_goes_from_zero_to_one_whatever_the_points():
    series = [[(0.5, 0.5)]]
    drawing = charts.curves(series, x_label="x", y_label="y", y_range=(0, 1), diagonal=True)
    chance = drawing.axes[0].lines[0]
    assert chance.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert (drawing.axes[0].get_xlim(), drawing.axes[0].get_ylim()) == ((0, 1), (0, 1))


def test_bars_of_a_histogram_show_shares_of_the_values_between_the_edges():
    # Half of the four values within the edges lies in the last of four bins, with its end.
    values = [-1.0, -0.1, 0.6, 1.0, 2.0, float("nan")]
    drawing = charts.histogram(values, [-1, -0.5, 0, 0.5, 1], x_label="delta")
    bars = drawing.axes[0].patches
    assert [bar.get_height() for bar in bars] == [0.25, 0.25, 0, 0.5]
    assert [bar.get_x() for bar in bars] == [-1, -0.5, 0, 0.5]
    with pytest.raises(ValueError, match="got no delta from -1 to 1"):
        charts.histogram([float("nan")], [-1, 1], x_label="delta")


def test_a_chart_is_one_plain_element_that_many_may_share_a_page_with():
    series = [[(k, k % 5) for k in range(100)]]
    text = charts.svg(charts.curves(series, x_label="<x>", y_label='"y"'))
    assert text == charts.svg(charts.curves(series, x_label="<x>", y_label='"y"'))
    root = ET.fromstring(text)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == '"y" against <x>'
    assert not any(e.tag.endswith(("style", "metadata", "script")) for e in root.iter())
    # Text is text, in the colour of the page; no group has an id that another chart has, too.
    assert "<x>" in [e.text for e in root.iter()]
    assert f"fill: var(--soft, {charts.TEXT})" in text
    assert not any("id" in e.attrib for e in root.iter() if e.tag.endswith("}g"))
    assert len(text) < 10_000


def test_a_chart_leaves_the_style_of_matplotlib_as_it_was():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    charts.svg(charts.histogram([0.5], [0, 1], x_label="x"))
    assert dict(mpl.rcParams) == before


def test_neither_matplotlib_nor_jinja_is_imported_before_a_page_is_made():
    code = (
        "import sys, vla.utils.charts, vla.utils.pages\n"
        "sys.exit(' '.join({'jinja2', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
