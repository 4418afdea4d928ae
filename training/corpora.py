# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to train on and to hold out: two corpora that every Python carries, files, and Hub data sets.

Everything becomes a `DatasetDict` with the splits `train` and `validation` and the one column `text`, one document per
row.
"""

import glob
import hashlib
import os
import re
import sys
import sysconfig
import tokenize
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from datasets import Dataset, DatasetDict, IterableDataset, load_dataset, load_dataset_builder

SAMPLE_BY = ("line", "paragraph", "document")
COMPRESSED = (".xz", ".gz", ".bz2", ".zst")
BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}  # every other file is read as text
TEXT_SUFFIXES = (".txt", ".text", ".md", ".py", ".raw", ".tokens", ".csv", ".tsv")  # never the name of a Hub data set

# Names that only spell out a code point, a number or a sound; the numbered ones are known by their digits.
UNNUMBERED_FAMILIES = ("CJK COMPATIBILITY IDEOGRAPH", "CUNEIFORM SIGN", "HANGUL SYLLABLE")
TEST_FOLDERS = {"test", "tests", "idle_test"}
INSTALLED_FOLDERS = {"site-packages", "dist-packages"}


def is_held_out(key: str, fraction: float) -> bool:
    """Whether the document known by `key` belongs to the validation split.

    Decided by the SHA-256 of the key alone: the same on every machine, copies of a document stay on one side, a
    document keeps its side when others are added, and a larger fraction holds out what a smaller one does and more.
    """
    return int.from_bytes(sha256(key)[:8], "big") < fraction * 2**64


def sha256(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def unicode_names() -> Iterator[tuple[str, str]]:
    """Names of the Unicode characters without the numbered families, as (name, name).

    Left out are names with a digit (ideographs by code point, hieroglyphs by catalogue number, ...), CJK compatibility
    ideographs and Hangul syllables (named by an algorithm), and cuneiform signs (transliterations). They come in the
    order of their hashes: in code point order most names differ from their neighbour by a word, and whoever reads them
    end to end, a compressor or a model of packed text, would be told by the neighbour what to expect.
    """
    names = (unicodedata.name(chr(code_point), "") for code_point in range(sys.maxunicode + 1))
    phrases = (name for name in names if not name.startswith(UNNUMBERED_FAMILIES) and not re.search("[0-9]", name))
    return ((name, name) for name in sorted(filter(None, phrases), key=sha256))


def python_stdlib() -> Iterator[tuple[str, str]]:
    """Source of the running Python's standard library without its tests, as (path inside it, text of the file)."""
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


def load_corpus(
    corpus: Sequence[str] = ("unicode-names",),
    *,
    validation_files: Sequence[str] = (),
    config: str | None = None,
    revision: str | None = None,
    train_split: str = "train",
    validation_split: str | None = None,
    text_column: str = "text",
    sample_by: str = "line",
    validation_fraction: float = 0.05,
) -> DatasetDict:
    """Train and validation documents of a corpus.

    Args:
        corpus: one name of `BUILT_IN`, or one or more files or glob patterns (text, JSONL, Parquet, also packed as .xz,
            .gz, .bz2 or .zst), or one Hub data set by name or folder.
        validation_files: files or patterns to hold out, of the same kind as those of `corpus`.
        config, revision: configuration and revision of a Hub data set.
        train_split: the split of a Hub data set to train on.
        validation_split: the split of a Hub data set to hold out; None takes `validation` where there is one.
        text_column: the column that holds the documents, of anything but plain text.
        sample_by: what one document of a plain text file is: a `line`, a `paragraph` (up to a blank line), or the
            whole file (`document`).
        validation_fraction: share of the documents to hold out, by their hash, where nothing else says which.

    Returns:
        `DatasetDict` with `train` and `validation`, column `text`.

    Raises:
        ValueError: for a missing file, an unknown name, no such column or split, or a split without documents.
    """
    if not corpus:
        raise ValueError(f"corpus is empty; name one of {sorted(BUILT_IN)}, files, or a Hub data set.")
    if sample_by not in SAMPLE_BY:
        raise ValueError(f"sample_by is {sample_by!r}; it must be one of {', '.join(SAMPLE_BY)}.")
    if not 0 < validation_fraction < 1:
        raise ValueError(f"validation_fraction is {validation_fraction}; it must lie between 0 and 1, both excluded.")

    name = check_whole(corpus, validation_files)
    check_hub_options(name, config, revision, train_split, validation_split)
    if name in BUILT_IN:
        splits = split_built_in(name, validation_fraction)
    elif is_hub_name(name):
        splits = load_hub(name, config, revision, train_split, validation_split)
    else:
        splits = {"train": load_files(corpus, sample_by)}
        if validation_files:
            splits["validation"] = load_files(validation_files, sample_by)

    splits = DatasetDict({split: keep_text(dataset, text_column) for split, dataset in splits.items()})
    if "validation" not in splits:
        splits = hold_out(splits["train"], validation_fraction)
    for split, dataset in splits.items():
        if not len(dataset):
            raise ValueError(
                f"The {split} split of {' '.join(corpus)} has no documents. Give more documents (sample_by is "
                f"{sample_by!r}), another validation_fraction (it is {validation_fraction}), or say what to hold out."
            )
    return splits


def check_whole(corpus: Sequence[str], validation_files: Sequence[str]) -> str:
    """The first name of a corpus. Raises a `ValueError` where it says all and there are others."""
    name, others = corpus[0], [*corpus[1:], *validation_files]
    if (name in BUILT_IN or is_hub_name(name)) and others:
        raise ValueError(f"{name!r} stands for a whole corpus; it cannot be mixed with {' '.join(others)}.")
    return name


