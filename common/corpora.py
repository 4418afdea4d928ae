# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Selection of the text for training and evaluation: texts of a function, local files, or a dataset of the Hub.

`load_corpus` returns the splits `train` and `validation`.
"""

import glob
import hashlib
import logging
import os
import re
import sys
import sysconfig
import tokenize
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from datasets import Dataset, IterableDataset, load_dataset, load_dataset_builder

from common.commands import import_function
from common.data_arguments import DataArguments, SampleBy
from common.splitting import Split, hash_document, is_held_out, make_dataset, select_by_hash, select_others, sha256
from common.text_files import SUFFIXES, check_column, check_sample_by, describe_files, find_files, keep_text, load_files
from modeling_aogpt.validation import check_choice, suggest

logger = logging.getLogger(__name__)

HUB_OPTIONS = ("corpus_config", "corpus_revision", "train_split", "validation_split")
ROWS_TO_CHECK = 100  # at the beginning of a stream
ABOUT_DATA = ("README", "LICENSE", "dataset_info", "dataset_dict", "state.json")  # prefixes of files without data

# Prefixes of names that the corpus `unicode-names` excludes. After the prefix, such a name has only a code point or a
# transliteration. Other families of numbered characters are not listed, because all names with a digit are excluded.
UNNUMBERED_FAMILIES = ("CJK COMPATIBILITY IDEOGRAPH", "CUNEIFORM SIGN", "HANGUL SYLLABLE")
# Folders that the corpus `python-stdlib` excludes: tests and installed packages.
EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


def unicode_names() -> Iterator[tuple[str, str]]:
    """Yield a pair (key, text) for each Unicode character. Both key and text are the name of the character.

    Names with a digit (for example, of ideographs and hieroglyphs), CJK compatibility ideographs, Hangul syllables and
    cuneiform signs are excluded. The names are sorted by hash. In code point order, most names would differ from the
    previous name by a single word, so a compressor or a model of packed text could predict them easily.
    """
    names = (unicodedata.name(chr(code_point), "") for code_point in range(sys.maxunicode + 1))
    phrases = (name for name in names if not name.startswith(UNNUMBERED_FAMILIES) and not re.search("[0-9]", name))
    return ((name, name) for name in sorted(filter(None, phrases), key=sha256))


def python_stdlib() -> Iterator[tuple[str, str]]:
    """Yield pairs (path, text) for the source files of this Python's standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if EXCLUDED_FOLDERS.isdisjoint(relative.parts):
            with tokenize.open(path) as file:  # uses the encoding that the file declares
                yield relative.as_posix(), file.read()


# Functions that yield pairs (key, text). A hash of the key decides whether the text belongs to the validation split.
Maker = Callable[[], Iterator[tuple[str, str]]]
BUILT_IN: dict[str, Maker] = {"unicode-names": unicode_names, "python-stdlib": python_stdlib}

Rows = dict[str, Dataset | IterableDataset]  # by split: `train` and, if a part is held out, `validation`
Sources = list[dict[str, Any]]


@dataclass(frozen=True)
class Corpus:
    """The splits of a corpus, and descriptions that identify its text."""

    train: Split
    validation: Split
    sources: Sources

    @property
    def num_rows(self) -> int:
        """Return the number of rows, including those without text."""
        splits = {id(split.rows): split.rows for split in (self.train, self.validation)}
        return sum(map(len, splits.values()))


def load_corpus(arguments: DataArguments) -> Corpus:
    """Select the rows of a corpus, and divide them into the splits.

    The sources of local files are their names, sizes and SHA-256. The sources of a dataset of the Hub are its name and
    commit. The sources of a function are its name and the SHA-256 of its texts.
    """
    _check_options(arguments)
    rows, sources = _select(arguments)
    split = _split_stream if arguments.streaming else _split
    train, validation = split(rows, arguments)
    if next(iter(train), None) is None:
        raise no_text_error("train", arguments)
    return Corpus(train, validation, sources)


def _check_options(arguments: DataArguments) -> None:
    """Raise a `ValueError` if an option is set that cannot be used with the corpus."""
    check_choice("sample_by", arguments.sample_by, get_args(SampleBy))
    if not arguments.corpus:
        raise ValueError(f"`corpus` is empty. Set it to one of {', '.join(BUILT_IN)}, files, or a Hub dataset.")
    name, *others = arguments.corpus
    is_hub = is_hub_name(name)
    if others and (is_made(name) or is_hub):
        raise ValueError(f"The corpus {name!r} cannot be combined with {', '.join(others)}. Remove one of them.")
    unused = () if is_hub else HUB_OPTIONS
    unused += ("validation_files", "streaming") if is_made(name) else ()
    defaults = DataArguments()
    if given := [f"`{option}`" for option in unused if getattr(arguments, option) != getattr(defaults, option)]:
        kind = "a corpus that a function makes" if is_made(name) else "files"
        hint = "" if is_made(name) else " To hold out files, set `validation_files`."
        raise ValueError(f"{' and '.join(given)} cannot be used with {kind} ({name}). Remove these options.{hint}")


