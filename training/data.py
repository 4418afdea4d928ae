# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What to train on and to hold out: from the name of a corpus to sequences of exactly n ids."""

import hashlib
import os
import platform
from dataclasses import dataclass, field
from typing import Any, Literal

from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from training.corpora import BUILT_IN, find_files, is_hub_name, load_corpus
from training.sequences import encode_documents, fill, pack, total
from training.tokenization import load_tokenizer, train_tokenizer


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
