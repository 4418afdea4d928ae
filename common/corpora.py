# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Text for training and evaluation: built-in corpora, files, and Hub datasets.

A corpus is loaded as the splits `train` and `validation`. The documents of a [`Split`] are in the column `text` of a
dataset, one per row.
"""

import glob
import hashlib
import importlib
import inspect
import logging
import os
import platform
import re
import sys
import sysconfig
import tokenize
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pandas
from datasets import Dataset, Features, IterableDataset, Value, load_dataset, load_dataset_builder
from datasets.exceptions import DatasetGenerationCastError
from datasets.table import CastError

from common.data_arguments import DataArguments, SampleBy
from common.files import hash_file
from modeling_aogpt.validation import check_choice

logger = logging.getLogger(__name__)

COMPRESSED = (".xz", ".gz", ".bz2", ".zst")
# Builders of `datasets` for suffixes of files. All other files are read as text.
BUILDERS = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    ".parquet": "parquet",
}
# A name that ends with one of these suffixes is a file, not a Hub dataset.
TEXT_SUFFIXES = (".txt", ".text", ".md", ".py", ".raw", ".tokens")

# Prefixes of names that the corpus `unicode-names` excludes. After the prefix, such a name has only a code point or a
# transliteration. Other families of numbered characters are not listed, because all names with a digit are excluded.
UNNUMBERED_FAMILIES = ("CJK COMPATIBILITY IDEOGRAPH", "CUNEIFORM SIGN", "HANGUL SYLLABLE")
# Folders that the corpus `python-stdlib` excludes: tests and installed packages.
EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


# ------------------------------------------------------------------------------------------------- built-in corpora


def unicode_names() -> Iterator[tuple[str, str]]:
    """
    Yield pairs (key, text) for the Unicode characters, where key and text are both the name of the character.

    Names with a digit (such as those of ideographs and hieroglyphs), CJK compatibility ideographs, Hangul syllables and
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


Maker = Callable[[], Iterator[tuple[str, str]]]
# Functions that yield pairs (key, text). A hash of the key decides whether the text belongs to the validation split.
BUILT_IN: dict[str, Maker] = {"unicode-names": unicode_names, "python-stdlib": python_stdlib}


def is_made(name: str) -> bool:
    """Return whether `name` is a built-in corpus or a function (`package.module:function`) that yields the texts."""
    return name in BUILT_IN or re.fullmatch(r"[\w.]+:\w+", name) is not None


def find_maker(name: str) -> Maker:
    """Return the function that yields the pairs (key, text) of a corpus with `is_made`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"The corpus {name!r} must be MODULE:FUNCTION, but cannot be imported ({error}). Check the names, and add "
            "the folder of the module to the environment variable PYTHONPATH."
        ) from error


def _load_made(arguments: DataArguments) -> dict[str, Dataset]:
    texts: dict[str, list[str]] = {"train": [], "validation": []}
    for key, text in _make_texts(arguments.corpus[0]):
        texts["validation" if is_held_out(key, arguments.validation_fraction) else "train"].append(text)
    for split, documents in texts.items():
        if not documents:
            raise no_text_error(split, arguments, is_hashed=True)
    return {split: make_dataset(documents) for split, documents in texts.items()}


def _make_texts(name: str) -> Iterator[tuple[str, str]]:
    """Return the pairs (key, text) of a corpus. Those of a function that is not built in are cached."""
    maker = find_maker(name)
    if name in BUILT_IN:
        return maker()
    version = _hash_module(name), platform.python_version()
    rows = Dataset.from_generator(_make_pairs, gen_kwargs={"name": name, "version": version})
    return zip(rows["key"], rows["text"], strict=True)


def _make_pairs(name: str, version: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Yield the pairs as rows. `datasets` identifies them in its cache by the arguments, so `version` is not used."""
    return ({"key": key, "text": text} for key, text in find_maker(name)())


def _hash_module(name: str) -> str:
    """Return the SHA-256 of the module of a corpus MODULE:FUNCTION."""
    return hash_file(Path(inspect.getfile(sys.modules[name.partition(":")[0]])))


def make_dataset(documents: list[str]) -> Dataset:
    """Return a dataset of documents. It is identified by its content, so `datasets` caches what is made from it."""
    return Dataset.from_generator(_make_rows, gen_kwargs={"documents": documents})


def _make_rows(documents: list[str]) -> Iterator[dict[str, str]]:
    return ({"text": document} for document in documents)


