"""Where the summaries of feature maps say things are."""

import torch

from vla.nn.vision import FilmConv, WindowedKeypoints, grid, peak, spatial_softmax, waves


def test_grid_coordinates_run_from_minus_one_to_one_x_first() -> None:
    assert grid(2, 3).tolist() == [[-1, -1], [0, -1], [1, -1], [-1, 1], [0, 1], [1, 1]]


def test_a_sharp_peak_is_found_where_it_is_with_its_height() -> None:
    maps = torch.zeros(1, 2, 5, 5)
    maps[0, 0, 1, 3] = 40.0  # row 1 of 5 is y = -0.5, column 3 is x = 0.5
    points = spatial_softmax(maps, grid(5, 5), torch.ones(2, 1))
    torch.testing.assert_close(points[0, 0], torch.tensor([0.5, -0.5, 40.0]))
    torch.testing.assert_close(points[0, 1], torch.zeros(3))  # nothing there: the centre, height 0


def test_two_equal_peaks_meet_half_way() -> None:
    maps = torch.full((1, 1, 1, 3), -100.0)
    maps[0, 0, 0, 0] = maps[0, 0, 0, 2] = 1.0
    points = spatial_softmax(maps, grid(1, 3), torch.ones(1, 1))
    torch.testing.assert_close(points[0, 0, 0], torch.tensor(0.0))


def test_a_condition_changes_what_the_convolution_lets_through() -> None:
    block = FilmConv(4, 3)
    maps = torch.arange(4 * 16.0).view(1, 4, 4, 4) / 16
    plain = block(maps, torch.zeros(1, 3))
    assert plain.shape == maps.shape
    assert not torch.equal(block(maps, torch.ones(1, 3)), plain)


def test_keypoints_around_a_place_are_of_what_is_there_not_of_what_is_stronger_elsewhere() -> None:
    maps = torch.zeros(1, 1, 1, 9, 9)
    maps[..., 1, 2], maps[..., 7, 7] = 4.0, 8.0  # x -0.5, y -0.75, and x and y 0.75
    coordinates, temperature = grid(9, 9), torch.full((1, 1), 5.0)
    places = torch.tensor([[[[-0.4, -0.7], [0.7, 0.8]]]])
    near = WindowedKeypoints(views=1)(maps, places, coordinates, temperature)
    assert near.shape == (1, 1, 2, 1, 3)
    expected = torch.tensor([[-0.1, -0.05], [0.05, -0.05]]) / 0.15
    torch.testing.assert_close(near[0, 0, :, 0, :2], expected, atol=0.05, rtol=0)


def test_the_peak_is_between_cells_and_not_between_peaks() -> None:
    logits = torch.zeros(9, 9)
    logits[4, 2] = logits[4, 3] = 6.0  # x -0.5 and -0.25
    logits[0, 8] = 5.0
    place = peak(logits.flatten(), grid(9, 9))
    torch.testing.assert_close(place, torch.tensor([-0.375, 0.0]), atol=0.02, rtol=0)


def test_waves_have_the_value_and_double_the_frequency_of_each_octave() -> None:
    got = waves(torch.tensor([[0.5, -0.25]]), octaves=2)
    expected = [1, -(0.5**0.5), 0, -1, 0, 0.5**0.5, -1, 0]
    torch.testing.assert_close(got[0], torch.tensor(expected), atol=1e-6, rtol=0)
