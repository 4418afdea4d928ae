# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Generation and infilling of documents, and the fractions of generated texts that are documents of the corpus."""

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

# Kinds of a generated text: the original document, another held-out document, a training document, or none of these.
KINDS = ("exact", "held_out", "train", "new")
Known = dict[str, set[str]]  # key: "train" or "validation"; value: all documents of the split


@dataclass
class MaskedDocument:
    """
    A document with words to fill in.

    Attributes:
        text: Text of the document.
        ids: Token ids of the document, padded with end-of-text.
        word_indices: For each token except padding, the index of its word.
        masked_words: Indices of the words to fill in.
    """

    text: str
    ids: list[int]
    word_indices: list[int]
    masked_words: set[int]

    def words(self) -> Iterator[tuple[slice, bool]]:
        """Yield the token positions of each word, and whether the word is masked."""
        for word, group in groupby(range(len(self.word_indices)), key=self.word_indices.__getitem__):
            positions = list(group)
            yield slice(positions[0], positions[-1] + 1), word in self.masked_words


def choose_letter_and_mark(text: str, rng: random.Random) -> set[int]:
    """Return the indices of the words after LETTER and WITH, or none if `text` does not contain LETTER ... WITH ..."""
    match = LETTER_WITH.search(text)
    return {text[: match.start(group)].count(" ") for group in (1, 2)} if match else set()


def choose_one_or_two_words(text: str, rng: random.Random) -> set[int]:
    """Return the indices of one or two random words, or none if the text has fewer than three words."""
    num_words = text.count(" ") + 1
    return set(rng.sample(range(num_words), rng.choice((1, 2)))) if num_words >= 3 else set()


def mask_documents(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    sequences: Sequence[list[int]],
    choose: Callable[[str, random.Random], set[int]],
    limit: int,
    seed: int,
) -> list[MaskedDocument]:
    """Return the first `limit` documents in which `choose` selects at least one word, with these words to fill in."""
    rng = random.Random(seed)
    offsets = tokenizer(list(texts), return_offsets_mapping=True)["offset_mapping"]
    documents = (
        MaskedDocument(text, ids, [text[:end].count(" ") for _, end in spans], choose(text, rng))
        for text, ids, spans in zip(texts, sequences, offsets, strict=True)
    )
    return list(islice((document for document in documents if document.masked_words), limit))


def sample(
    model: AOGPTForAnyOrderLM, tokenizer: PreTrainedTokenizerBase, known: Known, count: int, generator: torch.Generator
) -> dict[str, Any]:
    """
    Generate `count` documents, token by token in random orders, at temperature 1 without truncation.

    Return `count`, the fraction of documents of each kind (`shares`), and the first documents (`examples`).
    """
    sequences = model.generate(num_return_sequences=count, generator=generator)
    texts = [decode(ids, tokenizer) for ids in sequences.tolist()]
    kinds = [classify(text, known) for text in texts]
    examples = [{"text": text, "kind": kind} for text, kind in zip(texts, kinds, strict=True)]
    return {"count": count, "shares": _shares(kinds), "examples": examples[:NUM_EXAMPLES]}


def infill(
    model: AOGPTForAnyOrderLM,
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[MaskedDocument],
    known: Known,
    generator: torch.Generator,
) -> dict[str, Any]:
    """
    Fill in the masked words, token by token in random orders. Each word has as many masks as it had tokens.

    Return the number of documents (`count`), the fraction of each kind (`shares`), and the first results (`examples`).
    """
    inputs = torch.tensor([document.ids for document in documents])
    for row, document in zip(inputs, documents, strict=True):
        for positions, is_masked in document.words():
            if is_masked:
                row[positions] = tokenizer.mask_token_id
    sequences = model.generate(inputs, generator=generator).tolist()
    texts = [decode(ids, tokenizer) for ids in sequences]
    kinds = [classify(text, known, document.text) for text, document in zip(texts, documents, strict=True)]
    examples = [
        {
            "before": _text_with_blanks(tokenizer, document),
            "after": list(_filled_words(tokenizer, document, ids)),
            "original": document.text,
            "kind": kind,
        }
        for document, ids, kind in zip(documents[:NUM_EXAMPLES], sequences, kinds, strict=False)
    ]
    return {"count": len(documents), "shares": _shares(kinds), "examples": examples}


def _text_with_blanks(tokenizer: PreTrainedTokenizerBase, document: MaskedDocument) -> str:
    """Return the text of a document with an underscore for each token of a masked word."""
    return "".join(
        (" " if positions.start else "") + "_" * (positions.stop - positions.start)
        if is_masked
        else tokenizer.decode(document.ids[positions])
        for positions, is_masked in document.words()
    )


def _filled_words(
    tokenizer: PreTrainedTokenizerBase, document: MaskedDocument, ids: list[int]
) -> Iterator[tuple[str, bool]]:
    """Yield each word of the filled-in ids, and whether it was masked. Stop if the model generated padding."""
    end = num_unpadded(ids, tokenizer.eos_token_id)
    for positions, is_masked in document.words():
        if positions.start < end:
            yield tokenizer.decode(ids[positions.start : min(positions.stop, end)]), is_masked


def make_printable(text: str) -> str:
    """Replace line breaks and other control characters. A poorly trained model may generate such characters."""
    return "".join(character if character.isprintable() else "�" for character in text)


def classify(text: str, known: Known, original: str | None = None) -> str:
    """Return the kind of a text, one of `KINDS`."""
    if text == original:
        return "exact"
    return "held_out" if text in known["validation"] else "train" if text in known["train"] else "new"


def _shares(kinds: Sequence[str]) -> dict[str, float]:
    return {kind: kinds.count(kind) / len(kinds) for kind in KINDS}
