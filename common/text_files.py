# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Local files with documents: text, JSONL, CSV, Parquet, and Arrow (of `Dataset.save_to_disk`)."""

import csv
import glob
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import pandas
from datasets import Dataset, Features, IterableDataset, Value, load_dataset
from fsspec.implementations.local import LocalFileSystem

from common.caching import versioned
from common.examples import find_example_columns, make_examples
from common.files import hash_file
from common.splitting import BYTE_ORDER_MARK

logger = logging.getLogger(__name__)

COMPRESSED = (".xz", ".gz", ".bz2", ".zst", ".zip")
# Kinds of files by suffix. All other files are text.
KINDS = {f".{kind}": kind for kind in ("json", "csv", "tsv", "parquet", "arrow")}
KINDS |= {".jsonl": "json", ".ndjson": "json"}
# A name with one of these suffixes is the name of a file.
SUFFIXES = (".txt", ".text", ".md", ".py", ".raw", ".tokens", *KINDS, *COMPRESSED)
BLANK_LINES = re.compile(r"^\s*(?:\n|\Z)", re.MULTILINE)


def find_files(patterns: Sequence[str]) -> list[str]:
    """Return the absolute paths of matching files without repeats, in the order of `patterns`, sorted within each."""
    files: list[str] = []
    for pattern in patterns:
        expanded = os.path.expanduser(pattern)
        paths = [expanded] if os.path.isfile(expanded) else sorted(glob.glob(expanded, recursive=True))
        matching = [path for path in paths if os.path.isfile(path) or not os.path.exists(path)]  # also broken links
        if not matching:
            raise ValueError(f"There is no file {pattern!r}. Check the path. (The working folder is {os.getcwd()}.)")
        files += matching
    return list(dict.fromkeys(map(os.path.abspath, files)))


def kind_of(file: str) -> str:
    """Return the kind of a file: text, or a value of `KINDS`. A suffix such as .gz is skipped."""
    path = Path(file.lower())
    inner = Path(path.stem) if path.suffix in COMPRESSED else path
    return KINDS.get(inner.suffix, "text")


def check_sample_by(sample_by: str, files: Iterable[str]) -> None:
    """Raise a `ValueError` if `sample_by` is set, but none of the files is text."""
    if sample_by != "line" and "text" not in map(kind_of, files):
        raise ValueError(
            f"`sample_by` can only be set for plain text files, but is {sample_by!r}. Remove `sample_by`, or use text "
            "files (a glob pattern, such as 'FOLDER/*.txt', for those in a folder)."
        )


def load_files(
    files: list[str],
    sample_by: str = "line",
    text_column: str = "text",
    streaming: bool = False,
    num_proc: int | None = None,
) -> Dataset | IterableDataset:
    """Load the documents of local files of one kind (see `kind_of`), with `num_proc` processes.

    The first column of a dataset is `text` (see `keep_text`). A stream has the columns of the files.
    """
    kinds = sorted(set(map(kind_of, files)))
    names = ", ".join(files[:3]) + (", ..." if len(files) > 3 else "")
    if len(kinds) > 1:
        raise ValueError(f"The files {names} are of several kinds ({', '.join(kinds)}). Use files of one kind.")
    if empty := [file for file in files if os.path.getsize(file) == 0]:
        raise ValueError(f"{empty[0]} is empty. Use files that contain text.")
    try:
        loaded = _load(files, kinds[0], sample_by, streaming, num_proc)
        is_json = kinds == ["text"] and next(iter(loaded), {"text": ""})["text"].startswith('{"')
    except Exception as error:  # each builder raises its own errors for damaged files and wrong encodings
        odd_row = ""
        with suppress(Exception):  # a damaged compressed file cannot be searched
            odd_row = _find_odd_row(files) if kinds == ["json"] else ""
        raise ValueError(
            f"{names} cannot be read as {kinds[0]} in UTF-8, or be cached. {odd_row}Check the files. (Cause: "
            f"{error.__cause__ or error})"
        ) from error
    if is_json:
        logger.warning("%s: the first line is JSON, but read as plain text. End names of JSON Lines in .jsonl.", names)
    return loaded if streaming else keep_text(loaded, text_column)


def _load(
    files: list[str], kind: str, sample_by: str, streaming: bool, num_proc: int | None
) -> Dataset | IterableDataset:
    options: dict[str, Any] = {}
    if kind == "text":
        options = {"sample_by": sample_by, "encoding": "utf-8-sig", "features": Features({"text": Value("string")})}
    elif kind in ("csv", "tsv"):  # by default, "NA" would be null, and "12" a number
        separator = "\t" if kind == "tsv" else ","
        features = Features(dict.fromkeys(_read_columns(files, separator), Value("string")))
        options, kind = {"sep": separator, "keep_default_na": False, "features": features}, "csv"
    if not streaming:
        # `datasets` identifies files in its cache by name and time. Files with other contents can have the same ones.
        digest = hashlib.sha256("".join(map(_hash_content, files)).encode()).hexdigest()[:16]
        options |= {"num_proc": num_proc, "name": f"default-{digest}"}
    data_files = [glob.escape(file) for file in files]  # `load_dataset` treats names as patterns
    loaded = load_dataset(kind, data_files=data_files, split="train", streaming=streaming, **options)
    if sample_by == "paragraph":  # `datasets` splits at "\n\n", and would leave other blank lines in the paragraphs
        split = versioned(_split_paragraphs)
        loaded = loaded.map(split, batched=True, input_columns="text", features=options["features"])
    return loaded


