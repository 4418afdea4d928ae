# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Options that select the text and the sequences for training and evaluation.

This module does not import `datasets`, so commands that read no data can use it without this library.
"""

from dataclasses import dataclass
from typing import Literal

from common.commands import Options, option

SampleBy = Literal["line", "paragraph", "document"]


@dataclass
class DataArguments(Options):
    """Options of the data: the corpus, the tokenizer, and how documents become sequences."""

    corpus: list[str] = option(
        ["unicode-names"],
        "Built-in corpus (`unicode-names` or `python-stdlib`); or text, JSONL, CSV, Parquet or Arrow files, or glob "
        "patterns of such files, also compressed (such as .gz or .xz); or Hub name or folder of a dataset; or "
        "a function `module:function` that yields pairs (key, text). Data with the columns `messages`, or `prompt` and "
        "`completion`, or `prefix`, `suffix` and `middle`, are examples for fine-tuning.",
    )
    corpus_config: str | None = option(None, "Configuration of the Hub dataset.")
    corpus_revision: str | None = option(None, "Revision of the Hub dataset.")
    train_split: str = option("train", "Split of the Hub dataset to train on.")
    validation_split: str | None = option(
        None, "Split of the Hub dataset to hold out; defaults to `validation` if the dataset has a split of this name."
    )
    validation_files: list[str] = option([], "Files to hold out. Built-in corpora and functions do not allow them.")
    validation_fraction: float = option(
        0.05,
        "Fraction of the documents to hold out, selected by a hash. It is not used with a validation split, "
        "validation_files or streaming.",
        least=0,
        below=1,
    )
    text_column: str = option("text", "Column with the documents. In plain text files, it is always `text`.")
    sample_by: SampleBy = option("line", "Part of a plain text file that is one document; `document` is a whole file.")
    preprocessing_num_workers: int | None = option(
        None, "Number of processes that tokenize without streaming; by default, one with several threads.", least=1
    )
    tokenizer: str | None = option(None, "Name or folder of a tokenizer; by default, one is trained on the corpus.")
    vocab_size: int = option(1024, "Vocabulary size of the tokenizer that is trained on the corpus.")
    packing: Literal["packed", "documents"] = option(
        "packed",
        "packed: join the documents, each followed by end-of-text, and cut the result into sequences. documents: make "
        "one sequence of each document, padded with end-of-text. Examples for fine-tuning need documents, and are not "
        "padded with tokens that have a loss.",
    )
    sequence_length: int = option(1024, "Number of tokens per sequence.", least=1)
    drop_long_documents: bool = option(
        False,
        "With packing=documents, drop documents that are longer than a sequence; by default, they are an error.",
        needs="packing=documents",
    )
    context_marks: str | None = option(
        None,
        "With packing=documents, two characters such as []. Text between them is context, which is given and not "
        "predicted: the loss does not include it, and with orders=context_first it comes first. The two characters are "
        "removed from the documents.",
        needs="packing=documents",
    )
    streaming: bool = option(False, "Read, tokenize and pack the corpus during training; requires tokenizer.")
    shuffle_window: int = option(4096, "Number of streamed sequences to shuffle together.", needs="streaming", least=1)
    validation_documents: int = option(
        1000,
        "With streaming and without validation_files, the number of documents to hold out. They are the first "
        "documents of the validation split or, without a validation split, of the training split.",
        needs="streaming",
        least=1,
    )

    @property
    def name(self) -> str:
        """Return the values of `corpus`, separated by spaces."""
        return " ".join(self.corpus)

    def __post_init__(self) -> None:
        """Raise a `ValueError` if `context_marks` cannot be used, or if some options cannot be combined."""
        super().__post_init__()
        marks = self.context_marks
        if marks is not None and (len(set(marks)) != 2 or len(marks) != 2):
            raise ValueError(f"`context_marks` must be two different characters, such as `[]`, but is {marks!r}.")
        if self.streaming and self.packing != "packed":
            raise ValueError(
                f"`streaming` needs `packing=packed`, but `packing={self.packing}` is set. Set `packing=packed`, or "
                "remove `streaming`."
            )
        for option_name in ("validation_split", "validation_documents"):
            if self.validation_files and getattr(self, option_name) != getattr(DataArguments, option_name):
                raise ValueError(
                    f"`{option_name}` has no effect with `validation_files`, because all documents of these files are "
                    "held out. Remove one of the two."
                )
