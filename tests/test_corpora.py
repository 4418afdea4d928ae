# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import bz2
import gzip
import json
import lzma
import os
import unicodedata
import zipfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from common.corpora import is_hub_name, load_corpus, python_stdlib, unicode_names
from common.data_arguments import DataArguments
from common.splitting import hash_document, is_held_out, select_all, sha256
from common.text_files import find_files, load_files

pytestmark = pytest.mark.usefixtures("datasets_cache")

WORDS = [f"word {number}" for number in range(200)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


def held_out(fraction: float) -> list[str]:
    return [word for word in WORDS if is_held_out(hash_document(word), fraction)]


def documents(*corpus: str | Path, **options: Any) -> list[str]:
    """Return all documents of a corpus."""
    loaded = load_corpus(DataArguments([*map(str, corpus)], **{"validation_fraction": 0.3} | options))
    return [*loaded.train, *loaded.validation]


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
    corpus = load_corpus(DataArguments())
    assert (len(list(corpus.train)), len(list(corpus.validation))) == (25_534, 1_376)


def test_python_stdlib_excludes_tests() -> None:
    paths = {path for path, _ in python_stdlib()}
    assert {"argparse.py", "json/decoder.py"} <= paths
    assert not [path for path in paths if "test" in path.split("/") or "site-packages" in path]


def test_the_validation_split_depends_only_on_the_text() -> None:
    names = ["LATIN SMALL LETTER A", "LATIN SMALL LETTER B", "LATIN SMALL LETTER C", "LATIN SMALL LETTER D"]
    assert [is_held_out(sha256(name), 0.5) for name in names] == [False, True, True, False]
    assert list(map(hash_document, names)) == list(map(sha256, names))
    assert hash_document(" a\r\nb  c\n") == hash_document("a b c")
    kept = held_out(0.2)
    assert 20 < len(kept) < 60
    assert set(held_out(0.05)) < set(kept)


def test_text_files_are_split_by_hash(lines: Path) -> None:
    corpus = load_corpus(DataArguments([str(lines)], validation_fraction=0.2))
    assert list(corpus.validation) == held_out(0.2)
    assert list(corpus.train) == [word for word in WORDS if word not in held_out(0.2)]


def test_validation_files_are_held_out(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "held_out.txt").write_text("one\ntwo\n")
    corpus = load_corpus(DataArguments([str(lines)], validation_files=[str(tmp_path / "held_out.txt")]))
    assert list(corpus.train) == WORDS
    assert list(corpus.validation) == ["one", "two"]


@pytest.mark.parametrize("kind", ["jsonl", "JSONL", "JSONL.GZ", "jsonl.gz", "parquet", "txt.xz", "txt.gz"])
def test_supported_kinds_of_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"corpus.{kind}"
    is_text = kind.startswith("txt")
    lines = WORDS if is_text else [json.dumps({"id": 1, "body": word}) for word in WORDS]
    if kind == "parquet":
        pq.write_table(pa.table({"id": [1] * len(WORDS), "body": WORDS}), path)
    else:
        opener = {"gz": gzip.open, "xz": lzma.open}.get(kind.lower().split(".")[-1], open)
        with opener(path, "wt") as file:
            file.write("\n".join(lines) + "\n")
    assert sorted(documents(path, text_column="text" if is_text else "body")) == sorted(WORDS)


def read_both_ways(*files: Path, **options: Any) -> list[str]:
    """Return the documents of files. Check that streaming gives the same."""
    names = [*map(str, files)]
    texts = load_files(names, **options)["text"][:]
    assert [row["text"] for row in load_files(names, streaming=True, **options)] == texts
    return texts


@pytest.mark.parametrize("name", ["a.jsonlines", "a.zip"])
def test_json_that_is_read_as_text_gives_a_warning(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonlines").write_text('{"text": "one"}\n')
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.write(tmp_path / "a.jsonlines", "a.jsonl")
    assert read_both_ways(tmp_path / name) == ['{"text": "one"}']
    assert f"{name}: the first line is JSON" in caplog.text


def test_zipped_tables_and_rows_are_read_as_such(tmp_path: Path) -> None:
    for name, content in (("a.csv", 'text\n"one, two"\n'), ("a.jsonl", '{"text": "one, two"}\n')):
        with zipfile.ZipFile(path := tmp_path / f"{name}.zip", "w") as file:
            file.writestr(name, content)
        assert read_both_ways(path) == ["one, two"]


def test_names_of_files_are_not_patterns(tmp_path: Path) -> None:
    (tmp_path / "set [1]").mkdir()
    for suffix, content in ((".txt", "one\n"), (".jsonl", '{"text": "one"}\n')):
        (path := tmp_path / "set [1]" / f"a{suffix}").write_text(content)
        assert read_both_ways(path) == ["one"]


@pytest.mark.parametrize(
    ("header", "first", "last", "num_joined"),
    [
        ("id\ttext", '1\t"I came,', '2\tI saw."', 1),
        ("text\tlabel", '"I came,\t1', 'I saw."\t0', 1),
        ("id\ttext", '1\t"I ""came"","', '2\t"I\nsaw."', 0),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_quotes_that_join_rows_give_a_warning(
    tmp_path: Path, header: str, first: str, last: str, num_joined: int, streaming: bool, caplog: Any
) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("\n".join((header, first, last)) + "\n")
    load_files([str(file)], "text", streaming=streaming)
    assert (f"{num_joined} quoted fields of {file} contain whole rows." in caplog.text) == (num_joined > 0)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz", "a.txt.xz", "a.txt.bz2"])
def test_a_byte_order_mark_is_not_text(name: str, tmp_path: Path) -> None:
    content = {".csv": "text\none\n", ".jsonl": '{"text": "one"}\n'}.get(Path(name).suffix, "one\n")
    compress = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(compress(content.encode("utf-8-sig")))
    assert select_all(read_both_ways(tmp_path / name)) == ["one"]
    (tmp_path / "set").mkdir()
    for split in ("train", "validation"):
        text = content.replace("one", split).encode("utf-8-sig")
        (tmp_path / "set" / f"{split}-{name}").write_bytes(compress(text))
    assert documents(tmp_path / "set") == ["train", "validation"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("sample_by", "texts"),
    [
        ("line", ["", "one", "  two", "", " ", "", "three\f", "", "four "]),
        ("paragraph", ["one\n  two", "three\f", "four "]),
        ("document", ["\none\n  two\n\n \n\nthree\f\n\nfour \n"]),
    ],
)
def test_documents_of_plain_text(ending: str, sample_by: str, texts: list[str], tmp_path: Path) -> None:
    content = "\none\n  two\n\n \n\nthree\f\n\nfour \n".replace("\n", ending)
    (tmp_path / "a.txt").write_bytes(content.encode())
    assert read_both_ways(tmp_path / "a.txt", sample_by=sample_by) == texts


def test_paragraphs_have_no_line_breaks_around_them(tmp_path: Path) -> None:
    content = "\none\n\n\ntwo\n\n\n\n\nthree\n"
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode("utf-8-sig")))
    assert read_both_ways(tmp_path / "a.txt.gz", sample_by="paragraph") == ["one", "two", "three"]


@pytest.mark.parametrize("sample_by", ["line", "paragraph"])
@pytest.mark.parametrize("streaming", [False, True])
def test_copies_with_other_whitespace_are_in_the_same_split(sample_by: str, streaming: bool, tmp_path: Path) -> None:
    separator = "\n \n" if sample_by == "paragraph" else "\n"
    copies = [f"{mark}{word}{end}" for mark, end in (("\ufeff", ""), (" ", "\t"), ("", " ")) for word in WORDS]
    (tmp_path / "a.txt").write_text(separator.join(copies), encoding="utf-8-sig")
    options = {"validation_documents": 50} if streaming else {"validation_fraction": 0.3}
    corpus = load_corpus(DataArguments([str(tmp_path / "a.txt")], sample_by=sample_by, streaming=streaming, **options))
    train, validation = ({text.strip() for text in split} for split in (corpus.train, corpus.validation))
    assert len(train) + len(validation) == len(WORDS)
    assert train | validation == set(WORDS)


def test_a_changed_file_with_an_old_time_is_read_again(tmp_path: Path) -> None:
    """`datasets` identifies files by names and times. In some archives, all files have the same time."""
    for name in ("a.txt", "a.csv"):
        path = tmp_path / name
        for text in ("first", "other"):
            path.write_text(f"text\n{text}")
            os.utime(path, (1, 1))
            assert read_both_ways(path)[-1] == text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ndjson", '{"text": "one, two"}\n{"text": "NA"}\n{"text": "3"}\n'),
        ("a.csv", 'id,text\n1,"one, two"\n2,NA\n3,3\n'),
        ("a.tsv", "id\ttext\n1\tone, two\n2\tNA\n3\t3\n"),
    ],
)
def test_values_of_tables_are_text(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert load_files([str(tmp_path / name)])["text"][:] == ["one, two", "NA", "3"]
    assert not is_hub_name(name)


def test_a_column_of_text_beside_examples_gives_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "prompt": "b", "completion": "c"}')
    assert load_files([str(tmp_path / "a.jsonl")])["text"][:] == ["a"]
    assert "prompt, completion" in caplog.text
    assert load_files([str(tmp_path / "a.jsonl")], text_column="none").column_names == ["example"]


