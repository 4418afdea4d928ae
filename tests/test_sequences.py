# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import pytest

from common.sequences import count_token_bytes, cut


@pytest.mark.parametrize(
    ("text", "offsets", "sizes"),
    [
        ("", [], [1]),
        ("ab c", [(0, 2), (2, 4)], [2, 2, 1]),
        ("ab c ", [(0, 2), (3, 4)], [2, 2, 2]),  # blanks outside of all tokens
        ("abc", [(0, 2), (0, 0), (2, 3)], [2, 0, 1, 1]),  # a token without text
        ("🙂é", [(0, 1), (0, 1), (1, 2)], [4, 0, 2, 1]),  # a character split into two tokens
    ],
)
def test_bytes_of_tokens(text: str, offsets: list[tuple[int, int]], sizes: list[int]) -> None:
    assert count_token_bytes(text, offsets) == sizes


def test_cut_keeps_all_tokens() -> None:
    documents = [{"input_ids": [1, 2, 3], "token_bytes": [1, 1, 2]}, {"input_ids": [4] * 6, "token_bytes": [5] * 6}]
    assert list(cut(documents, 4)) == [
        {"input_ids": [1, 2, 3, 4], "num_bytes": 9},
        {"input_ids": [4, 4, 4, 4], "num_bytes": 20},
        {"input_ids": [4], "num_bytes": 5},
    ]
    assert list(cut([{"input_ids": [1, 2]}, {"input_ids": [3, 4]}], 2)) == [
        {"input_ids": [1, 2]},
        {"input_ids": [3, 4]},
    ]
