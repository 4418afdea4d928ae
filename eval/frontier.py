# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The frontier of generative perplexity and entropy as a picture: below and to the right is better."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

MARKERS = "osD^v<>P"


def draw_frontier(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws results of `judge_cell`: a line for each model and number of steps, over top-p and temperature."""
    figure = Figure(figsize=(12, 5.2), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    judge = name_of(results[0]["judge"])
    for axes, average, title in ((left, "mean", "mean over samples"), (right, "pooled", "pooled over tokens")):
        draw_lines(axes, results, average)
        axes.set_yscale("log")
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("mean unigram entropy of a sample (nats)")
        axes.set_ylabel(f"generative perplexity by {judge}")
        axes.grid(alpha=0.25, linewidth=0.6, which="both")
        axes.spines[["top", "right"]].set_visible(False)
    right.legend(fontsize=8, frameon=False)
    figure.savefig(path, format="png", dpi=130)


def draw_lines(axes: Axes, results: Sequence[dict[str, Any]], average: str) -> None:
    models = list(dict.fromkeys(result["cell"]["model"] for result in results))
    steps = sorted({result["cell"]["steps"] for result in results})
    for (number, model), (place, count) in itertools.product(enumerate(models), enumerate(steps)):
        points = sorted(
            (result["entropy"], result["perplexity"][average])
            for result in results
            if (result["cell"]["model"], result["cell"]["steps"]) == (model, count)
        )
        axes.plot(
            [entropy for entropy, _ in points],
            [perplexity for _, perplexity in points],
            color=colormaps["viridis"](0.9 * place / max(1, len(steps) - 1)),
            marker=MARKERS[number % len(MARKERS)],
            linewidth=1.3,
            label=f"{name_of(model)}, {count} step{'s' * (count > 1)}",
        )


def name_of(model: str) -> str:
    """The end of a path or name."""
    return "/".join(Path(model).parts[-2:])
