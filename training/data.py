# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What to train on and to hold out: from the name of a corpus to sequences of exactly n ids."""

import hashlib
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from datasets import Dataset, DatasetDict, IterableDataset
from transformers import PreTrainedTokenizerBase

from modeling_aogpt.mask_token import load_tokenizer
from training.batches import Samples
from training.corpora import (
    BUILT_IN,
    find_files,
    hub_files,
    is_hub_name,
    keep_text,
    load_corpus,
    load_files,
    sha256,
    stream_corpus,
    to_rows,
)
from training.options import check_at_least, option
from training.sequences import encode_documents, fill, pack, total
from training.streamed_data import Stream, StreamedSamples
from training.tokenization import train_tokenizer


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
        default_factory=list, metadata={"help": "Files to hold out, where corpus names files or is streamed."}
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
    streaming: bool = option(
        False, "Read, tokenize and pack the corpus while training on it, instead of once before; needs a tokenizer."
    )
    shuffle_window: int = option(4096, "Sequences that are shuffled among themselves under streaming.")
    validation_documents: int = option(
        1000,
        "Documents to hold out under streaming, unless validation_files are given: the first of the validation split, "
        "or of the training split where there is none.",
    )


@dataclass
class Data:
    """Sequences to train on and to evaluate with.

    Attributes:
        train: rows with `input_ids` of exactly `sequence_length` ids; or, under `streaming`, what reads such.
        validation: such rows, and `num_bytes`: the bytes of UTF-8 text that the row stands for, with one separator for
            each end of a document, so that bits per byte compare with those of the documents joined by newlines.
        tokenizer: has the mask token behind its ids.
        facts: what there is and what was left out, for the record; plain numbers and strings.
    """

    train: Dataset | Stream
    validation: Dataset
    tokenizer: PreTrainedTokenizerBase
    facts: dict[str, Any]

    def samples(self, seed: int, position: dict[str, int] | None = None) -> Samples | StreamedSamples:
        """The training sequences by the number of the sample; `position`: of the last batch, under `streaming`."""
        if isinstance(self.train, Stream):
            return StreamedSamples(self.train, seed, position)
        return Samples(self.train, seed)


def load_data(arguments: DataArguments) -> Data:
    """Reads, splits, tokenizes and cuts the corpus; the same arguments give the same sequences in the same order.

    Raises:
        ValueError: for what `load_corpus` and the tokenizers refuse, documents that do not fit, or a split without text
            for one sequence.
    """
    check_at_least(1, arguments, "sequence_length")
    if arguments.streaming:
        return open_data(arguments)
    corpus = load_documents(arguments)
    texts = {split: keep_filled(dataset, split, arguments) for split, dataset in corpus.items()}
    if arguments.tokenizer is None:
        tokenizer = train_tokenizer(texts["train"]["text"], arguments.vocab_size)
    else:
        tokenizer = load_tokenizer(arguments.tokenizer)

    facts = {"corpus": " ".join(arguments.corpus), "packing": arguments.packing, "sources": sources(arguments, corpus)}
    rows: dict[str, Dataset] = {}
    for split, dataset in texts.items():
        rows[split], facts[split] = make_sequences(dataset, split, tokenizer, arguments)
        facts[split]["empty_documents"] = len(corpus[split]) - len(dataset)
    facts["tokenizer"] = arguments.tokenizer or "byte-level BPE of the training documents"
    facts["bytes_per_token"] = round(facts["train"]["bytes"] / facts["train"]["tokens"], 3)
    return Data(
        rows["train"].select_columns("input_ids"),
        rows["validation"].select_columns(["input_ids", "num_bytes"]),
        tokenizer,
        facts,
    )


def keep_filled(texts: Dataset, split: str, arguments: DataArguments) -> Dataset:
    """The documents that are not empty. Raises a `ValueError` if all are."""
    filled = texts.filter(bool, input_columns="text")
    if not len(filled):
        raise all_empty(split, arguments)
    return filled


def all_empty(split: str, arguments: DataArguments) -> ValueError:
    return ValueError(f"All documents of {' '.join(arguments.corpus)} ({split}) are empty; give some text.")


def make_sequences(
    texts: Dataset, split: str, tokenizer: PreTrainedTokenizerBase, arguments: DataArguments
) -> tuple[Dataset, dict[str, int]]:
    """The sequences of one split, and how much there is of it and was left out."""
    documents = encode_documents(texts, tokenizer, split == "validation", arguments.preprocessing_num_workers)
    facts = {
        "documents": len(documents),
        "bytes": total(documents, "num_bytes"),
        "tokens": total(documents, "num_tokens"),
    }
    if arguments.packing == "packed":
        rows, left_out = pack(documents, arguments.sequence_length, split)
    else:
        rows, left_out = fill(
            documents, arguments.sequence_length, tokenizer.eos_token_id, split, arguments.drop_long_documents
        )
    return rows, facts | {"sequences": len(rows)} | left_out


