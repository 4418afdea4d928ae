# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Finished training runs on problems with missing text, grouped by recipe. Runs of a recipe differ only in the seed.

A problem is a pair of strings: a text with `_` for each missing character, and the complete text.
"""

from collections.abc import Collection
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from common.results import WITHOUT_EFFECT, read_finished_run
from eval.estimates import wilson_interval

# Settings that may differ between seeds of a recipe. Each seed may continue a run of its own.
OF_SEED = {"seed", "init_from", "tokenizer"}


def read_run(folder: Path, corpora: Collection[str]) -> dict[str, Any]:
    """Return the folder, the training arguments, and the cost of training of a finished run.

    Raises:
        ValueError: If the run is not finished, or was not trained on padded documents of one of `corpora`.
    """
    results = read_finished_run(folder)
    corpus = results["arguments"]["corpus"][0]
    if corpus not in corpora:
        raise ValueError(
            f"A run must be trained on one of {', '.join(corpora)}, but {folder} was trained on {corpus!r}. Use "
            "another run."
        )
    if (packing := results["arguments"]["packing"]) != "documents":
        raise ValueError(
            f"A run must be trained with `packing=documents`, but {folder} was trained with `packing={packing}`, so it "
            "does not know where a text begins. Use another run."
        )
    cost = {name: results[name] for name in ("num_parameters", "steps", "tokens", "train_seconds")}
    return {"run": str(folder), "arguments": results["arguments"], **cost}


def group_by_recipe(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of each recipe. Its name is the name of its runs' folders, without `-SEED` at the end.

    Raises:
        ValueError: If runs of a recipe differ in a setting that may affect the result, or have the same seed.
    """
    recipes: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        recipes.setdefault(recipe_name(run), []).append(run)
    for name, group in recipes.items():
        settings = [run["arguments"] for run in group]
        different = {
            key
            for other in settings
            for key in other.keys() & settings[0].keys() - WITHOUT_EFFECT - OF_SEED
            if other[key] != settings[0][key]
        }
        if different or len({other["seed"] for other in settings}) < len(group):
            raise ValueError(
                f"Runs with the folder name {name} or {name}-SEED must have different seeds and the same recipe, but "
                f"{'differ in ' + ', '.join(sorted(different)) if different else 'several have the same seed'}. Rename "
                "the folders of runs with another recipe, and list each run only once."
            )
    return recipes


def recipe_name(run: dict[str, Any]) -> str:
    """Return the name of the folder of a run, without `-SEED` at the end."""
    return Path(run["run"]).absolute().name.removesuffix(f"-{run['arguments']['seed']}")


def encode_problems(
    problems: list[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, padded_length: int | None
) -> tuple[torch.LongTensor, torch.LongTensor]:
    """Return padded ids (problems, n): with masks for the tokens that end with `_`, and of the complete texts.

    Without `padded_length`, the longest text sets n, and padding is missing too: a model that was trained from left to
    right writes it itself.
    """
    tokenizer.pad_token = tokenizer.eos_token  # as in training
    encoded = tokenizer(
        [text for _, text in problems],
        add_special_tokens=False,
        padding="max_length" if padded_length else True,
        padding_side="right",
        max_length=padded_length,
        return_offsets_mapping=True,
        return_tensors="pt",
    )
    is_missing = torch.tensor(
        [
            [problem[end - 1] == "_" if end > start else padded_length is None for start, end in spans]
            for (problem, _), spans in zip(problems, encoded.offset_mapping.tolist(), strict=True)
        ]
    )
    return encoded.input_ids.masked_fill(is_missing, tokenizer.mask_token_id), encoded.input_ids


def summarize_fractions(fractions: list[float], num_problems: int) -> dict[str, Any]:
    """Return the mean of fractions of solved problems, one for each seed, and its 95 % confidence interval (Wilson)."""
    mean = fmean(fractions)
    return {"mean": mean, "interval": wilson_interval(mean, num_problems), "values": fractions}
