# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""A model as a folder that is a complete Hub repository, and the check of that folder in a clean process."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import yaml
from huggingface_hub import eval_result_entries_to_yaml
from safetensors.torch import save_file
from transformers import AutoModel, PreTrainedModel

from eval.scorers import identity_of_weights
from model_cards.card import read_facts, render
from model_cards.measurements import (
    Measurement,
    benchmark_entries,
    describe_corpus,
    run_hyperparameters,
    run_measurements,
    zero_shot_measurements,
)
from modeling_aogpt.mask_token import tokenizer_of
from training.files import whole_folder
from training.initialization import load_whole, read_config
from training.results import read_finished_run

ROOT = Path(__file__).parents[1]
CHECK = Path(__file__).parent / "check_staged.py"
EXPECTED = "expected.safetensors"


def stage(
    source: Path,
    repo_id: str,
    folder: Path,
    card: str = "default",
    tokenizer_name: str | None = None,
    results: list[Path] = (),
    max_shard_size: str = "2GB",
) -> None:
    """
    Writes the repository of a model: weights in safetensors, configurations, code, tokenizer, licence, card, results.

    Args:
        source (`Path`): A finished run of training/pretrain.py, or a model folder.
        repo_id (`str`): Name of the repository on the Hub.
        folder (`Path`): Where to write, whole or not at all.
        card (`str`): A card of this folder or a YAML file, see `read_facts`.
        tokenizer_name (`str`, *optional*): Where the model folder has no tokenizer.
        results (`list`): JSON files of eval/zero_shot.py with this model.
        max_shard_size (`str`): Largest file of weights.

    Raises:
        ValueError: If `source` is neither a run nor a model, has no tokenizer or another model's, if the card or
            results cannot be read, if the results are another model's, or if `folder` holds anything.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not an empty folder: remove it, or name another one.")
    run = source if (source / "model").is_dir() else None
    model_folder = source if run is None else source / "model"
    finished = None if run is None else read_finished_run(run)[0]
    model = load_model(model_folder)
    tokenizer = tokenizer_of(model.config, tokenizer_name or str(model_folder))
    facts, num_parameters = read_facts(card), model.num_parameters()
    weights = identity_of_weights(str(model_folder)) if results else None
    known = model.config.model_type, num_parameters, weights
    measurements = [row for path in results for row in zero_shot_measurements(path, *known)]
    if finished is not None:
        facts["hyperparameters"] = run_hyperparameters(finished)
        measurements = run_measurements(run, finished) + measurements
        if card == "default":
            facts["training_data"] = describe_corpus(finished)
    rendered = render(
        repo_id,
        facts,
        model.config,
        num_parameters,
        str(model.dtype).removeprefix("torch."),
        tokenizer.mask_token,
        measurements,
        ends_documents=finished is not None and finished["corpus"]["packing"] == "documents",
    )
    with whole_folder(folder) as temporary:
        model.save_pretrained(temporary, max_shard_size=max_shard_size)
        tokenizer.save_pretrained(temporary)
        shutil.copy(ROOT / "LICENSE", temporary / "LICENSE")
        rendered.save(temporary / "README.md")
        write_benchmark_results(temporary, measurements)


def load_model(folder: Path) -> PreTrainedModel:
    """The model of a folder, with this package's code: what lies in the folder is not run."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is neither a finished run nor a model folder: it has no config.json.")
    read_config(folder, trust_remote_code=False)
    return load_whole(AutoModel, folder, trust_remote_code=False, use_safetensors=True)


def write_benchmark_results(folder: Path, measurements: list[Measurement]) -> None:
    entries = benchmark_entries(measurements)
    for dataset_id in sorted({entry.dataset_id for entry in entries}):
        path = folder / ".eval_results" / f"{dataset_id.replace('/', '--')}.yaml"
        path.parent.mkdir(exist_ok=True)
        of_dataset = [entry for entry in entries if entry.dataset_id == dataset_id]
        path.write_text(yaml.safe_dump(eval_result_entries_to_yaml(of_dataset)), encoding="utf-8")


@torch.no_grad()
def check(folder: Path) -> list[tuple[str, str]]:
    """
    Loads and uses a staged folder in a process that can import nothing but torch and transformers.

    Returns what was done and how it went, see check_staged.py.

    Raises:
        ValueError: If anything failed, with what that process said.
    """
    model = load_model(folder)
    generator = torch.Generator().manual_seed(0)
    length = min(model.config.max_position_embeddings, 32)
    ids = torch.randint(model.config.num_valid_tokens, (2, length), generator=generator)
    with tempfile.TemporaryDirectory() as temporary:
        expected = Path(temporary) / EXPECTED
        save_file({"input_ids": ids, "logits": model(ids).logits}, expected)
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(Path(temporary) / "modules")}
        command = [sys.executable, "-I", str(CHECK), str(folder.absolute()), str(expected)]
        process = subprocess.run(
            command,
            cwd=temporary,
            env=environment,
            stdin=subprocess.DEVNULL,  # whoever asks a question gets no answer
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
    if process.returncode:
        raise ValueError(f"{folder} does not work in a clean process:\n{process.stderr.strip()}")
    return [tuple(outcome) for outcome in json.loads(process.stdout.splitlines()[-1])]
