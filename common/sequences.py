# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Conversion of documents into sequences of equal length, either packed or one padded sequence per document."""

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import patch_environment
from datasets import Dataset, Features, Sequence, Value, config
from transformers import PreTrainedTokenizerBase

from common.files import free_space

logger = logging.getLogger(__name__)

DOCUMENTS_TO_ESTIMATE = 256


def _is_text(text: str | None) -> bool:
    """Return False for null, which JSONL, CSV and Parquet files may contain instead of a text."""
    return text is not None


def encode_documents(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    with_token_bytes: bool,
    num_workers: int | None = None,
    context_marks: str | None = None,
    is_member: Callable[[str | None], bool] = _is_text,
) -> Dataset:
    """
    Return a dataset with the columns `input_ids`, `num_tokens` and `num_bytes` of the documents in the column `text`.

    The ids of each document end with end-of-text. They are stored in 16 bits, or in 32 bits for large vocabularies. If
    `with_token_bytes`, the column `token_bytes` is added. It lists the number of bytes of each token; the sum of these
    numbers is `num_bytes`.

    If `context_marks` is given (see [`split_context`]), the column `labels` is added. It contains the ids, and -100 for
    tokens of the context. A token that is only partly in the context is not a token of the context.

    Only the documents for which `is_member` is true are encoded; by default, all but null. `num_workers` processes
    share the documents; None means that no processes are started.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} cannot be used, because it does not return the characters of each token. Use "
            "a fast tokenizer (of the library `tokenizers`)."
        )
    columns = {"input_ids": Sequence(id_type(tokenizer)), "num_tokens": Value("int64"), "num_bytes": Value("int64")}
    if with_token_bytes:
        columns["token_bytes"] = Sequence(Value("int32"))
    if context_marks is not None:
        columns["labels"] = Sequence(Value("int32"))
    options = {"tokenizer": tokenizer, "with_token_bytes": with_token_bytes, "context_marks": context_marks}
    return texts.map(
        _encode_members,
        batched=True,
        input_columns="text",
        remove_columns=texts.column_names,
        features=Features(columns),
        fn_kwargs={"is_member": is_member, "columns": list(columns), **options},
        num_proc=num_workers,
        desc="Tokenizing",
    )


def _encode_members(
    texts: list[str | None], is_member: Callable[[str | None], bool], columns: list[str], **options: Any
) -> dict[str, list]:
    members = list(filter(is_member, texts))
    return encode_batch(members, **options) if members else {column: [] for column in columns}


def id_type(tokenizer: PreTrainedTokenizerBase) -> Value:
    """Return the integer type in which the ids of a tokenizer are stored: 16 or 32 bits, unsigned."""
    return Value("uint16" if len(tokenizer) <= 2**16 else "uint32")


def describe_work(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    num_workers: int | None,
    is_member: Callable[[str | None], bool],
) -> str:
    """Return a text with the time and disk space that tokenizing will take, estimated from a sample of documents."""
    numbers = sorted(random.Random(0).sample(range(len(texts)), min(len(texts), DOCUMENTS_TO_ESTIMATE)))
    sample, scale = list(filter(is_member, texts.select(numbers)["text"])), len(texts) / len(numbers)
    # With worker processes, tokenize this sample in one thread. Otherwise, every process that is started later
    # would print a warning.
    environment = {} if num_workers is None else {"TOKENIZERS_PARALLELISM": "false"}
    with patch_environment(**environment):
        started = time.perf_counter()
        num_tokens = round(scale * sum(encode_batch(sample, tokenizer, False)["num_tokens"])) if sample else 0
        seconds = scale * (time.perf_counter() - started) / (num_workers or 1)
    size = num_tokens * np.dtype(id_type(tokenizer).dtype).itemsize
    free = free_space(Path(config.HF_DATASETS_CACHE))
    return (
        f"About {round(scale * len(sample)):,} documents and {num_tokens:,} tokens. Unless they are cached, tokenizing "
        f"takes about {max(seconds / 60, 0.1):.1f} minutes and {size / 1e9:.1f} GB of {config.HF_DATASETS_CACHE} "
        f"({free / 1e9:.1f} GB free)."
    )


def encode_batch(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, with_token_bytes: bool, context_marks: str | None = None
) -> dict[str, list]:
    """Return the columns described in `encode_documents` for a batch of texts."""
    contexts: list[list[bool]] = []
    if context_marks is not None:
        texts, contexts = map(list, zip(*(split_context(text, context_marks) for text in texts), strict=True))
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,  # "<|endoftext|>" in a text is not a special token
        return_offsets_mapping=with_token_bytes or context_marks is not None,
        verbose=False,  # no warnings about documents that are longer than a sequence
    )
    columns = {
        "input_ids": [[*ids, tokenizer.eos_token_id] for ids in encoded["input_ids"]],
        "num_tokens": [len(ids) + 1 for ids in encoded["input_ids"]],
        "num_bytes": [len(text.encode()) + 1 for text in texts],
    }
    if with_token_bytes:
        columns["token_bytes"] = list(map(count_token_bytes, texts, encoded["offset_mapping"]))
    if context_marks is not None:
        parts = zip(encoded["input_ids"], encoded["offset_mapping"], contexts, strict=True)
        columns["labels"] = [[*_label(*part), tokenizer.eos_token_id] for part in parts]
    return columns


def _label(ids: list[int], offsets: list[tuple[int, int]], is_context: list[bool]) -> list[int]:
    """
    Return the ids of a text, and -100 for tokens whose characters are all in the context.

    Some tokenizers leave spaces out of `offsets`. A space then belongs to the token after it, and a token without
    characters has the spaces up to the next token.
    """
    labels, before = [], 0
    following = [*(start for start, _ in offsets[1:]), len(is_context)]
    for token, (start, end), next_start in zip(ids, offsets, following, strict=True):
        start, end = min(start, before), end if start < end else max(next_start, before)
        labels.append(-100 if start < end and all(is_context[start:end]) else token)
        before = end
    return labels


def split_context(text: str, context_marks: str) -> tuple[str, list[bool]]:
    """
    Return a text without the context marks, and whether each of its characters is in the context.

    Args:
        text: The text of a document.
        context_marks: Two characters. The first marks the beginning, and the second the end, of a part of the context.

    Raises:
        ValueError: If the marks of a text are not in pairs.

    Examples:
        >>> split_context("[ab]c[d]", "[]")
        ('abcd', [True, True, False, True])
    """
    opening, closing = map(re.escape, context_marks)
    parts = re.split(f"{opening}([^{opening}{closing}]*){closing}", text)  # those with odd indices are context
    if any(mark in part for mark in context_marks for part in parts):
        opening, closing = map(repr, context_marks)
        raise ValueError(
            f"{opening} and {closing} (`context_marks`) must alternate, from {opening} to {closing}, but do not in the "
            f"document {text[:80]!r}. Correct the document, or choose other marks."
        )
    return "".join(parts), [index % 2 == 1 for index, part in enumerate(parts) for _ in part]


def count_token_bytes(text: str, offsets: list[tuple[int, int]]) -> list[int]:
    """
    Return the number of UTF-8 bytes of each token and, as the last item, of end-of-text.

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
    """Yield the sequences that `cut` yields, without the last one if it has fewer than `sequence_length` tokens."""
    return (row for row in cut(documents, sequence_length) if len(row["input_ids"]) == sequence_length)


