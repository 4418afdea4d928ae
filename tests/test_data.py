# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import hashlib
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, Features, Value
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from common.corpora import load_corpus
from common.data import Data, load_data
from common.data_arguments import DataArguments
from common.encoding import split_context
from common.packing import PackedRows
from common.text_files import keep_text
from common.tokenizers import train_tokenizer
from tests.tokenizers_of_all_kinds import llama

pytestmark = pytest.mark.usefixtures("datasets_cache")

LINES = [f"{word} {number} größer 🙂" for word in ("ein", "zwei", "drei") for number in range(40)]
FRACTION = 0.25


@pytest.fixture
def arguments(tmp_path: Path) -> DataArguments:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n\n\n")
    return DataArguments([str(path)], validation_fraction=FRACTION, vocab_size=300, sequence_length=32)


def splits(arguments: DataArguments) -> dict[str, list[str]]:
    corpus = load_corpus(arguments)
    return {"train": list(corpus.train), "validation": list(corpus.validation)}


def packed_rows(data: Data) -> list[list[int]]:
    return data.train[list(range(len(data.train)))]["input_ids"].tolist()


def test_packed_rows_are_the_joined_documents(arguments: DataArguments) -> None:
    arguments.sequence_length = 31
    data = load_data(arguments)
    for split, rows in (("train", packed_rows(data)), ("validation", data.validation["input_ids"])):
        assert {len(ids) for ids in rows} == {31}
        written = data.tokenizer.decode([id for ids in rows for id in ids])
        whole = "".join(text + "<|endoftext|>" for text in splits(arguments)[split])
        assert whole.startswith(written.rstrip("�"))  # a character may be cut
        left_out = data.facts[split]["left_out_tokens"]
        assert left_out == data.facts[split]["tokens"] - 31 * len(rows)
        assert len(data.tokenizer.encode(whole)) == data.facts[split]["tokens"]
        assert 0 < left_out < 31


def test_a_split_may_have_a_single_sequence(arguments: DataArguments) -> None:
    num_tokens = load_data(arguments).facts["validation"]["tokens"]
    arguments.sequence_length = num_tokens
    data = load_data(arguments)
    assert (len(data.validation), data.facts["validation"]["left_out_tokens"]) == (1, 0)


def test_bytes_of_packed_rows_are_exact(arguments: DataArguments) -> None:
    arguments.sequence_length = 1
    data = load_data(arguments)
    held_out = splits(arguments)["validation"]
    assert sum(data.validation["num_bytes"]) == sum(len(text.encode()) + 1 for text in held_out)
    assert data.facts["validation"]["bytes"] == sum(data.validation["num_bytes"])
    ends = [row["num_bytes"] for row in data.validation if row["input_ids"] == [data.tokenizer.eos_token_id]]
    assert ends == [1] * len(held_out)


def test_documents_are_padded_with_end_of_text(arguments: DataArguments) -> None:
    arguments.packing = "documents"
    data = load_data(arguments)
    held_out = splits(arguments)["validation"]
    assert len(data.validation) == len(held_out)
    for text, row in zip(held_out, data.validation, strict=True):
        ids = data.tokenizer.encode(text)
        assert row["input_ids"] == ids + [data.tokenizer.eos_token_id] * (32 - len(ids))
        assert row["num_bytes"] == len(text.encode()) + 1
    assert [data.tokenizer.decode(ids, skip_special_tokens=True) for ids in data.train["input_ids"]] == (
        splits(arguments)["train"]
    )


