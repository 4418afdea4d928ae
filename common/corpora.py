# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Text to train on and to hold out: two corpora that every Python carries, files, and Hub data sets.

A corpus becomes a `DatasetDict` with the splits `train` and `validation` and one column, `text`: a document per row.
"""

import glob
import hashlib
import os
import platform
import re
import sys
import sysconfig
import tokenize
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from datasets import Dataset, DatasetDict, IterableDataset, load_dataset, load_dataset_builder

from common.commands import Options, option

SampleBy = Literal["line", "paragraph", "document"]
COMPRESSED = (".xz", ".gz", ".bz2", ".zst")
BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}  # every other file is read as text
TEXT_SUFFIXES = (".txt", ".text", ".md", ".py", ".raw", ".tokens", ".csv", ".tsv")  # never the name of a Hub data set

# Names that only spell out a code point, a number or a sound; the numbered ones are known by their digits.
UNNUMBERED_FAMILIES = ("CJK COMPATIBILITY IDEOGRAPH", "CUNEIFORM SIGN", "HANGUL SYLLABLE")
TEST_FOLDERS = {"test", "tests", "idle_test"}
INSTALLED_FOLDERS = {"site-packages", "dist-packages"}


@dataclass
class CorpusArguments(Options):
    """The text to train on and to hold out."""

    corpus: list[str] = option(
        ["unicode-names"],
        "unicode-names or python-stdlib, which every Python carries; or text, JSONL or Parquet files and patterns "
        "(also as .xz or .gz); or a Hub data set, by name or folder.",
    )
    corpus_config: str | None = option(None, "Configuration of a Hub data set.")
    corpus_revision: str | None = option(None, "Revision of a Hub data set.")
    train_split: str = option("train", "Split of a Hub data set to train on.")
    validation_split: str | None = option(None, "Split of a Hub data set to hold out; unless given, `validation`.")
    validation_files: list[str] = option([], "Files to hold out, where corpus names files or is streamed.")
    validation_fraction: float = option(0.05, "Share of the documents to hold out, by hash, where nothing else says.")
    text_column: str = option("text", "Column of the documents, in anything but plain text.")
    sample_by: SampleBy = option("line", "A document of plain text; `document`: a file.")

    @property
    def name(self) -> str:
        return " ".join(self.corpus)


# ------------------------------------------------------------------------------------------------- built-in corpora


def unicode_names() -> Iterator[tuple[str, str]]:
    """
    Yield the names of the Unicode characters without the numbered families, as (name, name).

    Left out are names with a digit (ideographs by code point, hieroglyphs by catalogue number, ...), CJK compatibility
    ideographs and Hangul syllables (named by an algorithm), and cuneiform signs (transliterations). They come in the
    order of their hashes: in code point order most names differ from their neighbour by a word, which would tell a
    compressor, or a model of packed text, what to expect.
    """
    names = (unicodedata.name(chr(code_point), "") for code_point in range(sys.maxunicode + 1))
    phrases = (name for name in names if not name.startswith(UNNUMBERED_FAMILIES) and not re.search("[0-9]", name))
    return ((name, name) for name in sorted(filter(None, phrases), key=sha256))


def python_stdlib() -> Iterator[tuple[str, str]]:
    """Yield the source of the running Python's standard library without its tests, as (path, text of the file)."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if TEST_FOLDERS.isdisjoint(inside.parts) and INSTALLED_FOLDERS.isdisjoint(inside.parts):
            with tokenize.open(path) as file:  # honours the file's own encoding line
                yield inside.as_posix(), file.read()


BUILT_IN: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "unicode-names": unicode_names,
    "python-stdlib": python_stdlib,
}


def split_built_in(name: str, validation_fraction: float) -> dict[str, Dataset]:
    texts: dict[str, list[str]] = {"train": [], "validation": []}
    for key, text in BUILT_IN[name]():
        texts["validation" if is_held_out(key, validation_fraction) else "train"].append(text)
    return {split: dataset_of(documents) for split, documents in texts.items() if documents}


def dataset_of(documents: list[str]) -> Dataset:
    """Return documents as a data set, cached under their hash, so that everything made of it is cached too."""
    return Dataset.from_generator(_to_rows, gen_kwargs={"documents": documents})


def _to_rows(documents: list[str]) -> Iterator[dict[str, str]]:
    return ({"text": document} for document in documents)


def is_held_out(key: str, fraction: float) -> bool:
    """
    Return whether the document with this key belongs to the validation split.

    Decided by the SHA-256 of the key alone: it is the same on every machine, copies of a document stay on one side, a
    document keeps its side when others are added, and a larger fraction holds out what a smaller one does and more.
    """
    return int.from_bytes(sha256(key)[:8], "big") < fraction * 2**64


