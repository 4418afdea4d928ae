# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Conversion of text into sequences of equal length: packed documents, or one padded document per sequence."""

import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import patch_environment
from datasets import Dataset, Features, Sequence, Value, config
from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

DOCUMENTS_TO_ESTIMATE = 256


def encode_documents(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, with_token_bytes: bool, num_workers: int | None = None
) -> Dataset:
    """
    Tokenize the column `text` into the columns `input_ids` (ending with end-of-text), `num_tokens` and `num_bytes`.

    `with_token_bytes` adds the column `token_bytes`, the number of bytes of each token. They sum to `num_bytes`.
    Ids are stored in 16 bits, or in 32 for large vocabularies.
    """
    columns = {"input_ids": Sequence(id_type(tokenizer)), "num_tokens": Value("int64"), "num_bytes": Value("int64")}
    return texts.map(
        encode_batch,
        batched=True,
        input_columns="text",
        remove_columns=texts.column_names,
        features=Features(columns | ({"token_bytes": Sequence(Value("int32"))} if with_token_bytes else {})),
        fn_kwargs={"tokenizer": tokenizer, "with_token_bytes": with_token_bytes},
        num_proc=num_workers,
        desc="Tokenizing",
    )


def id_type(tokenizer: PreTrainedTokenizerBase) -> Value:
    """Return the type in which to store token ids."""
    return Value("uint16" if len(tokenizer) <= 2**16 else "uint32")


def describe_work(texts: Dataset, tokenizer: PreTrainedTokenizerBase, num_workers: int | None) -> str:
    """Return how long it takes to tokenize documents, and how much disk they need, estimated from some of them."""
    numbers = range(0, len(texts), max(len(texts) // DOCUMENTS_TO_ESTIMATE, 1))[:DOCUMENTS_TO_ESTIMATE]
    sample = texts.select(numbers)["text"][:]
    # A process that has used several threads of the tokenizer cannot start others without a warning from each.
    environment = {} if num_workers is None else {"TOKENIZERS_PARALLELISM": "false"}
    with patch_environment(**environment):
        started = time.perf_counter()
        num_tokens = sum(encode_batch(sample, tokenizer, False)["num_tokens"]) * len(texts) // len(sample)
        seconds = (time.perf_counter() - started) * len(texts) / len(sample) / (num_workers or 1)
    size = num_tokens * np.dtype(id_type(tokenizer).dtype).itemsize
    cache = Path(config.HF_DATASETS_CACHE).absolute()
    free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.exists())).free
    return (
        f"{len(texts):,} documents, about {num_tokens:,} tokens. Unless they are cached, tokenizing takes about "
        f"{max(seconds / 60, 0.1):.1f} minutes and {size / 1e9:.1f} GB of {config.HF_DATASETS_CACHE} "
        f"({free / 1e9:.1f} GB free)."
    )


def encode_batch(texts: list[str], tokenizer: PreTrainedTokenizerBase, with_token_bytes: bool) -> dict[str, list]:
    """Return the columns that `encode_documents` makes of some texts."""
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


def check_full(documents: Dataset, sequence_length: int, split: str) -> dict[str, int]:
    """Return the number of tokens left out at the end. Raise a `ValueError` if there is not a single sequence."""
    num_tokens = total(documents, "num_tokens")
    if num_tokens < sequence_length:
        raise ValueError(
            f"The {split} split has {num_tokens} tokens, less than one sequence of {sequence_length}. Add text, or "
            "decrease `sequence_length`."
        )
    left_out = num_tokens % sequence_length
    if left_out:
        logger.warning("%s: the last %d of %d tokens are left out.", split, left_out, num_tokens)
    return {"left_out_tokens": left_out}


def pack(documents: Dataset, sequence_length: int) -> Dataset:
    """Return the sequences of packed documents, with the bytes of each."""
    return Dataset.from_generator(full_rows, gen_kwargs={"documents": documents, "sequence_length": sequence_length})


class PackedRows:
    """
    Sequences of packed documents: views of the joined ids, which stay in the memory-mapped files of the documents.

    Args:
        documents: Documents with the column `input_ids`, in the order of their files.
        sequence_length: Number of ids per sequence. An incomplete last one is left out.
    """

    def __init__(self, documents: Dataset, sequence_length: int) -> None:
        if documents._indices is not None:  # of selected or filtered documents
            documents = documents.flatten_indices()
        self.documents, self.sequence_length = documents, sequence_length
        chunks = self.documents.data.column("input_ids").chunks
        self._parts = [chunk.flatten().to_numpy() for chunk in chunks]  # without a copy
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)

    def __reduce__(self) -> tuple[type["PackedRows"], tuple[Dataset, int]]:
        return PackedRows, (self.documents, self.sequence_length)  # to workers, without the ids

    def __len__(self) -> int:
        return int(self._ends[-1]) // self.sequence_length

    def __getitem__(self, numbers: list[int]) -> dict[str, np.ndarray]:
        """Return the `input_ids` of some rows, (rows, sequence_length), in 64 bits."""
        return {"input_ids": np.stack([self._read(number * self.sequence_length) for number in numbers])}

    def _read(self, first: int) -> np.ndarray:
        last, pieces = first + self.sequence_length, []
        part = int(np.searchsorted(self._ends, first, side="right"))
        while first < last:
            end = min(int(self._ends[part]), last)
            offset = int(self._ends[part]) - len(self._parts[part])
            pieces.append(self._parts[part][first - offset : end - offset])
            first, part = end, part + 1
        return np.concatenate(pieces, dtype=np.int64)


def pad(
    documents: Dataset, sequence_length: int, end_of_text: int, split: str, drop_long_documents: bool | None = None
) -> tuple[Dataset, dict[str, int]]:
    """
    Return one sequence per document, padded with end-of-text, and the number of documents left out.

    Raises:
        ValueError: If a document is too long and `drop_long_documents` is not true (None: the command lacks this
            option), or if all are too long.
    """
    fitting = documents.filter(lambda num_tokens: num_tokens <= sequence_length, input_columns="num_tokens")
    left_out = len(documents) - len(fitting)
    if left_out and (not drop_long_documents or not len(fitting)):
        sizes = documents.with_format("numpy")["num_tokens"][:]
        needed = (
            f"the shortest needs {sizes.min()}, the longest {sizes.max()}"
            if drop_long_documents
            else (f"the longest needs {sizes.max()}")
        )
        can_drop = drop_long_documents is False and len(fitting) > 0
        raise ValueError(
            f"{'All' if not len(fitting) else f'{left_out} of'} {len(documents)} {split} documents do not fit into "
            f"sequences of {sequence_length} tokens with end-of-text; {needed}. Increase this length, if the model "
            f"allows it, or set {'`drop_long_documents` or ' if can_drop else ''}`packing=packed`."
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
