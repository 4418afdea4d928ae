# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Conversion of text into sequences of equal length. Documents are packed, or each document is one padded sequence."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def encode_documents(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, with_token_bytes: bool, num_workers: int | None = None
) -> Dataset:
    """
    Return a data set with the columns `input_ids`, `num_tokens` and `num_bytes` of the documents in the column `text`.

    The ids of each document end with end-of-text. If `with_token_bytes`, the column `token_bytes` is added. It lists
    the number of bytes of each token; the sum of these numbers is `num_bytes`.
    """
    return texts.map(
        encode_batch,
        batched=True,
        input_columns="text",
        remove_columns=texts.column_names,
        fn_kwargs={"tokenizer": tokenizer, "with_token_bytes": with_token_bytes},
        num_proc=None if num_workers is None else min(num_workers, len(texts)),
        desc="Tokenizing",
    )


def encode_batch(texts: list[str], tokenizer: PreTrainedTokenizerBase, with_token_bytes: bool) -> dict[str, list]:
    """Return the columns described in `encode_documents` for a batch of texts."""
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,  # "<|endoftext|>" in a text is not a special token
        return_offsets_mapping=with_token_bytes,
        verbose=False,  # no warnings about documents that are longer than a sequence
    )
    columns = {
        "input_ids": [[*ids, tokenizer.eos_token_id] for ids in encoded["input_ids"]],
        "num_tokens": [len(ids) + 1 for ids in encoded["input_ids"]],
        "num_bytes": [len(text.encode()) + 1 for text in texts],
    }
    if with_token_bytes:
        columns["token_bytes"] = list(map(count_token_bytes, texts, encoded["offset_mapping"]))
    return columns


def count_token_bytes(text: str, offsets: list[tuple[int, int]]) -> list[int]:
    """
    Return the number of UTF-8 bytes of each token, and the number for end-of-text.

    If a character is split into several tokens, the first of these tokens counts all its bytes. End-of-text counts one
    byte for the separator between documents, and the bytes after the last token, if any.
    """
    bytes_before = np.concatenate([[0], np.cumsum([len(character.encode()) for character in text], dtype=int)])
    ends = [0, *(end for _, end in offsets)]
    boundaries = np.maximum.accumulate(bytes_before[ends])
    return [*np.diff(boundaries).tolist(), int(bytes_before[-1] - boundaries[-1]) + 1]


def total(documents: Dataset, column: str) -> int:
    """Return the sum of a column."""
    return int(documents.with_format("numpy")[column][:].sum())


def cut(documents: Iterable[dict[str, list[int]]], sequence_length: int) -> Iterator[dict[str, Any]]:
    """
    Join documents, and yield sequences of `sequence_length` ids. The last sequence may be shorter.

    If the documents have `token_bytes`, the sequences have `num_bytes`.
    """
    ids: list[int] = []
    sizes: list[int] = []
    for document in documents:
        ids += document["input_ids"]
        sizes += document.get("token_bytes", [])
        whole = len(ids) - len(ids) % sequence_length
        for start in range(0, whole, sequence_length):
            yield _make_row(ids[start : start + sequence_length], sizes[start : start + sequence_length])
        ids, sizes = ids[whole:], sizes[whole:]
    if ids:
        yield _make_row(ids, sizes)


def _make_row(ids: list[int], sizes: list[int]) -> dict[str, Any]:
    return {"input_ids": ids} | ({"num_bytes": sum(sizes)} if sizes else {})


def full_rows(documents: Dataset, sequence_length: int) -> Iterator[dict[str, Any]]:
    """Yield the sequences of `cut`, without a last one that is shorter."""
    return (row for row in cut(documents, sequence_length) if len(row["input_ids"]) == sequence_length)


def pack(documents: Dataset, sequence_length: int, split: str) -> tuple[Dataset, dict[str, int]]:
    """Return the sequences of packed documents, and the number of tokens at the end that do not fill a sequence."""
    num_tokens = total(documents, "num_tokens")
    if num_tokens < sequence_length:
        raise ValueError(
            f"The {split} split must have at least one sequence of {sequence_length} tokens, but has {num_tokens} "
            "tokens. Add text, or decrease `sequence_length`."
        )
    # `from_generator` writes one sequence at a time to the disk cache, so the corpus does not need to fit into memory.
    rows = Dataset.from_generator(full_rows, gen_kwargs={"documents": documents, "sequence_length": sequence_length})
    left_out = num_tokens % sequence_length
    if left_out:
        logger.warning("%s: the last %d of %d tokens are left out.", split, left_out, num_tokens)
    return rows, {"left_out_tokens": left_out}


def pad(
    documents: Dataset, sequence_length: int, end_of_text: int, split: str, drop_long_documents: bool = False
) -> tuple[Dataset, dict[str, int]]:
    """Return one sequence per document, padded with end-of-text, and the number of documents that were too long."""
    fitting = documents.filter(lambda num_tokens: num_tokens <= sequence_length, input_columns="num_tokens")
    left_out = len(documents) - len(fitting)
    if left_out and (not drop_long_documents or not len(fitting)):
        longest = int(documents.with_format("numpy")["num_tokens"][:].max())
        raise ValueError(
            f"{left_out} of {len(documents)} {split} documents, with end-of-text, are longer than `sequence_length` "
            f"({sequence_length}); the longest has {longest} tokens. Increase `sequence_length`, or set "
            "`drop_long_documents` or `packing=packed`."
        )
    if left_out:
        logger.warning("%s: %d of %d documents are too long and are left out.", split, left_out, len(documents))
    rows = fitting.map(
        lambda ids: {
            "input_ids": [[*document, *[end_of_text] * (sequence_length - len(document))] for document in ids]
        },
        batched=True,
        input_columns="input_ids",
        desc="Padding",
    )
    return rows, {"left_out_documents": left_out}