def test_rows_without_a_text_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": word} if number % 4 else {"body": word} for number, word in enumerate(WORDS)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(documents(tmp_path / "a.jsonl")) == 150
    assert "50 of 200 rows have no 'text'" in caplog.text


def test_lines_of_spaces_are_not_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n   \n".join(WORDS))
    assert sorted(documents(tmp_path / "a.txt")) == sorted(WORDS)


def test_validation_files_cannot_be_trained_on_by_another_name(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(lines)
    with pytest.raises(ValueError, match="is in both `corpus` and"):
        documents(tmp_path / "link.txt", validation_files=[str(lines)])


def test_a_home_folder_is_expanded(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "corpus").mkdir()
    lines.rename(tmp_path / "corpus" / "train.txt")
    assert is_hub_name("~/corpus")
    assert len(documents("~/corpus")) == len(WORDS)


def test_the_cause_of_an_error_is_reported(tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": "one", name: 1}))
    with pytest.raises(ValueError, match="column"):
        documents(tmp_path / "*.jsonl")

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("datasets.arrow_writer.ArrowWriter.write_table", fail)
    with pytest.raises(ValueError, match="No space left on device"):
        documents(lines)


def test_matching_files_are_sorted_and_unique(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    for path in paths:
        Path(path).touch()
    assert find_files([paths[1], str(tmp_path / "*.txt")]) == paths[::-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a dataset in a folder, with three splits of one document."""
    (tmp_path / "set").mkdir()
    for split in ("train", "validation", "test"):
        (tmp_path / "set" / f"{split}.jsonl").write_text(json.dumps({"text": split}) + "\n")
    return tmp_path / "set"


def test_splits_of_a_data_set(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "held_out.txt").write_text("one\ntwo\n")
    files = {"validation_files": [str(tmp_path / "held_out.txt")]}
    for options, texts, sources in (
        ({}, ["train", "validation"], ["train.jsonl", "validation.jsonl"]),
        ({"validation_split": "test"}, ["train", "test"], ["train.jsonl", "test.jsonl"]),
        ({"train_split": "test"}, ["test", "validation"], ["test.jsonl", "validation.jsonl"]),
        (files, ["train", "one", "two"], ["train.jsonl", "held_out.txt"]),
        (files | {"sample_by": "document"}, ["train", "one\ntwo\n"], None),
    ):
        assert documents(folder, **options) == texts
        found = load_corpus(DataArguments([str(folder)], **options)).sources
        assert sources in (None, [source["name"] for source in found])
    for message, options in (
        ("`sample_by` can only be set for plain text", {"sample_by": "document"}),
        ("`validation_split` has no effect", files | {"validation_split": "test"}),
        ("no split 'dev'.*: train, validation, test", {"validation_split": "dev"}),
        ("`train_split` and `validation_split` are both", {"validation_split": "train"}),
    ):
        with pytest.raises(ValueError, match=message):
            documents(folder, **options)


def test_files_of_no_split_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("README.md", "LICENSE.txt", "dataset_infos.json"):
        (folder / name).write_text("{}")
    load_corpus(DataArguments([str(folder)]))
    assert "not read" not in caplog.text
    for name in ("more.jsonl", "notes.rst"):
        caplog.clear()
        (folder / name).write_text('{"text": "more"}\n')
        load_corpus(DataArguments([str(folder)]))
        assert f"1 files, such as {folder / name}, are not read" in caplog.text
        assert f"say, '{folder}/**/*{(folder / name).suffix}'" in caplog.text
        (folder / name).unlink()


def test_links_to_missing_files_are_not_passed_over(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "broken.jsonl").symlink_to(folder / "missing")
    load_corpus(DataArguments([str(folder)]))
    assert f"1 files, such as {folder}/broken.jsonl, are not read" in caplog.text
    with pytest.raises(FileNotFoundError, match="broken"):
        load_corpus(DataArguments([f"{folder}/*.jsonl"]))


@pytest.mark.parametrize("options", [{}, {"streaming": True, "tokenizer": "gpt2"}])
@pytest.mark.parametrize("in_files", [True, False])
def test_copies_of_given_held_out_documents_are_not_trained_on(
    folder: Path, options: dict[str, Any], in_files: bool
) -> None:
    (folder / "train.jsonl").write_text('{"text": "validation\\n"}\n{"text": "train"}\n')
    files = {"validation_files": [str(folder / "validation.jsonl")]} if in_files else {}
    corpus = load_corpus(DataArguments([str(folder / "train.jsonl" if in_files else folder)], **options, **files))
    assert (list(corpus.train), list(corpus.validation)) == (["train"], ["validation"])


@pytest.mark.parametrize("options", [{}, {"streaming": True}])
def test_the_first_part_of_a_data_set_is_an_error(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = tmp_path / "set" / "plain_text" / "partial-train"  # as in the Hub's conversion of large datasets
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": WORDS * 9}), folder / "0000.parquet")
    with pytest.raises(ValueError, match=r"partial-train.*`corpus_revision`"):
        documents(tmp_path / "set", **options)
    folder.rename(tmp_path / "set" / "plain_text" / "train")
    assert documents(tmp_path / "set", **options, **({"validation_documents": 9} if options else {}))


@pytest.mark.parametrize("options", [{}, {"streaming": True, "tokenizer": "gpt2"}])
def test_data_sets_that_were_saved(tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    one, two = (Dataset.from_dict({"body": texts}) for texts in (WORDS[:150], WORDS[150:]))
    shards = {"train": 3, "validation": 4}  # more than JSON files, which datasets 4.0 would take for the data
    DatasetDict({"train": one, "validation": two}).save_to_disk(tmp_path / "set", num_shards=shards)
    corpus = load_corpus(DataArguments([str(tmp_path / "set")], text_column="body", **options))
    assert (sorted(corpus.train), sorted(corpus.validation)) == (sorted(WORDS[:150]), sorted(WORDS[150:]))
    assert "not read" not in caplog.text


def test_sources_of_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = SimpleNamespace(hash="79d93d7", config=SimpleNamespace(data_files=None))
    rows = Dataset.from_dict({"body": WORDS})
    monkeypatch.setattr("common.corpora.load_dataset_builder", lambda *_, **__: builder)
    monkeypatch.setattr("common.corpora.load_dataset", lambda *_, **__: {"train": rows})
    corpus = load_corpus(DataArguments(["Skylion007/openwebtext"], text_column="body", validation_fraction=0.2))
    assert corpus.sources == [{"name": "Skylion007/openwebtext", "commit": "79d93d7"}]
    assert list(corpus.validation) == held_out(0.2)


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
    monkeypatch.syspath_prepend(tmp_path)
    module = "def texts():\n    return ((str(number), f'{name} {number}') for number in range(20))\nname = 'text'\n"
    (tmp_path / "my_corpus.py").write_text(module)
    arguments = DataArguments(["my_corpus:texts"], validation_fraction=0.3)
    corpus = load_corpus(arguments)
    assert list(corpus.validation) == [f"text {n}" for n in range(20) if is_held_out(sha256(str(n)), 0.3)]
    assert sorted([*corpus.train, *corpus.validation]) == sorted(f"text {number}" for number in range(20))
    assert load_corpus(arguments).sources == corpus.sources
    monkeypatch.setattr("my_corpus.name", "word")
    changed = load_corpus(arguments)
    assert sorted([*changed.train, *changed.validation]) == sorted(f"word {number}" for number in range(20))
    assert changed.sources != corpus.sources


@pytest.mark.parametrize("name", ["no.such.module:texts", "common.corpora:no_such_function"])
def test_a_function_that_does_not_exist_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="must be MODULE:FUNCTION"):
        load_corpus(DataArguments([name]))


def test_wrong_arguments_are_errors(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "broken.jsonl").write_text('{"text": \n')
    (tmp_path / "one.jsonl").write_text('{"body": "a", "number": 1}\n')
    (tmp_path / "one.csv").write_text("text\na\n")
    (tmp_path / "comma.csv").write_text("text\nHello, world\n")
    (tmp_path / "one.tsv").write_text("text\na\n")
    (tmp_path / "twice.csv").write_text("\ntext,text\na,b\n")
    (tmp_path / "quote.tsv").write_text('text\tid\na\t1\n"Hello" he said\t2\n')
    (tmp_path / "one.txt").write_text("a\n")
    cases: list[tuple[str, list[str], dict]] = [
        ("no file '.*missing.txt'", ["missing.txt"], {}),
        ("no file '.*missing.txt'", ["lines.txt"], {"validation_files": [str(tmp_path / "missing.txt")]}),
        ("one.txt is in both `corpus` and", ["one.txt"], {"validation_files": [str(tmp_path / "one.txt")]}),
        ("empty.txt is empty", ["empty.txt"], {}),
        ("cannot be read as text in UTF-8.*codec", ["latin.txt"], {}),
        ("cannot be read as json", ["broken.jsonl"], {}),
        ("no column 'text'.*: body, number", ["one.jsonl"], {}),
        ("'number' must hold text, but holds .*int64", ["one.jsonl"], {"text_column": "number"}),
        ("comma.csv has more fields than the header", ["comma.csv"], {}),
        ("twice.csv has several columns named 'text'", ["twice.csv"], {}),
        ("Line 3 of .*quote.tsv has a wrong quote", ["quote.tsv"], {}),
        ("several kinds", ["one.jsonl", "one.txt"], {}),
        ("several kinds", ["one.csv", "one.tsv"], {}),
        ("'unicode-names' cannot be combined with .*one.txt", ["unicode-names", "one.txt"], {}),
        ("`validation_files` cannot be used", ["unicode-names"], {"validation_files": ["held.txt"]}),
        ("neither a built-in corpus.* Did you mean `unicode-names`", ["unicode-name"], {}),
        ("`sample_by` must be one of 'line', .*, but is 'word'", ["unicode-names"], {"sample_by": "word"}),
        ("`sample_by` can only be set for plain text", ["one.jsonl"], {"sample_by": "paragraph"}),
        ("`sample_by` can only be set for plain text", ["unicode-names"], {"sample_by": "document"}),
        ("`validation_fraction` must be below 1, but is 1", ["unicode-names"], {"validation_fraction": 1}),
        ("`corpus` is empty", [], {}),
        ("`validation_split` cannot be used", ["one.txt"], {"validation_split": "test"}),
        ("`corpus_config` and `train_split`", ["unicode-names"], {"corpus_config": "en", "train_split": "all"}),
    ]
    for message, names, options in cases:
        corpus = [str(path) if (path := tmp_path / name).exists() else name for name in names]
        with pytest.raises(ValueError, match=message):
            load_corpus(DataArguments(corpus, **options))
