# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""
Parity with the authors' code on released weights.

The golden values are float64 and by rank: for two sequences, the first left to right, the log-probabilities of all
tokens and the logits of some ranks.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modeling_aogpt import AOGPTForAnyOrderLM
from modeling_aogpt.convert_reference_checkpoint import load_released
from modeling_aogpt.orders import index_by_rank

FIXTURES = Path(__file__).parent / "fixtures"
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["float64", "float32"]
)


@pytest.fixture
def golden(released_name: str) -> dict[str, torch.Tensor]:
    return load_file(FIXTURES / f"{released_name}_golden.safetensors")


@pytest.fixture
def source(released: dict[str, Any], tmp_path: Path) -> Path:
    torch.save(released, tmp_path / "released.pt")
    return tmp_path / "released.pt"


def assert_close(given: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(given, expected, rtol=0, atol=tolerance, check_dtype=False)


@PRECISIONS
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_logits_and_loss_equal_those_of_the_released_code(
    source: Path, golden: dict[str, torch.Tensor], dtype: torch.dtype, tolerance: float, attention: str
) -> None:
    model = load_released(source, weights="ema").to(dtype)
    model.set_attn_implementation(attention)
    assert model.model.layers[0].self_attn.config._attn_implementation == attention
    with torch.no_grad():
        output = model(golden["input_ids"], orders=golden["orders"], labels=golden["input_ids"])
    targets = golden["orders"][:, golden["ranks"]]
    assert output.logits.dtype == dtype
    assert_close(output.logits[torch.arange(2)[:, None], targets], golden["logits"], tolerance)
    assert_close(output.loss, golden["loss"], tolerance)


@PRECISIONS
def test_log_likelihood_equals_that_of_the_released_code(
    source: Path, golden: dict[str, torch.Tensor], dtype: torch.dtype, tolerance: float
) -> None:
    """The vocabulary of these models is not padded, so all ids are text."""
    model = load_released(source, weights="ema").to(dtype)
    output = model.log_likelihood(golden["input_ids"], orders=golden["orders"])
    assert_close(
        index_by_rank(output.token_log_likelihood, golden["orders"]), golden["token_log_probabilities"], tolerance
    )
    length = golden["orders"].shape[1]  # the errors of the tokens may add up
    assert_close(output.log_likelihood, golden["token_log_probabilities"].sum(dim=1), length * tolerance)


def test_the_default_order_is_left_to_right(source: Path, golden: dict[str, torch.Tensor]) -> None:
    model = load_released(source, weights="ema").double()
    first = golden["input_ids"][:1]
    assert torch.equal(golden["orders"][0], torch.arange(first.shape[1]))
    with torch.no_grad():
        logits = model(first).logits
    assert_close(logits[0, golden["ranks"]], golden["logits"][0], 1e-10)


def test_live_weights_differ_from_moving_averages(source: Path, golden: dict[str, torch.Tensor]) -> None:
    model = load_released(source, weights="live").double()
    with torch.no_grad():
        loss = model(golden["input_ids"], orders=golden["orders"], labels=golden["input_ids"]).loss
    assert abs(loss - golden["loss"]) > 1e-3


def test_a_saved_and_loaded_model_has_the_same_log_likelihood(
    golden: dict[str, torch.Tensor], tmp_path: Path, source: Path
) -> None:
    load_released(source, weights="ema").save_pretrained(tmp_path / "model")
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    output = model.log_likelihood(golden["input_ids"], orders=golden["orders"])
    assert_close(index_by_rank(output.token_log_likelihood, golden["orders"]), golden["token_log_probabilities"], 1e-10)
