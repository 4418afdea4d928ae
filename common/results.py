# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Reading of `results.json`, the file that a training run writes when it is finished."""

from operator import itemgetter
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from common.files import read_json
from common.models import longest_sequence

# Seed of the random orders in evaluations. It never changes, so a sequence has the same order in all evaluations.
ORDER_SEED = 20250624
# Kinds of order for which bits per byte are computed: key in `results.json`, and name in reports.
ORDER_KINDS = {"left_to_right": "left to right", "any_order": "random orders"}
# Settings that, up to rounding, do not affect the trained weights.
WITHOUT_EFFECT = {
    *("output_dir", "prepare_only", "per_device_batch_size", "mixed_precision", "dynamo_backend"),
    *("activation_checkpointing", "dataloader_num_workers", "preprocessing_num_workers", "logging_steps", "eval_steps"),
    *("eval_sequences", "eval_batch_size", "save_steps", "save_total_limit", "num_samples", "tracker"),
}


def read_results(folder: Path) -> dict[str, Any] | None:
    """Return the content of `results.json` of a run, or None if the run is not finished and has no such file."""
    path = folder / "results.json"
    return read_json(path, ("arguments", "steps"), "training/pretrain.py") if path.exists() else None


def is_padded(corpus: dict[str, Any]) -> bool:
    """Return whether sequences of a corpus, as results.json describes it, are padded with tokens that have a loss."""
    return corpus.get("packing") == "documents" and not corpus.get("examples")


def model_evaluation(results: dict[str, Any]) -> dict[str, Any]:
    """Return the evaluation of the model of a run: the last one or, with `keep_best`, the best one."""
    kind = results["arguments"].get("keep_best")
    return min(results["evaluations"], key=itemgetter(kind)) if kind else results["evaluations"][-1]


def check_is_no_run(output_dir: Path) -> None:
    """Raise a `ValueError` if results would replace the results of a training run."""
    if (output_dir / "tokenizer").is_dir():
        raise ValueError(f"`output_dir` ({output_dir}) is the folder of a training run. Choose another folder.")


def settings_of_run(model: str | Path) -> dict[str, Any]:
    """Return the settings of the run whose model folder is `model`, or {} if `model` does not belong to a run.

    For examples, which are not padded, `packing` is left out.
    """
    model = Path(model).absolute()  # "." has no name
    is_of_run = model.name == "model" and (model.parent / "tokenizer").is_dir()
    results = read_results(model.parent) if is_of_run else None
    settings = {} if results is None else dict(results["arguments"])
    if settings and results.get("corpus", {}).get("examples"):
        del settings["packing"]
    return settings


def default_length(model: str, config: PreTrainedConfig) -> int | None:
    """Return the `sequence_length` of the run or, for other models, the maximum length in the configuration."""
    return settings_of_run(model).get("sequence_length") or longest_sequence(config)


def read_finished_run(folder: Path) -> dict[str, Any]:
    """Return the content of `results.json` of a run. Raise a `ValueError` if the run is not finished."""
    if (results := read_results(folder)) is None:
        raise ValueError(f"{folder} has no results.json, so the run is not finished. Run its command again.")
    return results