def sha256(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


# ---------------------------------------------------------------------------------------------------------- loading


def load_corpus(arguments: CorpusArguments) -> DatasetDict:
    """
    Load the documents of the splits `train` and `validation`, in the column `text`.

    Raises:
        ValueError: For a missing file, an unknown name, no such column or split, or a split without documents.
    """
    fraction = arguments.validation_fraction
    if not arguments.corpus:
        raise ValueError(f"corpus is empty; name one of {sorted(BUILT_IN)}, files, or a Hub data set.")
    if arguments.sample_by not in get_args(SampleBy):
        raise ValueError(f"sample_by is {arguments.sample_by!r}; it must be one of {', '.join(get_args(SampleBy))}.")
    if not 0 < fraction < 1:
        raise ValueError(f"validation_fraction is {fraction}; it must lie between 0 and 1, both excluded.")
    name = check_corpus(arguments)
    if name in BUILT_IN:
        splits = split_built_in(name, fraction)
    elif is_hub_name(name):
        splits = load_hub(arguments)
    else:
        splits = {"train": load_files(arguments.corpus, arguments.sample_by)}
        if arguments.validation_files:
            splits["validation"] = load_files(arguments.validation_files, arguments.sample_by)

    splits = DatasetDict({split: keep_text(dataset, arguments.text_column) for split, dataset in splits.items()})
    if "validation" not in splits:
        splits = hold_out(splits["train"], fraction)
    for split, dataset in splits.items():
        if not len(dataset):
            raise ValueError(
                f"The {split} split of {arguments.name} has no documents. Give more documents (sample_by is "
                f"{arguments.sample_by!r}), another validation_fraction (it is {fraction}), or say what to hold out."
            )
    return splits


def stream_corpus(arguments: CorpusArguments) -> dict[str, IterableDataset]:
    """
    Open a corpus to be read a document at a time. Only a Hub data set can have the split `validation`.

    Raises:
        ValueError: As `load_corpus`, as far as the first documents tell; and for a built-in corpus.
    """
    name = check_corpus(arguments, is_streamed=True)
    if is_hub_name(name):
        splits = load_hub(arguments, streaming=True)
    else:
        splits = {"train": load_files(arguments.corpus, arguments.sample_by, streaming=True)}
    column = arguments.text_column
    for split, stream in splits.items():
        try:
            first = next(iter(stream), None)
        except Exception as error:  # as in load_files
            raise ValueError(f"The {split} split of {arguments.name} could not be read: {error}") from error
        if first is None:
            raise ValueError(f"The {split} split of {arguments.name} has no documents.")
        if column not in first:
            raise ValueError(f"There is no column {column!r}; set text_column to one of {', '.join(first)}.")
        if not isinstance(first[column], str | None):
            raise ValueError(f"Column {column!r} holds {type(first[column]).__name__}, no text.")
    return splits


def check_corpus(arguments: CorpusArguments, is_streamed: bool = False) -> str:
    """Return the first name of a corpus. Raises a `ValueError` for names and options that do not go together."""
    name, others = arguments.corpus[0], [*arguments.corpus[1:], *([] if is_streamed else arguments.validation_files)]
    if (name in BUILT_IN or is_hub_name(name)) and others:
        raise ValueError(f"{name!r} stands for a whole corpus; it cannot be mixed with {' '.join(others)}.")
    if name in BUILT_IN and is_streamed:
        raise ValueError(f"{name!r} is small and not streamed: leave out streaming, or give files or a Hub data set.")
    of_hub = ("corpus_config", "corpus_revision", "validation_split", "train_split")
    given = [option for option in of_hub if getattr(arguments, option) != getattr(CorpusArguments, option)]
    if given and (name in BUILT_IN or not is_hub_name(name)):
        raise ValueError(
            f"{' and '.join(given)} can be chosen of a Hub data set alone, which {name!r} is not. (Of files, "
            "validation_files says what to hold out.)"
        )
    return name


def keep_text(dataset: Dataset, text_column: str) -> Dataset:
    """Return the documents alone, in the column `text`."""
    if text_column not in dataset.column_names:
        raise ValueError(
            f"There is no column {text_column!r}; set text_column to one of {', '.join(dataset.column_names)}."
        )
    if getattr(dataset.features[text_column], "dtype", None) not in ("string", "large_string"):
        raise ValueError(f"Column {text_column!r} holds {dataset.features[text_column]}, no text.")
    dataset = dataset.select_columns(text_column)
    return dataset if text_column == "text" else dataset.rename_column(text_column, "text")


def hold_out(dataset: Dataset, fraction: float) -> DatasetDict:
    def select(held_out: bool) -> Dataset:
        return dataset.filter(
            lambda text, held_out, fraction: is_held_out(text or "", fraction) == held_out,
            input_columns="text",
            fn_kwargs={"held_out": held_out, "fraction": fraction},
        )

    return DatasetDict({"train": select(False), "validation": select(True)})


def keep_filled(texts: Dataset, split: str, arguments: CorpusArguments) -> Dataset:
    """Return the documents that are not empty. Raises a `ValueError` if all are."""
    filled = texts.filter(bool, input_columns="text")
    if not len(filled):
        raise _all_empty(split, arguments)
    return filled


def first_texts(stream: IterableDataset, split: str, arguments: CorpusArguments, count: int) -> list[str]:
    """Return the first `count` documents that are not empty, or fewer if there are no more."""
    texts = (row[arguments.text_column] for row in stream)
    if not (first := list(islice(filter(None, texts), count))):
        raise _all_empty(split, arguments)
    return first


def _all_empty(split: str, arguments: CorpusArguments) -> ValueError:
    return ValueError(f"All documents of {arguments.name} ({split}) are empty; give some text.")


# ---------------------------------------------------------------------------------------------------- Hub data sets


def is_hub_name(name: str) -> bool:
    """Return whether `name` can only mean a Hub data set or a folder of one: no file, pattern or file suffix."""
    if os.path.isdir(name):
        return True
    is_file = os.path.exists(name) or glob.has_magic(name) or name.startswith((".", "/", "~")) or name.count("/") > 1
    return not is_file and not name.endswith((*TEXT_SUFFIXES, *BUILDERS, *COMPRESSED))


def load_hub(arguments: CorpusArguments, streaming: bool = False) -> dict[str, Dataset] | dict[str, IterableDataset]:
    name, train, validation = arguments.corpus[0], arguments.train_split, arguments.validation_split
    try:
        available = load_dataset(name, arguments.corpus_config, revision=arguments.corpus_revision, streaming=streaming)
    except Exception as error:  # the library raises a dozen kinds, from no network to a bad configuration name
        raise ValueError(
            f"{name!r} is neither a built-in corpus ({', '.join(sorted(BUILT_IN))}) nor a file, and could not be "
            f"loaded as a Hub data set: {error}"
        ) from error
    if validation is None and "validation" in available and train != "validation":
        validation = "validation"
    wanted = {"train": train} | ({"validation": validation} if validation else {})
    for split in wanted.values():
        if split not in available:
            raise ValueError(f"{name!r} has no split {split!r}; it has {', '.join(available)}.")
    return {ours: available[theirs] for ours, theirs in wanted.items()}


# ------------------------------------------------------------------------------------------------------------ files


def find_files(patterns: Sequence[str]) -> list[str]:
    """Return the files that names and patterns stand for: in the order given, sorted within a pattern, each once."""
    files: list[str] = []
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        found = [expanded] if os.path.isfile(expanded) else sorted(glob.glob(expanded, recursive=True))
        found = list(filter(os.path.isfile, found))
        if not found:
            raise ValueError(f"There is no file {pattern!r}; the working folder is {os.getcwd()}.")
        files += found
    return list(dict.fromkeys(os.path.abspath(file) for file in files))


def builder_of(file: str) -> str:
    """Return the `datasets` builder that reads a file, by its suffix before that of a compression."""
    path = Path(file)
    inner = Path(path.stem) if path.suffix in COMPRESSED else path
    return BUILDERS.get(inner.suffix, "text")


def load_files(patterns: Sequence[str], sample_by: str = "line", streaming: bool = False) -> Dataset | IterableDataset:
    """Load the rows of local files, all of one kind. Any line end in plain text is read as a newline character."""
    files = find_files(patterns)
    builders = sorted({builder_of(file) for file in files})
    if len(builders) > 1:
        raise ValueError(f"{' '.join(patterns)} mixes kinds of files ({', '.join(builders)}); give one kind at a time.")
    if empty := [file for file in files if os.path.getsize(file) == 0]:
        raise ValueError(f"{empty[0]} is empty; give a file with text.")
    options = {"sample_by": sample_by} if builders == ["text"] else {}
    try:
        data_files = [glob.escape(file) for file in files]  # it takes names for patterns
        return load_dataset(builders[0], data_files=data_files, split="train", streaming=streaming, **options)
    except Exception as error:  # damaged archives, JSON, Parquet and other encodings: each builder has its own error
        reason = error.__cause__ or error
        raise ValueError(f"{' '.join(patterns)} could not be read as {builders[0]} in UTF-8: {reason}") from error


# ----------------------------------------------------------------------------------------------------------- record


def sources(arguments: CorpusArguments, corpus: DatasetDict) -> list[dict[str, Any]]:
    """Return what exactly was read: every local file with its SHA-256, every file of a data set with its commit."""
    if arguments.corpus[0] in BUILT_IN:
        return [{"name": arguments.corpus[0], "python": platform.python_version()}]
    if is_hub_name(arguments.corpus[0]):
        checksums = corpus["train"].info.download_checksums or {}  # the addresses name the commit
        return [{"name": name, "bytes": known.get("num_bytes")} for name, known in sorted(checksums.items())]
    return local_sources([*arguments.corpus, *arguments.validation_files])


def streamed_sources(arguments: CorpusArguments, splits: list[str]) -> list[dict[str, Any]]:
    """Return the same for a streamed corpus: of a Hub data set the files of `splits`, and local files."""
    if not is_hub_name(arguments.corpus[0]):
        return local_sources([*arguments.corpus, *arguments.validation_files])
    names = {"train": arguments.train_split, "validation": arguments.validation_split or "validation"}
    builder = load_dataset_builder(arguments.corpus[0], arguments.corpus_config, revision=arguments.corpus_revision)
    known = builder.config.data_files or {}
    files = sorted(str(file) for split in splits for file in known.get(names[split], []))
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