def _select(arguments: DataArguments) -> tuple[Rows, Sources]:
    """Return the rows of a corpus by split, and the sources. Without `validation`, a hash splits the rows later."""
    rows: Rows = {}
    sources: Sources = []
    files: dict[str, list[str]] = {}
    if is_made(arguments.corpus[0]):
        rows, sources = _make_texts(arguments)
    elif is_hub_name(arguments.corpus[0]):
        rows, sources, files = _find_dataset(arguments)
    else:
        files = {"train": find_files(arguments.corpus)}
    if arguments.validation_files:
        files["validation"] = find_files(arguments.validation_files)
    paths = [file for split in files.values() for file in split]
    check_sample_by(arguments.sample_by, paths)
    real = [*map(os.path.realpath, paths)]
    if shared := [path for path, link in zip(paths, real, strict=True) if real.count(link) > 1]:
        raise ValueError(f"{shared[0]} is in both `corpus` and `validation_files`. Remove it from one of the two.")
    for split, split_files in files.items():
        is_streamed = arguments.streaming and not (split == "validation" and arguments.validation_files)
        options = arguments.text_column, is_streamed, arguments.preprocessing_num_workers
        rows[split] = load_files(split_files, arguments.sample_by, *options)
    return rows, [*sources, *describe_files(paths)]


# --------------------------------------------------------------------------------------------- texts of a function


def is_made(name: str) -> bool:
    """Return whether `name` is a built-in corpus, or a function that yields texts (`package.module:function`)."""
    return name in BUILT_IN or re.fullmatch(r"[\w.]+:\w+", name) is not None


def find_maker(name: str) -> Maker:
    """Return the function that yields the pairs (key, text) of a corpus whose name satisfies `is_made`."""
    return BUILT_IN[name] if name in BUILT_IN else import_function("corpus", name)


def _make_texts(arguments: DataArguments) -> tuple[Rows, Sources]:
    texts: dict[str, list[str]] = {"train": [], "validation": []}
    digest = hashlib.sha256()
    for key, text in find_maker(arguments.corpus[0])():
        split = "validation" if is_held_out(sha256(key), arguments.validation_fraction) else "train"
        texts[split].append(text)
        digest.update(sha256(key) + sha256(text))
    for split, documents in texts.items():
        if not documents:
            raise no_text_error(split, arguments)
    rows: Rows = {split: make_dataset(documents) for split, documents in texts.items()}
    return rows, [{"name": arguments.name, "sha256": digest.hexdigest()}]


# ----------------------------------------------------------------------------------------------------- Hub datasets


def is_hub_name(name: str) -> bool:
    """Return whether `name` looks like the name or folder of a Hub dataset, not like a file, pattern or function."""
    if os.path.isdir(os.path.expanduser(name)):
        return True
    is_file = os.path.exists(name) or glob.has_magic(name) or name.startswith((".", "/", "~")) or name.count("/") > 1
    return not is_file and not is_made(name) and not name.lower().endswith(SUFFIXES)


def _find_dataset(arguments: DataArguments) -> tuple[Rows, Sources, dict[str, list[str]]]:
    """Return the rows and sources of a dataset of the Hub, or the files by split of a dataset in a folder."""
    name, path = arguments.corpus[0], os.path.expanduser(arguments.corpus[0])
    options = {"streaming": True} if arguments.streaming else {"num_proc": arguments.preprocessing_num_workers}
    try:
        builder = load_dataset_builder(path, arguments.corpus_config, revision=arguments.corpus_revision)
        available = builder.config.data_files or {}
        folders = {os.path.basename(os.path.dirname(str(file))) for files in available.values() for file in files}
        incomplete = sorted(folder for folder in folders if folder.startswith("partial-"))
        if not incomplete and not os.path.isdir(path):
            available = load_dataset(name, arguments.corpus_config, revision=arguments.corpus_revision, **options)
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(
            f"{name!r} is neither a built-in corpus ({', '.join(BUILT_IN)}) nor a file, and cannot be loaded as a Hub "
            f"dataset.{suggest(name, BUILT_IN)} Check `corpus` and `corpus_revision`. (Cause: {error})"
        ) from error
    if incomplete:
        raise ValueError(
            f"The dataset {name!r} is incomplete: its files are in {', '.join(incomplete)}, where the Hub stores only "
            "the first part of a large dataset. Set `corpus_revision` to a commit with the whole dataset."
        )
    chosen = _choose_splits(arguments, available)
    if os.path.isdir(path):
        if arguments.corpus_config is None:
            _warn_of_unread(path, available)
        return {}, [], chosen
    if not arguments.streaming:
        chosen = {split: keep_text(dataset, arguments.text_column) for split, dataset in chosen.items()}
    return chosen, [{"name": name, "commit": builder.hash}], {}


