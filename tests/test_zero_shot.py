# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from eval.zero_shot import ScoringArguments, figures, main, ratio, zero_shot
from modeling_aogpt import AOGPTForAnyOrderLM

pytestmark = pytest.mark.usefixtures("datasets_cache")

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


def nats(model: AOGPTForAnyOrderLM, ids: list[int], **options: Any) -> float:
    return -model.log_likelihood(torch.tensor([ids]), **options).log_likelihood.item()


def test_packed_text_is_scored_to_its_last_token(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    ids = [id for line in LINES for id in encode(line)]
    total = nats(tiny_model, ids[:12]) + nats(tiny_model, ids[12:24]) + nats(tiny_model, ids[24:])
    results = zero_shot(folder, arguments)
    assert (results["documents"], results["sequences"], results["tokens"]) == (5, 3, 29)
    assert results["bytes"] == Path(arguments.text_file[0]).stat().st_size == 30
    assert results["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)
    assert results["left_to_right"]["bits_per_byte"] == pytest.approx(total / 30 / math.log(2), rel=1e-5)


def test_documents_are_scored_with_their_filling(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    arguments.packing = "documents"
    filled = [encode(line) + [END_OF_TEXT] * (11 - len(line)) for line in LINES]
    total = sum(nats(tiny_model, ids) for ids in filled)
    results = zero_shot(folder, arguments)
    assert (results["sequences"], results["tokens"], results["bytes"]) == (5, 29, 30)
    assert results["left_to_right"]["perplexity"] == pytest.approx(math.exp(total / 29), rel=1e-5)


def test_any_order_is_the_mean_over_orders(
    folder: str, arguments: ScoringArguments, tiny_model: AOGPTForAnyOrderLM
) -> None:
    arguments.sequence_length, arguments.num_orders = 2, 400
    ids = [id for line in LINES for id in encode(line)]
    pairs = [ids[start : start + 2] for start in range(0, 28, 2)]
    orders = torch.tensor([[0, 1]]), torch.tensor([[1, 0]])
    per_order = np.array([[nats(tiny_model, pair, orders=order) for order in orders] for pair in pairs])
    exact = per_order.mean(axis=1).sum() + nats(tiny_model, ids[28:])
    error = (per_order.std(axis=1) ** 2 / 400).sum() ** 0.5
    found = zero_shot(folder, arguments)["any_order"]["bits_per_byte"] * 30 * math.log(2)
    left_to_right, right_to_left = per_order.sum(axis=0)
    assert abs(found - exact) < 3 * error < 0.1 * abs(left_to_right - right_to_left)


def test_orders_come_from_the_seed_alone(folder: str, arguments: ScoringArguments) -> None:
    arguments.num_orders = 3
    one = zero_shot(folder, arguments)
    arguments.batch_size = 2
    two = zero_shot(folder, arguments)
    for order in ("left_to_right", "any_order"):
        assert two[order] == pytest.approx(one[order], rel=1e-5)
    arguments.seed = 1
    three = zero_shot(folder, arguments)["any_order"]
    assert three["perplexity"] != pytest.approx(two["any_order"]["perplexity"], rel=1e-3)


def test_every_row_has_its_own_order(folder: str, arguments: ScoringArguments) -> None:
    Path(arguments.text_file[0]).write_text("abcdefghijk\n" * 3)
    results = zero_shot(folder, arguments)
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
    output = tmp_path / "out" / "scores.json"
    command = [folder, "--text-file", *arguments.text_file, "--num-orders", "2", "--output", str(output)]
    main([*command, "--sequence-length", "12", "--packing", "packed"])
    results = json.loads(output.read_text())
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("5 documents, 29 tokens, 30 bytes, as 3 sequences of at most 12 tokens (packed)")
    for line, order in zip(printed[2:], ("left_to_right", "any_order"), strict=True):
        assert f"{results[order]['bits_per_byte']:.4f} ± {results[order]['bits_per_byte_standard_error']:.4f}" in line
        assert f"{results[order]['perplexity']:.2f} ± {results[order]['perplexity_standard_error']:.2f}" in line
    Path(arguments.text_file[0]).write_text("a\n")
    main(command)
    assert json.loads(output.read_text())["any_order"]["perplexity_standard_error"] is None
    assert "± unknown" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # float32 norm weights, as autocast leaves them
def test_bf16_is_close(folder: str, arguments: ScoringArguments) -> None:
    exact = zero_shot(folder, arguments)["left_to_right"]["bits_per_byte"]
    arguments.mixed_precision = "bf16"
    rounded = zero_shot(folder, arguments)["left_to_right"]["bits_per_byte"]
    assert rounded == pytest.approx(exact, rel=0.02)
    assert rounded != exact


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
        ({"batch_size": 0}, "batch_size is 0"),
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
    for name, value in changes.items():
        at = {"tmp_path": tmp_path}
        if isinstance(value, str):
            value = value.format(**at)
        elif isinstance(value, list):
            value = [item.format(**at) for item in value]
        setattr(arguments, name, value)
    with pytest.raises(ValueError, match=message):
        zero_shot(folder, arguments)
