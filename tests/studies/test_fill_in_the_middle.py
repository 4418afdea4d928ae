# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import torch

from common.tokenizers import train_tokenizer
from eval.studies.infilling.compare import find_pair
from eval.studies.infilling.fill_in_the_middle import rearrange
from modeling_aogpt.data_collator import make_streams

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
