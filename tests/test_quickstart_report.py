# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
import lzma
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import set_seed

from common.data import load_data, load_data_of_run
from common.data_arguments import DataArguments
from common.reports import make_printable
from common.results import ORDER_SEED
from common.tokenization import train_tokenizer, vocabulary_arguments
from eval.benchmarks import quickstart_report
from eval.benchmarks.likelihood_estimators import TRAINING, EstimatorArguments, measure_run
from eval.benchmarks.likelihood_estimators import main as estimate
from eval.benchmarks.quickstart_report import (
    KINDS,
    classify,
    compression_bits_per_byte,
    main,
    make_report,
    mask_words,
)
from eval.benchmarks.study_scores import held_out_rows
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, DataCollatorForAnyOrderLM
from tests.references import remove_weight
from tests.test_trained_tokenizers import DOCUMENTS

LONG = "ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789"  # no repeated letter, so no merges


@pytest.fixture(autouse=True)
def small(datasets_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart_report, "NUM_SAMPLES", 20)
    monkeypatch.setattr(quickstart_report, "MAX_INFILLS", 10)


@pytest.fixture
def arguments(tmp_path: Path) -> DataArguments:
    (tmp_path / "names.txt").write_text("\n".join([*DOCUMENTS[:40], LONG]) + "\n")
    (tmp_path / "held_out.txt").write_text("\n".join([*DOCUMENTS[40:], LONG]) + "\n")
    return DataArguments(
        [str(tmp_path / "names.txt")],
        validation_files=[str(tmp_path / "held_out.txt")],
        vocab_size=310,
        packing="documents",
        sequence_length=20,
        drop_long_documents=True,
    )


@pytest.fixture
def run(arguments: DataArguments, tmp_path: Path) -> Path:
    """Return a run as training/pretrain.py writes it, with an untrained model."""
    data = load_data(arguments)
    set_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 20}
    model = AOGPTForAnyOrderLM(AOGPTConfig(**sizes, **vocabulary_arguments(data.tokenizer)))
    model.save_pretrained(tmp_path / "run" / "model")
    data.tokenizer.save_pretrained(tmp_path / "run" / "model")
    results = {
        "arguments": {name: getattr(model.config, name, 30) for name in TRAINING} | asdict(arguments),
        "corpus": data.facts,
        "num_parameters": model.num_parameters(),
        "steps": 30,
        "tokens": 30 * 16 * 8,
        "train_seconds": 66.0,
        "loss_curve": {"step": [10, 20, 30], "loss": [5.0, 3.0, 2.0], "learning_rate": [0.1, 0.1, 0.1]},
        "hardware": {"device_name": "x86_64", "num_threads": 2},
    }
    (tmp_path / "run" / "results.json").write_text(json.dumps(results))
    return tmp_path / "run"


@pytest.mark.parametrize(
    "measure",
    [
        make_report,
        lambda run: measure_run(run, EstimatorArguments(num_sequences=1)),
    ],
    ids=["quickstart_report", "likelihood_estimators"],
)
def test_missing_weights_are_an_error(measure: Callable[[Path], Any], run: Path) -> None:
    remove_weight(run / "model", "lm_head.bias")
    with pytest.raises(ValueError, match=r"do not match its configuration: .*lm_head\.bias"):
        measure(run)


@pytest.mark.parametrize("load", [load_data_of_run, held_out_rows])
def test_another_corpus_than_in_training_is_an_error(load: Callable[[Path], Any], run: Path, tmp_path: Path) -> None:
    (tmp_path / "held_out.txt").write_text("PLUS SIGN\nSPACE\n")
    with pytest.raises(ValueError, match=r"names.txt\) has changed since the training: `sources` was .*, and is now "):
        load(run)


def test_another_tokenizer_than_in_training_is_an_error(run: Path, arguments: DataArguments, tmp_path: Path) -> None:
    assert len(load_data_of_run(run).validation) == 14
    arguments = replace(arguments, tokenizer=str(tmp_path / "tokenizer"))
    train_tokenizer(DOCUMENTS, 310).save_pretrained(arguments.tokenizer)
    results = json.loads((run / "results.json").read_text())
    results |= {"arguments": asdict(arguments), "corpus": load_data(arguments).facts}
    (run / "results.json").write_text(json.dumps(results))
    with pytest.raises(ValueError, match=r"The tokenizer '.*' differs from that of the model"):
        held_out_rows(run)


