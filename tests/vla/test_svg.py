"""Charts put figures where they belong."""

import xml.etree.ElementTree as ET

import pytest

from vla import svg
from vla.svg import Interval


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 1500, [0, 500, 1000, 1500]),
        (0.13, 0.31, [0.15, 0.2, 0.25, 0.3]),
    ],
)
def test_ticks_are_round_numbers(low, high, expected):
    assert svg.ticks(low, high) == pytest.approx(expected)


def test_log_ticks_are_one_two_and_five_or_equal_steps_within_a_decade():
    assert svg.log_ticks(-2, 0) == pytest.approx([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1])
    assert svg.log_ticks(-4, 0) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1])
    # From 0.2 to 0.63.
    assert svg.log_ticks(-0.699, -0.2) == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])


def points_of(drawing: str) -> list[list[tuple[float, float]]]:
    lines = [x for x in ET.fromstring(drawing) if x.tag.endswith("polyline")]
    return [
        [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        for line in lines
    ]


def test_a_curve_runs_from_corner_to_corner():
    drawing = svg.curves([[(0, 1.0), (10, 3.0)]], x_label="updates", y_label="loss")
    # 540 x 250 px with margins of 56 left, 16 right, 10 above and 40 below.
    assert points_of(drawing) == [[(56, 210), (524, 10)]]


def test_a_logarithmic_curve_puts_the_geometric_mean_in_the_middle():
    series = [[(0, 0.01), (5, 0.1), (10, 1.0)]]
    (line,) = points_of(svg.curves(series, x_label="x", y_label="y", log=True))
    assert line[1] == (290, 110)


def test_what_cannot_be_drawn_is_left_out_and_nothing_at_all_is_an_error():
    series = [[], [(0, float("nan")), (1, 2.0), (2, 4.0), (3, -1.0)]]
    drawing = svg.curves(series, x_label="x", y_label="y", log=True)
    (line,) = points_of(drawing)
    assert len(line) == 2
    # The second series keeps its own colour although the first is empty.
    assert svg.colour(1) in drawing
    assert svg.colour(0) not in drawing
    with pytest.raises(ValueError, match="no usable point of 'loss'"):
        svg.curves([[(0, float("nan"))]], x_label="x", y_label="loss")


def test_a_flat_curve_and_a_single_point_at_zero_are_drawn():
    for series in ([[(0, 2.0), (1, 2.0)]], [[(0, 0.0)]]):
        assert "circle" in svg.curves(series, x_label="x", y_label="y")


def test_intervals_lie_on_an_axis_from_zero_to_one_hundred_percent():
    rows = [None, Interval("<a>", 0.5, 0.25, 0.75)]
    drawing = ET.fromstring(svg.intervals(rows, 0.25))
    (dot,) = [x for x in drawing if x.tag.endswith("circle")]
    # Half of 540 - 56 - 16 = 468 px, right of 56; the second row of 30 px below 24.
    assert (float(dot.attrib["cx"]), float(dot.attrib["cy"])) == (56 + 234, 24 + 45)
    (bar,) = [x for x in drawing if "stroke-opacity" in x.attrib]
    assert (float(bar.attrib["x1"]), float(bar.attrib["x2"])) == (56 + 117, 56 + 351)
    (line,) = [x for x in drawing if x.attrib.get("class") == "chance"]
    assert float(line.attrib["x1"]) == 56 + 117


def test_a_seventh_series_is_dashed():
    names = [f"run{k}" for k in range(7)]
    text = svg.legend(names)
    assert text.count("dasharray") == 1
    assert "run6" in text


def test_a_line_breaks_where_a_point_is_missing_if_gaps_are_wanted():
    series = [[(0, 0.0), (1, 1.0), (2, float("nan")), (3, 1.0), (4, 0.0)]]
    assert len(points_of(svg.curves(series, x_label="x", y_label="y"))) == 1
    assert len(points_of(svg.curves(series, x_label="x", y_label="y", gaps=True))) == 2


def test_the_diagonal_goes_from_zero_to_one_whatever_the_points():
    series = [[(0.5, 0.5)]]
    drawing = svg.curves(series, x_label="x", y_label="y", y_range=(0, 1), diagonal=True)
    (line,) = [x for x in ET.fromstring(drawing) if x.attrib.get("class") == "chance"]
    assert [line.attrib[k] for k in ("x1", "y1", "x2", "y2")] == ["56.0", "210.0", "524.0", "10.0"]


def test_bars_of_a_histogram_show_shares_of_the_values_between_the_edges():
    # Half of the four values within the edges lies in the last of four bins, with its end.
    values = [-1.0, -0.1, 0.6, 1.0, 2.0, float("nan")]
    drawing = ET.fromstring(svg.histogram(values, [-1, -0.5, 0, 0.5, 1], x_label="delta"))
    bars = [x for x in drawing if x.tag.endswith("rect")]
    assert [float(bar.attrib["height"]) for bar in bars] == [100, 100, 0, 200]
    # 468 px in four bins, with 1 px between the bars.
    assert {float(bar.attrib["width"]) for bar in bars} == {116}
    with pytest.raises(ValueError, match="got no delta from -1 to 1"):
        svg.histogram([float("nan")], [-1, 1], x_label="delta")