def count_left_out_tokens(documents: Dataset, sequence_length: int, split: str) -> dict[str, int]:
    """
    Return `left_out_tokens`, the number of tokens after the last full sequence of packed documents.

    Raises:
        ValueError: If the documents have too few tokens for one sequence.
    """
    num_tokens = total(documents, "num_tokens")
    if num_tokens < sequence_length:
        raise ValueError(
            f"The {split} split must have at least one sequence of {sequence_length} tokens, but has {num_tokens} "
            "tokens. Add text, or decrease `sequence_length`."
        )
    left_out = num_tokens % sequence_length
    if left_out:
        logger.warning(
            "%s: the last %d of %d tokens do not fill a sequence, and are left out.", split, left_out, num_tokens
        )
    return {"left_out_tokens": left_out}


def pack(documents: Dataset, sequence_length: int) -> Dataset:
    """Return the full sequences of packed documents, in the columns `input_ids` and, if known, `num_bytes`."""
    return Dataset.from_generator(full_rows, gen_kwargs={"documents": documents, "sequence_length": sequence_length})


class PackedRows:
    """
    Sequences of packed documents, which are read from the memory-mapped files of the documents when they are accessed.

    Args:
        documents: Documents with the column `input_ids`.
        sequence_length: Number of ids per sequence. If the last sequence is incomplete, it is left out.
    """

    def __init__(self, documents: Dataset, sequence_length: int) -> None:
        if documents._indices is not None:  # the indices select rows, but the table is read directly
            documents = documents.flatten_indices()
        self.documents, self.sequence_length = documents, sequence_length
        chunks = self.documents.data.column("input_ids").chunks
        self._parts = [chunk.flatten().to_numpy() for chunk in chunks]  # without a copy
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)

    def __reduce__(self) -> tuple[type["PackedRows"], tuple[Dataset, int]]:
        return PackedRows, (self.documents, self.sequence_length)  # workers memory-map the files again

    def __len__(self) -> int:
        return int(self._ends[-1]) // self.sequence_length

    def __getitem__(self, numbers: list[int]) -> dict[str, np.ndarray]:
        """Return the `input_ids` of the sequences `numbers`, as int64 of shape (len(numbers), sequence_length)."""
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
    documents: Dataset,
    sequence_length: int,
    end_of_text: int,
    split: str,
    drop_long_documents: bool = False,
    num_workers: int | None = None,
) -> tuple[Dataset, dict[str, int]]:
    """
    Return one sequence per document, padded with end-of-text, and the number of documents that were too long.

    Documents that are too long are an error, unless `drop_long_documents` is set and some documents fit. The `labels`
    of the documents, if any, are padded as well. `num_workers` is as in [`encode_documents`].
    """
    fitting = documents.filter(lambda num_tokens: num_tokens <= sequence_length, input_columns="num_tokens")
    left_out = len(documents) - len(fitting)
    if left_out and (not drop_long_documents or not len(fitting)):
        sizes = documents.with_format("numpy")["num_tokens"][:]
        raise ValueError(
            f"{left_out} of {len(documents)} {split} documents are longer than `sequence_length` "
            f"({sequence_length}), including end-of-text. The documents have {sizes.min()} to {sizes.max()} tokens. "
            "Increase `sequence_length` if the model supports longer sequences, or set `packing=packed`. For training, "
            "`drop_long_documents` leaves them out, unless all documents are too long."
        )
    if left_out:
        logger.warning(
            "%s: %d of %d documents are longer than a sequence, and are left out.", split, left_out, len(documents)
        )
    columns = [name for name in ("input_ids", "labels") if name in fitting.column_names]
    rows = fitting.map(
        lambda *columns_of_ids: {
            name: [[*ids, *[end_of_text] * (sequence_length - len(ids))] for ids in column]
            for name, column in zip(columns, columns_of_ids, strict=True)
        },
        batched=True,
        input_columns=columns,
        num_proc=num_workers,
        desc="Padding",
    )
    return rows, {"left_out_documents": left_out}
