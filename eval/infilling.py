# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Samples and infills of a model of one document per sequence, and how many of them are real documents."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from common.tokenization import decode, num_unpadded
from modeling_aogpt import AOGPTForAnyOrderLM

NUM_EXAMPLES = 16
LETTER_WITH = re.compile(r"LETTER (\S+) WITH (\S+)")

# What a text can be: the document that had been there, another held-out one, a training document, or none of these.
KINDS = ("exact", "held_out", "train", "new")
Known = dict[str, set[str]]  # all documents of the splits "train" and "validation"


@dataclass
class Hole:
    """
    A document with words to hide.

    Attributes:
        text: The document.
        ids: Its sequence, padded with end-of-text.
        words: For each token of the document, the number of its word.
        hidden: The numbers of the words to hide.
    """

    text: str
    ids: list[int]
    words: list[int]
    hidden: set[int]

    def tokens_of_words(self) -> Iterator[tuple[slice, bool]]:
        """Yield the positions of the tokens of each word, and whether the word is hidden."""
        for word, positions in groupby(range(len(self.words)), key=self.words.__getitem__):
            found = list(positions)
            yield slice(found[0], found[-1] + 1), word in self.hidden


def letter_and_mark(text: str, draw: random.Random) -> set[int]:
    """Choose the words A and ACUTE in LATIN SMALL LETTER A WITH ACUTE, and none in other texts."""
    found = LETTER_WITH.search(text)
    return {text[: found.start(group)].count(" ") for group in (1, 2)} if found else set()


def one_or_two_words(text: str, draw: random.Random) -> set[int]:
    """Draw one or two words of a text of three or more."""
    num_words = text.count(" ") + 1
    return set(draw.sample(range(num_words), draw.choice((1, 2)))) if num_words >= 3 else set()


def make_holes(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    sequences: Sequence[list[int]],
    choose: Callable[[str, random.Random], set[int]],
    limit: int,
    seed: int,
) -> list[Hole]:
    """Return the first `limit` documents in which `choose` finds words to hide."""
    draw = random.Random(seed)
    offsets = tokenizer(list(texts), return_offsets_mapping=True)["offset_mapping"]
    holes = (
        Hole(text, ids, [text[:end].count(" ") for _, end in spans], choose(text, draw))
        for text, ids, spans in zip(texts, sequences, offsets, strict=True)
    )
    return list(islice((hole for hole in holes if hole.hidden), limit))


def sample(
    model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase, known: Known, count: int, generator: torch.Generator
) -> dict[str, Any]:
    """Draw unconditional samples, token by token in random orders, at temperature 1 and untruncated."""
    sequences = model.generate(num_return_sequences=count, generator=generator)
    texts = [decode(ids, tokenizer) for ids in sequences.tolist()]
    kinds = [kind_of(text, known) for text in texts]  # never exact: there is no original
    examples = [{"text": text, "kind": kind} for text, kind in zip(texts, kinds, strict=True)]
    return {"count": count, "shares": shares(kinds), "examples": examples[:NUM_EXAMPLES]}


def infill(
    model: AOGPTForAnyOrderLM,
    tokenizer: PreTrainedTokenizerBase,
    holes: Sequence[Hole],
    known: Known,
    generator: torch.Generator,
) -> dict[str, Any]:
    """Fill in the hidden words, token by token in random orders. The masks tell how many tokens they take."""
    inputs = torch.tensor([hole.ids for hole in holes])
    for row, hole in zip(inputs, holes, strict=True):
        for tokens, is_hidden in hole.tokens_of_words():
            if is_hidden:
                row[tokens] = tokenizer.mask_token_id
    sequences = model.generate(inputs, generator=generator).tolist()
    texts = [decode(ids, tokenizer) for ids in sequences]
    kinds = [kind_of(text, known, hole.text) for text, hole in zip(texts, holes, strict=True)]
    examples = [
        {
            "before": "".join(text for text, _ in words_before(tokenizer, hole)),
            "after": list(words_after(tokenizer, hole, ids)),
            "original": hole.text,
            "kind": kind,
        }
        for hole, ids, kind in zip(holes[:NUM_EXAMPLES], sequences, kinds, strict=False)
    ]
    return {"count": len(holes), "shares": shares(kinds), "examples": examples}


def words_before(tokenizer: PreTrainedTokenizerBase, hole: Hole) -> Iterator[tuple[str, bool]]:
    """Yield the words of a document, an underscore per token of a hidden one, and whether they are hidden."""
    for tokens, is_hidden in hole.tokens_of_words():
        blank = " " if tokens.start else ""
        yield blank + "_" * (tokens.stop - tokens.start) if is_hidden else tokenizer.decode(hole.ids[tokens]), is_hidden


def words_after(tokenizer: PreTrainedTokenizerBase, hole: Hole, ids: list[int]) -> Iterator[tuple[str, bool]]:
    """Yield the same words of the filled sequence, and whether they were hidden. The text may be shorter."""
    end = num_unpadded(ids, tokenizer.eos_token_id)
    for tokens, is_hidden in hole.tokens_of_words():
        if tokens.start < end:
            yield tokenizer.decode(ids[tokens.start : min(tokens.stop, end)]), is_hidden


def printable(text: str) -> str:
    """Return the text on one line: a young model may write line breaks and other control characters."""
    return "".join(character if character.isprintable() else "�" for character in text)


def kind_of(text: str, known: Known, original: str | None = None) -> str:
    if text == original:
        return "exact"
    return "held_out" if text in known["validation"] else "train" if text in known["train"] else "new"


def shares(kinds: Sequence[str]) -> dict[str, float]:
    return {kind: kinds.count(kind) / len(kinds) for kind in KINDS}
