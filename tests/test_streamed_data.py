# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import hashlib
import json
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from common.data import Data, load_data
from common.data_arguments import DataArguments
from common.encoding import encode_batch as encode
from common.splitting import Split, hash_document, select_others
from common.tokenizers import train_tokenizer
from modeling_aogpt import DataCollatorForAnyOrderLM
from training.batches import Batches, epoch_permutation, pass_samples, rows_of_samples
from training.streamed_data import Position, Stream, training_samples

pytestmark = pytest.mark.usefixtures("datasets_cache")

WORDS = ["so", "ma", "bu", "le", "ti", "no", "ka", "re"]
FILES = [[f"{file} {' '.join(WORDS[: 1 + line % 8])} {line}" for line in range(150)] for file in "abc"]
LENGTH, WINDOW, HELD_OUT, SEED = 8, 16, 20, 3
STEPS, BATCH_SIZE = 60, 24  # a step takes one and a half windows; the run takes three epochs


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.streamed_data.DOCUMENTS_PER_BATCH", 7)


@pytest.fixture
def arguments(tmp_path: Path) -> DataArguments:
    train_tokenizer(chain(*FILES), 300).save_pretrained(tmp_path / "tokenizer")
    for name, lines in zip("abc", FILES, strict=True):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "b.txt").write_text("\n".join([*FILES[1], "", FILES[0][0]]) + "\n")  # an empty document, and a copy
    return DataArguments(
        corpus=[str(tmp_path / "?.txt")],
        tokenizer=str(tmp_path / "tokenizer"),
        sequence_length=LENGTH,
        streaming=True,
        shuffle_window=WINDOW,
        validation_documents=HELD_OUT,
    )


def read(
    data: Data,
    steps: range,
    position: dict[str, int] | None = None,
    *,
    accumulation_steps: int = 1,
    process: int = 0,
    num_processes: int = 1,
    num_workers: int = 0,
) -> Batches:
    passes = pass_samples(steps, BATCH_SIZE, accumulation_steps, process, num_processes)
    return Batches(
        training_samples(data, SEED, position), passes, DataCollatorForAnyOrderLM(), num_workers, pin_memory=False
    )


