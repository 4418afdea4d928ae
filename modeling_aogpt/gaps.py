# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Texts with gaps, encoded part by part so that the tokens of all parts decode to the text.

A tokenizer encodes a text of its own in another way than a part of a text. SentencePiece puts a space before it, and
WordPiece begins a word with it. A part is therefore encoded after other characters, whose tokens are then removed.
"""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Characters after which a part is encoded. Tokenizers seldom merge a digit with text, or a letter with digits.
CONTEXTS = "7ea.\n"
NUM_CHARACTERS_BEFORE = 64  # of the known text before a part; more of them do not change its tokens


def encode_parts(parts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """
    Return the ids of each of the consecutive parts of one text, without special tokens.

    No token is in two parts. The ids of all parts together decode to the text, as far as the tokenizer allows: to the
    same as the ids of the whole text.

    Raises:
        ValueError: If the tokenizer has no such ids.
    """
    ids, before = [], ""
    for part in parts:
        ids.append(_encode_after(before, part, tokenizer) if before else _encode(part, tokenizer))
        before += part
    decoded = _decode([token for part in ids for token in part], tokenizer)
    if decoded not in (before, _decode(_encode(before, tokenizer), tokenizer)):
        raise ValueError(
            f"The tokenizer cannot encode the parts {list(parts)} of a text: their tokens decode to {decoded!r}. Use "
            "other parts, for instance whole words."
        )
    return ids


def encode_between_masks(text: str, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """
    Return the ids of the parts of a text between its masks.

    If tokens of words include the space before the word, one space before each mask belongs to the gap, so it is not in
    the part. All other whitespace is kept. If the tokenizer adds a start token to texts, the first part begins with it.

    Raises:
        ValueError: If the tokenizer has no tokens for a part.
    """
    parts = text.split(tokenizer.mask_token)
    if words_include_space(tokenizer):
        parts[:-1] = (part.removesuffix(" ") for part in parts[:-1])
    segments = [_encode(parts[0], tokenizer), *(_encode_after("", part, tokenizer) for part in parts[1:])]
    _check_decoding(_join(segments, tokenizer), text, tokenizer)
    start = tokenizer(parts[0]).input_ids[:1]
    if start == [tokenizer.bos_token_id] and start != segments[0][:1]:
        segments[0] = start + segments[0]
    return segments


def encode_with_masks(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of a text with masks, of which each part is encoded by [`encode_between_masks`]."""
    return _join(encode_between_masks(text, tokenizer), tokenizer)


def words_include_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether tokens of words include the space before the word, as in byte-level BPE and SentencePiece."""
    return any(token[0] in "Ġ▁" and token[1:].strip("Ġ▁") for token in tokenizer.get_vocab() if len(token) > 1)


def _encode(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def _decode(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def _has_unknown(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether ids contain the unknown token. GPT-2's is end-of-text, which stands for no unknown character."""
    unknown = tokenizer.unk_token_id
    return unknown is not None and unknown != tokenizer.eos_token_id and unknown in ids


def _encode_after(before: str, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of `text` after the text `before` or, if a token would be in both, after another character."""
    if not text:
        return []
    known = before[-NUM_CHARACTERS_BEFORE:]
    for context in dict.fromkeys((known, *CONTEXTS, *filter(str.isalnum, text))):
        start, whole = _encode(context, tokenizer), _encode(context + text, tokenizer)
        is_lost = len(whole) == len(start) and text.strip()
        has_context = start or (known and context == known)  # which may be whitespace that the tokenizer drops
        if has_context and not _has_unknown(start, tokenizer) and whole[: len(start)] == start and not is_lost:
            return whole[len(start) :]
    raise ValueError(
        f"The tokenizer cannot encode {text!r} as a part of a text, but only at the start of a text or word. Write a "
        "space before it."
    )


def _join(segments: list[list[int]], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of segments with a mask between them."""
    first, *others = segments
    return first + [token for ids in others for token in (tokenizer.mask_token_id, *ids)]


def _check_decoding(ids: list[int], text: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Raise a `ValueError` if a text has unknown characters. Warn if the tokenizer changes it, for instance to lower case.

    Spaces are not compared: many tokenizers without tokens for spaces decode to a text with other spaces.
    """
    if _has_unknown(ids, tokenizer):
        raise ValueError(f"The tokenizer has no tokens for some characters of {text!r}. Remove these characters.")
    decoded = _decode(ids, tokenizer)
    if re.sub(r"[^\S\n]", "", decoded) != re.sub(r"[^\S\n]", "", text):
        logger.warning_once(f"The tokenizer changes the text: {text!r} becomes {decoded!r}.")