def check_hub_options(
    name: str, config: str | None, revision: str | None, train_split: str, validation_split: str | None
) -> None:
    """Raises a `ValueError` for what only Hub data sets have, asked of anything else, where it would have no effect."""
    options = {"corpus_config": config, "corpus_revision": revision, "validation_split": validation_split}
    given = [option for option, value in options.items() if value is not None]
    given += ["train_split"] if train_split != "train" else []
    if given and (name in BUILT_IN or not is_hub_name(name)):
        raise ValueError(
            f"{' and '.join(given)} can be chosen of a Hub data set alone, which {name!r} is not. (Of files, "
            "validation_files says what to hold out.)"
        )


def stream_corpus(
    corpus: Sequence[str],
    *,
    config: str | None = None,
    revision: str | None = None,
    train_split: str = "train",
    validation_split: str | None = None,
    text_column: str = "text",
    sample_by: str = "line",
) -> dict[str, IterableDataset]:
    """As `load_corpus`, to be read a document at a time; `validation` only where a Hub data set has such a split.

    Raises:
        ValueError: as `load_corpus` does, as far as the first documents tell; and for a corpus of `BUILT_IN`.
    """
    name = check_whole(corpus, ())
    if name in BUILT_IN:
        raise ValueError(f"{name!r} is small and not streamed: leave out streaming, or give files or a Hub data set.")
    check_hub_options(name, config, revision, train_split, validation_split)
    if is_hub_name(name):
        splits = load_hub(name, config, revision, train_split, validation_split, streaming=True)
    else:
        splits = {"train": load_files(corpus, sample_by, streaming=True)}
    for split, stream in splits.items():
        try:
            first = next(iter(stream), None)
        except Exception as error:  # as in load_files
            raise ValueError(f"The {split} split of {' '.join(corpus)} could not be read: {error}") from error
        if first is None:
            raise ValueError(f"The {split} split of {' '.join(corpus)} has no documents.")
        if text_column not in first:
            raise ValueError(f"There is no column {text_column!r}; set text_column to one of {', '.join(first)}.")
        if not isinstance(first[text_column], str | None):
            raise ValueError(f"Column {text_column!r} holds {type(first[text_column]).__name__}, no text.")
    return splits


def hub_files(name: str, config: str | None, revision: str | None, splits: Sequence[str]) -> list[str]:
    """The files of a Hub data set's splits, by addresses that name the commit."""
    files = load_dataset_builder(name, config, revision=revision).config.data_files or {}
    return sorted(str(file) for split in splits for file in files.get(split, []))


def split_built_in(name: str, validation_fraction: float) -> dict[str, Dataset]:
    texts: dict[str, list[str]] = {"train": [], "validation": []}
    for key, text in BUILT_IN[name]():
        texts["validation" if is_held_out(key, validation_fraction) else "train"].append(text)
    # Kept in the cache under the hash of the documents, so that what is made of them is cached too.
    return {
        split: Dataset.from_generator(to_rows, gen_kwargs={"documents": documents})
        for split, documents in texts.items()
        if documents
    }


def to_rows(documents: list[str]) -> Iterator[dict[str, str]]:
    return ({"text": document} for document in documents)


def is_hub_name(name: str) -> bool:
    """Whether `name` can only mean a Hub data set or a folder that holds one: no file, pattern or file suffix."""
    if os.path.isdir(name):
        return True
    is_file = os.path.exists(name) or glob.has_magic(name) or name.startswith((".", "/", "~")) or name.count("/") > 1
    return not is_file and not name.endswith((*TEXT_SUFFIXES, *BUILDERS, *COMPRESSED))


def load_hub(
    name: str, config: str | None, revision: str | None, train: str, validation: str | None, streaming: bool = False
) -> dict[str, Dataset] | dict[str, IterableDataset]:
    try:
        available = load_dataset(name, config, revision=revision, streaming=streaming)
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


def find_files(patterns: Sequence[str]) -> list[str]:
    """The files that names and glob patterns stand for, in the order given, sorted within a pattern, each once."""
    files: list[str] = []
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        found = (
            [expanded]
            if os.path.isfile(expanded)
            else sorted(filter(os.path.isfile, glob.glob(expanded, recursive=True)))
        )
        if not found:
            raise ValueError(f"There is no file {pattern!r}; the working folder is {os.getcwd()}.")
        files += found
    return list(dict.fromkeys(os.path.abspath(file) for file in files))


def builder_of(file: str) -> str:
    """The `datasets` builder that reads a file, by its suffix before that of a compression."""
    path = Path(file)
    inner = Path(path.stem) if path.suffix in COMPRESSED else path
    return BUILDERS.get(inner.suffix, "text")


def load_files(patterns: Sequence[str], sample_by: str = "line", streaming: bool = False) -> Dataset | IterableDataset:
    """The rows of local files, all of one kind. Every kind of line end in plain text is read as a newline character."""
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
    except (
        Exception
    ) as error:  # a damaged archive, JSON or Parquet, or text that is not UTF-8: each builder has its own error
        reason = error.__cause__ or error
        raise ValueError(f"{' '.join(patterns)} could not be read as {builders[0]} in UTF-8: {reason}") from error


def keep_text(dataset: Dataset, text_column: str) -> Dataset:
    """The documents alone, in the column `text`."""
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