def is_held_out(key: str, fraction: float) -> bool:
    """
    Return whether the document with this key belongs to the validation split.

    The decision depends only on the SHA-256 of the key. It is therefore the same on every machine and for all copies of
    a document, and does not depend on other documents. A larger `fraction` holds out the same documents and additional
    ones.
    """
    return int.from_bytes(sha256(key)[:8], "big") < fraction * 2**64


def is_in_split(text: str | None, split: str, validation_fraction: float) -> bool:
    """Return whether a document has text and is in the split `train` or `validation`, by the hash of its text."""
    return has_text(text) and is_held_out(text, validation_fraction) == (split == "validation")


def has_text(text: str | None) -> bool:
    """Return whether a document contains more than whitespace."""
    return bool(text) and not text.isspace()


def sha256(key: str) -> bytes:
    """Return the SHA-256 of a string in UTF-8."""
    return hashlib.sha256(key.encode()).digest()


# ---------------------------------------------------------------------------------------------------------- loading


@dataclass(frozen=True)
class Split:
    """
    Documents of a split.

    `rows` may be the whole corpus, of which `is_member` selects the documents of the split. Writing them to a dataset
    of their own would read a large corpus once more, so `encode_documents` selects and tokenizes in one pass.

    Args:
        rows: Dataset with the column `text`.
        is_member: Function of the text of a row. By default, all rows with text are in the split.
    """

    rows: Dataset
    is_member: Callable[[str | None], bool] = has_text

    @property
    def is_hashed(self) -> bool:
        """Return whether a hash decides which rows are in the split."""
        return self.is_member is not has_text

    def __iter__(self) -> Iterator[str]:
        return filter(self.is_member, self.rows["text"])


def load_corpus(arguments: DataArguments) -> dict[str, Split]:
    """Load the splits `train` and `validation`."""
    check_choice("sample_by", arguments.sample_by, get_args(SampleBy))
    name = _check_corpus(arguments)
    options = {"sample_by": arguments.sample_by, "num_proc": arguments.preprocessing_num_workers}
    if is_made(name):
        loaded = _load_made(arguments)
    elif is_hub_name(name):
        loaded = _load_hub(arguments)
    else:
        loaded = {"train": load_files(arguments.corpus, **options)}
    rows = {split: keep_text(dataset, arguments.text_column) for split, dataset in loaded.items()}
    _check_num_documents(arguments, sum(map(len, rows.values())))
    if arguments.validation_files:  # a validation split of the dataset is then not used
        rows["validation"] = load_validation_files(arguments)
    if "validation" in rows:
        return {split: Split(dataset) for split, dataset in rows.items()}
    return {
        split: Split(
            rows["train"], partial(is_in_split, split=split, validation_fraction=arguments.validation_fraction)
        )
        for split in ("train", "validation")
    }


def load_validation_files(arguments: DataArguments) -> Dataset:
    """Load the documents of `validation_files`. Plain text may be combined with a dataset that has other columns."""
    files = load_files(arguments.validation_files, arguments.sample_by, num_proc=arguments.preprocessing_num_workers)
    return keep_text(files, "text" if files.column_names == ["text"] else arguments.text_column)


def _check_num_documents(arguments: DataArguments, found: int) -> None:
    if arguments.corpus_documents not in (None, found):
        raise ValueError(
            f"{arguments.name} must have {arguments.corpus_documents:,} documents (`corpus_documents`), but has "
            f"{found:,}. Check `corpus`, `corpus_revision` and the splits, or remove `corpus_documents`."
        )


def stream_corpus(arguments: DataArguments) -> dict[str, IterableDataset]:
    """Return streams of the split `train` and, for a Hub dataset with a validation split, of `validation`."""
    name = _check_corpus(arguments, is_streamed=True)
    if is_hub_name(name):
        splits = _load_hub(arguments, streaming=True)
    else:
        splits = {"train": load_files(arguments.corpus, arguments.sample_by, streaming=True)}
    for split, stream in splits.items():
        try:
            first = next(iter(stream), None)
        except Exception as error:  # each builder raises its own kinds of errors
            raise ValueError(
                f"The {split} split of {arguments.name} cannot be read. Check the files of the corpus. (Cause: {error})"
            ) from error
        if first is None:
            raise ValueError(f"The {split} split of {arguments.name} has no documents. Add documents.")
        _check_column(arguments.text_column, list(first))
        if stream.features is not None:
            _check_text(arguments.text_column, stream.features[arguments.text_column])
        elif not isinstance(first[arguments.text_column], str | None):
            raise _not_text(arguments.text_column, type(first[arguments.text_column]).__name__)
    return splits


