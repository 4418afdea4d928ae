# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Conversion of text into sequences of equal length: packed documents, or one padded document per sequence."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def encode_documents(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    with_token_bytes: bool,
    num_workers: int | None = None,
    prompt_end: str | None = None,
) -> Dataset:
    """
    Tokenize the column `text` into the columns `input_ids` (ending with end-of-text), `num_tokens` and `num_bytes`.

    `with_token_bytes` adds the column `token_bytes`, the number of bytes of each token. They sum to `num_bytes`.
    `prompt_end` adds the column `num_prompt_tokens`, the number of tokens up to the first occurrence of this text.
    """
    return texts.map(
        encode_batch,
        batched=True,
        input_columns="text",
        remove_columns=texts.column_names,
        fn_kwargs={"tokenizer": tokenizer, "with_token_bytes": with_token_bytes, "prompt_end": prompt_end},
        num_proc=None if num_workers is None else min(num_workers, len(texts)),
        desc="Tokenizing",
    )


def encode_batch(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, with_token_bytes: bool, prompt_end: str | None = None
) -> dict[str, list]:
    """Return the columns that `encode_documents` makes of some texts."""
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,  # "<|endoftext|>" in a text is not a special token
        return_offsets_mapping=with_token_bytes or prompt_end is not None,
        verbose=False,  # no warnings about documents that are longer than a sequence
    )
    columns = {
        "input_ids": [[*ids, tokenizer.eos_token_id] for ids in encoded["input_ids"]],
        "num_tokens": [len(ids) + 1 for ids in encoded["input_ids"]],
        "num_bytes": [len(text.encode()) + 1 for text in texts],
    }
    if with_token_bytes:
        columns["token_bytes"] = list(map(count_token_bytes, texts, encoded["offset_mapping"]))
    if prompt_end is not None:
        columns["num_prompt_tokens"] = [
            sum(start < end for start, _ in offsets)
            for offsets, end in zip(encoded["offset_mapping"], _prompt_ends(texts, prompt_end), strict=True)
        ]
    return columns


def _prompt_ends(texts: list[str], prompt_end: str) -> Iterator[int]:
    for text in texts:
        if prompt_end not in text:
            raise ValueError(f"A document has no `prompt_end` ({prompt_end!r}): {text[:80]!r}. Remove the document.")
        yield text.index(prompt_end) + len(prompt_end)


def count_token_bytes(text: str, offsets: list[tuple[int, int]]) -> list[int]:
    """
    Return the number of bytes of each token in UTF-8, and of end-of-text (the separator and bytes outside all tokens).

    The bytes of a character that is split into several tokens count for the first of them.
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
    Join documents, and yield rows of `sequence_length` ids. The last row may be shorter.

    Rows have `num_bytes` if documents have `token_bytes`.
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
    """Yield the rows of `cut` that have `sequence_length` ids."""
    return (row for row in cut(documents, sequence_length) if len(row["input_ids"]) == sequence_length)


def pack(documents: Dataset, sequence_length: int, split: str) -> tuple[Dataset, dict[str, int]]:
    """Return the sequences of packed documents, and the number of tokens left out at the end."""
    num_tokens = total(documents, "num_tokens")
    if num_tokens < sequence_length:
        raise ValueError(
            f"The {split} split has {num_tokens} tokens, less than one sequence of {sequence_length}. Add text, or "
            "decrease `sequence_length`."
        )
    # A generator writes row by row to the cache, so the corpus need not fit into memory.
    rows = Dataset.from_generator(full_rows, gen_kwargs={"documents": documents, "sequence_length": sequence_length})
    left_out = num_tokens % sequence_length
    if left_out:
        logger.warning("%s: the last %d of %d tokens are left out.", split, left_out, num_tokens)
    return rows, {"left_out_tokens": left_out}


def pad(
    documents: Dataset, sequence_length: int, end_of_text: int, split: str, drop_long_documents: bool = False
) -> tuple[Dataset, dict[str, int]]:
    """
    Return one sequence per document, padded with end-of-text, and the number of documents left out.

    Documents with `num_prompt_tokens` also get `labels`, which are -100 in the prompt.
    """
    fitting = documents.filter(lambda num_tokens: num_tokens <= sequence_length, input_columns="num_tokens")
    left_out = len(documents) - len(fitting)
    if left_out and (not drop_long_documents or not len(fitting)):
        longest = int(documents.with_format("numpy")["num_tokens"][:].max())
        raise ValueError(
            f"{left_out} of {len(documents)} {split} documents do not fit into `sequence_length` ({sequence_length}) "
            f"with end-of-text; the longest needs {longest}. Increase it, or set `drop_long_documents` or "
            "`packing=packed`."
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
    if "num_prompt_tokens" in rows.column_names:
        rows = rows.map(
            lambda ids, numbers: {
                "labels": [[-100] * number + list(row[number:]) for row, number in zip(ids, numbers, strict=True)]
            },
            batched=True,
            input_columns=["input_ids", "num_prompt_tokens"],
            desc="Labelling",
        )
    return rows, {"left_out_documents": left_out}
