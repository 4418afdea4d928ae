# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from eval.quantization import num_bytes_of, report, variants
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import random_model

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "quantization"


def test_the_report_is_that_of_its_figures() -> None:
    assert (RESULTS / "report.md").read_text() == report(json.loads((RESULTS / "results.json").read_text()))


def test_bytes_of_weights(tmp_path: Path) -> None:
    model = random_model().float()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert num_bytes_of(model) == 4 * count
    assert num_bytes_of(model.bfloat16()) == 2 * count
    pytest.importorskip("torchao")
    model.float().save_pretrained(tmp_path)
    quantised = AOGPTForAnyOrderLM.from_pretrained(tmp_path, **variants()["int8 weights"])
    assert num_bytes_of(quantised) < 4 * count
    linear = quantised.model.layers[0].mlp.up_proj
    weights, bias = linear.weight.numel(), 4 * linear.bias.numel()
    assert weights + bias < num_bytes_of(linear) <= weights + bias + 16 * linear.out_features  # and scales of the rows