def _check_corpus(arguments: DataArguments, is_streamed: bool = False) -> str:
    """Return the first name in `corpus`. Raise a `ValueError` if the options of the corpus contradict each other."""
    if not arguments.corpus:
        raise ValueError(f"`corpus` is empty. Set `corpus` to one of {sorted(BUILT_IN)}, files, or a Hub dataset.")
    name = arguments.corpus[0]
    is_whole = is_made(name) or is_hub_name(name)
    others = [*arguments.corpus[1:], *(arguments.validation_files if is_made(name) else [])]
    if is_whole and others:
        raise ValueError(
            f"The corpus {name!r} cannot be combined with {', '.join(others)}. Use {name!r} alone: remove the others "
            "from `corpus` or `validation_files`."
        )
    if is_made(name) and is_streamed:
        raise ValueError(
            f"The corpus {name!r} cannot be streamed, because a function makes it. Remove `streaming`, or set `corpus` "
            "to files or a Hub dataset."
        )
    if is_whole and arguments.sample_by != "line" and not arguments.validation_files:
        raise ValueError(
            f"`sample_by` can only be set for text files, but the corpus is {name!r}. Remove `sample_by`, or set "
            "`corpus` to files or a glob pattern, such as 'FOLDER/*.txt'."
        )
    hub_options = ("corpus_config", "corpus_revision", "validation_split", "train_split")
    given = [key for key in hub_options if getattr(arguments, key) != getattr(DataArguments, key)]
    if given and (is_made(name) or not is_whole):
        raise ValueError(
            f"{' and '.join(f'`{key}`' for key in given)} can only be set for a Hub dataset, but the corpus is "
            f"{name!r}. Remove these options." + ("" if is_whole else " To hold out files, set `validation_files`.")
        )
    if arguments.validation_files and arguments.validation_split is not None:
        raise ValueError(
            f"`validation_split` ({arguments.validation_split}) and `validation_files` "
            f"({' '.join(arguments.validation_files)}) are both set. Remove one of the two."
        )
    if not is_whole and (shared := _real_paths(arguments.corpus) & _real_paths(arguments.validation_files)):
        raise ValueError(f"{min(shared)} is in both `corpus` and `validation_files`. Remove it from one of the two.")
    return name


def keep_text(dataset: Dataset, text_column: str) -> Dataset:
    """Return a dataset that has only the documents, in the column `text`."""
    _check_column(text_column, dataset.column_names)
    _check_text(text_column, dataset.features[text_column])
    dataset = dataset.select_columns(text_column)
    return dataset if text_column == "text" else dataset.rename_column(text_column, "text")


def _check_column(text_column: str, columns: list[str]) -> None:
    if text_column not in columns:
        raise ValueError(
            f"The corpus has no column {text_column!r}. Set `text_column` to one of: {', '.join(columns)}."
        )


def _check_text(text_column: str, feature: Any) -> None:
    if getattr(feature, "dtype", None) not in ("string", "large_string"):
        raise _not_text(text_column, feature)


def _not_text(text_column: str, kind: Any) -> ValueError:
    return ValueError(f"Column {text_column!r} must hold text, but holds {kind}. Set `text_column` to another column.")


def first_texts(stream: IterableDataset, split: str, arguments: DataArguments, count: int) -> list[str]:
    """Return the first `count` documents that have text, or all such documents if there are fewer."""
    texts = list(islice(filter(has_text, (row[arguments.text_column] for row in stream)), count))
    if not texts:
        raise no_text_error(split, arguments)
    return texts


def no_text_error(split: str, arguments: DataArguments, is_hashed: bool = False) -> ValueError:
    """Return the error for a split without text. With `is_hashed`, hashes decide which documents are in the split."""
    files = arguments.validation_files if split == "validation" else []
    hint = f", or change `validation_fraction` ({arguments.validation_fraction})" if is_hashed else ""
    if is_hashed and not is_made(arguments.corpus[0]) and not is_hub_name(arguments.corpus[0]):
        hint += ". A single document cannot be divided: hold out another file with `validation_files`"
    return ValueError(
        f"The {split} split of {' '.join(files) or arguments.name} has no documents with text. Add documents{hint}."
    )


# ----------------------------------------------------------------------------------------------------- Hub datasets


def is_hub_name(name: str) -> bool:
    """Return whether `name` looks like the name or folder of a Hub dataset, not like a file, pattern or function."""
    if os.path.isdir(os.path.expanduser(name)):
        return True
    is_file = os.path.exists(name) or glob.has_magic(name) or name.startswith((".", "/", "~")) or name.count("/") > 1
    return not is_file and not is_made(name) and not name.lower().endswith((*TEXT_SUFFIXES, *BUILDERS, *COMPRESSED))


