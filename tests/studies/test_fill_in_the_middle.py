# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from common.tokenizers import train_tokenizer
from eval.infilling import Gap
from eval.studies.infilling.compare import MiddleFiller, find_pair
from eval.studies.infilling.fill_in_the_middle import rearrange
from modeling_aogpt.data_collator import make_streams
from tests.references import random_model

SENTINELS, END = [101, 102, 103], 0


def test_sequences_are_rearranged() -> None:
    ids, lengths, windows = list(range(1, 41)), set(), set()
    for stream in make_streams(0, torch.arange(200)):
        row, labels = rearrange(ids, stream, SENTINELS, END)
        if row == ids:
            continue
        before, after, middle = map(row.index, SENTINELS)
        end = row.index(END) if END in row else len(row)
        prefix, suffix, part = row[before + 1 : after], row[after + 1 : middle], row[middle + 1 : end]
        assert [*prefix, *part, *suffix] == ids[: end - 3]
        assert row[end + 1 :] == ids[end - 3 : 36]
        assert labels == [-100 if token in SENTINELS else token for token in row]
        lengths.add(len(part))
        windows.add(end - 3)
    assert min(lengths) == 1
    assert len(lengths) > 10
    assert {min(windows), max(windows)} == {15, 36}


def test_middles_contain_no_end_of_text() -> None:
    ids = [1, 2, END, 4, 5] * 8
    for stream in make_streams(0, torch.arange(50)):
        row, _ = rearrange(ids, stream, SENTINELS, END)
        if row != ids:
            middle = row[row.index(103) + 1 :]
            assert END in middle or len(middle) < 3


def test_both_places_of_a_name_are_found() -> None:
    tokenizer = train_tokenizer(["value = other + value\n"] * 9, 262)
    ids = tokenizer("x; value = (value)\n").input_ids
    pair = find_pair(ids, tokenizer)
    texts = [tokenizer.decode(part) for part in pair.parts]
    assert "".join(texts).count("value") == 0
    assert tokenizer.decode(pair.removed).count("value") == 2
    assert find_pair(tokenizer("x; value = (other)\n").input_ids, tokenizer) is None


def test_a_left_to_right_model_fills_in_the_middle() -> None:
    model = random_model(eos_token_id=END)
    filler, gap = MiddleFiller(model, 4, (8, 9, 10)), Gap([3, 1, 4, 5], 1, 2)
    ids = torch.tensor([[8, 3, 9, 5, 10, 1, 4, END]])
    expected = -model.log_likelihood(ids).token_log_likelihood[0, 5:].sum().item()
    assert filler.nats_with_end(gap) == pytest.approx(expected)
    filled = filler.in_the_middle(gap)
    assert 0 < len(filled) <= 4
    logits = model(torch.tensor([[8, 3, 9, 5, 10, *filled]])).logits[0, 5:, :11]
    assert logits[1:, :8].argmax(dim=-1).tolist() == filled[1:]
    assert logits[0, 1:8].argmax().item() + 1 == filled[0]
