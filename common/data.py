# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training and validation data: sequences of equal length, or examples for fine-tuning.

A corpus is selected and split (common/corpora.py), tokenized (common/encoding.py) and packed (common/packing.py).
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from common.corpora import is_hub_name, load_corpus, no_text_error
from common.data_arguments import DataArguments
from common.encoding import encode_documents, split_context
from common.examples import EXAMPLE, ExampleError, encode_examples
from common.packing import PackedRows, count_left_out_tokens, leave_out_long, pack, pad, total
from common.results import read_finished_run
from common.splitting import Split
from common.text_files import find_files, load_files
from common.tokenizers import train_tokenizer
from modeling_aogpt.tokenization import load_tokenizer

logger = logging.getLogger(__name__)


@dataclass
class Data:
    """Training and validation data.

    A sequence has exactly `sequence_length` ids, in the column `input_ids`. With `context_marks`, sequences also have
    `labels`. Validation sequences also have `num_bytes`: the number of UTF-8 bytes of the text, plus one for the
    end-of-text of each document. Each end-of-text thus counts as a newline in bits per byte.

    If the corpus has examples, a sequence has at most `sequence_length` ids, and the columns of `encode_examples`.
    """

    arguments: DataArguments
    train: Dataset | PackedRows | Split  # with `streaming`: documents, not sequences
    validation: Dataset
    tokenizer: PreTrainedTokenizerBase  # with a mask token
    facts: dict[str, Any]  # sizes and sources of the data, as in checkpoints and results.json

    @property
    def has_examples(self) -> bool:
        """Return whether the corpus has examples instead of documents."""
        return "in_turns" in self.validation.column_names

    @cached_property
    def mean_length(self) -> float:
        """Return the mean number of tokens of the training sequences, without padding after examples."""
        if not self.has_examples:
            return self.arguments.sequence_length
        return total(self.train, "num_tokens") / len(self.train)


def load_data(arguments: DataArguments, start_token_id: int | None = None) -> Data:
    """Load, split, tokenize and cut a corpus. The same arguments give the same sequences in the same order.

    `start_token_id` is the start token of the model. Chats that begin with it are encoded without it.
    """
    if arguments.tokenizer is not None and arguments.vocab_size != DataArguments.vocab_size:
        logger.info("`vocab_size` (%d) has no effect, because no tokenizer is trained.", arguments.vocab_size)
    if arguments.tokenizer is None and arguments.streaming:
        raise ValueError(
            "`streaming` is set without `tokenizer`. Training a tokenizer would read the whole corpus first. Set "
            "`tokenizer` (for instance to gpt2), or remove `streaming`."
        )
    corpus = load_corpus(arguments)
    tokenizer = _load_tokenizer(corpus.train, arguments)
    # The validation split is made first: it is small, so errors are found early.
    options = tokenizer, arguments, start_token_id
    validation, validation_facts = _make_sequences(corpus.validation, "validation", *options)
    facts = {
        "corpus": arguments.name,
        "packing": arguments.packing,
        **({"examples": True} if corpus.train.column == EXAMPLE else {}),
        "sources": corpus.sources,
        "tokenizer": arguments.tokenizer or "byte-level BPE of the training documents",
        "validation": validation_facts,
        "held_out_ids": _hash_rows(validation),
    }
    if arguments.streaming:
        facts["train"] = {"streamed_files": corpus.train.rows.num_shards}
        return Data(arguments, corpus.train, validation, tokenizer, facts)
    train, train_facts = _make_sequences(corpus.train, "train", *options)
    if num_skipped := corpus.num_rows - train_facts["documents"] - validation_facts["documents"]:
        counts = num_skipped, corpus.num_rows
        logger.warning("%d of %d documents have no text, or are copies of held-out ones, and are skipped.", *counts)
    facts |= {"train": train_facts, "skipped_documents": num_skipped}
    return Data(arguments, train, validation, tokenizer, facts)


def _load_tokenizer(texts: Split, arguments: DataArguments) -> PreTrainedTokenizerBase:
    if arguments.tokenizer is not None:
        return load_tokenizer(arguments.tokenizer)
    if texts.column == EXAMPLE:
        raise ValueError(f"{arguments.name} has examples, for fine-tuning of a model. Set `init_from` or `tokenizer`.")
    if arguments.context_marks is not None:
        texts = (split_context(text, arguments.context_marks)[0] for text in texts)
    return train_tokenizer(texts, arguments.vocab_size)


