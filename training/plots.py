# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run, and of several."""

from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
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
    finish(training, "Training loss", "nats per token", results["steps"])
    use_log_axis(training)  # the first steps fall by far more than all others

    steps = [evaluation["step"] for evaluation in results["evaluations"]]
    for key, label, color in (("any_order", "random orders", ORANGE), ("left_to_right", "left to right", BLUE)):
        values = [evaluation[key] for evaluation in results["evaluations"] if key in evaluation]
        if not values:  # an encoder has no left to right
            continue
        held_out.plot(steps, values, color=color, marker="o", markersize=3.5, label=f"{label}: {values[-1]:.3f}")
    finish(held_out, "Held-out text, averaged weights", "bits per byte", results["steps"])
    held_out.legend(frameon=False)
    save(figure, path)


def plot_runs(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Training loss of several runs, each in its own orders, and held-out bits per byte in either kind of order."""
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    training, *held_out = figure.subplots(1, 3)
    colors = colormaps["tab10"].colors
    num_steps = max(results["steps"] for results in runs.values())
    for (name, results), color in zip(runs.items(), colors * len(runs), strict=False):
        curve, evaluations = results["loss_curve"], results["evaluations"]
        training.plot(curve["step"], curve["loss"], color=color, linewidth=1.2, label=name)
        for key, axes in zip(("left_to_right", "any_order"), held_out, strict=True):
            points = [(scored["step"], scored[key]) for scored in evaluations if key in scored]
            if points:
                axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, label=name)
    finish(training, "Training loss, each in its own orders", "nats per token", num_steps)
    finish(held_out[0], "Held out, left to right", "bits per byte", num_steps)
    finish(held_out[1], "Held out, random orders", "bits per byte", num_steps)
    for axes in (training, *held_out):
        use_log_axis(axes)
    figure.legend(*training.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    save(figure, path)


def finish(axes: Axes, title: str, unit: str, num_steps: int) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.set_xlim(0, num_steps)
    tidy(axes)


def tidy(axes: Axes) -> None:
    """How the axes of all curves look."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def use_log_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def save(figure: Figure, path: Path) -> None:
    """Writes a picture, whole or not at all."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
