# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from common import models
from common.models import identity_of_weights
from eval.estimates import bits_per_byte_over, perplexity_over, ratio_with_error, wilson_interval
from eval.journal import Journal, score_sequences
from eval.scorers import CausalScorer, load_scorer
from eval.tables import PUBLISHED, SIZES, zero_shot_table
from eval.zero_shot import ScoringArguments, choose_length, main, output_paths, zero_shot
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import causal_nats, make_run
from tests.several_processes import run_in_two_processes

pytestmark = pytest.mark.usefixtures("datasets_cache")

LINES = ["abcde", "fghijkl", "", "mlké", "aaaaaaab"]  # with end-of-text: 29 tokens (12 + 12 + 5), 30 bytes
END_OF_TEXT, UNKNOWN = 13, 15


@pytest.fixture
def arguments(tmp_path: Path) -> ScoringArguments:
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    return ScoringArguments([str(tmp_path / "text.txt")])


def encode(line: str) -> list[int]:
    return [ord(letter) - ord("a") if letter.isascii() else UNKNOWN for letter in line] + [END_OF_TEXT]


def text_results(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results of the text files, with the measures at the top level."""
    results = results["datasets"]["text files"]
    return results | results["measures"]


def nats(model: AOGPTForAnyOrderLM, ids: list[int], **options: Any) -> float:
    return -model.log_likelihood(torch.tensor([ids]), **options).log_likelihood.item()


def test_every_token_of_packed_text_is_scored(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    ids = [id for line in LINES for id in encode(line)]
    total = nats(tiny_model, ids[:12]) + nats(tiny_model, ids[12:24]) + nats(tiny_model, ids[24:])
    whole = zero_shot(folder, arguments)
    assert (whole["weights"], whole["revision"]) == (identity_of_weights(folder), None)
    results = text_results(whole)
    assert (results["documents"], results["sequences"], results["tokens"]) == (5, 3, 29)
    assert results["bytes"] == Path(arguments.text_file[0]).stat().st_size == 30
    assert results["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)
    assert results["left_to_right"]["bits_per_byte"] == pytest.approx(total / 30 / math.log(2), rel=1e-5)


def test_documents_are_scored_with_their_padding(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    arguments = replace(arguments, packing="documents")
    padded = [encode(line) + [END_OF_TEXT] * (11 - len(line)) for line in LINES]
    total = sum(nats(tiny_model, ids) for ids in padded)
    results = text_results(zero_shot(folder, arguments))
    assert (results["sequences"], results["tokens"], results["bytes"]) == (5, 29, 30)
    assert results["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)


def test_null_is_not_a_document(folder: str, arguments: ScoringArguments, tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (*LINES, None)))
    with_null = zero_shot(folder, replace(arguments, text_file=[str(tmp_path / "text.jsonl")]))
    expected, found = text_results(zero_shot(folder, arguments)), text_results(with_null)
    assert found["documents"] == expected["documents"] == 5
    assert found["left_to_right"] == expected["left_to_right"]


def test_any_order_is_the_mean_over_orders(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM, tmp_path: Path
) -> None:
    (tmp_path / "pairs.txt").write_text("ab" * 14 + "\n")
    arguments = replace(arguments, text_file=[str(tmp_path / "pairs.txt")], sequence_length=2, num_orders=400)
    left_to_right, right_to_left = (
        14 * nats(tiny_model, encode("ab")[:2], orders=torch.tensor([order])) for order in ([0, 1], [1, 0])
    )
    exact = (left_to_right + right_to_left) / 2 + nats(tiny_model, [END_OF_TEXT])
    error = abs(left_to_right - right_to_left) / 2 / (14 * 400) ** 0.5
    found = text_results(zero_shot(folder, arguments))["any_order"]["bits_per_byte"] * 29 * math.log(2)
    assert error > 0
    assert abs(found - exact) < 3 * error  # either order alone is 75 errors off


def test_orders_depend_on_the_seed_only(folder: str, arguments: ScoringArguments) -> None:
    arguments = replace(arguments, num_orders=3)
    one = text_results(zero_shot(folder, arguments))
    two = text_results(zero_shot(folder, replace(arguments, tokens_per_batch=1)))  # less than a row: one row at a time
    for order in ("left_to_right", "any_order"):
        assert two[order] == pytest.approx(one[order], rel=1e-5)
    three = text_results(zero_shot(folder, replace(arguments, seed=1)))["any_order"]
    assert three["perplexity"] != pytest.approx(two["any_order"]["perplexity"], rel=1e-3)


def test_every_row_has_its_own_order(folder: str, arguments: ScoringArguments) -> None:
    Path(arguments.text_file[0]).write_text("abcdefghijk\n" * 3)
    results = text_results(zero_shot(folder, arguments))
    assert results["left_to_right"]["bits_per_byte_standard_error"] == pytest.approx(0, abs=1e-6)
    assert results["any_order"]["bits_per_byte_standard_error"] > 0.01


def test_standard_error_over_rows() -> None:
    values = np.array([1.0, 4.0, 2.0, 7.0])
    mean, error = ratio_with_error(values, np.full(4, 2.0))
    assert (mean, error) == (3.5 / 2, pytest.approx(values.std(ddof=1) / 4**0.5 / 2))
    sizes = np.arange(1.0, 5.0)
    assert ratio_with_error(3 * sizes, sizes) == (3, 0)  # every sequence has the same bits per byte
    assert ratio_with_error(np.array([6.0]), np.array([3.0])) == (2, None)


def test_wilson_interval() -> None:
    """The values are those of statsmodels' `proportion_confint(..., method="wilson")`."""
    assert wilson_interval(0.8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-4)
    assert wilson_interval(0.0, 10) == pytest.approx((0.0, 0.27753), abs=1e-4)
    assert wilson_interval(1.0, 10)[1] == 1.0


def test_metrics_are_per_token_and_per_byte() -> None:
    nats, num_tokens, num_bytes = np.array([1.0, 4.0]), np.array([3, 1]), np.array([5, 6])
    token_error, byte_error = ratio_with_error(nats, num_tokens)[1], ratio_with_error(nats, num_bytes)[1]
    assert perplexity_over(nats, num_tokens) | bits_per_byte_over(nats, num_bytes) == {
        "perplexity": pytest.approx(math.exp(5 / 4)),
        "perplexity_standard_error": pytest.approx(math.exp(5 / 4) * token_error),
        "bits_per_byte": pytest.approx(5 / 11 / math.log(2)),
        "bits_per_byte_standard_error": pytest.approx(byte_error / math.log(2)),
    }


def test_command_prints_and_writes_the_metrics(
    folder: str, arguments: ScoringArguments, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "out" / "results.json"
    command = [folder, "--text-file", *arguments.text_file, "--num-orders", "2", "--output_dir", str(output.parent)]
    main([*command, "--sequence-length", "12", "--packing", "packed"])
    results = text_results(json.loads(output.read_text()))
    printed = capsys.readouterr().out.splitlines()
    assert printed[2].startswith(f"| {', '.join(arguments.text_file)} | 5 | 29 | 0 | left to right | 3 | ")
    for line, order in zip(printed[2:4], ("left_to_right", "any_order"), strict=True):
        assert f"{results[order]['bits_per_byte']:.4f} ± {results[order]['bits_per_byte_standard_error']:.4f}" in line
        assert f"{results[order]['perplexity']:.2f} ± {results[order]['perplexity_standard_error']:.2f}" in line
    Path(arguments.text_file[0]).write_text("a\n")
    main([str(Path(folder).parent), *command[1:]])  # the run that the model belongs to
    assert text_results(json.loads(output.read_text()))["any_order"]["perplexity_standard_error"] is None
    printed = capsys.readouterr().out.splitlines()
    assert "±" not in printed[3]
    assert printed[5] == "Values after ± are standard errors over sequences."
    assert list(output.parent.iterdir()) == [output]  # no unfinished batches are left


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # autocast leaves norm weights in float32
def test_bf16_is_close(folder: str, arguments: ScoringArguments) -> None:
    exact = text_results(zero_shot(folder, arguments))["left_to_right"]["bits_per_byte"]
    for change in ({"mixed_precision": "bf16"}, {"dtype": "bfloat16"}):
        rounded = text_results(zero_shot(folder, replace(arguments, **change)))["left_to_right"]["bits_per_byte"]
        assert rounded == pytest.approx(exact, rel=0.02)
        assert rounded != exact


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    (tmp_path / "data/ptb").mkdir(parents=True)
    (tmp_path / "data/ptb/ptb.test.txt").write_text("abcdefghij\n" * 20)  # 220 tokens
    return str(tmp_path / "data")


def test_causal_models_predict_every_token_of_a_text(judge: str, arguments: ScoringArguments) -> None:
    ids = [id for line in LINES for id in encode(line)]
    parts = [ids[:12], ids[12:24], ids[24:]]
    # The last of the 12 ids is never an input, so end-of-text fits in front.
    total = sum(causal_nats(judge, [END_OF_TEXT, *part][:13]) for part in parts[2:])
    model = GPT2LMHeadModel.from_pretrained(judge)
    for part in parts[:2]:
        logits = model(torch.tensor([[END_OF_TEXT, *part[:-1]]])).logits[0]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(part), reduction="sum").item()
    found = text_results(zero_shot(judge, arguments))
    assert list(found["measures"]) == ["left_to_right"]
    assert found["tokens"] == 29
    assert found["left_to_right"]["bits_per_byte"] == pytest.approx(total / 30 / math.log(2), rel=1e-5)


def test_causal_models_start_with_beginning_of_text_if_they_have_it(
    judge: str, arguments: ScoringArguments, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    tiny_tokenizer.bos_token = tiny_tokenizer.convert_ids_to_tokens(3)
    tiny_tokenizer.save_pretrained(judge)
    total = sum(causal_nats(judge, [3, *encode(line)]) for line in LINES)
    found = text_results(zero_shot(judge, replace(arguments, packing="documents")))
    assert found["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)


def test_causal_models_are_not_scored_on_padding(judge: str, arguments: ScoringArguments) -> None:
    total = sum(causal_nats(judge, [END_OF_TEXT, *encode(line)]) for line in LINES)
    found = text_results(zero_shot(judge, replace(arguments, packing="documents")))
    assert found["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)


def test_number_of_logits_in_a_pass_is_bounded(judge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT2LMHeadModel.from_pretrained(judge)
    sequences = [[number % 13] * 5 for number in range(7)]
    whole = score_sequences(CausalScorer(model), sequences, "left_to_right", 1, 0, 7)
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.logits.shape[:2]))
    monkeypatch.setattr("eval.scorers.LOGITS_PER_PASS", 3 * 4 * 17)
    parts = score_sequences(CausalScorer(model), sequences, "left_to_right", 1, 0, 7)
    assert seen == [(3, 4), (3, 4), (1, 4)]
    assert parts == pytest.approx(whole, rel=1e-6)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_published_protocol(folder: str, judge: str, data_dir: str) -> None:
    # 20 rows of 11 ids for 8 workers: four get 33 ids (two sequences of 12), four get 22 (one sequence).
    arguments = ScoringArguments(datasets=["ptb"], data_dir=data_dir)
    results = zero_shot(folder, arguments)
    found = results["datasets"]["ptb"]
    counts = {"documents": 20, "sequences": 12, "tokens": 144, "dropped_tokens": 76, "split": "test"}
    assert {key: found[key] for key in counts} == counts
    assert results["mixed_precision"] == {"left_to_right": "bf16", "any_order": "no"}
    results = zero_shot(judge, arguments)
    assert results["mixed_precision"] == {"left_to_right": "no"}
    causal = results["datasets"]["ptb"]
    assert causal["tokens"] == 12 * 11  # the first token of a sequence is not scored
    assert not any(key.startswith("bits") for key in causal["measures"]["left_to_right"])
    ids = [*range(10), END_OF_TEXT]
    sequences = [(ids * 3)[:12]] * 8 + [(ids * 3)[12:24]] * 4
    per_token = sum(causal_nats(judge, sequence) for sequence in sequences) / 132
    assert causal["measures"]["left_to_right"]["perplexity"] == pytest.approx(math.exp(per_token), rel=1e-5)


def test_the_released_subset_is_scored_in_random_orders_only(
    folder: str, data_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.zero_shot.released_subset", lambda name, num_sequences: [2, 5])
    arguments = ScoringArguments(datasets=["ptb"], data_dir=data_dir, released_subset=True)
    results = zero_shot(folder, arguments)
    scored = results["datasets"]["ptb"]["measures"]
    counts = {measure: metrics["sequences"] for measure, metrics in scored.items()}
    assert counts == {"left_to_right": 12, "any_order": 2}
    whole = zero_shot(folder, replace(arguments, released_subset=False))["datasets"]["ptb"]["measures"]
    assert scored["left_to_right"] == whole["left_to_right"]
    assert scored["any_order"]["perplexity"] != whole["any_order"]["perplexity"]
    sequences = [line.split(" | ")[5] for line in zero_shot_table([results]).splitlines()[2:4]]
    assert sequences[1] == "2" != sequences[0]


def test_clean_protocol_drops_nothing_and_rounds_nothing(folder: str, data_dir: str) -> None:
    results = zero_shot(folder, ScoringArguments(datasets=["ptb"], data_dir=data_dir, protocol="clean"))
    found = results["datasets"]["ptb"]
    assert (found["sequences"], found["tokens"], found["bytes"], found["dropped_tokens"]) == (19, 220, 220, 0)
    assert set(results["mixed_precision"].values()) == {"no"}


def test_table_contains_the_published_rows(
    folder: str, data_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "small", (0, 1e9))
    monkeypatch.chdir(tmp_path)
    main([folder, "--datasets", "ptb", "--data-dir", data_dir, "--protocol", "clean"])
    (output,) = Path("runs/zero_shot").glob("*/*")  # the default folder; no unfinished batches are left
    results = json.loads(output.read_text())["datasets"]["ptb"]["measures"]
    lines = capsys.readouterr().out.splitlines()
    for measure in ("left_to_right", "any_order"):
        expected = f"| **{folder} [*]** |  |  | {results[measure]['perplexity']:.2f} ± "
        assert sum(line.startswith(expected) for line in lines) == 1
        published = " | ".join(f"{value:.2f}" for value in PUBLISHED["small"][measure]["AO-GPT"])
        assert f"| AO-GPT small (published) | {published} |" in lines
    assert any("not comparable" in line and "sequences of 12; a tokenizer of 16 ids" in line for line in lines)


def test_stopped_run_continues_from_the_journal(
    folder: str, arguments: ScoringArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = replace(arguments, num_orders=3, tokens_per_batch=12)
    whole = text_results(zero_shot(folder, arguments))
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
        file.write('["text files/any_order/2", [1], [3')  # as if killed while writing
    calls.clear()
    monkeypatch.setattr(Journal, "add", lambda self, *added: calls.append(added) or write(self, *added))
    resumed = text_results(zero_shot(folder, arguments, tmp_path / "journal"))
    assert len(calls) == 12 - 7  # three rows, left to right and in three random orders
    assert resumed == whole
    assert not written.parent.exists()


def test_finished_batches_are_kept_until_the_results_are_written(
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


def test_a_new_revision_on_the_hub_is_scored_from_the_start(
    folder: str,
    tiny_model: AOGPTForAnyOrderLM,
    arguments: ScoringArguments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finished batches of another revision are not used. The cache of the Hub stands in for the Hub."""
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
        patch.setattr(Journal, "remove", lambda self: None)  # as if stopped after the last batch
        found = [score_as(revision) for revision in revisions]
    assert [(results["revision"], results["weights"]) for results in found] == [(name, None) for name in revisions]
    one, two = (text_results(results)["measures"] for results in found)
    assert one["left_to_right"]["perplexity"] != pytest.approx(two["left_to_right"]["perplexity"])
    monkeypatch.setattr("eval.scorers.AnyOrderScorer.negative_log_likelihood", None)  # nothing is left to score
    assert text_results(score_as(revisions[0]))["measures"] == one
    newest, given = (
        load_scorer(name, torch.float32, torch.device("cpu"), revision).model.lm_head.weight
        for revision in (None, revisions[1])
    )
    assert not torch.equal(newest, given)


def test_other_weights_under_the_same_name_get_other_paths(
    folder: str, tiny_model: AOGPTForAnyOrderLM, arguments: ScoringArguments
) -> None:
    def paths(**changes: Any) -> tuple[Path, Path]:
        return output_paths(folder, identity_of_weights(folder), replace(arguments, **changes))

    first = paths()
    tiny_model.save_pretrained(folder)  # the same weights
    assert paths() == first
    assert paths(tokens_per_batch=7) == first  # may change when a run continues
    assert all(path not in first for path in paths(num_orders=7))
    torch.nn.init.normal_(tiny_model.lm_head.weight)
    tiny_model.save_pretrained(folder)
    assert all(path not in first for path in paths())


def test_weights_are_read_once_for_their_identity(
    folder: str, arguments: ScoringArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    digests = models._digests_of_tensors
    monkeypatch.setattr(models, "_digests_of_tensors", lambda file: read.append(file) or digests(file))
    main([folder, "--text-file", *arguments.text_file, "--output_dir", str(tmp_path / "out")])
    assert read == [Path(folder) / "model.safetensors"]
    assert json.loads((tmp_path / "out/results.json").read_text())["weights"] == identity_of_weights(folder)


def test_default_length_is_the_models_and_at_most_the_published_one_for_data_sets() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=2048, n_embd=4, n_layer=1, n_head=1))
    texts, sets = ScoringArguments(["a.txt"]), ScoringArguments(datasets=["ptb"])
    assert [choose_length(model, given, 2048) for given in (texts, sets, replace(sets, sequence_length=2000))] == [
        *(2048, 1024, 2000)
    ]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [([], (11, "documents")), (["--sequence_length", "9", "--packing", "packed"], (9, "packed"))],
)
def test_default_length_and_packing_are_those_of_the_run(
    chosen: list[str], expected: tuple[int, str], folder: str, arguments: ScoringArguments, tmp_path: Path
) -> None:
    make_run(folder, 11, packing="documents")
    main([folder, "--text-file", *arguments.text_file, "--output_dir", str(tmp_path / "out"), *chosen])
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert (results["sequence_length"], text_results(results)["packing"]) == expected


def test_marks_of_context_are_not_scored(folder: str, tmp_path: Path) -> None:
    make_run(folder, 11, packing="documents", context_marks="[]")
    found = []
    for text in ("b [a] a\n\n[b]\n", "b a a\n\nb\n"):
        (tmp_path / "a.txt").write_text(text)
        main([folder, "--text_file", str(tmp_path / "a.txt"), "--output_dir", str(tmp_path / "out")])
        found.append(text_results(json.loads((tmp_path / "out/results.json").read_text())))
    assert found[0] == found[1]


def test_texts_are_split_as_in_the_run(folder: str, tmp_path: Path) -> None:
    make_run(folder, 11, sample_by="paragraph", text_column="body")
    (tmp_path / "a.txt").write_text("b a\na b\n\na\n")
    (tmp_path / "a.jsonl").write_text('{"text": "", "body": "b a"}\n')
    for file, options, expected in (
        ("a.txt", [], (2, "paragraph")),
        ("a.txt", ["--sample_by", "line"], (4, "line")),
        ("a.jsonl", [], (1, "line")),
    ):
        main([folder, "--text_file", str(tmp_path / file), "--output_dir", str(tmp_path / "out"), *options])
        found = text_results(json.loads((tmp_path / "out/results.json").read_text()))
        assert (found["documents"], found["sample_by"]) == expected
        shutil.rmtree(tmp_path / "out")


def test_unconnected_processes_are_an_error(
    folder: str, arguments: ScoringArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("common.processes.must_use_cpu", lambda: False)
    with pytest.raises(ValueError, match="2 processes were launched, but Accelerate has"):
        zero_shot(folder, arguments)


def test_journal_refuses_rows_of_another_text() -> None:
    journal = Journal()
    journal.add("a", [2], [3.0])
    with pytest.raises(RuntimeError, match=r"2 sequences of a .* there are 3 results"):
        journal.complete({"a": 2}, 1, lambda key, indices: [0.0] * len(indices))


def test_two_processes_give_the_results_of_one(folder: str, arguments: ScoringArguments, tmp_path: Path) -> None:
    options = ["--num-orders", "3", "--tokens-per-batch", "24"]
    command = [folder, "--text-file", *arguments.text_file, *options, "--output_dir"]
    main([*command, str(tmp_path / "one")])
    run_in_two_processes("eval/zero_shot.py", *command, tmp_path / "two", cache=tmp_path / "cache")
    one, two = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two"))
    assert (one["hardware"]["num_processes"], two["hardware"]["num_processes"]) == (1, 2)
    for measure, values in one["datasets"]["text files"]["measures"].items():
        assert two["datasets"]["text files"]["measures"][measure] == values


def test_a_causal_model_needs_two_tokens_in_the_published_protocol(judge: str, data_dir: str) -> None:
    arguments = ScoringArguments(datasets=["ptb"], data_dir=data_dir, sequence_length=1)
    with pytest.raises(ValueError, match="`sequence_length` must be an integer of at least 2, but is"):
        zero_shot(judge, arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_file": ["missing.txt"]}, "no file 'missing.txt'"),
        ({"text_file": ["empty.txt"]}, "empty.txt is empty"),
        ({"sample_by": "paragraph", "text_file": ["a.jsonl"]}, "`sample_by` can only be set for plain text"),
        ({"tokenizer": "nowhere"}, "The tokenizer 'nowhere' cannot be loaded"),
        ({"tokenizer": "other"}, "has 17 ids, but the model has 16"),
        ({"sequence_length": 13}, "`sequence_length` must be an integer from 1 to 12, but is 13"),
        ({"sequence_length": 0}, "`sequence_length` must be an integer from 1 to 12, but is 0"),
        (
            {"packing": "documents", "sequence_length": 8},
            r"`packing=documents` .* 1 of 5 given documents.* to 9 tokens",
        ),
        ({"num_orders": 0}, "`num_orders` must be at least 1"),
        ({"num_ranks": 3}, "`num_ranks` must be even"),
        ({"num_times": 1}, "`num_times` must be at least 2"),
        ({"ensemble_size": 1}, "`ensemble_size` must be at least 2"),
        ({"split": "test"}, "`split` has no effect without `datasets`"),
        ({"text_file": [], "datasets": ["ptb"], "packing": "documents"}, "`packing` has no effect without `text_file`"),
        ({"tokens_per_batch": 0}, "`tokens_per_batch` must be at least 1"),
        ({"measures": ["right_to_left"]}, "`measures` must be one of 'left_to_right'"),
        ({"datasets": ["ptb"]}, "Set either `text_file` or `datasets`"),
        ({"released_subset": True}, "`released_subset` has no effect"),
        ({"measures": ["left_to_right"], "num_orders": 4}, "`num_orders` has no effect"),
        ({"measures": ["left_to_right"], "seed": 5}, "`seed` has no effect"),
        ({"measures": ["any_order"], "ensemble_size": 4}, "`ensemble_size` has no effect"),
        ({"measures": ["any_order"], "num_times": 8}, "`num_times` has no effect"),
        ({"text_file": []}, "Set either `text_file` or `datasets`"),
        ({"text_file": [], "datasets": ["webtext"]}, "`datasets` must be one of 'lambada'"),
        ({"text_file": [], "datasets": ["ptb"], "data_dir": "."}, r"ptb\.test\.txt .* does not exist"),
    ],
)
def test_bad_input(
    folder: str,
    arguments: ScoringArguments,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    message: str,
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "a.jsonl").touch()
    tiny_tokenizer.add_special_tokens({"mask_token": "<another>"})
    tiny_tokenizer.save_pretrained(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        zero_shot(folder, replace(arguments, **changes))


def test_models_that_cannot_be_scored(
    judge: str, arguments: ScoringArguments, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no model 'nowhere'"):
        zero_shot("nowhere", arguments)
    with pytest.raises(ValueError, match="`measures` must be one of 'left_to_right' for a model of type"):
        zero_shot(judge, replace(arguments, measures=["any_order"]))
    small = GPT2Config(vocab_size=15, n_positions=12, n_embd=8, n_layer=1, n_head=1)
    GPT2LMHeadModel(small).save_pretrained(tmp_path / "small")
    with pytest.raises(ValueError, match="has 16 ids, but the model has 15"):
        zero_shot(str(tmp_path / "small"), replace(arguments, tokenizer=judge))


def test_finished_batches_of_another_text_model_or_version_are_not_used(
    folder: str, arguments: ScoringArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal, "remove", lambda self: None)  # as if stopped before the results were written
    first = text_results(zero_shot(folder, arguments, tmp_path / "journal"))
    Path(arguments.text_file[0]).write_text("\n".join(reversed(LINES)) + "\n")
    other = text_results(zero_shot(folder, arguments, tmp_path / "journal"))
    assert other["measures"] == text_results(zero_shot(folder, arguments))["measures"] != first["measures"]
    monkeypatch.setattr("eval.scorers.AnyOrderScorer.negative_log_likelihood", None)
    assert text_results(zero_shot(folder, arguments, tmp_path / "journal")) == other
    (Path(folder) / "generation_config.json").write_text("{}")
    with pytest.raises(TypeError):  # the batches are scored again
        zero_shot(folder, arguments, tmp_path / "journal")
    monkeypatch.setattr("common.caching.version", lambda library: "another version")
    with pytest.raises(TypeError):  # the batches are scored again
        zero_shot(folder, arguments, tmp_path / "journal")