def _warn_of_unread(folder: str, available: Mapping[str, Any]) -> None:
    """Warn of unread files: `datasets` reads one type and, if there are names such as train.txt, only those."""
    read = {os.path.realpath(str(file)) for files in available.values() for file in files}
    paths = glob.glob(f"{glob.escape(folder)}/**", recursive=True)
    others = (file for file in paths if not (os.path.isdir(file) or os.path.basename(file).startswith(ABOUT_DATA)))
    if unread := [file for file in others if os.path.realpath(file) not in read]:
        advice = f"If they are texts, set `corpus` to, say, '{folder}/**/*{os.path.splitext(unread[0])[1]}'."
        logger.warning("%d files, such as %s, are not read. %s", len(unread), unread[0], advice)


def _choose_splits(arguments: DataArguments, available: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `available` for the split to train on and, if the dataset has one, the split to hold out."""
    train, validation = arguments.train_split, arguments.validation_split
    if validation is None and "validation" in available and train != "validation":
        validation = "validation"
    if validation == train:
        raise ValueError(f"`train_split` and `validation_split` are both {train!r}. Choose two different splits.")
    names = {"train": train} | ({"validation": validation} if validation and not arguments.validation_files else {})
    for name in names.values():
        if name not in available:
            raise ValueError(
                f"The dataset {arguments.name!r} has no split {name!r}. Choose one of its splits: "
                f"{', '.join(map(str, available))}."
            )
    return {split: available[name] for split, name in names.items()}


# --------------------------------------------------------------------------------------------------------- splitting


def _split(rows: Rows, arguments: DataArguments) -> tuple[Split, Split]:
    column = rows["train"].column_names[0]
    if "validation" in rows:
        if rows["validation"].column_names[0] != column:
            raise ValueError(f"Only one of the splits of {arguments.name} has examples. Use the same columns in both.")
        train, validation = (Split(rows[split], column=column) for split in ("train", "validation"))
        return train if is_made(arguments.corpus[0]) else _without_copies(train, validation), validation
    select = partial(select_by_hash, validation_fraction=arguments.validation_fraction)
    return tuple(Split(rows["train"], partial(select, split=split), column) for split in ("train", "validation"))


def _split_stream(rows: Rows, arguments: DataArguments) -> tuple[Split, Split]:
    """Return a stream to train on, and held-out documents: `validation_files`, a validation split, or the first ones.

    Held-out documents and all their copies are excluded from the stream.
    """
    source = stream = Split(rows["train"], column=_find_column(rows["train"], arguments))
    if arguments.validation_files:
        validation = Split(rows["validation"])
        return _without_copies(stream, validation), validation
    if "validation" in rows:
        source = Split(rows["validation"], column=_find_column(rows["validation"], arguments))
    texts = list(islice(source, arguments.validation_documents))
    if not texts:
        raise no_text_error("train" if source is stream else "validation", arguments)
    validation = Split(make_dataset(texts))
    return _without_copies(stream, validation), validation


def _without_copies(train: Split, held_out: Split) -> Split:
    """Return the documents of `train` that are not in `held_out`."""
    # A dictionary, because `datasets` would identify a set in its cache by the order of its items, which changes.
    digests = dict.fromkeys(sorted(map(hash_document, held_out)))
    return replace(train, select=partial(select_others, held_out=digests))


def _find_column(stream: IterableDataset, arguments: DataArguments) -> str:
    """Return the column of a stream that holds the documents. Read the first rows to find errors early."""
    try:
        first = list(islice(stream, 1 if stream.features else ROWS_TO_CHECK))
        features = stream.features or Dataset.from_list(first).features
    except Exception as error:  # each builder raises its own kinds of errors
        raise ValueError(f"{arguments.name} cannot be read. Check the files of the corpus. (Cause: {error})") from error
    return check_column(features, arguments.text_column)


def no_text_error(split: str, arguments: DataArguments) -> ValueError:
    """Return the error for a split without documents."""
    files = arguments.validation_files if split == "validation" else []
    option = "validation_documents" if arguments.streaming else "validation_fraction"
    return ValueError(
        f"The {split} split of {' '.join(files) or arguments.name} has no documents with text. Add documents, change "
        f"`{option}` ({getattr(arguments, option)}), or hold out other files with `validation_files`. (Copies of "
        "held-out documents are left out of the training split.)"
    )