def _load_hub(arguments: DataArguments, streaming: bool = False) -> dict[str, Dataset] | dict[str, IterableDataset]:
    name, train, validation = os.path.expanduser(arguments.corpus[0]), arguments.train_split, arguments.validation_split
    try:
        builder = load_dataset_builder(name, arguments.corpus_config, revision=arguments.corpus_revision)
        partial_folders = _partial_folders(builder.config.data_files or {})
        if not partial_folders:
            info = builder.info
            if info.download_size and info.dataset_size and not streaming:  # only some datasets state their sizes
                sizes = info.download_size / 1e9, info.dataset_size / 1e9
                logger.info("%s: %.1f GB to download and %.1f GB of documents, unless they are cached.", name, *sizes)
            available = load_dataset(
                name,
                arguments.corpus_config,
                revision=arguments.corpus_revision,
                streaming=streaming,
                num_proc=None if streaming else arguments.preprocessing_num_workers,
            )
    except Exception as error:  # the library raises many kinds of errors
        raise ValueError(
            f"{name!r} is neither a built-in corpus ({', '.join(sorted(BUILT_IN))}) nor a file, and cannot be loaded "
            f"as a Hub dataset. Check `corpus` and `corpus_revision`. (Cause: {error})"
        ) from error
    if partial_folders:
        raise ValueError(
            f"The dataset {name!r} is incomplete: its files are in {', '.join(partial_folders)}, where the Hub stores "
            "only the first part of a large dataset. Set `corpus_revision` to a revision with the whole dataset, "
            "such as a commit of its main branch."
        )
    if validation is None and "validation" in available and train != "validation":
        validation = "validation"
    if validation == train:
        raise ValueError(f"`train_split` and `validation_split` are both {train!r}. Choose two different splits.")
    names = {"train": train} | ({"validation": validation} if validation else {})
    for split in names.values():
        if split not in available:
            raise ValueError(
                f"The dataset {name!r} has no split {split!r}. Choose one of its splits: {', '.join(available)}."
            )
    return {split: available[name] for split, name in names.items()}


def _partial_folders(data_files: dict[str, list[str]]) -> list[str]:
    """Return the names of folders, such as partial-train, in which the Hub stores only a part of a dataset."""
    folders = {os.path.basename(os.path.dirname(str(file))) for files in data_files.values() for file in files}
    return sorted(folder for folder in folders if folder.startswith("partial-"))


# ------------------------------------------------------------------------------------------------------------ files


def find_files(patterns: Sequence[str]) -> list[str]:
    """
    Return the absolute paths of the files that match `patterns`, without duplicates.

    The paths are in the order of `patterns`. The matches of one pattern are sorted.
    """
    files: list[str] = []
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        paths = [expanded] if os.path.isfile(expanded) else sorted(glob.glob(expanded, recursive=True))
        matching = list(filter(os.path.isfile, paths))
        if not matching:
            raise ValueError(f"There is no file {pattern!r}. Check the path. (The working folder is {os.getcwd()}.)")
        files += matching
    return list(dict.fromkeys(map(os.path.abspath, files)))


def _real_paths(patterns: Sequence[str]) -> set[str]:
    """Return the files that match `patterns`. A link counts as the file to which it leads."""
    return {*map(os.path.realpath, find_files(patterns))}


def _choose_builder(file: str) -> str:
    """Return the name of the `datasets` builder for a file, chosen by its suffix. A suffix such as .gz is skipped."""
    path = Path(file.lower())
    inner = Path(path.stem) if path.suffix in COMPRESSED else path
    return BUILDERS.get(inner.suffix, "text")


