# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""The picture of a run."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from training.files import whole_file

GREY, BLUE, ORANGE = "#8c8c8c", "#1f5fa8", "#d9730d"


def plot_run(results: dict[str, Any], path: Path) -> None:
    """Training loss, and held-out bits per byte in both orders, over the steps of a run."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    training, held_out = figure.subplots(1, 2)

    curve = results["loss_curve"]
    training.plot(curve["step"], curve["loss"], color=GREY, linewidth=1.2)
    training.set_title("Training loss", loc="left", fontsize=11)
    training.set_ylabel("nats per token")
    training.set_yscale("log")  # the first steps fall by far more than all others
    training.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    training.yaxis.set_major_formatter("{x:g}")
    training.yaxis.set_minor_locator(NullLocator())

    steps = [evaluation["step"] for evaluation in results["evaluations"]]
    for key, label, color in (("any_order", "random orders", ORANGE), ("left_to_right", "left to right", BLUE)):
        values = [evaluation[key] for evaluation in results["evaluations"] if key in evaluation]
        if not values:  # an encoder has no left to right
            continue
        held_out.plot(steps, values, color=color, marker="o", markersize=3.5, label=f"{label}: {values[-1]:.3f}")
    held_out.set_title("Held-out text, averaged weights", loc="left", fontsize=11)
    held_out.set_ylabel("bits per byte")
    held_out.legend(frameon=False)

    for axes in (training, held_out):
        axes.set_xlabel("step")
        axes.set_xlim(0, results["steps"])
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
