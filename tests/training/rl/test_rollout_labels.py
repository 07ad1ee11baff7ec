"""Labels of where the named things are: of each rollout its own, NaN where nobody told them."""

from dataclasses import replace

import numpy as np
import torch

from tests.training.rl.fake_rollouts import episode
from training.rl.experience.episode import gather, join


def labelled(number: int):
    """Return an episode of three decisions with labels of two cameras, and these."""
    where = np.random.default_rng(number).random((4, 2, 2, 2), np.float32)
    return replace(episode(3, number=number), referents=where), where


def test_a_batch_has_those_of_its_loss_frames_in_the_policys_cameras():
    (one, first), (other, second) = labelled(0), labelled(1)
    batch = gather([one, other], [np.array([0, 2]), np.array([1])], 2, [1])
    np.testing.assert_array_equal(batch.referents, [first[0, 1:], first[2, 1:], second[1, 1:]])


def test_a_rollout_of_an_earlier_run_takes_no_labels_from_the_others():
    (one, where), old = labelled(0), episode(3, number=1)
    batch = gather([one, old], [np.array([1]), np.array([0, 2])], 2, [0, 1])
    np.testing.assert_array_equal(batch.referents[0], where[1])
    assert batch.referents[1:].isnan().all()
    assert gather([old], [np.array([0])], 2, [0, 1]).referents is None


def test_weights_of_where_to_look_are_those_of_the_loss_unless_a_batch_has_its_own():
    (one, _) = labelled(0)
    plain = gather([one], [np.array([0, 1])], 2, [0, 1])
    other = replace(plain, weight=torch.zeros(2), grounding_weight=torch.ones(2))
    assert join([plain, plain]).grounding_weight is None
    mixed = join([replace(plain, weight=torch.full((2,), 0.5)), other])
    assert mixed.grounding_weight.tolist() == [0.5, 0.5, 1, 1]
    assert mixed.weight.tolist() == [0.5, 0.5, 0, 0]
