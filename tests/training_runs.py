# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training runs of 8 steps on 60 phrases, and access to their results."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import is_torch_version
from safetensors.torch import load_file
from torch.distributed import checkpoint as dcp

from training.checkpoints import checkpoints_in, load_checkpoint, step_of
from training.pretrain import main

SHARDED = pytest.mark.skipif(
    not is_torch_version(">=", "2.9.0"), reason="PyTorch cannot write sharded checkpoints as safetensors"
)
STEPS = 8
RECIPE = f"""
packing: documents
sequence_length: 8
vocab_size: 270
validation_fraction: 0.3
hidden_size: 16
num_hidden_layers: 1
num_attention_heads: 2
target_embedding_size: 4
position_encoding: rotary
max_steps: {STEPS}
batch_size: 12
learning_rate: 0.05
warmup_steps: 2
weight_decay: 0.3
max_grad_norm: 0.5
ema_decay: 0.7
logging_steps: 3
eval_steps: 4
save_steps: 3
"""
# Settings of a model that is trained for two steps.
TINY = """
packing: documents
hidden_size: 16
num_hidden_layers: 1
num_attention_heads: 2
max_steps: 2
batch_size: 4
warmup_steps: 0
num_samples: 0
tracker: none
"""


def write_config(folder: Path) -> Path:
    """Write the corpus and the YAML file of a run. Return the path of the YAML file."""
    words = [f"{first}{second} {end}" for first in "bdgkt" for second in "aeo" for end in ("so", "ma", "bu", "le")]
    (folder / "words.txt").write_text("\n".join(words))
    (folder / "config.yaml").write_text(f"corpus: {folder / 'words.txt'}\n{RECIPE}")
    return folder / "config.yaml"


def reset_accelerator() -> None:
    """Clear Accelerate's states, which last as long as a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(config: Path, out: Path, *options: str) -> None:
    """Train in this process."""
    reset_accelerator()
    main([str(config), "--output_dir", str(out), *options])


def train_recipes(folder: Path, recipes: dict[str, str]) -> list[str]:
    """Train a model for each recipe, given as the text of a YAML file. Return the folders of the runs."""
    for name, text in recipes.items():
        (folder / f"{name}.yaml").write_text(text)
        train(folder / f"{name}.yaml", folder / name)
    return [str(folder / name) for name in recipes]


def final_state(out: Path) -> dict[str, torch.Tensor]:
    path = checkpoints_in(out)[-1]
    assert step_of(path) == STEPS
    return load_file(path) if path.is_file() else read_folder(path)


def read_folder(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a sharded checkpoint."""
    entries = dcp.HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()}
    load_checkpoint(path).read(tensors)
    return tensors


def losses(out: Path) -> torch.Tensor:
    return final_state(out)["losses"]


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


def assert_same_training(one: Path, other: Path) -> None:
    """Check that weights, their averages, optimizer states, losses and evaluations are the same bit for bit."""
    expected, state = final_state(one), final_state(other)
    assert state.keys() == expected.keys()
    for name in expected:
        assert torch.equal(state[name], expected[name]), name
    for key in ("loss_curve", "steps", "tokens"):
        assert results(one)[key] == results(other)[key]
    assert scores(one) == scores(other)


def scores(out: Path) -> list[tuple[int, float, float]]:
    evaluations = results(out)["evaluations"]
    return [(scores["step"], scores["left_to_right"], scores["any_order"]) for scores in evaluations]
