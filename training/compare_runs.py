# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Command that compares finished runs of training/pretrain.py.

    python training/compare_runs.py RUN RUN ... [--output_dir FOLDER]

It writes three files: runs.png shows curves of losses and evaluations, runs.md is a table of settings and results, and
runs.json contains all numbers.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure

from common.commands import Parser, one_line_errors, option
from common.files import write_json, write_text
from common.reports import markdown_table, save_figure
from common.results import ORDER_NAMES, read_finished_run
from training.arguments import MAY_CHANGE
from training.report import label_axes, use_log_axis

# Keys of results.json that are copied to runs.json.
KEYS = (
    *("arguments", "num_parameters", "steps", "tokens", "train_seconds", "loss_curve", "evaluations"),
    *("hardware", "versions"),
)


@dataclass
class Arguments:
    """Options of the command."""

    output_dir: Path = option(Path("runs/comparison"), "Folder for runs.md, runs.png and runs.json.")


def read_runs(folders: list[Path]) -> dict[str, dict[str, Any]]:
    """Return the results of runs by the names of their folders. Raise a `ValueError` if the runs are not comparable."""
    runs = {folder.resolve().name: read_finished_run(folder)[0] for folder in folders}
    if len(runs) < len(folders):
        raise ValueError(
            f"The names of folders must differ, but two of {', '.join(map(str, folders))} have the same name. Rename "
            "one."
        )
    (first, results), *others = runs.items()
    expected = _evaluation_text(results)
    for name, results in others:
        if (text := _evaluation_text(results)) != expected:
            raise ValueError(
                f"All runs must be evaluated on the same text, but {name} was evaluated on {text}, and {first} on "
                f"{expected}. Compare runs with the same corpus and the same `eval_sequences`."
            )
    return runs


def _evaluation_text(results: dict[str, Any]) -> dict[str, Any]:
    last = results["evaluations"][-1]
    return {"sources": results["corpus"]["sources"], "sequences": last["sequences"], "bytes": last["bytes"]}


def differing_settings(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Return the keys of settings that affect the result and that differ between runs."""
    settings = [results["arguments"] for results in runs.values()]
    keys = dict.fromkeys(key for run in settings for key in run if key not in MAY_CHANGE)
    return [key for key in keys if any(run.get(key) != settings[0].get(key) for run in settings)]


def comparison(runs: dict[str, dict[str, Any]]) -> str:
    """Return the text of runs.md. The runs are sorted by bits per byte in random orders."""
    settings = differing_settings(runs)
    rows = [
        (
            name,
            *(str(results["arguments"].get(key)) for key in settings),
            *(f"{last[kind]:.3f}" if kind in (last := results["evaluations"][-1]) else "" for kind in ORDER_NAMES),
        )
        for name, results in sorted(runs.items(), key=lambda run: run[1]["evaluations"][-1]["any_order"])
    ]
    num_bytes = next(iter(runs.values()))["evaluations"][-1]["bytes"]
    parts = [
        "# Comparison of runs",
        "![Losses and held-out bits per byte](runs.png)",
        f"The table shows bits per byte on {num_bytes:,} held-out bytes. They are computed with the moving averages of "
        "the weights.",
        markdown_table(["", *(f"`{key}`" for key in settings), *ORDER_NAMES.values()], rows),
    ]
    return "\n\n".join(parts) + "\n"


def plot_runs(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Plot the training loss of each run, and its held-out bits per byte left to right and in random orders."""
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    training, *held_out = figure.subplots(1, 3)
    colors = colormaps["tab10"].colors
    num_steps = max(results["steps"] for results in runs.values())
    for (name, results), color in zip(runs.items(), colors * len(runs), strict=False):
        curve, evaluations = results["loss_curve"], results["evaluations"]
        training.plot(curve["step"], curve["loss"], color=color, linewidth=1.2, label=name)
        for key, axes in zip(ORDER_NAMES, held_out, strict=True):
            points = [(scores["step"], scores[key]) for scores in evaluations if key in scores]
            if points:
                axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=3, label=name)
    label_axes(training, "Training loss, in the run's own orders", "nats per token", num_steps)
    for label, axes in zip(ORDER_NAMES.values(), held_out, strict=True):
        label_axes(axes, f"Held-out text, {label}", "bits per byte", num_steps)
    for axes in (training, *held_out):
        use_log_axis(axes)
    figure.legend(*training.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(Arguments, description="Compare finished runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run")
    arguments, others = parser.parse(argv)
    runs, folder = read_runs(others.runs), arguments.output_dir
    plot_runs(runs, folder / "runs.png")
    write_text(folder / "runs.md", comparison(runs))
    write_json(folder / "runs.json", {name: {key: results[key] for key in KEYS} for name, results in runs.items()})
    print(f"Written: {folder} (runs.md, runs.png, runs.json).")


if __name__ == "__main__":
    main(sys.argv[1:])