def load_files(
    patterns: Sequence[str], sample_by: str = "line", streaming: bool = False, num_proc: int | None = None
) -> Dataset | IterableDataset:
    """
    Load local files: all text, all JSON, all CSV, or all Parquet. In text, every line ending is read as a newline.

    `num_proc` processes read the files, unless they are streamed.
    """
    files = find_files(patterns)
    builders = sorted({_choose_builder(file) for file in files})
    if len(builders) > 1:
        raise ValueError(f"{' '.join(patterns)} mixes kinds of files ({', '.join(builders)}). Use files of one kind.")
    if empty := [file for file in files if os.path.getsize(file) == 0]:
        raise ValueError(f"{empty[0]} is empty. Use files that contain text.")
    if builders != ["text"] and sample_by != "line":
        raise ValueError(
            f"`sample_by` can only be set for plain text, but {files[0]} is read as {builders[0]}. Remove `sample_by`."
        )
    # The codec utf-8-sig skips the byte-order mark at which some files start.
    options: dict[str, Any] = {"sample_by": sample_by, "encoding": "utf-8-sig"} if builders == ["text"] else {}
    if builders == ["csv"]:
        separators = {"\t" if ".tsv" in Path(file).suffixes else "," for file in map(str.lower, files)}
        if len(separators) > 1:
            raise ValueError(f"{' '.join(patterns)} mixes .csv and .tsv files. Use files of one kind.")
        options |= _csv_options(files[0], separators.pop())
    if not streaming:
        # `datasets` identifies files in its cache by their names and times, which can be those of other contents.
        options |= {"num_proc": num_proc, "name": f"default-{_hash_all(files)}"}
    try:
        data_files = [glob.escape(file) for file in files]  # `load_dataset` treats names as patterns
        return load_dataset(builders[0], data_files=data_files, split="train", streaming=streaming, **options)
    except Exception as error:  # each builder raises its own errors for damaged files and wrong encodings
        for cause in _list_causes(error):
            if isinstance(cause, OSError) and cause.errno is not None:  # of the cache or the disk
                raise cause from error
            if isinstance(cause, CastError | DatasetGenerationCastError):
                raise ValueError(
                    f"The files {' '.join(patterns)} have different columns. Use files with the same columns. "
                    f"(Cause: {cause})"
                ) from error
        reason = error.__cause__ or error
        content = "parquet" if builders == ["parquet"] else f"{builders[0]} in UTF-8"
        raise ValueError(
            f"{' '.join(patterns)} cannot be read as {content}. Check the content of the files. (Cause: {reason})"
        ) from error


def _csv_options(file: str, separator: str) -> dict[str, Any]:
    """Return options of the builder for CSV files with which all values are text. By default, "NA" would be null."""
    columns = pandas.read_csv(file, sep=separator, nrows=0).columns
    return {"sep": separator, "keep_default_na": False, "features": Features(dict.fromkeys(columns, Value("string")))}


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return an error and all errors that led to it."""
    causes: list[BaseException] = []
    remaining: list[BaseException | None] = [error]
    while remaining:
        cause = remaining.pop()
        if cause is not None and cause not in causes:
            causes.append(cause)
            remaining += [cause.__context__, cause.__cause__]
    return causes


def _hash_all(files: Sequence[str]) -> str:
    """Return a hash of the contents of files."""
    return hashlib.sha256("".join(map(_hash_content, files)).encode()).hexdigest()[:16]


def _hash_content(file: str) -> str:
    """Return the SHA-256 of a file. It is computed again only if the file has changed."""
    status = os.stat(file)
    return _cached_hash(file, status.st_ino, status.st_size, status.st_ctime_ns)


@cache
def _cached_hash(file: str, *status: int) -> str:
    return hash_file(file)


# ---------------------------------------------------------------------------------------------------------- sources


def describe_sources(arguments: DataArguments) -> list[dict[str, Any]]:
    """
    Return descriptions that identify the text of a corpus.

    For files, and for a dataset in a folder, this is the name, size and SHA-256 of every file; for a dataset of the
    Hub, its name and commit; for a built-in corpus, its name and the version of Python; and for a corpus of a function,
    also the SHA-256 of its module.
    """
    name = os.path.expanduser(arguments.corpus[0])
    if name in BUILT_IN:
        return [{"name": name, "python": platform.python_version()}]
    if is_made(name):
        find_maker(name)
        return [{"name": name, "python": platform.python_version(), "sha256": _hash_module(name)}]
    if not is_hub_name(name):
        return _describe_files([*arguments.corpus, *arguments.validation_files])
    builder = load_dataset_builder(name, arguments.corpus_config, revision=arguments.corpus_revision)
    if not os.path.isdir(name):
        return [{"name": name, "commit": builder.hash}, *_describe_files(arguments.validation_files)]
    splits = [arguments.train_split]
    if not arguments.validation_files:
        splits.append(arguments.validation_split or "validation")
    files = [file for split in splits for file in (builder.config.data_files or {}).get(split, [])]
    return _describe_files([*map(glob.escape, files), *arguments.validation_files])


def _describe_files(patterns: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": os.path.basename(file), "bytes": os.path.getsize(file), "sha256": _hash_content(file)}
        for file in find_files(patterns)
    ]
