# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The text around a gap or before a continuation: cutting it to a number of tokens, and decoding what follows it."""

import re
from bisect import bisect_right
from collections.abc import Sequence, Set
from difflib import SequenceMatcher
from functools import partial
from itertools import accumulate
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

NUM_TOKENS_BEFORE = 8  # decoded together with the tokens after them; more would not change the text
Ids = TypeVar("Ids", bound=Sequence[int])  # also a tensor (n,)


def cut_around(before: Ids, after: Ids, room: int, fraction_after: float = 0.5) -> tuple[Ids, Ids]:
    """Cut the outer ends of the tokens around a gap, so that at most `room` tokens remain.

    If both sides are long, `fraction_after` of the tokens come after the gap.
    """
    num_after = min(len(after), max(int(room * fraction_after), room - len(before)))
    return before[max(0, len(before) - (room - num_after)) :], after[:num_after]


def lacks_space(before: list[int], text: str, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether `before`, the tokens of `text` before a gap, lack a space at its end, which belongs to the gap."""
    decoded = tokenizer.decode(before, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    known, given = (len(part) - len(part.rstrip(" ")) for part in (decoded, text))
    return known < given


def decode_after(before: list[int], ids: list[int], tokenizer: PreTrainedTokenizerBase, has_space: bool = False) -> str:
    """Decode `before` and `ids` together, and return the text of `ids`. Alone, it could lose its leading space.

    Leave out a leading space that belongs to the text before. There is such a space if `has_space` (see
    [`lacks_space`]), or if the tokenizer adds a space after a special token, such as `[/INST]`, at the end of `before`.
    """
    before = before[-NUM_TOKENS_BEFORE:]
    decode = partial(tokenizer.batch_decode, skip_special_tokens=True)
    whole, start, alone = decode([[*before, *ids], before, ids], clean_up_tokenization_spaces=False)
    text = whole[len(start) :] if whole.startswith(start) else alone
    if before and before[-1] in tokenizer.all_special_ids:
        probe = tokenizer(f"a{tokenizer.decode(before[-1:])}a", add_special_tokens=False).input_ids
        has_space |= decode([probe]) == ["a a"]
    return text.removeprefix(" ") if has_space else text


def find_special_ids(names: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of special tokens among stop strings. Decoded texts lack special tokens, so ids are compared.

    Raise a `ValueError` if a stop string contains a special token and other text, because it would never be found.
    """
    special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    for name in names:
        if name.strip() not in special and any(token in name for token in special):
            raise ValueError(f"A stop string must be a special token or contain none, but is {name!r}. Split it.")
    return frozenset(special[name.strip()] for name in names if name.strip() in special)


def find_end(row: list[int], ends: Set[int]) -> int:
    """Return the number of ids before the first of `ends`."""
    return next((number for number, token in enumerate(row) if token in ends), len(row))


def num_final(text: str, whole: str) -> int:
    """Return how many characters of `text` remain in `whole`, which has more tokens that may complete a character."""
    return next((n for n, pair in enumerate(zip(text, whole, strict=False)) if len({*pair}) > 1), len(text))


def find_starts(ids: list[int], text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the index in `text` at which each of `ids`, the last tokens of `text`, begins.

    If the tokenizer changed the length of the text (accents, ligatures, spaces), align decoded words with given words.
    """
    starts, end = [], 0
    for number in range(len(ids)):
        known = ids[max(0, number - NUM_TOKENS_BEFORE) : number]
        parts = known, known + ids[number : number + 1], known + ids[number : number + 4]
        before, after, whole = tokenizer.batch_decode(parts, clean_up_tokenization_spaces=False)
        starts.append(end - len(before) + num_final(before, whole))
        end += len(after) - len(before)
    decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if len(decoded) == len(text) or text.endswith(decoded):
        return [len(text) - end + start for start in starts]
    old, new = (re.findall(r"\s+|\w+|\W", part) for part in (decoded, text))  # to align characters takes too long
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    old, new = ([0, *accumulate(map(len, part))] for part in (old, new))
    spans = [(old[first], old[end], new[start], new[stop]) for _, first, end, start, stop in blocks]
    found = (spans[bisect_right([end for _, end, _, _ in spans[:-1]], start)] for start in starts)
    return [min(new + start - old, new_end) for start, (old, _, new, new_end) in zip(starts, found, strict=True)]
