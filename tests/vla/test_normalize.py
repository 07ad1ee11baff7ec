"""Scaling between physical units and normalised ones."""

import torch

from vla.nn.normalize import NormalizationStatistics, Normalizer

STATISTICS = NormalizationStatistics(
    state_mean=(1.0, 0.5), state_std=(2.0, 0.001), action_low=(-1.0, 0.3), action_high=(3.0, 0.3)
)


def test_figures_worked_out_by_hand() -> None:
    scale = Normalizer(STATISTICS)
    # channel 0: (5 - 1) / 2; channel 1 deviates by less than 0.05, which is used instead
    state = scale.state(torch.tensor([[5.0, 0.6]]))
    torch.testing.assert_close(state, torch.tensor([[2.0, (0.6 - 0.5) / 0.05]]))
    # channel 0: centre 1, half range 2; channel 1 does not move: half of 0.05 around 0.3
    action = scale.action(torch.tensor([[[3.0, 0.3], [-1.0, 0.325]]]))
    torch.testing.assert_close(action, torch.tensor([[[1.0, 0.0], [-1.0, 1.0]]]))


def test_the_inverse_of_the_action_scaling_is_its_inverse() -> None:
    scale = Normalizer(STATISTICS)
    values = torch.linspace(-2, 2, 24).view(3, 4, 2)
    torch.testing.assert_close(scale.action_inverse(scale.action(values)), values)
    torch.testing.assert_close(scale.action(scale.action_inverse(values)), values)


def test_the_figures_travel_with_the_weights() -> None:
    assert set(Normalizer(STATISTICS).state_dict()) == {
        "state_mean", "state_std", "action_center", "action_scale",
    }  # fmt: skip