def test_documents_of_fewer_than_three_words_are_an_error(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held_out.txt").write_text("PLUS SIGN\nSPACE\n")
    monkeypatch.setattr("common.data.check_data_of_run", lambda *arguments: None)
    monkeypatch.setattr(quickstart_report, "load_pretrained", None)  # the error comes before any work
    with pytest.raises(ValueError, match=r"none of the 2 held-out documents of .*names.txt\) has three words"):
        make_report(run)


def test_bits_per_byte_leave_out_documents_that_are_too_long(run: Path, arguments: DataArguments) -> None:
    report = make_report(run)
    assert report["documents"] == {"train": 40, "held_out": 14, "held_out_left_out": 1}
    bits = report["bits_per_byte"]
    for name, value in compression_bits_per_byte(DOCUMENTS[:40], DOCUMENTS[40:]).items():
        assert bits[name] == value
    data = load_data(arguments)
    model = AOGPTForAnyOrderLM.from_pretrained(run / "model").eval()
    rows = [{"input_ids": ids, "order_seed": row} for row, ids in enumerate(data.validation["input_ids"])]
    batch = DataCollatorForAnyOrderLM(left_to_right_fraction=0.0, seed=ORDER_SEED)(
        rows
    )  # as in evaluations of training
    num_bytes = sum(len(text) + 1 for text in DOCUMENTS[40:])
    for key, orders in (("left_to_right", "left_to_right"), ("any_order", batch["orders"])):
        nats = -model.log_likelihood(batch["input_ids"], orders=orders).log_likelihood.sum().item()
        assert bits[key] == pytest.approx(nats / num_bytes / math.log(2), rel=1e-6)
    assert bits["any_order"] != pytest.approx(bits["left_to_right"], rel=1e-5)
    assert 0 < bits["left_to_right_standard_error"] < bits["left_to_right"]


def test_infills_and_samples_are_counted(run: Path) -> None:
    report = make_report(run)
    groups = [report["samples"], report["infills"]]
    assert [group["count"] for group in groups] == [20, 10]
    for group in groups:
        assert sum(group["shares"].values()) == pytest.approx(1)
    assert report == make_report(run)  # seeded


def test_one_or_two_words_are_masked(arguments: DataArguments) -> None:
    data = load_data(arguments)
    tokenizer, texts = data.tokenizer, [*DOCUMENTS[:40], "PLUS SIGN"]
    sequences = [*data.train["input_ids"][:], [0] * 20]
    masked = mask_words(tokenizer, texts, sequences)
    assert [document["original"] for document in masked] == DOCUMENTS[:40]  # not the text of two words
    numbers = []
    for document, ids in zip(masked, sequences, strict=False):
        pairs = list(zip(document["original"].split(), document["before"].split(), strict=True))
        kept = {word for word, shown in pairs if word == shown}
        numbers.append(len(pairs) - len([word for word, shown in pairs if word == shown]))
        expected = [
            tokenizer.mask_token_id if word not in kept else id
            for word, _ in pairs
            for id in tokenizer(f" {word}" if word != pairs[0][0] else word).input_ids
        ]
        assert document["ids"] == expected + ids[len(expected) :]
        assert document["before"].count("_") == document["ids"].count(tokenizer.mask_token_id)
    assert set(numbers) == {1, 2}


def test_kinds_of_generated_texts(arguments: DataArguments) -> None:
    data = load_data(arguments)
    train, held_out = data.train["input_ids"][:2], data.validation["input_ids"][:2]
    new = [*train[0][:1], *held_out[0][1:]]
    inputs = [{"original": DOCUMENTS[40], "before": "_"}, *[{}] * 3]
    sequences = torch.tensor([held_out[0], held_out[1], train[0], new])
    found = classify(sequences, data.tokenizer, DOCUMENTS[:40], [*DOCUMENTS[40:], DOCUMENTS[0]], inputs)
    kinds = [example["kind"] for example in found["examples"]]
    assert kinds[:2] == ["exact", "held_out"]
    assert kinds[2] == "held_out"  # two documents have the same text
    assert found["shares"] == {kind: kinds.count(kind) / 4 for kind in KINDS}
    found = classify(sequences, data.tokenizer, DOCUMENTS[:40], DOCUMENTS[40:], [{}] * 4)
    assert [example["kind"] for example in found["examples"]][:3] == ["held_out", "held_out", "train"]
    assert found["examples"][1]["text"] == DOCUMENTS[41]


@pytest.mark.filterwarnings("ignore:Glyph")  # an untrained model generates characters of many scripts
def test_files_contain_the_results(run: Path, capsys: pytest.CaptureFixture) -> None:
    main([str(run)])
    printed = capsys.readouterr().out
    report = json.loads((run / "report.json").read_text())
    markdown = (run / "quickstart.md").read_text()
    bits = report["bits_per_byte"]
    for value in (f"{bits['any_order']:.3f} ± {bits['any_order_standard_error']:.3f}", f"{bits['zlib']:.3f}"):
        assert value in markdown
    assert markdown in printed
    assert "30 steps" in markdown
    assert "1.1 minutes on x86_64" in markdown
    example = report["infills"]["examples"][0]
    assert example["before"].replace("_", "\\_") in markdown
    with Image.open(run / "quickstart.png") as picture:
        assert picture.size[0] >= 1200
        assert len(picture.convert("RGB").resize((60, 40)).getcolors(maxcolors=2400)) > 20  # the picture is not empty
    assert {path.name for path in run.iterdir()} == {
        *("model", "results.json"),
        *("report.json", "quickstart.md", "quickstart.png"),
    }


def test_report_on_likelihood_estimators(run: Path, tmp_path: Path) -> None:
    options = ["--num_sequences", "2", "--ensemble_size", "2", "--num_draws", "2", "--output_dir"]
    for length in ("4", "6"):
        command = [str(run), "--length", length, *options, str(tmp_path / "out")]
        estimate(command)
        results = json.loads((tmp_path / "out" / f"{run.parent.name}-run-{length}-2.json").read_text())
        assert results["command"] == " ".join(["python", "eval/benchmarks/likelihood_estimators.py", *command])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(f"{run.parent.name}-run-{length}-2.json" for length in (4, 6)),
        "report.md",
    }
    table = (tmp_path / "out" / "report.md").read_text()
    assert [f"names.txt | {length} | 2 | masked diffusion |" in table for length in (4, 5, 6)] == [True, False, True]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 2}, "`length` must be between 3 and 20 for this run, but is 2"),
        ({"length": 21}, "`length` must be between 3 and 20 for this run, but is 21"),
        ({"num_sequences": 15}, "`num_sequences` must be at most 14 for this run, but is 15"),
    ],
)
def test_bad_settings_of_likelihood_estimators(run: Path, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure_run(run, EstimatorArguments(**settings))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, "has no results.json, so the run is not finished"),
        (
            {"packing": "packed", "drop_long_documents": False},
            "needs a run with `packing=documents`, but .* was trained with `packing=packed`",
        ),
    ],
)
def test_bad_input(run: Path, changes: dict[str, Any] | None, message: str) -> None:
    if changes is None:
        (run / "results.json").unlink()
    else:
        results = json.loads((run / "results.json").read_text())
        results["arguments"] |= changes
        (run / "results.json").write_text(json.dumps(results))
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        main([str(run)])
    assert not (run / "report.json").exists()


# ------------------------------------------------------------------------------------------------------ compressors


def test_compressed_sizes_are_of_the_joined_documents() -> None:
    held_out = ["größer", "größe", ""]
    data = "größer\ngröße\n\n".encode()
    figures = compression_bits_per_byte([], held_out)
    assert figures["zlib"] == 8 * len(zlib.compress(data, 9)) / len(data)
    assert figures["xz"] == 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / len(data)


def test_xz_uses_training_documents() -> None:
    letters = random.Random(0)
    documents = ["".join(letters.choices("abcdefgh", k=40)) for _ in range(100)]
    seen = compression_bits_per_byte(documents, documents)
    unseen = compression_bits_per_byte(reversed([document.upper() for document in documents]), documents)
    assert seen["xz"] == unseen["xz"] > 3  # eight letters take 3 bits each
    assert seen["xz_after_training"] < 0.2
    assert 2.5 < unseen["xz_after_training"] < 3.5


def test_make_printable() -> None:
    assert make_printable("größer 漢\n\t\x1b[1m") == "größer 漢���[1m"