def test_context_has_no_labels(tmp_path: Path) -> None:
    lines = [f"<ein {word} ist> grau{end}" for word in ("Haus", "Hund", "Baum") for end in ("", ", <sehr> grau")] * 9
    held_out = [line.replace("ein", "kein") for line in lines]
    for name, texts in (("", lines), ("-held", held_out)):
        (tmp_path / f"marked{name}.txt").write_text("\n".join(texts))
        (tmp_path / f"plain{name}.txt").write_text("\n".join(texts).replace("<", "").replace(">", ""))
    sizes = {"packing": "documents", "sequence_length": 40, "vocab_size": 261, "validation_fraction": 0.0}
    files = {"validation_files": [str(tmp_path / "marked-held.txt")]}
    marked = load_data(DataArguments([str(tmp_path / "marked.txt")], **files, **sizes, context_marks="<>"))
    files = {"validation_files": [str(tmp_path / "plain-held.txt")]}
    plain = load_data(DataArguments([str(tmp_path / "plain.txt")], **files, **sizes))
    assert marked.tokenizer.get_vocab() == plain.tokenizer.get_vocab()
    assert list(marked.train["input_ids"]) == list(plain.train["input_ids"])
    for name in ("input_ids", "num_bytes"):
        assert list(marked.validation[name]) == list(plain.validation[name])
    assert {*marked.validation.column_names} == {*plain.validation.column_names, "labels"}
    rows = [*marked.train, *marked.validation]
    for line, row in zip(lines + held_out, rows, strict=True):
        ids, labels = row["input_ids"], row["labels"]
        assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
        assert all(label == token for token, label in zip(ids, labels, strict=True) if token == 0)  # end-of-text
        context = [token for token, label in zip(ids, labels, strict=True) if label == -100]
        assert marked.tokenizer.decode(context) == "".join(re.findall("<(.*?)>", line))


@pytest.mark.parametrize("text", ["a]", "[a[b]]", "[ab", "a[b]c]"])
def test_context_marks_are_in_pairs(text: str) -> None:
    with pytest.raises(ValueError, match=r"'\[' and '\]' \(`context_marks`\) must"):
        split_context(text, "[]")


@pytest.mark.parametrize("marks", ["[", "||"])
def test_wrong_context_marks_are_refused(arguments: DataArguments, marks: str) -> None:
    with pytest.raises(ValueError, match="`context_marks` must be two different"):
        replace(arguments, packing="documents", context_marks=marks)
    with pytest.raises(ValueError, match="`context_marks` has no effect without `packing=documents`"):
        replace(arguments, packing="packed", context_marks="[]")
    with pytest.raises(ValueError, match="no document has text between"):
        load_data(replace(arguments, packing="documents", context_marks="¤¶"))


def test_empty_documents_are_counted(arguments: DataArguments, caplog: pytest.LogCaptureFixture) -> None:
    facts = load_data(arguments).facts
    assert f"2 of {len(LINES) + 2} documents have no text" in caplog.text
    assert facts["skipped_documents"] == 2
    assert facts["train"]["documents"] + facts["validation"]["documents"] == len(LINES)