def open_data(arguments: DataArguments) -> Data:
    """As `load_data`, but what is trained on is only opened, and of what is held out only the first documents are read.

    Exact copies of what is held out of the training split are not trained on either.

    Raises:
        ValueError: for what `stream_corpus` refuses, without a tokenizer, unless packed, for too few documents, or if
            both a split and files are to be held out.
    """
    if arguments.tokenizer is None:
        raise ValueError("streaming needs a tokenizer: to train one, all of the corpus would have to be read first.")
    if arguments.packing != "packed":
        raise ValueError(f"streaming packs documents end to end; packing={arguments.packing} needs streaming=false.")
    if arguments.validation_files and arguments.validation_split is not None:
        raise ValueError(
            f"validation_split={arguments.validation_split} and validation_files="
            f"{' '.join(arguments.validation_files)} both say what to hold out: leave one out."
        )
    check_at_least(1, arguments, "shuffle_window", "validation_documents")
    tokenizer = load_tokenizer(arguments.tokenizer)
    streams = stream_corpus(arguments.corpus, **where_to_read(arguments))
    left_out: frozenset[bytes] = frozenset()
    if arguments.validation_files:
        streams = {"train": streams["train"]}  # nobody reads its own validation split
        held_out = keep_text(load_files(arguments.validation_files, arguments.sample_by), arguments.text_column)
    else:
        split = "validation" if "validation" in streams else "train"
        texts = first_texts(streams[split], arguments)
        if not texts:
            raise all_empty(split, arguments)
        held_out = Dataset.from_generator(to_rows, gen_kwargs={"documents": texts})
        if "validation" not in streams:
            left_out = frozenset(map(sha256, texts))
    texts = keep_filled(held_out, "validation", arguments)
    validation, facts = make_sequences(texts, "validation", tokenizer, arguments)
    return Data(
        Stream(
            streams["train"],
            arguments.text_column,
            tokenizer,
            arguments.sequence_length,
            arguments.shuffle_window,
            left_out,
        ),
        validation.select_columns(["input_ids", "num_bytes"]),
        tokenizer,
        {
            "corpus": " ".join(arguments.corpus),
            "packing": arguments.packing,
            "sources": streamed_sources(arguments, list(streams)),
            "train": {"streamed_files": streams["train"].num_shards},
            "validation": facts | {"empty_documents": len(held_out) - len(texts)},
            "tokenizer": arguments.tokenizer,
        },
    )


def first_texts(stream: IterableDataset, arguments: DataArguments) -> list[str]:
    """The first `validation_documents` documents that are not empty; fewer if there are no more."""
    texts = (row[arguments.text_column] for row in stream)
    return list(islice(filter(None, texts), arguments.validation_documents))


def sources(arguments: DataArguments, corpus: DatasetDict) -> list[dict[str, Any]]:
    """What exactly was read: every local file with its SHA-256, or every file of a Hub data set with its commit."""
    if arguments.corpus[0] in BUILT_IN:
        return [{"name": arguments.corpus[0], "python": platform.python_version()}]
    if is_hub_name(arguments.corpus[0]):
        checksums = corpus["train"].info.download_checksums or {}  # the addresses name the commit
        return [{"name": name, "bytes": known.get("num_bytes")} for name, known in sorted(checksums.items())]
    return local_sources([*arguments.corpus, *arguments.validation_files])


def streamed_sources(arguments: DataArguments, splits: list[str]) -> list[dict[str, Any]]:
    """The same of what is streamed: of a Hub data set these splits, `train` and `validation`, and local files."""
    if not is_hub_name(arguments.corpus[0]):
        return local_sources([*arguments.corpus, *arguments.validation_files])
    names = {"train": arguments.train_split, "validation": arguments.validation_split or "validation"}
    wanted = [names[split] for split in splits]
    files = hub_files(arguments.corpus[0], arguments.corpus_config, arguments.corpus_revision, wanted)
    streamed = [{"name": name, "bytes": os.path.getsize(name) if os.path.isfile(name) else None} for name in files]
    return streamed + local_sources(arguments.validation_files)


def local_sources(patterns: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": os.path.basename(name), "bytes": os.path.getsize(name), "sha256": sha256_of_file(name)}
        for name in find_files(patterns)
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
        validation_fraction=arguments.validation_fraction,
        **where_to_read(arguments),
    )


def where_to_read(arguments: DataArguments) -> dict[str, Any]:
    """What mapped and streamed corpora are told alike."""
    return {
        "config": arguments.corpus_config,
        "revision": arguments.corpus_revision,
        "train_split": arguments.train_split,
        "validation_split": arguments.validation_split,
        "text_column": arguments.text_column,
        "sample_by": arguments.sample_by,
    }
