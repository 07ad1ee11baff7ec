"""Every family of pretrained models computes in shards what it computes whole."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.fakes import as_batch, fake_rollout
from tests.tiny_models import TOWERS, VLMS
from tests.vla.test_pretrained import made, settings
from training.algos.bc import _Loss
from training.core import fsdp


@pytest.fixture
def alone():
    """One process that takes itself for a group of one: shards are whole, hooks are all there."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # InternVL's processor
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [*VLMS, *TOWERS])
def test_in_shards_a_family_has_the_loss_and_gradients_that_it_has_whole(
    kind, dtype, tiny_model, alone
) -> None:
    rng = np.random.default_rng(3)
    batch = as_batch(list(fake_rollout(rng, 2, 3)), [3, 3], [1, 4, 5], 4, rng)
    told = []
    for shared in (False, True):
        loss = _Loss(
            made(settings(kind, tiny_model(kind), finetune_mode="lora", dtype=dtype)).train()
        )
        if shared:
            fsdp.shard(loss, "cpu", 1)
        value, _ = loss(batch, torch.Generator().manual_seed(0))
        value.backward()
        gradients = [fsdp.full_tensor(p.grad) for p in loss.parameters() if p.grad is not None]
        told.append((value.detach(), gradients))
    (whole, gradients), (parted, theirs) = told
    torch.testing.assert_close(parted, whole, rtol=0, atol=1e-6)
    assert len(theirs) == len(gradients) > 0
    for one, other in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