def test_a_vocabulary_size_without_effect_is_reported(
    arguments: DataArguments, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    load_data(arguments).tokenizer.save_pretrained(tmp_path / "tokenizer")
    with caplog.at_level("INFO"):
        load_data(replace(arguments, tokenizer=str(tmp_path / "tokenizer")))
    assert "`vocab_size` (300) has no effect" in caplog.text


def test_sources_of_local_files(arguments: DataArguments, tmp_path: Path) -> None:
    (tmp_path / "held_out.txt").write_text("\n".join(LINES[:9]))
    arguments.validation_files = [str(tmp_path / "held_out.txt")]
    files = (tmp_path / "lines.txt", tmp_path / "held_out.txt")
    assert load_data(arguments).facts["sources"] == [
        {"name": file.name, "bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in files
    ]


def test_parallel_tokenization_gives_the_same_data_and_is_cached(
    arguments: DataArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "other_cache")  # nothing is cached for later
        alone = load_data(arguments)
    arguments.preprocessing_num_workers = 2
    shared = load_data(arguments)
    assert packed_rows(shared) == packed_rows(alone)
    assert shared.validation[:] == alone.validation[:]
    assert shared.facts == alone.facts
    assert list((tmp_path / "cache").rglob("*_of_00002.arrow"))
    cached = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}
    assert load_data(arguments).facts == alone.facts
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")} == cached


def test_packed_rows_are_views_of_16_bits_per_token(arguments: DataArguments, tmp_path: Path) -> None:
    train = load_data(arguments).train
    assert train._ids.type == pa.uint16()
    for part, chunk in zip(train._ids.chunks, train.documents.data.column("input_ids").chunks, strict=True):
        assert part.buffers()[1].address == chunk.values.buffers()[1].address  # memory-mapped
    cached = sorted((tmp_path / "cache").rglob("*"))
    PackedRows(train.documents, 16)
    assert sorted((tmp_path / "cache").rglob("*")) == cached  # it copies nothing
    copy = pickle.loads(pickle.dumps(train))
    assert np.array_equal(copy[[3, 0]]["input_ids"], train[[3, 0]]["input_ids"])
    assert len(pickle.dumps(train)) < 20_000


def test_long_documents_are_errors_or_dropped(arguments: DataArguments, caplog: pytest.LogCaptureFixture) -> None:
    arguments.packing = "documents"
    lengths = [len(ids) + 1 for ids in train_tokenizer(splits(arguments)["train"], 300)(LINES)["input_ids"]]
    arguments.sequence_length = max(lengths)
    assert load_data(arguments).facts["train"]["left_out_documents"] == 0
    arguments.sequence_length = max(lengths) - 1
    with pytest.raises(
        ValueError,
        match=rf"`packing=documents` .* of \d+ (train|validation) .* to {max(lengths)} tokens.*drop_long_documents",
    ):
        load_data(arguments)
    arguments.drop_long_documents = True
    with caplog.at_level(logging.WARNING):
        facts = load_data(arguments).facts
    left_out = facts["train"]["left_out_documents"]
    assert left_out + facts["validation"]["left_out_documents"] == lengths.count(max(lengths))
    assert facts["train"]["sequences"] == facts["train"]["documents"] - left_out
    assert f"train: {left_out} of {facts['train']['documents']} documents are longer" in caplog.text


def test_special_tokens_in_a_text_are_encoded_as_text(arguments: DataArguments) -> None:
    spelt = " <|mask|> and <|endoftext|>"
    Path(arguments.corpus[0]).write_text("\n".join(line + spelt for line in LINES))
    arguments.packing, arguments.sequence_length = "documents", 128
    data = load_data(arguments)
    for ids in data.train["input_ids"]:
        assert data.tokenizer.mask_token_id not in ids
        text = ids[: ids.index(data.tokenizer.eos_token_id)]
        assert data.tokenizer.decode(text).endswith(spelt)


@pytest.mark.parametrize("name", ["<s>", "</s>", "<unk>"])
def test_names_of_special_tokens_in_a_text_give_a_warning(
    arguments: DataArguments, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    llama().save_pretrained(tmp_path / "tokenizer")
    arguments.tokenizer = str(tmp_path / "tokenizer")
    load_data(arguments)
    assert "special" not in caplog.text
    Path(arguments.corpus[0]).write_text("\n".join([*LINES[:9], *(line * 99 + name + line * 99 for line in LINES)]))
    load_data(arguments)
    message = f"Names of special tokens in documents, such as {name}, are read as ordinary text. Remove them."
    assert (message in caplog.text) == (name != "<unk>")


def test_tokenizer_in_a_folder(arguments: DataArguments, tmp_path: Path) -> None:
    own = load_data(arguments)
    own.tokenizer.save_pretrained(tmp_path / "tokenizer")
    arguments.tokenizer = str(tmp_path / "tokenizer")
    assert packed_rows(load_data(arguments)) == packed_rows(own)


def test_bytes_outside_of_tokens_are_counted(arguments: DataArguments, tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"</s>": 0, "?": 1, "ein": 2, "zwei": 3, "drei": 4}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", unk_token="?").save_pretrained(tmp_path / "words")
    arguments.tokenizer, arguments.sequence_length = str(tmp_path / "words"), 1
    data = load_data(arguments)
    assert sum(data.validation["num_bytes"]) == sum(len(text.encode()) + 1 for text in splits(arguments)["validation"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 0}, "`sequence_length` must be at least 1, but is 0"),
        ({"sequence_length": 10_000}, "validation split must have at least one sequence of 10000 tokens"),
        (
            {"packing": "documents", "sequence_length": 2, "drop_long_documents": True},
            r"have \d+ to \d+ tokens",
        ),
        ({"vocab_size": 5000}, r"`vocab_size` must be at most \d+ for this corpus, .* but is 5000"),
        ({"drop_long_documents": True}, "`drop_long_documents` has no effect without `packing=documents`"),
        ({"shuffle_window": 9}, "`shuffle_window` has no effect without `streaming`. Set both, or remove"),
        ({"validation_documents": 9}, "`validation_documents` has no effect without `streaming`"),
    ],
)
def test_wrong_arguments_are_errors(arguments: DataArguments, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_data(replace(arguments, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation_fraction": 0.0}, r"validation split of .*lines\.txt has no .* `validation_fraction` \(0\.0\)"),
        ({"validation_files": ["blank.txt"]}, r"validation split of \S*blank\.txt has no"),
        ({"corpus": ["unicode-names"], "validation_fraction": 0.0}, "validation split of unicode-names has no"),
    ],
)
def test_a_validation_split_without_text_is_an_early_error(
    arguments: DataArguments, changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.data.PackedRows", lambda *_: pytest.fail("The training split is tokenized first."))
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(ValueError, match=message):
        load_data(replace(arguments, **changes))


@pytest.mark.parametrize("fraction", [0.05, 0.9999])
def test_a_single_document_cannot_be_divided(arguments: DataArguments, tmp_path: Path, fraction: float) -> None:
    (tmp_path / "book.txt").write_text("so ma\n" * 9)
    arguments.corpus, arguments.sample_by, arguments.vocab_size = [str(tmp_path / "book.txt")], "document", 258
    arguments.validation_fraction = fraction
    with pytest.raises(ValueError, match=r"no documents with text.* `validation_files`"):
        load_data(arguments)


PROGRAM = """
import sys
from common.data import load_data
from common.data_arguments import DataArguments
data = load_data(DataArguments([sys.argv[1]], vocab_size=300, sequence_length=8))
print(data.facts["validation"]["bytes"], sum(data.validation["num_bytes"]))
"""


def test_tokens_are_not_cached_when_the_code_changes(arguments: DataArguments, tmp_path: Path) -> None:
    """The package is copied, so that a function that the cached functions call can be edited."""
    for name in ("common", "modeling_aogpt"):
        shutil.copytree(Path(__file__).parents[1] / name, tmp_path / "code" / name)

    def run() -> list[int]:
        environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path / "code")}
        command = [sys.executable, "-c", PROGRAM, *arguments.corpus]
        output = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        return [int(number) for number in output.stdout.split()]

    before, path = run(), tmp_path / "code" / "common" / "encoding.py"
    code = path.read_text()
    assert code.count("len(text.encode()) + 1 for text") == code.count("boundaries[-1]) + 1]") == 1
    code = code.replace("len(text.encode()) + 1 for text", "7 for text")
    path.write_text(code.replace("boundaries[-1]) + 1]", "boundaries[-1]) + 9]"))
    total, packed = run()
    assert total % 7 == 0
    assert (total, packed) != tuple(before)
    assert packed > before[1]


def test_large_strings_are_text() -> None:
    rows = Dataset.from_dict({"body": ["a"]}, features=Features({"body": Value("large_string")}))
    assert keep_text(rows, "body")["text"][:] == ["a"]
