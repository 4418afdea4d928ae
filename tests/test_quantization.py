# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from eval.quantization import format_report, num_bytes, variants
from modeling_aogpt import AOGPTForAnyOrderLM
from tests.references import random_model


def test_report_has_differences_from_float32() -> None:
    variants = {
        "float32": {"bytes": 4_000_000, "left_to_right": 1.5, "any_order": 2.0},
        "int8 weights": {"bytes": 1_250_000, "left_to_right": 1.5025, "any_order": 1.999},
    }
    versions = {"torch": "2.13", "transformers": "5.23", "torchao": "0.13"}
    lines = format_report({"run": "names", "sequences": 7, "versions": versions, "variants": variants}).splitlines()
    assert lines[0].startswith("The table shows bits per byte on the held-out text of names (7 sequences)")
    assert lines[2] == "| weights | megabytes | left to right | random orders |"
    assert lines[4:] == [
        "| float32 | 4.00 | 1.5000 (+0.0000) | 2.0000 (+0.0000) |",
        "| int8 weights | 1.25 | 1.5025 (+0.0025) | 1.9990 (-0.0010) |",
    ]


def test_bytes_of_weights(tmp_path: Path) -> None:
    model = random_model().float()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert num_bytes(model) == 4 * count
    assert num_bytes(model.bfloat16()) == 2 * count
    pytest.importorskip("torchao")
    model.float().save_pretrained(tmp_path)
    quantized = AOGPTForAnyOrderLM.from_pretrained(tmp_path, **variants()["int8 weights"])
    assert num_bytes(quantized) < 4 * count
    linear = quantized.model.layers[0].mlp.up_proj
    weights, bias = linear.weight.numel(), 4 * linear.bias.numel()
    assert weights + bias < num_bytes(linear) <= weights + bias + 16 * linear.out_features  # and the scales of the rows