def load_data_of_run(folder: Path) -> Data:
    """Load the data of a finished run.

    Raise a `ValueError` if the run is not finished, or if its corpus or tokenizer has changed.
    """
    results = read_finished_run(folder)
    settings = results["arguments"]
    arguments = DataArguments.from_settings(settings)
    name = arguments.tokenizer
    if name is not None and name == settings.get("init_from") and not Path(name).exists():
        arguments.tokenizer = str(folder / "model")  # the initial model was moved
    data = load_data(arguments, settings.get("start_token_id"))
    for name in ("sources", "train", "validation", "held_out_ids"):
        now = data.facts[name]
        if (then := results["corpus"].get(name, now)) != now:  # runs of earlier versions do not have all facts
            raise ValueError(
                f"The corpus of {folder} ({arguments.name}) has changed since the training: `{name}` was {then}, and "
                f"is now {now}. Restore the files, the tokenizer or, for a function, its code and version of Python."
            )
    if data.tokenizer.get_vocab() != load_tokenizer(folder / "model").get_vocab():
        raise ValueError(
            f"The tokenizer {results['corpus']['tokenizer']!r} differs from the tokenizer of {folder / 'model'}. "
            "Restore the tokenizer with which the model was trained."
        )
    return data


def _make_sequences(
    texts: Split, split: str, tokenizer: PreTrainedTokenizerBase, arguments: DataArguments, start_token_id: int | None
) -> tuple[Dataset | PackedRows, dict[str, int]]:
    """Return the sequences of a split, and the numbers of its documents, bytes, tokens and sequences."""
    num_workers = arguments.preprocessing_num_workers
    if texts.column == EXAMPLE:
        documents = _encode_examples(texts, split, tokenizer, arguments, start_token_id)
    else:
        documents = encode_documents(
            texts.rows, tokenizer, split == "validation", num_workers, arguments.context_marks, texts.select
        )
    if not len(documents):
        raise no_text_error(split, arguments)
    if (marks := arguments.context_marks) and split == "train" and not any(-100 in row for row in documents["labels"]):
        raise ValueError(f"`context_marks` has no effect: no document has text between {marks!r}. Change the marks.")
    length = arguments.sequence_length
    if arguments.packing == "documents":  # always for examples
        rows, left_out = leave_out_long(documents, length, split, arguments.drop_long_documents)
        if texts.column != EXAMPLE:
            rows = pad(rows, length, tokenizer.eos_token_id, num_workers)
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


def _hash_rows(rows: Dataset) -> str:
    """Return a hash of ids and labels of at most 1,000 rows, which depend on the tokenizer and its chat template."""
    chosen = rows.select(evenly_spaced(len(rows), 1000))
    content = [chosen[name][:] for name in ("input_ids", "labels") if name in chosen.column_names]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _encode_examples(
    texts: Split, split: str, tokenizer: PreTrainedTokenizerBase, arguments: DataArguments, start_token_id: int | None
) -> Dataset:
    """Return the encoded examples of a split. Raise a `ValueError` that names the row of an invalid example."""
    if arguments.packing == "packed":
        raise ValueError(f"{arguments.name} has examples, which are not packed. Set `packing=documents`.")
    if arguments.context_marks is not None:
        raise ValueError(f"{arguments.name} has examples, which need no marks. Remove `context_marks`.")
    try:
        return encode_examples(texts.rows, tokenizer, texts.select, start_token_id, arguments.preprocessing_num_workers)
    except ExampleError as error:
        place = _find_row(texts.rows[EXAMPLE][:].index(error.args[0]), split, arguments)
        raise ValueError(f"{place} cannot be used. {error.args[1]} Correct or remove the row.") from error


def _find_row(row: int, split: str, arguments: DataArguments) -> str:
    """Return the name of a row of a split, counted from 1 in its file."""
    files = arguments.validation_files if split == "validation" else []
    if not files and is_hub_name(arguments.corpus[0]):
        return f"Row {row + 1} of {arguments.name}"
    for file in find_files(files or arguments.corpus):
        if row < (num_rows := len(load_files([file], text_column=arguments.text_column))):
            break
        row -= num_rows
    return f"Row {row + 1} of {file}"


def evenly_spaced(num_rows: int, count: int) -> list[int]:
    """Return the indices of `count` evenly spaced rows out of `num_rows`, or of all rows if there are fewer."""
    count = min(count, num_rows)
    return [number * num_rows // count for number in range(count)]
