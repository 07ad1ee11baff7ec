"""The tokenizer and its encoder."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vla.nn.text import CACHED, VOCABULARY, TextEncoder, TextTransformer, train_tokenizer
from vla.utils import tokenizer as tokenizer_file

INSTRUCTIONS = ("Press the red button", "press the blue button", "touch it")
ENCODER = TextEncoder(train_tokenizer(INSTRUCTIONS))
CPU = torch.device("cpu")


def test_known_instructions_have_ids_of_their_own_and_no_unknown_word() -> None:
    ids = ENCODER(INSTRUCTIONS, CPU)
    assert ids.shape == (3, 4)  # one token per known word
    assert not (ids == 1).any()
    assert ids[2].tolist()[2:] == [0, 0]
    assert len({tuple(row) for row in ids.tolist()}) == 3


def test_case_does_not_matter_and_order_of_training_neither() -> None:
    assert torch.equal(ENCODER(("press the red button",), CPU), ENCODER(INSTRUCTIONS[:1], CPU))
    again = TextEncoder(train_tokenizer(INSTRUCTIONS[::-1] * 2))
    assert torch.equal(again(INSTRUCTIONS, CPU), ENCODER(INSTRUCTIONS, CPU))


@given(st.text())
def test_any_text_has_at_least_one_id_within_the_vocabulary(text: str) -> None:
    ids = ENCODER((text, INSTRUCTIONS[0]), CPU)
    assert ids[0, 0] > 0
    assert ids.max() < ENCODER.vocabulary <= VOCABULARY


def test_encoding_twice_and_beside_longer_text_gives_the_same_ids() -> None:
    alone = ENCODER(("touch it",), CPU)[0]
    beside = ENCODER(("touch it", INSTRUCTIONS[0]), CPU)[0]
    assert alone.tolist() == beside.tolist()[: len(alone)]


def test_it_keeps_the_tokens_of_the_latest_instructions_alone() -> None:
    encoder = TextEncoder(train_tokenizer(INSTRUCTIONS))
    for i in range(CACHED + 50):
        encoder((f"press button {i}", "touch it"), CPU)
    assert len(encoder._cache) == CACHED
    assert "touch it" in encoder._cache  # used again and again
    assert "press button 0" not in encoder._cache


def test_a_file_holds_the_tokenizer_and_a_disk_that_fails_is_an_oserror(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer_file.save(ENCODER.tokenizer, path)
    again = TextEncoder(tokenizer_file.load(path, "get it again"))
    assert torch.equal(again(INSTRUCTIONS, CPU), ENCODER(INSTRUCTIONS, CPU))
    with pytest.raises(OSError, match="nowhere"):
        tokenizer_file.save(ENCODER.tokenizer, tmp_path / "nowhere" / "tokenizer.json")


def test_the_transformer_sees_the_order_of_words_and_no_padding() -> None:
    net = TextTransformer(20, 32).eval()
    ids = torch.tensor([[5, 6, 7, 8], [5, 7, 6, 8]])
    out = net(ids)
    assert out.shape == (2, 32)
    assert (out[0] - out[1]).abs().max() > 1e-3
    padded = net(torch.cat([ids, torch.zeros(2, 3, dtype=torch.int64)], 1))
    torch.testing.assert_close(padded, out)
    assert torch.isfinite(net(torch.zeros(1, 2, dtype=torch.int64))).all()
