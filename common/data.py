# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Training and validation data: a corpus that is tokenized and cut into sequences of equal length."""

import json
import logging
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from common.corpora import (
    Split,
    describe_sources,
    first_texts,
    has_text,
    load_corpus,
    load_validation_files,
    make_dataset,
    no_text_error,
    sha256,
    stream_corpus,
)
from common.data_arguments import DataArguments
from common.results import read_finished_run
from common.sequences import (
    PackedRows,
    count_left_out_tokens,
    describe_work,
    encode_documents,
    pack,
    pad,
    split_context,
    total,
)
from common.tokenization import train_tokenizer
from modeling_aogpt.tokenization import load_tokenizer

logger = logging.getLogger(__name__)


@dataclass
class Data:
    """
    Training and validation data.

    A sequence has exactly `sequence_length` ids, in the column `input_ids`. With `context_marks`, sequences also have
    `labels`. Validation sequences also have `num_bytes`: the number of UTF-8 bytes of the text, plus one for
    the end-of-text of each document. Bits per byte are therefore those of the documents joined by newlines.
    """

    arguments: DataArguments
    train: Dataset | PackedRows | IterableDataset  # with `streaming`: documents, not sequences
    validation: Dataset
    tokenizer: PreTrainedTokenizerBase  # with a mask token
    facts: dict[str, Any]  # sizes and sources, as written to checkpoints and results.json
    held_out: frozenset[bytes] = field(default_factory=frozenset)  # SHA-256 of streamed documents to skip


def load_data(arguments: DataArguments) -> Data:
    """Load, split, tokenize and cut a corpus. The same arguments give the same sequences in the same order."""
    marks = arguments.context_marks
    if arguments.tokenizer is not None and arguments.vocab_size != DataArguments.vocab_size:
        logger.info("`vocab_size` (%d) has no effect, because no tokenizer is trained.", arguments.vocab_size)
    if arguments.streaming:
        return _open_stream(arguments)
    corpus = load_corpus(arguments)
    train, validation = corpus["train"], corpus["validation"]
    if arguments.tokenizer is None:
        if next(iter(train), None) is None:
            raise no_text_error("train", arguments, train.is_hashed)
        texts = train if marks is None else (split_context(text, marks)[0] for text in train)
        tokenizer = train_tokenizer(texts, arguments.vocab_size)
    else:
        tokenizer = load_tokenizer(arguments.tokenizer)

    # The validation split is made first: it is small, and if it has errors, they are found early.
    validation_rows, validation_facts = _make_sequences(validation, "validation", tokenizer, arguments)
    train_rows, train_facts = _make_sequences(train, "train", tokenizer, arguments)
    num_rows = len(train.rows) + (0 if validation.rows is train.rows else len(validation.rows))
    if num_empty := num_rows - train_facts["documents"] - validation_facts["documents"]:
        logger.info("%d of %d documents have no text, and are skipped.", num_empty, num_rows)
    facts = _make_facts(arguments, train_facts, validation_facts) | {
        "empty_documents": num_empty,
        "bytes_per_token": round(train_facts["bytes"] / train_facts["tokens"], 3),
    }
    return Data(arguments, train_rows, validation_rows, tokenizer, facts)


def load_data_of_run(folder: Path) -> Data:
    """
    Load the data of a finished run. The data of the last call are kept for runs with the same data.

    Raises:
        ValueError: If the run is not finished, or if its corpus or tokenizer has changed.
    """
    data = load_data_once(data_options_of_run(folder))
    check_data_of_run(data, folder, read_finished_run(folder))
    return data


def data_options_of_run(folder: Path) -> str:
    """Return the data options of a run as JSON, with the name of the tokenizer under which the text is cached."""
    settings = read_finished_run(folder)["arguments"]
    name, initial_model = settings.get("tokenizer"), settings.get("init_from")
    if name is not None and name == initial_model and not Path(name).exists():  # the initial model was moved
        name = str(folder / "model")
    return json.dumps(asdict(DataArguments.from_settings(settings)) | {"tokenizer": name})


@lru_cache(maxsize=1)
def load_data_once(options: str) -> Data:
    """Load the data of `DataArguments`, given as JSON. Keep them for the next call."""
    return load_data(DataArguments(**json.loads(options)))