def _split_paragraphs(texts: list[str]) -> dict[str, list[str]]:
    """Split texts at blank lines, which may contain whitespace, without byte-order marks (of compressed files)."""
    parts = (part for text in texts for part in BLANK_LINES.split(text.removeprefix(BYTE_ORDER_MARK)))
    return {"text": [part.removesuffix("\n") for part in parts if part]}


def _read_columns(files: Sequence[str], separator: str) -> list[str]:
    """Return the columns of the first file. Warn if quotes in a .tsv file, which are often text, seem to join rows.

    Raise a `ValueError` if quotes are not around whole fields (`pandas` would drop the quotes and join rows), a name is
    repeated, or the first row has more fields than the header (`pandas` would shift the fields by one).
    """
    csv.field_size_limit(sys.maxsize)
    for file in files:
        with _open_text(file) as lines:
            rows = csv.reader(lines, delimiter=separator, strict=True)
            try:
                header = next(filter(None, rows), [])
                width = len(header) - 1 if separator == "\t" else 0
                joined = sum(any(text.count("\t") >= text.count("\n") * width > 0 for text in row) for row in rows)
            except csv.Error as error:
                raise ValueError(
                    f"Line {rows.line_num} of {file} has a wrong quote ({error}). Put quotes around the whole field, "
                    'and write each quote inside it twice, as in "a ""word""".'
                ) from None
        if joined:
            message = '%d quoted fields of %s contain whole rows. Write quotes that are text twice, as in "a ""word""".'
            logger.warning(message, joined, file)
        if not isinstance(pandas.read_csv(file, sep=separator, nrows=1).index, pandas.RangeIndex):
            raise ValueError(f"Row 1 of {file} has more fields than the header. Quote texts containing {separator!r}.")
        if repeated := [name for name in header if name and header.count(name) > 1]:  # `pandas` would rename it
            raise ValueError(f"{file} has several columns named {repeated[0]!r}. Rename or remove all but one of them.")
    return list(pandas.read_csv(files[0], sep=separator, nrows=0).columns)


def _find_odd_row(files: list[str]) -> str:
    """Describe the first row of JSON Lines that is not an object, or has values of other types than earlier rows."""
    types: dict[str, type] = {}
    for file, (number, line) in ((path, row) for path in files for row in read_lines(path)):
        try:
            values = json.loads(line).items()
        except (ValueError, AttributeError):
            return f"Row {number} of {file} must be a JSON object, but is {line:.100}. "
        for name, value in values:
            if value is not None and types.setdefault(name, type(value)) is not type(value):
                kinds = f"{types[name].__name__} in earlier rows, but {type(value).__name__}"
                return f"`{name}` is {kinds} in row {number} of {file}. "
    return ""


def read_lines(file: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a file that is not blank. The file may be compressed."""
    with _open_text(file) as lines:
        yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _open_text(file: str) -> TextIO:
    return LocalFileSystem().open(file, "rt", compression="infer", encoding="utf-8-sig", newline="")


def keep_text(dataset: Dataset, text_column: str) -> Dataset:
    """Return a dataset whose first column, `text`, has the documents. Log the number of rows without a document.

    A dataset with the columns of examples (see common/examples.py) gets the column `example` instead.
    """
    if columns := find_example_columns(dataset.features, text_column):
        return make_examples(dataset, columns)
    column = check_column(dataset.features, text_column)
    if unused := find_example_columns(dataset.features.keys() - {column}, text_column):
        logger.warning("%r is read as text. To read examples (%s), change `text_column`.", column, ", ".join(unused))
    if missing := dataset.data.column(column).null_count:
        logger.warning("%d of %d rows have no %r, and are skipped.", missing, len(dataset), column)
    others = [name for name in dataset.column_names if name not in (column, "text")]
    dataset = dataset.select_columns([column, *others])
    return dataset if column == "text" else dataset.rename_column(column, "text")


def check_column(features: Mapping[str, Any], text_column: str) -> str:
    """Return the column with the documents: `text` if it is the only column, or else `text_column`.

    Raise a `ValueError` if the column does not exist, or does not hold text.
    """
    column = "text" if list(features) == ["text"] else text_column
    if columns := find_example_columns(features, text_column):
        raise ValueError(f"Examples (the columns {', '.join(columns)}) cannot be streamed. Remove `streaming`.")
    if column not in features:
        raise ValueError(
            f"The corpus has no column {column!r}. Set `text_column` to one of: {', '.join(features)}. "
            "Examples have `messages`, or `prompt` and `completion`, or `prefix`, `suffix` and `middle`."
        )
    if getattr(features[column], "dtype", None) not in ("string", "large_string"):
        raise ValueError(f"Column {column!r} must hold text, but holds {features[column]}. Set another `text_column`.")
    return column


def describe_files(files: Sequence[str]) -> list[dict[str, Any]]:
    """Return the name, size and SHA-256 of files."""
    return [
        {"name": os.path.basename(file), "bytes": os.path.getsize(file), "sha256": _hash_content(file)}
        for file in files
    ]


def _hash_content(file: str) -> str:
    """Return the SHA-256 of a file. It is computed again only if the file has changed."""
    status = os.stat(file)
    return _cached_hash(file, status.st_ino, status.st_size, status.st_ctime_ns)


@cache
def _cached_hash(file: str, *status: int) -> str:
    return hash_file(file)
