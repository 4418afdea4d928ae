# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The frontier of generative perplexity and entropy as a picture: below and to the right is better."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure

MARKERS = "osD^v<>P"


def draw_frontier(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws results of `judge_cell`: a line for each model and number of steps, over top-p and temperature."""
    figure = Figure(figsize=(8.5, 5.2), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    models = list(dict.fromkeys(result["cell"]["model"] for result in results))
    steps = sorted({result["cell"]["steps"] for result in results})
    for number, model in enumerate(models):
        for place, count in enumerate(steps):
            points = sorted(
                (result["entropy"], result["perplexity"]["mean"])
                for result in results
                if (result["cell"]["model"], result["cell"]["steps"]) == (model, count)
            )
            if not points:
                continue
            axes.plot(
                *zip(*points, strict=True),
                color=colormaps["viridis"](0.9 * place / max(1, len(steps) - 1)),
                marker=MARKERS[number % len(MARKERS)],
                linewidth=1.3,
                label=f"{Path(model).name}, {count} steps",
            )
    axes.set_yscale("log")
    axes.set_xlabel("mean unigram entropy of a sample (nats)")
    axes.set_ylabel(f"generative perplexity by {Path(results[0]['judge']).name}")
    axes.grid(alpha=0.25, linewidth=0.6, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, format="png", dpi=130)
