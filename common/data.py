# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Sequences to train on and to hold out: from the name of a corpus to rows of exactly n ids."""

from dataclasses import dataclass, field
from typing import Any, Literal

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from common.commands import option
from common.corpora import (
    CorpusArguments,
    dataset_of,
    first_texts,
    keep_filled,
    keep_text,
    load_corpus,
    load_files,
    sha256,
    sources,
    stream_corpus,
    streamed_sources,
)
from common.sequences import encode_documents, pack, pad, total
from common.tokenization import train_tokenizer
from modeling_aogpt.tokenization import load_tokenizer


@dataclass
class DataArguments(CorpusArguments):
    """What to train on, and as what sequences."""

    tokenizer: str | None = option(None, "Name or folder of a tokenizer; unless given, one is trained on the corpus.")
    vocab_size: int = option(1024, "Ids of the tokenizer that is trained on the corpus.")
    packing: Literal["packed", "documents"] = option(
        "packed",
        "packed: documents end to end, each followed by end-of-text, cut into sequences. documents: one per sequence, "
        "filled up with end-of-text.",
    )
    sequence_length: int = option(1024, "Tokens of a sequence.", least=1)
    drop_long_documents: bool = option(False, "Leave out documents that need more than a sequence, under `documents`.")
    preprocessing_num_workers: int | None = option(
        None, "Processes that tokenize, once: the result is cached. Unless given: the tokenizer's own threads.", least=1
    )
    streaming: bool = option(
        False, "Read, tokenize and pack the corpus while training on it, instead of once before; needs a tokenizer."
    )
    shuffle_window: int = option(4096, "Sequences that are shuffled among themselves under streaming.", least=1)
    validation_documents: int = option(
        1000,
        "Documents to hold out under streaming, unless validation_files are given: the first of the validation split, "
        "or of the training split where there is none.",
        least=1,
    )


@dataclass
class Data:
    """
    Sequences to train on and to evaluate with.

    Attributes:
        arguments: What they were made by.
        train: Rows with `input_ids` of exactly `sequence_length` ids. Under `streaming`: the documents.
        validation: Rows with `input_ids` and `num_bytes`: the bytes of UTF-8 text that the row stands for, with one
            separator for each end of a document, so that bits per byte compare with those of the documents joined by
            newlines.
        tokenizer: The tokenizer, with a mask token behind its ids.
        facts: What there is and what was left out, for the record: numbers and strings.
        held_out: SHA-256 of streamed documents that are not to be trained on.
    """

    arguments: DataArguments
    train: Dataset | IterableDataset
    validation: Dataset
    tokenizer: PreTrainedTokenizerBase
    facts: dict[str, Any]
    held_out: frozenset[bytes] = field(default_factory=frozenset)


def load_data(arguments: DataArguments) -> Data:
    """
    Read, split, tokenize and cut a corpus. The same arguments give the same sequences in the same order.

    Raises:
        ValueError: If the corpus or the tokenizer cannot be used, documents do not fit, or a split has too little text
            for one sequence.
    """
    arguments.check_bounds()
    if arguments.streaming:
        return open_data(arguments)
    corpus = load_corpus(arguments)
    texts = {split: keep_filled(dataset, split, arguments) for split, dataset in corpus.items()}
    if arguments.tokenizer is None:
        tokenizer = train_tokenizer(texts["train"]["text"], arguments.vocab_size)
    else:
        tokenizer = load_tokenizer(arguments.tokenizer)

    facts = {"corpus": arguments.name, "packing": arguments.packing, "sources": sources(arguments, corpus)}
    rows: dict[str, Dataset] = {}
    for split, dataset in texts.items():
        rows[split], facts[split] = make_sequences(dataset, split, tokenizer, arguments)
        facts[split]["empty_documents"] = len(corpus[split]) - len(dataset)
    facts["tokenizer"] = arguments.tokenizer or "byte-level BPE of the training documents"
    facts["bytes_per_token"] = round(facts["train"]["bytes"] / facts["train"]["tokens"], 3)
    train, validation = rows["train"].select_columns("input_ids"), rows["validation"]
    return Data(arguments, train, validation.select_columns(["input_ids", "num_bytes"]), tokenizer, facts)


def open_data(arguments: DataArguments) -> Data:
    """
    Open a corpus that is streamed, and read the documents that are held out.

    Exact copies of what is held out of the training split are not trained on either.

    Raises:
        ValueError: If the corpus cannot be streamed, there is no tokenizer, sequences are not packed, there are too few
            documents, or both a split and files are to be held out.
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
    tokenizer = load_tokenizer(arguments.tokenizer)
    streams = stream_corpus(arguments)
    left_out: frozenset[bytes] = frozenset()
    if arguments.validation_files:
        streams = {"train": streams["train"]}  # its own validation split is not read
        held_out = keep_text(load_files(arguments.validation_files, arguments.sample_by), arguments.text_column)
    else:
        split = "validation" if "validation" in streams else "train"
        texts = first_texts(streams[split], split, arguments, arguments.validation_documents)
        held_out = dataset_of(texts)
        if "validation" not in streams:
            left_out = frozenset(map(sha256, texts))
    texts = keep_filled(held_out, "validation", arguments)
    validation, facts = make_sequences(texts, "validation", tokenizer, arguments)
    facts = {
        "corpus": arguments.name,
        "packing": arguments.packing,
        "sources": streamed_sources(arguments, list(streams)),
        "train": {"streamed_files": streams["train"].num_shards},
        "validation": facts | {"empty_documents": len(held_out) - len(texts)},
        "tokenizer": arguments.tokenizer,
    }
    validation = validation.select_columns(["input_ids", "num_bytes"])
    return Data(arguments, streams["train"], validation, tokenizer, facts, left_out)


def make_sequences(
    texts: Dataset, split: str, tokenizer: PreTrainedTokenizerBase, arguments: DataArguments
) -> tuple[Dataset, dict[str, int]]:
    """Return the sequences of one split, and how much there is of it and was left out."""
    documents = encode_documents(texts, tokenizer, split == "validation", arguments.preprocessing_num_workers)
    facts = {
        "documents": len(documents),
        "bytes": total(documents, "num_bytes"),
        "tokens": total(documents, "num_tokens"),
    }
    length = arguments.sequence_length
    if arguments.packing == "packed":
        rows, left_out = pack(documents, length, split)
    else:
        rows, left_out = pad(documents, length, tokenizer.eos_token_id, split, arguments.drop_long_documents)
    return rows, facts | {"sequences": len(rows)} | left_out
