# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""From documents to sequences of exactly n ids: packed end to end and cut, or one document per sequence."""

import hashlib
import logging
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from training.corpora import BUILT_IN, find_files, is_hub_name, load_corpus
from training.tokenization import load_tokenizer, train_tokenizer

logger = logging.getLogger(__name__)


def option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class DataArguments:
    """What to train on, and as what sequences."""

    corpus: list[str] = field(
        default_factory=lambda: ["unicode-names"],
        metadata={
            "help": "unicode-names or python-stdlib, which every Python carries; or text, JSONL or Parquet files and "
            "patterns (also as .xz or .gz); or a Hub data set."
        },
    )
    corpus_config: str | None = option(None, "Configuration of a Hub data set.")
    corpus_revision: str | None = option(None, "Revision of a Hub data set.")
    train_split: str = option("train", "Split of a Hub data set to train on.")
    validation_split: str | None = option(None, "Split of a Hub data set to hold out; unless given, `validation`.")
    validation_files: list[str] = field(
        default_factory=list, metadata={"help": "Files to hold out, where corpus names files."}
    )
    validation_fraction: float = option(0.05, "Share of the documents to hold out, by hash, where nothing else says.")
    text_column: str = option("text", "Column of the documents, in anything but plain text.")
    sample_by: Literal["line", "paragraph", "document"] = option(
        "line", "A document of plain text; `document`: a file."
    )
    tokenizer: str | None = option(None, "Name or folder of a tokenizer; unless given, one is trained on the corpus.")
    vocab_size: int = option(1024, "Ids of the tokenizer that is trained on the corpus.")
    packing: Literal["packed", "documents"] = option(
        "packed",
        "packed: documents end to end, each followed by end-of-text, cut into sequences. documents: one per sequence, "
        "filled up with end-of-text.",
    )
    sequence_length: int = option(1024, "Tokens of a sequence.")
    drop_long_documents: bool = option(False, "Leave out documents that need more than a sequence, under `documents`.")
    preprocessing_num_workers: int | None = option(
        None, "Processes that tokenize, once: the result is cached. Unless given: the tokenizer's own threads."
    )


@dataclass
class Data:
    """Sequences to train on and to evaluate with.

    Attributes:
        train: rows with `input_ids` of exactly `sequence_length` ids.
        validation: the same, and `num_bytes`: the bytes of UTF-8 text that the row stands for, with one separator for
            each end of a document, so that bits per byte compare with those of the documents joined by newlines.
        tokenizer: has the mask token behind its ids.
        facts: what there is and what was left out, for the record; plain numbers and strings.
    """

    train: Dataset
    validation: Dataset
    tokenizer: PreTrainedTokenizerBase
    facts: dict[str, Any]


def load_data(arguments: DataArguments) -> Data:
    """Reads, splits, tokenizes and cuts the corpus; the same arguments give the same sequences in the same order.

    Raises:
        ValueError: for what `load_corpus` and the tokenizers refuse, documents that do not fit, or a split without text
            for one sequence.
    """
    if arguments.sequence_length < 1:
        raise ValueError(f"sequence_length is {arguments.sequence_length}; it must be at least 1.")
    corpus = load_documents(arguments)
    texts = {split: dataset.filter(bool, input_columns="text") for split, dataset in corpus.items()}
    if empty := [split for split, dataset in texts.items() if not len(dataset)]:
        raise ValueError(f"All documents of {' '.join(arguments.corpus)} ({empty[0]}) are empty; give some text.")
    if arguments.tokenizer is None:
        tokenizer = train_tokenizer(texts["train"]["text"], arguments.vocab_size)
    else:
        tokenizer = load_tokenizer(arguments.tokenizer)

    rows: dict[str, Dataset] = {}
    facts: dict[str, Any] = {"corpus": " ".join(arguments.corpus), "packing": arguments.packing}
    facts["sources"] = sources(arguments, corpus)
    for split, dataset in texts.items():
        documents = encode_documents(dataset, tokenizer, split == "validation", arguments.preprocessing_num_workers)
        facts[split] = {
            "documents": len(documents),
            "empty_documents": len(corpus[split]) - len(dataset),
            "bytes": total(documents, "num_bytes"),
            "tokens": total(documents, "num_tokens"),
        }
        if arguments.packing == "packed":
            rows[split], left_out = pack(documents, arguments.sequence_length, split)
        else:
            rows[split], left_out = fill(
                documents, arguments.sequence_length, tokenizer.eos_token_id, split, arguments.drop_long_documents
            )
        facts[split] |= {"sequences": len(rows[split])} | left_out
    facts["tokenizer"] = arguments.tokenizer or "byte-level BPE of the training documents"
    facts["bytes_per_token"] = round(facts["train"]["bytes"] / facts["train"]["tokens"], 3)
    return Data(
        rows["train"].select_columns("input_ids"),
        rows["validation"].select_columns(["input_ids", "num_bytes"]),
        tokenizer,
        facts,
    )


def sources(arguments: DataArguments, corpus: DatasetDict) -> list[dict[str, Any]]:
    """What exactly was read: every local file with its SHA-256, or every file of a Hub data set with its commit."""
    if arguments.corpus[0] in BUILT_IN:
        return [{"name": arguments.corpus[0], "python": platform.python_version()}]
    if is_hub_name(arguments.corpus[0]):
        checksums = corpus["train"].info.download_checksums or {}  # the addresses name the commit
        return [{"name": name, "bytes": known.get("num_bytes")} for name, known in sorted(checksums.items())]
    return [
        {"name": os.path.basename(name), "bytes": os.path.getsize(name), "sha256": sha256_of_file(name)}
        for name in find_files([*arguments.corpus, *arguments.validation_files])
    ]


