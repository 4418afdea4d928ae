# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import logging
import lzma
import os
import unicodedata
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.exceptions import DatasetGenerationError

from common.corpora import (
    describe_sources,
    find_files,
    is_held_out,
    is_hub_name,
    load_corpus,
    load_files,
    python_stdlib,
    stream_corpus,
    unicode_names,
)
from common.data_arguments import DataArguments
from common.files import hash_file

pytestmark = pytest.mark.usefixtures("datasets_cache")

WORDS = [f"word {number}" for number in range(200)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


def test_unicode_names_exclude_numbered_families() -> None:
    names = [text for _, text in unicode_names()]
    assert len(names) == len(set(names)) > 26_000
    assert {"LATIN SMALL LETTER A WITH ACUTE", "GREEK SMALL LETTER ETA WITH DASIA AND OXIA"} <= set(names)
    for family in (
        "CJK UNIFIED",
        "CJK COMPATIBILITY IDEOGRAPH",
        "HANGUL SYLLABLE",
        "CUNEIFORM SIGN",
        "EGYPTIAN HIEROGLYPH A",
    ):
        assert not [name for name in names if name.startswith(family)]
    assert not [name for name in names if any(character.isdigit() for character in name)]
    neighbours = [(one.split()[0], other.split()[0]) for one, other in pairwise(names)]
    assert sum(one == other for one, other in neighbours) < 0.1 * len(names)  # 0.9 in code point order


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="the numbers are those of Unicode 14")
def test_unicode_names_count() -> None:
    splits = load_corpus(DataArguments())
    assert (len(list(splits["train"])), len(list(splits["validation"]))) == (25_534, 1_376)


def test_python_stdlib_excludes_tests() -> None:
    paths = {path for path, _ in python_stdlib()}
    assert {"argparse.py", "json/decoder.py"} <= paths
    assert not [path for path in paths if "test" in path.split("/") or "site-packages" in path]


def test_the_validation_split_depends_only_on_the_text() -> None:
    names = ["LATIN SMALL LETTER A", "LATIN SMALL LETTER B", "LATIN SMALL LETTER C", "LATIN SMALL LETTER D"]
    assert [is_held_out(name, 0.5) for name in names] == [False, True, True, False]
    kept = [word for word in WORDS if is_held_out(word, 0.2)]
    assert 20 < len(kept) < 60
    assert {word for word in WORDS if is_held_out(word, 0.05)} < set(kept)


def test_text_files_are_split_by_hash(lines: Path) -> None:
    splits = load_corpus(DataArguments([str(lines)], validation_fraction=0.2))
    assert list(splits["validation"]) == [word for word in WORDS if is_held_out(word, 0.2)]
    assert list(splits["train"]) == [word for word in WORDS if not is_held_out(word, 0.2)]


def test_validation_files_are_held_out(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "held_out.txt").write_text("one\ntwo\n")
    splits = load_corpus(DataArguments([str(lines)], validation_files=[str(tmp_path / "held_out.txt")]))
    assert list(splits["train"]) == WORDS
    assert list(splits["validation"]) == ["one", "two"]


@pytest.mark.parametrize("kind", ["jsonl", "JSONL", "JSONL.GZ", "jsonl.gz", "parquet", "txt.xz", "txt.gz"])
def test_supported_kinds_of_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus.{kind}"
    plain = "".join(word + "\n" for word in WORDS)
    if kind.lower().startswith("jsonl"):
        plain = "".join(json.dumps({"id": 1, "body": word}) + "\n" for word in WORDS)
    if kind == "parquet":
        pq.write_table(pa.table({"id": [1] * len(WORDS), "body": WORDS}), path)
    else:
        opener = {"gz": gzip.open, "xz": lzma.open}.get(kind.lower().split(".")[-1], open)
        with opener(path, "wt") as file:
            file.write(plain)
    splits = load_corpus(
        DataArguments([str(path)], text_column="text" if kind.startswith("txt") else "body", validation_fraction=0.3)
    )
    assert splits["train"].rows.column_names == ["text"]
    assert sorted([*splits["train"], *splits["validation"]]) == sorted(WORDS)


