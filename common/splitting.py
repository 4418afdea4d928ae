# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Splits of a corpus, and the documents that belong to them.

All copies of a document belong to the same split, except those that a function yields with different keys. Two
documents are copies if they differ only in whitespace.
"""

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from datasets import Dataset, IterableDataset

BYTE_ORDER_MARK = "\ufeff"
ROWS_PER_BATCH = 256


def has_text(text: str | None) -> bool:
    """Return whether a document contains more than whitespace."""
    return bool(text) and not text.isspace()


def hash_document(text: str) -> bytes:
    """Return the SHA-256 of a document. All copies have the same hash."""
    return sha256(" ".join(text.split()))


def sha256(key: str) -> bytes:
    """Return the SHA-256 of a string in UTF-8."""
    return hashlib.sha256(key.encode()).digest()


def is_held_out(digest: bytes, fraction: float) -> bool:
    """Return whether the document with this hash belongs to the validation split.

    The decision is the same on every machine, and does not depend on other documents. A larger `fraction` holds out the
    same documents and additional ones.
    """
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def select_all(texts: Iterable[str | None]) -> list[str]:
    """Return all documents except null, which JSONL, CSV and Parquet files may contain. Remove byte-order marks."""
    return [text.removeprefix(BYTE_ORDER_MARK) for text in texts if text is not None]


def select_text(texts: Iterable[str | None]) -> list[str]:
    """Return the documents that have text."""
    return list(filter(has_text, select_all(texts)))


def select_by_hash(texts: Iterable[str | None], split: str, validation_fraction: float) -> list[str]:
    """Return the documents that have text, and that their hash puts into `split` (`train` or `validation`)."""
    is_validation = split == "validation"
    return [
        text for text in select_text(texts) if is_held_out(hash_document(text), validation_fraction) == is_validation
    ]


def select_others(texts: Iterable[str | None], held_out: Container[bytes]) -> list[str]:
    """Return the documents that have text and whose hash is not in `held_out`."""
    return [text for text in select_text(texts) if hash_document(text) not in held_out]


@dataclass(frozen=True)
class Split:
    """Documents of a split: those that `select` returns for each batch of the column `column` of `rows`.

    `rows` may be the whole corpus. Writing the documents of a split to a dataset of their own would read a large corpus
    once more, so `encode_documents` selects and tokenizes in one pass.
    """

    rows: Dataset | IterableDataset
    select: Callable[[Iterable[str | None]], list[str]] = select_text
    column: str = "text"

    def __iter__(self) -> Iterator[str]:
        for batch in self.rows.iter(ROWS_PER_BATCH):
            yield from self.select(batch[self.column])


def make_dataset(documents: list[str]) -> Dataset:
    """Return a dataset with a fingerprint of its content, so that `datasets` caches the results of its functions."""
    return Dataset.from_generator(_make_rows, gen_kwargs={"documents": documents})


def _make_rows(documents: list[str]) -> Iterator[dict[str, str]]:
    return ({"text": document} for document in documents)