def check_data_of_run(data: Data, folder: Path, results: dict[str, Any]) -> None:
    """Raise a `ValueError` unless `data` have the corpus and the tokenizer of a finished run with these `results`."""
    for name in ("sources", "train", "validation"):
        then, now = results["corpus"][name], data.facts[name]
        if then != now:
            raise ValueError(
                f"The corpus of {folder} ({data.arguments.name}) has changed since the training: `{name}` was {then}, "
                f"and is now {now}. Restore the files or, for a built-in corpus, use the same version of Python."
            )
    if data.tokenizer.get_vocab() != load_tokenizer(folder / "model").get_vocab():
        raise ValueError(
            f"The tokenizer {results['corpus']['tokenizer']!r} differs from that of the model {folder / 'model'}. "
            "Restore the tokenizer with which the model was trained."
        )


def _open_stream(arguments: DataArguments) -> Data:
    """
    Open a streamed corpus, and load its validation data.

    If the validation documents come from the training split, they and their exact copies are excluded from training.
    """
    if arguments.tokenizer is None:
        raise ValueError(
            "`streaming` is set without `tokenizer`. Training a tokenizer would read the whole corpus first. Set "
            "`tokenizer` (for instance to gpt2), or remove `streaming`."
        )
    if arguments.packing != "packed":
        raise ValueError(
            f"`streaming` needs `packing=packed`, but `packing={arguments.packing}` is set. Set `packing=packed`, or "
            "remove `streaming`."
        )
    if arguments.validation_files and arguments.validation_documents != DataArguments.validation_documents:
        raise ValueError(
            "`validation_documents` has no effect with `validation_files`, because all documents of these files are "
            "held out. Remove one of the two."
        )
    tokenizer = load_tokenizer(arguments.tokenizer)
    streams = stream_corpus(arguments)
    excluded: frozenset[bytes] = frozenset()
    if arguments.validation_files:
        streams = {"train": streams["train"]}  # the validation split of the dataset is not read
        held_out = load_validation_files(arguments)
    else:
        split = "validation" if "validation" in streams else "train"
        texts = first_texts(streams[split], split, arguments, arguments.validation_documents)
        held_out = make_dataset(texts)
        if "validation" not in streams:
            excluded = frozenset(map(sha256, texts))
    documents = (row[arguments.text_column] for row in streams["train"])
    if not any(has_text(text) and sha256(text) not in excluded for text in documents):
        raise ValueError(
            "All training documents are empty or held out for validation. Decrease `validation_documents` "
            f"({arguments.validation_documents}), or add documents."
        )
    validation, facts = _make_sequences(Split(held_out), "validation", tokenizer, arguments)
    facts = _make_facts(arguments, {"streamed_files": streams["train"].num_shards}, facts)
    return Data(arguments, streams["train"], validation, tokenizer, facts, excluded)


def _make_facts(arguments: DataArguments, train: dict[str, int], validation: dict[str, int]) -> dict[str, Any]:
    return {
        "corpus": arguments.name,
        "packing": arguments.packing,
        "sources": describe_sources(arguments),
        "train": train,
        "validation": validation,
        "tokenizer": arguments.tokenizer or "byte-level BPE of the training documents",
    }


def _make_sequences(
    texts: Split, split: str, tokenizer: PreTrainedTokenizerBase, arguments: DataArguments
) -> tuple[Dataset | PackedRows, dict[str, int]]:
    """Return the sequences of a split, and the numbers of its documents, bytes, tokens and sequences."""
    num_workers = arguments.preprocessing_num_workers
    if split == "train":
        logger.info("%s", describe_work(texts.rows, tokenizer, num_workers, texts.is_member))
    documents = encode_documents(
        texts.rows, tokenizer, split == "validation", num_workers, arguments.context_marks, texts.is_member
    )
    if not len(documents):
        raise no_text_error(split, arguments, texts.is_hashed)
    length = arguments.sequence_length
    rows: Dataset | PackedRows
    if arguments.packing == "documents":
        rows, left_out = pad(
            documents, length, tokenizer.eos_token_id, split, arguments.drop_long_documents, num_workers
        )
        columns = {"input_ids", "labels"} | ({"num_bytes"} if split == "validation" else set())
        rows = rows.select_columns(sorted(columns.intersection(rows.column_names)))
    else:
        left_out = count_left_out_tokens(documents, length, split)
        rows = PackedRows(documents, length) if split == "train" else pack(documents, length)
    return rows, {
        "documents": len(documents),
        "bytes": total(documents, "num_bytes"),
        "tokens": total(documents, "num_tokens"),
        "sequences": len(rows),
        **left_out,
    }


def evenly_spaced(num_rows: int, count: int) -> list[int]:
    """Return the indices of `count` evenly spaced rows out of `num_rows`, or of all rows if there are fewer."""
    count = min(count, num_rows)
    return [number * num_rows // count for number in range(count)]