def test_names_of_files_are_not_patterns(tmp_path: Path) -> None:
    (tmp_path / "set [1]").mkdir()
    path = tmp_path / "set [1]" / "a.txt"
    path.write_text("one\n")
    assert load_files([str(path)])["text"][:] == ["one"]
    assert [row["text"] for row in load_files([str(path)], streaming=True)] == ["one"]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl"])
def test_a_byte_order_mark_is_not_text(suffix: str, tmp_path: Path) -> None:
    content = {".txt": "one\n", ".csv": "text\none\n", ".jsonl": '{"text": "one"}\n'}[suffix]
    (path := tmp_path / f"a{suffix}").write_text(content, encoding="utf-8-sig")
    assert load_files([str(path)])["text"][:] == ["one"]
    assert [row["text"] for row in load_files([str(path)], streaming=True)] == ["one"]


def test_a_changed_file_with_an_old_time_is_read_again(tmp_path: Path) -> None:
    """`datasets` identifies files by names and times. In some archives, all files have the same time."""
    path = tmp_path / "a.txt"
    for text in ("first", "other"):
        path.write_text(text)
        os.utime(path, (1, 1))
        assert load_files([str(path)])["text"][:] == [text]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ndjson", '{"text": "one, two"}\n{"text": "three"}\n'),
        ("a.csv", 'id,text\n1,"one, two"\n2,three\n'),
        ("a.tsv", "id\ttext\n1\tone, two\n2\tthree\n"),
    ],
)
def test_tables_are_not_read_as_plain_text(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert load_files([str(tmp_path / name)])["text"][:] == ["one, two", "three"]
    assert not is_hub_name(name)


def test_values_of_tables_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nNA\nnull\n12\nnan\n")
    assert load_files([str(tmp_path / "a.csv")])["text"][:] == ["NA", "null", "12", "nan"]


def test_tables_with_different_separators_are_an_error(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv"):
        (tmp_path / name).write_text("text\none\n")
    with pytest.raises(ValueError, match=r"mixes \.csv and \.tsv files"):
        load_files([str(tmp_path / "*")])


def test_lines_of_spaces_are_not_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n   \n".join(WORDS))
    splits = load_corpus(DataArguments([str(tmp_path / "a.txt")], validation_fraction=0.3))
    assert sorted([*splits["train"], *splits["validation"]]) == sorted(WORDS)


def test_validation_files_cannot_be_trained_on_by_another_name(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(lines)
    with pytest.raises(ValueError, match=r"lines\.txt is in both `corpus` and `validation_files`"):
        load_corpus(DataArguments([str(tmp_path / "link.txt")], validation_files=[str(lines)]))


def test_a_home_folder_is_expanded(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "corpus").mkdir()
    lines.rename(tmp_path / "corpus" / "train.txt")
    assert is_hub_name("~/corpus")
    corpus = load_corpus(DataArguments(["~/corpus"], validation_fraction=0.3))
    assert sum(len(list(split)) for split in corpus.values()) == len(WORDS)


def test_files_with_different_columns_are_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": "one", name: 1}))
    with pytest.raises(ValueError, match=r"have different columns\. Use files with the same columns"):
        load_files([str(tmp_path / "*.jsonl")])


def test_problems_of_the_disk_are_not_reported_as_damaged_files(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("datasets.arrow_writer.ArrowWriter.write_table", fail)
    with pytest.raises(OSError, match="No space left on device"):
        load_files([str(lines)])


@pytest.mark.parametrize(("sample_by", "documents"), [("paragraph", ["a\nb", "c\n"]), ("document", ["a\nb\n\nc\n"])])
def test_units_of_plain_text(sample_by: str, documents: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n\nc\n")
    (tmp_path / "b.txt").write_text("held\n\nout")
    splits = load_corpus(
        DataArguments([str(tmp_path / "a.txt")], validation_files=[str(tmp_path / "b.txt")], sample_by=sample_by)
    )
    assert list(splits["train"]) == documents
    assert len(list(splits["validation"])) == len(documents)


def test_matching_files_are_sorted_and_unique(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    assert find_files([str(tmp_path / "b.txt"), str(tmp_path / "*.txt")]) == [
        str(tmp_path / "b.txt"),
        str(tmp_path / "a.txt"),
    ]


def test_validation_split_of_a_data_set(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / f"{split}.jsonl").write_text(json.dumps({"text": split}) + "\n")
    folder = str(tmp_path / "set")
    assert list(load_corpus(DataArguments([folder]))["validation"]) == ["validation"]
    assert list(load_corpus(DataArguments([folder], validation_split="test"))["validation"]) == ["test"]
    (tmp_path / "held_out.txt").write_text("one\ntwo\n")
    with_files = DataArguments([folder], validation_files=[str(tmp_path / "held_out.txt")])
    assert [[*split] for split in load_corpus(with_files).values()] == [["train"], ["one", "two"]]
    prose = replace(with_files, sample_by="document", corpus_documents=2)  # those of the dataset
    assert [[*split] for split in load_corpus(prose).values()] == [["train"], ["one\ntwo\n"]]
    with pytest.raises(ValueError, match="`sample_by` can only be set for text files"):
        load_corpus(DataArguments([folder], sample_by="document"))
    with pytest.raises(ValueError, match=r"`validation_split` \(test\) and `validation_files` \(.*\) are both set"):
        load_corpus(replace(with_files, validation_split="test"))
    with pytest.raises(ValueError, match=r"no split 'dev'\. Choose one of its splits: train, validation, test"):
        load_corpus(DataArguments([folder], validation_split="dev"))
    with pytest.raises(ValueError, match="`train_split` and `validation_split` are both 'train'"):
        load_corpus(DataArguments([folder], validation_split="train"))


def test_sizes_of_a_data_set_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text(json.dumps({"text": split}) + "\n")
    sizes = "dataset_info:\n  features: [{name: text, dtype: string}]\n  download_size: 24000000000\n  dataset_size: 99"
    (folder / "README.md").write_text(f"---\n{sizes}\n---\n")
    with caplog.at_level(logging.INFO):
        load_corpus(DataArguments([str(folder)]))
    assert "24.0 GB to download and 0.0 GB of documents, unless they are cached" in caplog.text


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_first_part_of_a_data_set_is_an_error(tmp_path: Path, is_streamed: bool) -> None:
    folder = tmp_path / "set" / "plain_text" / "partial-train"  # as in the Hub's conversion of large datasets
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": WORDS}), folder / "0000.parquet")
    load = stream_corpus if is_streamed else load_corpus
    with pytest.raises(
        ValueError, match=r"are in partial-train, .* Set `corpus_revision` to a revision with the whole"
    ):
        load(DataArguments([str(tmp_path / "set")]))
    folder.rename(tmp_path / "set" / "plain_text" / "train")
    assert load(DataArguments([str(tmp_path / "set")])).keys() >= {"train"}


def test_another_number_of_documents_is_an_error(lines: Path) -> None:
    assert load_corpus(DataArguments([str(lines)], corpus_documents=200)).keys() == {"train", "validation"}
    with pytest.raises(ValueError, match=r"lines.txt must have 8,013,769 documents .* but has 200\."):
        load_corpus(DataArguments([str(lines)], corpus_documents=8_013_769))


@pytest.mark.parametrize(
    ("name", "is_hub"),
    [
        ("wikitext", True),
        ("a/b", True),
        ("a/b/c", False),
        ("a.txt", False),
        ("*.x", False),
        ("./a", False),
        ("A.JSONL", False),
        ("package.module:function", False),
    ],
)
def test_is_hub_name(name: str, is_hub: bool) -> None:
    assert is_hub_name(name) is is_hub


def test_a_function_is_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its texts are made once for each version of the module."""
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "my_corpus.py"
    module.write_text("def texts():\n    return ((str(number), f'text {number}') for number in range(20))\n")
    arguments = DataArguments(["my_corpus:texts"], validation_fraction=0.3)
    splits = {name: list(split) for name, split in load_corpus(arguments).items()}
    assert splits["validation"] == [f"text {number}" for number in range(20) if is_held_out(str(number), 0.3)]
    assert sorted([*splits["train"], *splits["validation"]]) == sorted(f"text {number}" for number in range(20))
    [source] = describe_sources(arguments)
    assert source["sha256"] == hash_file(module)
    monkeypatch.setattr("my_corpus.texts", None)  # making the texts again would fail
    assert {name: list(split) for name, split in load_corpus(arguments).items()} == splits
    module.write_text("# changed")
    with pytest.raises(DatasetGenerationError):
        load_corpus(arguments)


@pytest.mark.parametrize("name", ["no.such.module:texts", "common.corpora:no_such_function"])
def test_a_function_that_does_not_exist_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="must be MODULE:FUNCTION"):
        load_corpus(DataArguments([name]))


def test_wrong_arguments_are_errors(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "broken.jsonl").write_text('{"text": \n')
    (tmp_path / "one.jsonl").write_text('{"body": "a", "number": 1}\n')
    (tmp_path / "one.txt").write_text("a\n")
    paths = {path.name: str(path) for path in tmp_path.iterdir()}
    cases: list[tuple[str, list[str], dict]] = [
        ("no file 'missing.txt'", ["missing.txt"], {}),
        ("no file '.*missing.txt'", [str(lines)], {"validation_files": [str(tmp_path / "missing.txt")]}),
        ("one.txt is in both `corpus` and", [paths["one.txt"]], {"validation_files": [paths["one.txt"]]}),
        ("empty.txt is empty", [paths["empty.txt"]], {}),
        ("cannot be read as text in UTF-8", [paths["latin.txt"]], {}),
        ("cannot be read as json", [paths["broken.jsonl"]], {}),
        ("no column 'text'. Set `text_column` to one of: body, number", [paths["one.jsonl"]], {}),
        ("Column 'number' must hold text, but holds .*int64", [paths["one.jsonl"]], {"text_column": "number"}),
        ("mixes kinds of files", [paths["one.jsonl"], paths["one.txt"]], {}),
        ("'unicode-names' cannot be combined with .*one.txt", ["unicode-names", paths["one.txt"]], {}),
        ("'unicode-names' cannot be combined with held.txt", ["unicode-names"], {"validation_files": ["held.txt"]}),
        ("neither a built-in corpus", ["unicode-name"], {}),
        ("`sample_by` must be one of 'line', .*, but is 'word'", ["unicode-names"], {"sample_by": "word"}),
        ("`sample_by` can only be set for plain text", [paths["one.jsonl"]], {"sample_by": "paragraph"}),
        ("`sample_by` can only be set for text files", ["unicode-names"], {"sample_by": "document"}),
        ("`validation_fraction` must be below 1, but is 1", ["unicode-names"], {"validation_fraction": 1}),
        ("`corpus` is empty", [], {}),
        ("`validation_split` can only be set for a Hub dataset", [paths["one.txt"]], {"validation_split": "test"}),
        (
            "^`corpus_config` and `train_split` can only",
            ["unicode-names"],
            {"corpus_config": "en", "train_split": "all"},
        ),
    ]
    for message, corpus, options in cases:
        with pytest.raises(ValueError, match=message):
            load_corpus(DataArguments(corpus, **options))
