"""MemoryVLA's bank merges as published: the most similar neighbours, plainly averaged."""

import itertools

import torch

from vla.memory import memory_vla

TOKENS, WIDTH, SLOTS = 2, 4, 3


def published(written: list[torch.Tensor]) -> list[tuple[torch.Tensor, float]]:
    """Return (tokens, time) of the slots after decisions at 0, 8, 16 ..., by a list."""
    bank: list[tuple[torch.Tensor, float]] = []
    for number, x in enumerate(written):
        bank.append((x, 8.0 * number))
        if len(bank) > SLOTS:
            alike = [
                torch.cosine_similarity(a[0], b[0], dim=-1).mean().item()
                for a, b in itertools.pairwise(bank)
            ]
            k = alike.index(max(alike))
            bank[k : k + 2] = [((bank[k][0] + bank[k + 1][0]) / 2, bank[k][1])]
    return bank


def test_the_bank_is_the_one_of_a_list() -> None:
    memory = memory_vla.Config(slots=SLOTS).build(TOKENS, WIDTH)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        written = [torch.randn(TOKENS, WIDTH, generator=generator) for _ in range(12)]
        state = memory.initial(1, torch.device("cpu"))
        for number, x in enumerate(written):
            now = torch.full((1,), 8.0 * number)
            state = memory.write(state, x[None], now, torch.ones(1))
            expected = published(written[: number + 1])
            kept = state["bank_mask"][0] > 0
            assert int(kept.sum()) == len(expected)
            tokens = torch.stack([tokens for tokens, _ in expected])
            torch.testing.assert_close(state["bank_tokens"][0, kept], tokens)
            assert state["bank_time"][0, kept].tolist() == [time for _, time in expected]


def test_no_gradient_reaches_what_was_written() -> None:
    memory = memory_vla.Config(slots=SLOTS).build(TOKENS, WIDTH)
    x = torch.randn(1, 6, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    now = 8.0 * torch.arange(6)[None]
    one, last = torch.zeros(1, dtype=torch.int64), torch.full((1,), 5)
    memory.read_episodes(x, now, torch.ones(1, 6), one, last).tokens.sum().backward()
    assert x.grad is not None
    assert x.grad[0, 5].abs().sum() > 0
    assert x.grad[0, :5].abs().sum() == 0