def sha256_of_file(name: str) -> str:
    digest = hashlib.sha256()
    with open(name, "rb") as file:
        while block := file.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def load_documents(arguments: DataArguments) -> DatasetDict:
    """The text of the splits `train` and `validation`, a document per row."""
    return load_corpus(
        arguments.corpus,
        validation_files=arguments.validation_files,
        config=arguments.corpus_config,
        revision=arguments.corpus_revision,
        train_split=arguments.train_split,
        validation_split=arguments.validation_split,
        text_column=arguments.text_column,
        sample_by=arguments.sample_by,
        validation_fraction=arguments.validation_fraction,
    )


def encode_documents(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, with_token_bytes: bool, num_workers: int | None = None
) -> Dataset:
    """Tokenizes the column `text` into `input_ids` (each ends with end-of-text), `num_tokens` and `num_bytes`.

    `with_token_bytes` adds `token_bytes`, the bytes that each id stands for; they sum up to `num_bytes` exactly.
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
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,  # a text that spells "<|mask|>" or "<|endoftext|>" is text
        return_offsets_mapping=with_token_bytes,
        verbose=False,  # else it warns of documents that are longer than a sequence
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
    """Bytes of UTF-8 for which each token stands, then those of end-of-text: the separator and what no token covers.

    A character that takes several tokens counts with the first of them.
    """
    bytes_before = np.concatenate([[0], np.cumsum([len(character.encode()) for character in text], dtype=int)])
    ends = [0, *(end for _, end in offsets)]
    boundaries = np.maximum.accumulate(bytes_before[ends])
    return [*np.diff(boundaries).tolist(), int(bytes_before[-1] - boundaries[-1]) + 1]


def total(documents: Dataset, column: str) -> int:
    return int(documents.with_format("numpy")[column][:].sum())


def cut(documents: Iterable[dict[str, list[int]]], sequence_length: int) -> Iterator[dict[str, Any]]:
    """Rows of `sequence_length` ids from documents laid end to end; the last row is what remains, and may be shorter.

    Where documents have `token_bytes`, rows have `num_bytes`.
    """
    ids: list[int] = []
    sizes: list[int] = []
    for document in documents:
        ids += document["input_ids"]
        sizes += document.get("token_bytes", [])
        whole = len(ids) - len(ids) % sequence_length
        for start in range(0, whole, sequence_length):
            yield make_row(ids[start : start + sequence_length], sizes[start : start + sequence_length])
        ids, sizes = ids[whole:], sizes[whole:]
    if ids:
        yield make_row(ids, sizes)


def make_row(ids: list[int], sizes: list[int]) -> dict[str, Any]:
    return {"input_ids": ids} | ({"num_bytes": sum(sizes)} if sizes else {})


def whole_rows(documents: Dataset, sequence_length: int) -> Iterator[dict[str, Any]]:
    return (row for row in cut(documents, sequence_length) if len(row["input_ids"]) == sequence_length)


def pack(documents: Dataset, sequence_length: int, split: str) -> tuple[Dataset, dict[str, int]]:
    """All whole sequences that the documents fill, laid end to end; and how many tokens the last, broken one had."""
    num_tokens = total(documents, "num_tokens")
    if num_tokens < sequence_length:
        raise ValueError(
            f"The {split} split has {num_tokens} tokens, less than one sequence of {sequence_length}; give more text "
            f"or a smaller sequence_length."
        )
    # Written to the cache row by row, so a corpus need not fit into memory.
    rows = Dataset.from_generator(whole_rows, gen_kwargs={"documents": documents, "sequence_length": sequence_length})
    left_out = num_tokens % sequence_length
    if left_out:
        logger.warning("%s: the last %d of %d tokens do not fill a sequence.", split, left_out, num_tokens)
    return rows, {"left_out_tokens": left_out}


def fill(
    documents: Dataset, sequence_length: int, end_of_text: int, split: str, drop_long_documents: bool = False
) -> tuple[Dataset, dict[str, int]]:
    """One sequence per document, filled up with end-of-text; and how many documents were left out."""
    fitting = documents.filter(lambda num_tokens: num_tokens <= sequence_length, input_columns="num_tokens")
    left_out = len(documents) - len(fitting)
    if left_out and (not drop_long_documents or not len(fitting)):
        longest = int(documents.with_format("numpy")["num_tokens"][:].max())
        raise ValueError(
            f"{left_out} of {len(documents)} {split} documents do not fit into sequence_length={sequence_length} with "
            f"their end-of-text; the longest needs {longest}. Raise it, set drop_long_documents, or use packing=packed."
        )
    if left_out:
        logger.warning("%s: %d of %d documents are too long and left out.", split, left_out, len(documents))
    rows = fitting.map(
        lambda ids: {
            "input_ids": [[*document, *[end_of_text] * (sequence_length - len(document))] for document in ids]
        },
        batched=True,
        input_columns="input_ids",
        desc="Filling",
    )
    return rows, {"left_out_documents": left_out}
