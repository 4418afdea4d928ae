# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Sequences of equal length from encoded documents, either packed or one padded sequence per document."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset

from common.caching import versioned

logger = logging.getLogger(__name__)


def total(documents: Dataset, column: str) -> int:
    """Return the sum of a column."""
    return int(documents.with_format("numpy")[column][:].sum())


def cut(documents: Iterable[dict[str, list[int]]], sequence_length: int) -> Iterator[dict[str, Any]]:
    """Join documents, and yield sequences of `sequence_length` ids. The last sequence may be shorter.

    If the documents have `token_bytes`, add `num_bytes`: the number of bytes of text in each sequence.
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
    """Yield the sequences of `cut`. Leave out the last one if it has fewer than `sequence_length` tokens."""
    return (row for row in cut(documents, sequence_length) if len(row["input_ids"]) == sequence_length)


def count_left_out_tokens(documents: Dataset, sequence_length: int, split: str) -> dict[str, int]:
    """Return `left_out_tokens`, the number of tokens after the last full sequence of packed documents.

    Raise a `ValueError` if the documents have too few tokens for one sequence.
    """
    num_tokens = total(documents, "num_tokens")
    if num_tokens < sequence_length:
        raise ValueError(
            f"The {split} split must have at least one sequence of {sequence_length} tokens, but has {num_tokens} "
            "tokens. Add text, or decrease `sequence_length`."
        )
    if left_out := num_tokens % sequence_length:
        logger.warning("%s: the last %d of %d tokens fill no sequence, and are left out.", split, left_out, num_tokens)
    return {"left_out_tokens": left_out}


def pack(documents: Dataset, sequence_length: int) -> Dataset:
    """Return the full sequences of packed documents, in the columns `input_ids` and, if known, `num_bytes`."""
    options = {"documents": documents, "sequence_length": sequence_length}
    return Dataset.from_generator(versioned(full_rows), gen_kwargs=options)


class PackedRows:
    """Sequences of packed documents, read from the memory-mapped files of the documents when they are accessed.

    If the last sequence is incomplete, it is left out.
    """

    def __init__(self, documents: Dataset, sequence_length: int) -> None:
        if documents._indices is not None:  # the indices select rows, but the table is read directly
            documents = documents.flatten_indices()
        self.documents, self.sequence_length = documents, sequence_length
        self._ids = pa.chunked_array([chunk.flatten() for chunk in documents.data.column("input_ids").chunks])  # a view

    def __reduce__(self) -> tuple[type["PackedRows"], tuple[Dataset, int]]:
        return PackedRows, (self.documents, self.sequence_length)  # workers memory-map the files again

    def __len__(self) -> int:
        return len(self._ids) // self.sequence_length

    def __getitem__(self, numbers: list[int]) -> dict[str, np.ndarray]:
        """Return the `input_ids` of the sequences `numbers`, as int64 of shape (len(numbers), sequence_length)."""
        length = self.sequence_length
        rows = [self._ids.slice(number * length, length).to_numpy() for number in numbers]
        return {"input_ids": np.stack(rows, dtype=np.int64)}


def leave_out_long(
    documents: Dataset, sequence_length: int, split: str, drop_long_documents: bool
) -> tuple[Dataset, dict[str, int]]:
    """Return the documents that fit into a sequence, and the number of documents that were too long.

    Documents that are too long are an error, unless `drop_long_documents` is set and some documents fit.
    """
    sizes = documents.with_format("numpy")["num_tokens"][:]
    is_long = sizes > sequence_length
    if is_long.any() and (not drop_long_documents or is_long.all()):
        raise ValueError(
            f"`packing=documents` makes one sequence of each document, but {is_long.sum()} of {len(sizes)} {split} "
            f"documents are longer than `sequence_length` ({sequence_length}), including end-of-text. The documents "
            f"have {sizes.min()} to {sizes.max()} tokens. Increase `sequence_length` if the model supports longer "
            "sequences, or leave these documents out (in training, with `drop_long_documents`). Plain text can also be "
            "packed (`packing=packed`)."
        )
    if is_long.any():
        logger.warning(
            "%s: %d of %d documents are longer than a sequence, and are left out.", split, is_long.sum(), len(sizes)
        )
        documents = documents.select(np.flatnonzero(~is_long))
    return documents, {"left_out_documents": int(is_long.sum())}


def pad(documents: Dataset, sequence_length: int, end_of_text: int, num_workers: int | None = None) -> Dataset:
    """Return one sequence per document. `input_ids` and, if there are any, `labels` are padded with end-of-text."""
    return documents.map(
        versioned(_pad_columns),
        batched=True,
        fn_kwargs={"sequence_length": sequence_length, "end_of_text": end_of_text},
        num_proc=num_workers,
        desc="Padding",
    )


def _pad_columns(columns: dict[str, list], sequence_length: int, end_of_text: int) -> dict[str, list]:
    return {
        name: [[*ids, *[end_of_text] * (sequence_length - len(ids))] for ids in columns[name]]
        for name in ("input_ids", "labels")
        if name in columns
    }


def keep_first_tokens(batch: dict[str, torch.Tensor], start_token_id: int | None) -> dict[str, torch.Tensor]:
    """Put the start token before all sequences of a batch (`input_ids`, `orders`, ...) if one of them begins with it.

    In packed text, a sequence may begin with an end-of-text that is also the model's start token. The model would take
    it for the start of a text, and not score it.
    """
    if start_token_id is None or not (batch["input_ids"][:, 0] == start_token_id).any():
        return batch
    values, pad = {"input_ids": start_token_id, "labels": -100, "attention_mask": 1}, torch.nn.functional.pad
    padded = {name: pad(batch[name], (1, 0), value=value) for name, value in values.items() if name in batch}
    return batch | padded | {"orders": pad(batch["orders"] + 1, (0, 1))}
