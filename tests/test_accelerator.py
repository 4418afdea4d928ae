# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Every computation on a simulated accelerator, see `accelerator.py`."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

ROOT = Path(__file__).parents[1]
TRAINING = ("training", "training step", "loss", "masked diffusion", "score entropy")
pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of PyTorch cannot register devices from Python",
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.accelerator"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_no_operation_mixes_devices_and_results_equal_the_cpu(outcomes: dict[str, dict[str, Any]]) -> None:
    assert len(outcomes) == 63
    assert {name: outcome["error"] for name, outcome in outcomes.items() if "error" in outcome} == {}
    assert [name for name, outcome in outcomes.items() if not outcome["is_equal"]] == []


@pytest.mark.parametrize(
    ("kind", "num_waits"),
    [
        ("one at a time", 0),
        ("Bernoulli", 0),
        ("fixed counts", 0),
        ("padding", 0),
        ("confidence", 0),
        ("margin, window", 0),
        ("threshold", 1),
        ("entropy bound", 1),  # for the number of unmasked positions
        ("left to right", 1),  # for whether the sequence has ended
        ("given order", 0),
        ("blocks", 1),
        ("frequencies of Llama 3", 0),
    ],
)
def test_steps_wait_for_the_device_only_for_what_the_next_step_needs(
    kind: str, num_waits: int, outcomes: dict[str, dict[str, Any]]
) -> None:
    """Sampled tokens stay on the device, so the CPU can be many steps ahead."""
    waits = Counter(outcomes[f"decoder: {kind}"]["waits"])
    every_step = {line for line, count in waits.items() if count > 1}
    assert len(every_step) == num_waits, every_step
    assert len(waits) - num_waits <= 8, waits  # checks of the inputs, and the result


@pytest.mark.parametrize(("draft", "num_waits"), [("speculative", 1), ("speculative, prompt lookup", 2)])
def test_speculative_rounds_wait_only_for_the_numbers_of_found_and_accepted_drafts(
    draft: str, num_waits: int, outcomes: dict[str, dict[str, Any]]
) -> None:
    every_round = {line for line, count in Counter(outcomes[f"decoder: {draft}"]["waits"]).items() if count > 1}
    assert len(every_round) == num_waits


@pytest.mark.parametrize(
    "kind",
    [
        *("decoder: training", "decoder: training step"),
        *("encoder: training", "encoder: masked diffusion", "encoder: score entropy"),
    ],
)
def test_training_steps_do_not_wait_for_the_device(kind: str, outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes[kind]["waits"] == []


@pytest.mark.parametrize(
    ("kind", "num_waits"), [("Bernoulli", 0), ("padding", 1), ("confidence", 0), ("frequencies of Llama 3", 0)]
)
def test_encoders_wait_in_every_step_only_for_padding(
    kind: str, num_waits: int, outcomes: dict[str, dict[str, Any]]
) -> None:
    waits = Counter(outcomes[f"encoder: {kind}"]["waits"])
    assert len([line for line, count in waits.items() if count > 1]) == num_waits, waits


def test_masks_are_converted_once_per_pass(outcomes: dict[str, dict[str, Any]]) -> None:
    """With two devices, Accelerate copies masks to the second device, which changes their strides."""
    slow = {name: outcome["slow_masks"] for name, outcome in outcomes.items() if not name.startswith("two devices")}
    assert {name: masks for name, masks in slow.items() if masks} == {}


def test_attention_of_shapes_that_occur_once_does_not_use_cudnn(outcomes: dict[str, dict[str, Any]]) -> None:
    """Training without a mask may use it, since its shape occurs in every step."""
    without_gradients = {name: outcome for name, outcome in outcomes.items() if not name.endswith(TRAINING)}
    assert {name: outcome["cudnn"] for name, outcome in without_gradients.items() if outcome["cudnn"] != [False]} == {}
    assert outcomes["decoder: training step"]["cudnn"] == [True]
