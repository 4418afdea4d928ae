# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Finished training runs on problems with missing text, grouped by recipe. Runs of a recipe differ only in the seed.

A problem is a pair of strings: a text with `_` for each missing character, and the complete text.
"""

from collections.abc import Collection
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.axes import Axes
from transformers import PreTrainedTokenizerBase

from common.reports import BLUE, GREEN, GREY, ORANGE, RED, markdown_table
from common.results import WITHOUT_EFFECT, read_finished_run
from eval.estimates import wilson_interval

COLORS = (BLUE, GREEN, ORANGE, RED, GREY)  # colors of the recipes in charts
INK = "#22262a"  # color of lines and text in charts
# Settings that may differ between seeds of a recipe. Each seed may continue a run of its own.
OF_SEED = {"seed", "init_from", "tokenizer"}


def read_run(folder: Path, corpora: Collection[str]) -> dict[str, Any]:
    """
    Return the folder, the training arguments, and the cost of training of a finished run.

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
    """
    Return the runs of each recipe. The name of a recipe is the name of its runs' folders, without `-SEED` at the end.

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
    """
    Return padded ids (problems, n): with masks for the tokens that end with `_`, and of the complete texts.

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
    """Return fractions of solved problems, one for each seed, and the 95 % confidence interval of their mean."""
    return {"seeds": fractions, "interval": wilson_interval(fmean(fractions), num_problems)}


def describe_recipe(recipe: str, runs: list[dict[str, Any]]) -> str:
    """Return the name of a recipe and the kind of its models, for the legend of a chart."""
    arguments = runs[0]["arguments"]
    if arguments["architecture"] == "encoder":
        return f"{recipe} (encoder)"
    orders = {"left_to_right": "left to right", "gaps_last": "with gaps last"}.get(arguments["orders"], "in any order")
    return f"{recipe} (trained {orders})"


def format_fraction(summary: dict[str, Any]) -> tuple[str, str, str]:
    """
    Return cells of a table: the mean over the seeds, their range (empty for a single seed), and the interval.

    `summary` is a result of `summarize_fractions`.
    """
    values = summary["seeds"]
    seed_range = f"{min(values):.1%} to {max(values):.1%}" if len(values) > 1 else ""
    return f"{fmean(values):.1%}", seed_range, "{:.1%} to {:.1%}".format(*summary["interval"])


def draw_fraction(axes: Axes, row: float, height: float, color: str, summary: dict[str, Any]) -> None:
    """Draw the mean over the seeds as a bar, the interval as a line, and, if there are several seeds, each as a dot."""
    values, (low, high) = summary["seeds"], summary["interval"]
    axes.barh(row, fmean(values), height=0.9 * height, color=color)
    axes.plot([low, high], [row, row], color=INK, linewidth=1)
    if len(values) > 1:
        axes.plot(values, [row] * len(values), "o", color=INK, markersize=2.5)
    axes.text(max(high, *values) + 0.02, row, f"{fmean(values):.0%}", va="center", color=INK, fontsize=8)


def style_fractions(axes: Axes, names: list[str], label: str, recipes: dict[str, list[dict[str, Any]]]) -> None:
    """Label the rows of a chart of fractions with `names`, and its horizontal axis with `label`."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    has_seeds = any(len(runs) > 1 for runs in recipes.values())
    axes.set_xlabel(f"{label} (line: 95 % interval{'; dots: seeds' if has_seeds else ''})")


def recipe_table(recipes: dict[str, list[dict[str, Any]]]) -> str:
    """Return a Markdown table of recipes, with the number of parameters and the cost of a run (means over the runs)."""
    rows = [
        (
            recipe,
            runs[0]["arguments"]["corpus"][0],
            *(runs[0]["arguments"][key] for key in ("architecture", "orders")),
            ", ".join(str(run["arguments"]["seed"]) for run in runs),
            *(f"{runs[0][name]:,}" for name in ("num_parameters", "steps", "tokens")),
            f"{fmean(run['train_seconds'] for run in runs) / 60:.0f}",
        )
        for recipe, runs in recipes.items()
    ]
    columns = ["recipe", "corpus", "architecture", "orders", "seeds", "parameters", "steps", "tokens", "minutes"]
    return markdown_table(columns, rows, align="llllrrrrr")
