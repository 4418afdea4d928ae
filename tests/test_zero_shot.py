# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

from common import models
from common.models import identity_of_weights
from eval.scorers import CausalScorer, Estimators, load_scorer
from eval.scoring import Journal, figures, ratio, score
from eval.tables import PUBLISHED
from eval.zero_shot import ScoringArguments, choose_length, main, output_paths, zero_shot
from modeling_aogpt import AOGPTForAnyOrderLM

pytestmark = pytest.mark.usefixtures("datasets_cache")

ROOT = Path(__file__).parent.parent
LINES = [
    "abcde",
    "fghijkl",
    "",
    "mlké",
    "aaaaaaab",
]  # with end-of-text 29 tokens (two sequences of 12 and one of 5), 30 bytes
END_OF_TEXT, UNKNOWN = 13, 15


@pytest.fixture
def folder(tiny_model: AOGPTForAnyOrderLM, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> str:
    tiny_model.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def arguments(tmp_path: Path) -> ScoringArguments:
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    return ScoringArguments([str(tmp_path / "text.txt")])


def encode(line: str) -> list[int]:
    return [ord(letter) - ord("a") if letter.isascii() else UNKNOWN for letter in line] + [END_OF_TEXT]


def of_text(results: dict[str, Any]) -> dict[str, Any]:
    """What was found for text files, with its measures beside the counts."""
    found = results["datasets"]["text files"]
    return found | found["measures"]


def nats(model: AOGPTForAnyOrderLM, ids: list[int], **options: Any) -> float:
    return -model.log_likelihood(torch.tensor([ids]), **options).log_likelihood.item()


def test_packed_text_is_scored_to_its_last_token(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    ids = [id for line in LINES for id in encode(line)]
    total = nats(tiny_model, ids[:12]) + nats(tiny_model, ids[12:24]) + nats(tiny_model, ids[24:])
    whole = zero_shot(folder, arguments)
    assert (whole["weights"], whole["revision"]) == (identity_of_weights(folder), None)
    results = of_text(whole)
    assert (results["documents"], results["sequences"], results["tokens"]) == (5, 3, 29)
    assert results["bytes"] == Path(arguments.text_file[0]).stat().st_size == 30
    assert results["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)
    assert results["left_to_right"]["bits_per_byte"] == pytest.approx(total / 30 / math.log(2), rel=1e-5)


def test_documents_are_scored_with_their_filling(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    arguments = replace(arguments, packing="documents")
    filled = [encode(line) + [END_OF_TEXT] * (11 - len(line)) for line in LINES]
    total = sum(nats(tiny_model, ids) for ids in filled)
    results = of_text(zero_shot(folder, arguments))
    assert (results["sequences"], results["tokens"], results["bytes"]) == (5, 29, 30)
    assert results["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)


def test_any_order_is_the_mean_over_orders(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    arguments = replace(arguments, sequence_length=2, num_orders=400)
    ids = [id for line in LINES for id in encode(line)]
    pairs = [ids[start : start + 2] for start in range(0, 28, 2)]
    orders = torch.tensor([[0, 1]]), torch.tensor([[1, 0]])
    per_order = np.array([[nats(tiny_model, pair, orders=order) for order in orders] for pair in pairs])
    exact = per_order.mean(axis=1).sum() + nats(tiny_model, ids[28:])
    error = (per_order.std(axis=1) ** 2 / 400).sum() ** 0.5
    found = of_text(zero_shot(folder, arguments))["any_order"]["bits_per_byte"] * 30 * math.log(2)
    left_to_right, right_to_left = per_order.sum(axis=0)
    assert abs(found - exact) < 3 * error < 0.4 * abs(left_to_right - right_to_left)  # either order alone is 0.5 off


def test_orders_come_from_the_seed_alone(folder: str, arguments: ScoringArguments) -> None:
    arguments = replace(arguments, num_orders=3)
    one = of_text(zero_shot(folder, arguments))
    two = of_text(zero_shot(folder, replace(arguments, tokens_per_batch=1)))  # less than a row: one at a time
    for order in ("left_to_right", "any_order"):
        assert two[order] == pytest.approx(one[order], rel=1e-5)
    three = of_text(zero_shot(folder, replace(arguments, seed=1)))["any_order"]
    assert three["perplexity"] != pytest.approx(two["any_order"]["perplexity"], rel=1e-3)


def test_every_row_has_its_own_order(folder: str, arguments: ScoringArguments) -> None:
    Path(arguments.text_file[0]).write_text("abcdefghijk\n" * 3)
    results = of_text(zero_shot(folder, arguments))
    assert results["left_to_right"]["bits_per_byte_standard_error"] == pytest.approx(0, abs=1e-6)
    assert results["any_order"]["bits_per_byte_standard_error"] > 0.01


def test_standard_error_over_rows() -> None:
    values = np.array([1.0, 4.0, 2.0, 7.0])
    mean, error = ratio(values, np.full(4, 2.0))
    assert (mean, error) == (3.5 / 2, pytest.approx(values.std(ddof=1) / 4**0.5 / 2))
    assert ratio(3 * np.arange(1.0, 5.0), np.arange(1.0, 5.0)) == (3, 0)  # every row has the same bits per byte
    assert ratio(np.array([6.0]), np.array([3.0])) == (2, None)


def test_figures_are_of_tokens_and_of_bytes() -> None:
    nats, num_tokens, num_bytes = np.array([1.0, 4.0]), np.array([3, 1]), np.array([5, 6])
    token_error, byte_error = ratio(nats, num_tokens)[1], ratio(nats, num_bytes)[1]
    assert figures(nats, num_tokens, num_bytes) == {
        "perplexity": pytest.approx(math.exp(5 / 4)),
        "perplexity_standard_error": pytest.approx(math.exp(5 / 4) * token_error),
        "bits_per_byte": pytest.approx(5 / 11 / math.log(2)),
        "bits_per_byte_standard_error": pytest.approx(byte_error / math.log(2)),
    }


def test_command_prints_and_writes_the_figures(
    folder: str, arguments: ScoringArguments, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "out" / "results.json"
    command = [folder, "--text-file", *arguments.text_file, "--num-orders", "2", "--output_dir", str(output.parent)]
    main([*command, "--sequence-length", "12", "--packing", "packed"])
    results = of_text(json.loads(output.read_text()))
    printed = capsys.readouterr().out.splitlines()
    assert "5 documents, 29 tokens, 30 bytes, as 3 sequences of at most 12 tokens (packed); 0 tokens dro" in printed[0]
    for line, order in zip(printed[2:4], ("left_to_right", "any_order"), strict=True):
        assert f"{results[order]['bits_per_byte']:.4f} ± {results[order]['bits_per_byte_standard_error']:.4f}" in line
        assert f"{results[order]['perplexity']:.2f} ± {results[order]['perplexity_standard_error']:.2f}" in line
    Path(arguments.text_file[0]).write_text("a\n")
    main(command)
    assert of_text(json.loads(output.read_text()))["any_order"]["perplexity_standard_error"] is None
    assert "± unknown" in capsys.readouterr().out
    assert list(output.parent.iterdir()) == [output]  # nothing unfinished is left


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # float32 norm weights, as autocast leaves them
def test_bf16_is_close(folder: str, arguments: ScoringArguments) -> None:
    exact = of_text(zero_shot(folder, arguments))["left_to_right"]["bits_per_byte"]
    for change in ({"mixed_precision": "bf16"}, {"dtype": "bfloat16"}):
        rounded = of_text(zero_shot(folder, replace(arguments, **change)))["left_to_right"]["bits_per_byte"]
        assert rounded == pytest.approx(exact, rel=0.02)
        assert rounded != exact


@pytest.fixture
def causal_folder(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> str:
    set_seed(0)
    sizes = {"vocab_size": 18, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.5}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=13, eos_token_id=13)).save_pretrained(tmp_path / "causal")
    tiny_tokenizer.save_pretrained(tmp_path / "causal")
    return str(tmp_path / "causal")


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    (tmp_path / "data/ptb").mkdir(parents=True)
    (tmp_path / "data/ptb/ptb.test.txt").write_text("abcdefghij\n" * 20)  # 220 tokens
    return str(tmp_path / "data")


def causal_nats(folder: str, ids: list[int]) -> float:
    """-log p of all ids but the first."""
    logits = GPT2LMHeadModel.from_pretrained(folder)(torch.tensor([ids])).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()


def test_causal_models_predict_every_token_of_a_text(causal_folder: str, arguments: ScoringArguments) -> None:
    ids = [id for line in LINES for id in encode(line)]
    parts = [ids[:12], ids[12:24], ids[24:]]
    # The last of the 12 ids that the model takes is never an input, so end-of-text fits in front.
    total = sum(causal_nats(causal_folder, [END_OF_TEXT, *part][:13]) for part in parts[2:])
    model = GPT2LMHeadModel.from_pretrained(causal_folder)
    for part in parts[:2]:
        logits = model(torch.tensor([[END_OF_TEXT, *part[:-1]]])).logits[0]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(part), reduction="sum").item()
    found = of_text(zero_shot(causal_folder, arguments))
    assert list(found["measures"]) == ["left_to_right"]
    assert found["tokens"] == 29
    assert found["left_to_right"]["bits_per_byte"] == pytest.approx(total / 30 / math.log(2), rel=1e-5)


def test_causal_models_are_not_charged_for_filling(causal_folder: str, arguments: ScoringArguments) -> None:
    total = sum(causal_nats(causal_folder, [END_OF_TEXT, *encode(line)]) for line in LINES)
    found = of_text(zero_shot(causal_folder, replace(arguments, packing="documents")))
    assert found["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)


def test_few_logits_are_held_at_once(causal_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT2LMHeadModel.from_pretrained(causal_folder)
    rows = [{"input_ids": [row % 13] * 5} for row in range(7)]
    whole = score(CausalScorer(model), rows, 1, 0, 7, {"left_to_right": "no"})["left_to_right"]
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.logits.shape[:2]))
    monkeypatch.setattr("eval.scorers.LOGITS_PER_PASS", 3 * 4 * 18)
    parts = score(CausalScorer(model), rows, 1, 0, 7, {"left_to_right": "no"})["left_to_right"]
    assert seen == [(3, 4), (3, 4), (1, 4)]
    assert parts == pytest.approx(whole, rel=1e-6)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_published_protocol(folder: str, causal_folder: str, data_dir: str) -> None:
    # 20 rows of 11 ids for 8 workers: 33 or 22 ids of each, in blocks of 12: four times two, four times one.
    arguments = ScoringArguments(datasets=["ptb"], data_dir=data_dir)
    results = zero_shot(folder, arguments)
    found = results["datasets"]["ptb"]
    counts = {"documents": 20, "sequences": 12, "tokens": 144, "dropped_tokens": 76, "split": "test"}
    assert {key: found[key] for key in counts} == counts
    assert results["mixed_precision"] == {"left_to_right": "bf16", "any_order": "no"}
    causal = zero_shot(causal_folder, arguments)["datasets"]["ptb"]
    assert causal["tokens"] == 12 * 11  # a block's first token is given
    assert not any(key.startswith("bits") for key in causal["measures"]["left_to_right"])
    ids = [*range(10), END_OF_TEXT]
    blocks = [(ids * 3)[:12]] * 8 + [(ids * 3)[12:24]] * 4
    per_token = sum(causal_nats(causal_folder, block) for block in blocks) / 132
    exact = zero_shot(causal_folder, replace(arguments, mixed_precision="no"))["datasets"]["ptb"]["measures"]
    assert exact["left_to_right"]["perplexity"] == pytest.approx(math.exp(per_token), rel=1e-5)


def test_clean_protocol_drops_nothing_and_rounds_nothing(folder: str, data_dir: str) -> None:
    results = zero_shot(folder, ScoringArguments(datasets=["ptb"], data_dir=data_dir, protocol="clean"))
    found = results["datasets"]["ptb"]
    assert (found["sequences"], found["tokens"], found["bytes"], found["dropped_tokens"]) == (19, 220, 220, 0)
    assert set(results["mixed_precision"].values()) == {"no"}


def test_table_stands_beside_the_published_rows(
    folder: str, data_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.tables.SMALL", (0, 1e9))
    monkeypatch.chdir(tmp_path)
    main([folder, "--datasets", "ptb", "--data-dir", data_dir, "--protocol", "clean"])
    (output,) = Path("runs/zero_shot").glob("*/*")  # the default, with nothing unfinished beside it
    results = json.loads(output.read_text())["datasets"]["ptb"]["measures"]
    lines = capsys.readouterr().out.splitlines()
    for measure in ("left_to_right", "any_order"):
        expected = f"| **{folder} [*]** |  |  | {results[measure]['perplexity']:.2f} ± "
        assert sum(line.startswith(expected) for line in lines) == 1
        published = " | ".join(f"{value:.2f}" for value in PUBLISHED["small"][measure]["AO-GPT"])
        assert f"| AO-GPT small (published) | {published} |" in lines
    assert any("not comparable" in line and "blocks of 12; a tokenizer of 16 ids" in line for line in lines)


def test_journal_goes_on_where_a_run_was_stopped(
    folder: str, arguments: ScoringArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = replace(arguments, num_orders=3, tokens_per_batch=12)
    whole = of_text(zero_shot(folder, arguments))
    calls = []

    def stop_after_seven(self: Journal, *added: Any) -> None:
        calls.append(added)
        if len(calls) > 7:
            raise KeyboardInterrupt
        write(self, *added)

    write = Journal.add
    monkeypatch.setattr(Journal, "add", stop_after_seven)
    with pytest.raises(KeyboardInterrupt):
        zero_shot(folder, arguments, tmp_path / "journal")
    (written,) = tmp_path.glob("journal-*/process-0.jsonl")
    with written.open("a") as file:
        file.write('["text files/any_order/2", [1], [3')  # killed while it wrote
    calls.clear()
    monkeypatch.setattr(Journal, "add", lambda self, *added: calls.append(added) or write(self, *added))
    resumed = of_text(zero_shot(folder, arguments, tmp_path / "journal"))
    assert len(calls) == 12 - 7  # three rows, left to right and in three orders
    assert resumed == whole
    assert not written.parent.exists()


def test_what_is_finished_is_kept_until_the_results_are_written(
    folder: str, arguments: ScoringArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, replace_file = tmp_path / "out" / "results.json", os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(target) == output:
            raise OSError("No space left on device")
        replace_file(source, target)

    command = [folder, "--text-file", *arguments.text_file, "--output_dir", str(output.parent)]
    with monkeypatch.context() as full:
        full.setattr("os.replace", fail)
        with pytest.raises(SystemExit, match=r"^error: No space left on device"):
            main(command)
    monkeypatch.setattr(Journal, "add", lambda *added: pytest.fail("scored again"))
    main(command)
    assert list(output.parent.iterdir()) == [output]


def test_a_model_that_moves_on_at_the_hub_is_scored_anew(
    folder: str,
    tiny_model: AOGPTForAnyOrderLM,
    arguments: ScoringArguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was finished with one revision is not taken for another's. The hub's cache stands in for the hub."""
    name, repository = "somebody/model", tmp_path / "hub/models--somebody--model"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (repository / "refs").mkdir(parents=True)
    revisions = ["a" * 40, "b" * 40]
    for revision in revisions:
        shutil.copytree(folder, repository / "snapshots" / revision)
        torch.nn.init.normal_(tiny_model.lm_head.weight)
        tiny_model.save_pretrained(folder)

    def score_as(revision: str) -> dict[str, Any]:
        (repository / "refs/main").write_text(revision)
        return zero_shot(name, arguments, tmp_path / "journal")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: None)  # as if stopped when all was scored
        found = [score_as(revision) for revision in revisions]
    assert [(results["revision"], results["weights"]) for results in found] == [(name, None) for name in revisions]
    one, two = (of_text(results)["measures"] for results in found)
    assert one["left_to_right"]["perplexity"] != pytest.approx(two["left_to_right"]["perplexity"])
    monkeypatch.setattr("eval.scorers.AnyOrderScorer.nats", None)  # nothing is left to score
    assert of_text(score_as(revisions[0]))["measures"] == one
    newest, given = (
        load_scorer(name, torch.float32, torch.device("cpu"), Estimators(), revision).model.lm_head.weight
        for revision in (None, revisions[1])
    )
    assert not torch.equal(newest, given)


def test_other_weights_under_the_same_name_are_another_model(
    folder: str, tiny_model: AOGPTForAnyOrderLM, arguments: ScoringArguments
) -> None:
    def paths(**changes: Any) -> tuple[Path, Path]:
        return output_paths(folder, identity_of_weights(folder), replace(arguments, **changes))

    first = paths()
    tiny_model.save_pretrained(folder)  # the same again
    assert paths() == first
    assert paths(tokens_per_batch=7) == first  # which may change on the way
    assert all(path not in first for path in paths(num_orders=7))
    torch.nn.init.normal_(tiny_model.lm_head.weight)
    tiny_model.save_pretrained(folder)
    assert all(path not in first for path in paths())


def test_weights_are_read_once_to_tell_them_from_others(
    folder: str, arguments: ScoringArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    digests = models._digests_of_tensors
    monkeypatch.setattr(models, "_digests_of_tensors", lambda file: read.append(file) or digests(file))
    main([folder, "--text-file", *arguments.text_file, "--output_dir", str(tmp_path / "out")])
    assert read == [Path(folder) / "model.safetensors"]
    assert json.loads((tmp_path / "out/results.json").read_text())["weights"] == identity_of_weights(folder)


def test_lengths_are_the_models_and_of_data_sets_at_most_a_block() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=2048, n_embd=4, n_layer=1, n_head=1))
    texts, sets = ScoringArguments(["a.txt"]), ScoringArguments(datasets=["ptb"])
    assert [choose_length(model, given) for given in (texts, sets, replace(sets, sequence_length=2000))] == [
        *(2048, 1024, 2000)
    ]


def test_processes_that_do_not_know_of_each_other(
    folder: str, arguments: ScoringArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("common.processes.must_use_cpu", lambda: False)
    with pytest.raises(ValueError, match="2 processes were launched, but Accelerate knows of 1"):
        zero_shot(folder, arguments)


def test_journal_misses_no_row_and_takes_none_twice() -> None:
    journal = Journal()
    journal.add("a", [0, 2], [1.0, 2.0])
    with pytest.raises(RuntimeError, match=r"a: 2 scores \(2 different\) of 3 rows"):
        journal.gather("a", 3)
    journal.add("b", [0, 1], [1.0, 2.0])
    journal.add("b", [1], [2.0])
    with pytest.raises(RuntimeError, match=r"b: 3 scores \(2 different\) of 2 rows"):
        journal.gather("b", 2)


def test_two_processes_give_what_one_gives(folder: str, arguments: ScoringArguments, tmp_path: Path) -> None:
    options = ["--num-orders", "3", "--tokens-per-batch", "24"]
    command = [folder, "--text-file", *arguments.text_file, *options, "--output_dir"]
    main([*command, str(tmp_path / "one")])
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
    }
    subprocess.run(
        [*launch, ROOT / "eval/zero_shot.py", *command, tmp_path / "two"],
        check=True,
        env=environment,
        timeout=120,
    )
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert (one["hardware"]["num_processes"], two["hardware"]["num_processes"]) == (1, 2)
    for measure, values in one["datasets"]["text files"]["measures"].items():
        assert two["datasets"]["text files"]["measures"][measure] == pytest.approx(values, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_file": ["missing.txt"]}, "no file 'missing.txt'"),
        ({"text_file": ["{tmp_path}/empty.txt"]}, "empty.txt is empty"),
        ({"text_column": "body"}, "no column 'body'"),
        ({"tokenizer": "nowhere"}, "no tokenizer 'nowhere'"),
        ({"tokenizer": "{tmp_path}/other"}, "has 17 ids, the model 16"),
        ({"sequence_length": 13}, "sequence_length is 13; this model takes 1 to 12"),
        ({"sequence_length": 0}, "sequence_length is 0; this model takes 1 to 12"),
        ({"packing": "documents", "sequence_length": 8}, "1 of 5 given documents do not fit .* the longest needs 9"),
        ({"num_orders": 0}, "num_orders is 0"),
        ({"num_ranks": 3}, "num_ranks is 3; it must be even"),
        ({"num_times": 1}, "num_times is 1; it must be at least 2"),
        ({"ensemble_size": 1}, "ensemble_size is 1"),
        ({"split": "test"}, "split='test' is for data sets, but text files are given"),
        (
            {"text_file": [], "datasets": ["ptb"], "packing": "documents"},
            "packing='documents' is for text files, but data sets are given",
        ),
        ({"tokens_per_batch": 0}, "tokens_per_batch is 0"),
        ({"measures": ["right_to_left"]}, "measures has 'right_to_left'; it may hold left_to_right, any_order"),
        ({"datasets": ["ptb"]}, "either text files .* or data sets"),
        ({"text_file": []}, "either text files .* or data sets"),
        ({"text_file": [], "datasets": ["webtext"]}, "datasets has 'webtext'; it may hold lambada"),
        ({"text_file": [], "datasets": ["ptb"], "data_dir": "{tmp_path}"}, "no .*ptb.test.txt"),
    ],
)
def test_bad_input(
    folder: str,
    arguments: ScoringArguments,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    changes: dict[str, Any],
    message: str,
) -> None:
    (tmp_path / "empty.txt").touch()
    tiny_tokenizer.add_special_tokens({"mask_token": "<another>"})
    tiny_tokenizer.save_pretrained(tmp_path / "other")
    changes = {
        name: [item.format(tmp_path=tmp_path) for item in value] if isinstance(value, list) else value
        for name, value in changes.items()
    }
    changes = {
        name: value.format(tmp_path=tmp_path) if isinstance(value, str) else value for name, value in changes.items()
    }
    with pytest.raises(ValueError, match=message):
        zero_shot(folder, replace(arguments, **changes))


def test_models_that_cannot_be_scored(
    causal_folder: str, arguments: ScoringArguments, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no model 'nowhere'"):
        zero_shot("nowhere", arguments)
    with pytest.raises(ValueError, match="type gpt2 has no measure 'any_order'; it has left_to_right"):
        zero_shot(causal_folder, replace(arguments, measures=["any_order"]))
    GPT2LMHeadModel(GPT2Config(vocab_size=15, n_positions=12, n_embd=8, n_layer=1, n_head=1)).save_pretrained(
        tmp_path / "small"
    )
    with pytest.raises(ValueError, match="has 16 ids, the model 15"):
        zero_shot(str(tmp_path / "small"), replace(arguments, tokenizer=causal_folder))