def row_numbers(num_samples: int, seed: int = SEED) -> list[int]:
    """Return, for each sample, the index of its sequence in the stream."""
    rows = rows_of_samples(list(range(num_samples)), WINDOW, seed)
    return [sample // WINDOW * WINDOW + row for sample, row in enumerate(rows)]


def unshuffled_ids(data: Data, num_samples: int) -> list[int]:
    """Return the ids of the stream in its own order."""
    features = training_samples(data, SEED).__getitems__(list(range(num_samples)))
    by_row = dict(zip(row_numbers(num_samples), features, strict=True))
    return [int(token) for row in range(num_samples) for token in by_row[row]["input_ids"]]


def test_the_stream_joins_all_documents_of_all_epochs(arguments: DataArguments) -> None:
    data = load_data(arguments)
    held_out = set(FILES[0][:HELD_OUT])
    expected: list[int] = []
    for epoch in range(3):
        for file in epoch_permutation(3, SEED, epoch):
            for text in FILES[file]:
                if text not in held_out:
                    expected += [*data.tokenizer.encode(text), data.tokenizer.eos_token_id]
    num_samples = len(expected) // LENGTH // WINDOW * WINDOW
    assert num_samples < STEPS * BATCH_SIZE
    assert unshuffled_ids(data, num_samples) == expected[: num_samples * LENGTH]
    assert len({tuple(epoch_permutation(3, SEED, epoch)) for epoch in range(3)}) > 1


def test_every_window_is_another_permutation() -> None:
    rows = row_numbers(3 * WINDOW)
    windows = [rows[first : first + WINDOW] for first in range(0, 3 * WINDOW, WINDOW)]
    for number, window in enumerate(windows):
        assert sorted(window) == list(range(number * WINDOW, (number + 1) * WINDOW)) != window
    orders = [tuple(row % WINDOW for row in window) for window in windows]
    assert len(set(orders)) == 3
    assert row_numbers(WINDOW, SEED + 1) != windows[0]


def test_reading_can_be_resumed_after_any_step(arguments: DataArguments, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data(arguments)
    whole = read(data, range(STEPS))
    batches, positions = [], []
    for batch in whole:
        batches.append(batch)
        positions.append(json.loads(json.dumps(whole.position)))
    for step in range(1, STEPS, 3):  # between windows, and within one
        resumed = read(data, range(step, STEPS), positions[step - 1])
        for expected, batch in zip(batches[step : step + 3], islice(resumed, 3), strict=False):
            assert all(torch.equal(expected[key], batch[key]) for key in expected)
        assert resumed.position == positions[min(step + 2, STEPS - 1)]
    assert {Position(**position).epoch for position in positions} == {0, 1, 2, 3}
    read_batches: list[int] = []
    monkeypatch.setattr("training.streamed_data.encode_batch", lambda *args: read_batches.append(1) or encode(*args))
    next(read(data, range(STEPS - 1, STEPS), positions[-2]))
    assert len(read_batches) < 25  # of two windows; there are more than a hundred before
    assert [position["window"] for position in positions] == [
        ((step + 1) * BATCH_SIZE - 1) // WINDOW for step in range(STEPS)
    ]


@pytest.mark.parametrize(
    ("accumulation_steps", "num_processes", "num_workers"), [(1, 1, 1), (1, 1, 2), (3, 1, 0), (2, 2, 0), (1, 3, 1)]
)
def test_batches_do_not_depend_on_processes_workers_and_passes(
    arguments: DataArguments, accumulation_steps: int, num_processes: int, num_workers: int
) -> None:
    data = load_data(arguments)
    expected = [batch["input_ids"] for batch in read(data, range(6))]
    divided = []
    for process in range(num_processes):
        options = {"process": process, "num_processes": num_processes, "num_workers": num_workers}
        batches = read(data, range(6), accumulation_steps=accumulation_steps, **options)
        divided.append([batch["input_ids"] for batch in batches])
    for step, whole in enumerate(expected):
        passes = range(step * accumulation_steps, (step + 1) * accumulation_steps)
        assert torch.equal(torch.cat([batches[number] for number in passes for batches in divided]), whole)


def test_held_out_documents_and_sources(arguments: DataArguments) -> None:
    data = load_data(arguments)
    text = data.tokenizer.decode(list(chain(*data.validation["input_ids"])))
    assert "<|endoftext|>".join(FILES[0][:HELD_OUT]).startswith(text)
    assert data.facts["validation"]["documents"] == HELD_OUT
    assert data.facts["train"] == {"streamed_files": 3}
    files = sorted(Path(arguments.corpus[0]).parent.glob("?.txt"))
    assert data.facts["sources"] == [
        {"name": file.name, "bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in files
    ]


def test_validation_files_are_held_out(arguments: DataArguments) -> None:
    folder = Path(arguments.corpus[0]).parent
    (folder / "c.txt").write_text("\n".join(["", *FILES[2], ""]) + "\n")
    arguments.corpus, files = [str(folder / "a.txt")], [str(folder / "c.txt")]
    with pytest.raises(ValueError, match="`validation_documents` has no effect with"):
        replace(arguments, validation_files=files)
    arguments.validation_documents, arguments.validation_files = DataArguments.validation_documents, files
    data = load_data(arguments)
    assert data.facts["validation"]["documents"] == len(FILES[2])
    assert names_of_sources(data) == ["a.txt", "c.txt"]
    assert data.tokenizer.decode(unshuffled_ids(data, WINDOW)).startswith(FILES[0][0])  # no document is skipped


@pytest.fixture
def data_set(arguments: DataArguments, tmp_path: Path) -> DataArguments:
    """Return the options of a dataset in a folder, with a validation split."""
    (tmp_path / "set").mkdir()
    for name, lines in zip(("train-0", "train-1", "validation-0"), FILES, strict=True):
        Dataset.from_dict({"body": lines, "number": range(150)}).to_parquet(tmp_path / "set" / f"{name}.parquet")
    return replace(arguments, corpus=[str(tmp_path / "set")], text_column="body")


def names_of_sources(data: Data) -> list[str]:
    return [Path(source["name"]).name for source in data.facts["sources"]]


def test_data_set_in_a_folder(data_set: DataArguments) -> None:
    data = load_data(data_set)
    assert names_of_sources(data) == ["train-0.parquet", "train-1.parquet", "validation-0.parquet"]
    assert data.facts["validation"]["documents"] == HELD_OUT
    assert next(iter(data.train)) == FILES[0][0]
    first = FILES[epoch_permutation(2, SEED, 0)[0]][0]
    assert data.tokenizer.decode(unshuffled_ids(data, WINDOW)).startswith(first)


def test_data_set_with_validation_files(data_set: DataArguments, tmp_path: Path) -> None:
    path = tmp_path / "held_out.jsonl"
    path.write_text(json.dumps({"body": "so ma bu le ti no ka re"}) + "\n")
    data_set.validation_files, data_set.validation_documents = [str(path)], DataArguments.validation_documents
    data = load_data(data_set)
    assert names_of_sources(data) == ["train-0.parquet", "train-1.parquet", "held_out.jsonl"]
    assert data.facts["sources"][-1]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert data.facts["validation"]["documents"] == 1
    plain = tmp_path / "held_out.txt"
    plain.write_text("so ma bu le ti\n\nno ka re so ma\n")
    data_set.validation_files = [str(plain)]
    assert load_data(data_set).facts["validation"]["documents"] == 2
    data_set.sample_by = "document"
    assert load_data(data_set).facts["validation"]["documents"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": None}, "`streaming` is set without `tokenizer`"),
        ({"packing": "documents"}, "`streaming` needs `packing=packed`, but `packing=documents` is set"),
        ({"corpus": ["unicode-names"]}, "`streaming` cannot be used with .*unicode-names"),
        ({"corpus_revision": "main"}, "`corpus_revision` cannot be used with files"),
        ({"sequence_length": 9999}, r"validation split must have at least one sequence of 9999 tokens"),
    ],
)
def test_wrong_arguments_are_errors(arguments: DataArguments, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_data(replace(arguments, **changes))


def test_an_unreadable_corpus_is_an_error(arguments: DataArguments, tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    arguments.corpus = [str(tmp_path / "broken.parquet")]
    with pytest.raises(ValueError, match=r"broken\.parquet cannot be read"):
        load_data(arguments)


def test_a_split_of_empty_documents_is_an_error(
    arguments: DataArguments, data_set: DataArguments, tmp_path: Path
) -> None:
    (tmp_path / "blank.txt").write_text("\n\n")
    arguments.corpus = [str(tmp_path / "blank.txt")]
    with pytest.raises(ValueError, match=r"The train split of .*blank\.txt has no"):
        load_data(arguments)
    Dataset.from_dict({"body": ["", ""]}).to_parquet(tmp_path / "set" / "validation-0.parquet")
    with pytest.raises(ValueError, match=r"The validation split of .*set has no"):
        load_data(data_set)


def test_a_corpus_that_is_held_out_completely_is_an_error(arguments: DataArguments) -> None:
    arguments.validation_documents = 1000
    with pytest.raises(ValueError, match=r"train split .* `validation_documents`"):
        load_data(arguments)


def test_the_rest_of_an_epoch_may_be_held_out(arguments: DataArguments) -> None:
    data, texts = load_data(arguments), ["so ma", "bu le"]
    last = int(epoch_permutation(2, SEED, 0)[1])
    shards = Dataset.from_dict({"text": texts}).to_iterable_dataset(num_shards=2)
    held_out = frozenset({hash_document(texts[last])})
    stream = Stream(Split(shards, partial(select_others, held_out=held_out)), data.tokenizer, LENGTH, WINDOW)
    batches = islice(stream.batches(SEED, Position(shard=1)), 3)
    assert [bool(ids) for position, ids in batches if position.epoch == 0] == [False]
    assert stream.encode(texts) == stream.encode([texts[1 - last]]) != []


def test_documents_without_text_are_counted(
    arguments: DataArguments, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*({"text": text} for text in FILES[0][:9]), {"body": "so"}, {"text": " "}]
    (tmp_path / "gaps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load_data(replace(arguments, corpus=[str(tmp_path / "gaps.jsonl")], validation_documents=4))
    unshuffled_ids(data, 4 * WINDOW)
    assert caplog.text.count("File 1 of the 1 files of the corpus: 2 of 11 documents have no text") == 1


def test_a_column_of_text_and_numbers_is_an_error(arguments: DataArguments, tmp_path: Path) -> None:
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ["so ma", "bu", 5]))
    with pytest.raises(ValueError, match=r"must hold text|cannot be read"):
        load_data(replace(arguments, corpus=[str(tmp_path / "mixed.jsonl")]))


def test_a_file_that_cannot_be_read_is_named(arguments: DataArguments, tmp_path: Path) -> None:
    for name, column in (("a", "text"), ("b", "body")):
        lines = (json.dumps({column: text}) for text in FILES[0] * 2)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    data = load_data(replace(arguments, corpus=[str(tmp_path / "*.jsonl")], validation_documents=4))
    with pytest.raises(OSError, match=r"^File 2 of the 2 files of the corpus cannot be read"):
        training_samples(data, 0).__getitems__(list(range(999)))
