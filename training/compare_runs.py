# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Holds finished runs of training/pretrain.py against each other:

    python training/compare_runs.py RUN RUN ... [--output FOLDER]

writes runs.png, the curves of their losses and evaluations; runs.md, a table of what differs and what came of it; and
runs.json, all of these figures.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from training.arguments import FREE_TO_CHANGE
from training.errors import errors_in_a_line
from training.evaluation import KINDS
from training.files import write_json, write_text
from training.plots import plot_runs
from training.report import table
from training.results import read_finished_run

KEPT = (
    *("arguments", "num_parameters", "steps", "tokens", "train_seconds", "loss_curve", "evaluations"),
    *("hardware", "versions"),
)


def read_runs(folders: list[Path]) -> dict[str, dict[str, Any]]:
    """
    Results of finished runs by the names of their folders.

    Raises:
        ValueError: If a run is not finished, two have one name, or they were not scored on the same text.
    """
    runs = {folder.resolve().name: read_finished_run(folder)[0] for folder in folders}
    if len(runs) < len(folders):
        raise ValueError(f"Two of {', '.join(map(str, folders))} have one name: rename a folder.")
    first, *others = runs.items()
    for name, results in others:
        if scored_text(results) != scored_text(first[1]):
            raise ValueError(
                f"{name} was scored on {scored_text(results)}, but {first[0]} on {scored_text(first[1])}: only runs on "
                "the same corpus, with the same eval_sequences, can be compared."
            )
    return runs


def scored_text(results: dict[str, Any]) -> dict[str, Any]:
    last = results["evaluations"][-1]
    return {"sources": results["corpus"]["sources"], "sequences": last["sequences"], "bytes": last["bytes"]}


def differing_settings(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Keys of what is learned that are not the same in all runs."""
    settings = [results["arguments"] for results in runs.values()]
    keys = dict.fromkeys(key for of_run in settings for key in of_run if key not in FREE_TO_CHANGE)
    return [key for key in keys if any(of_run.get(key) != settings[0].get(key) for of_run in settings)]


def comparison(runs: dict[str, dict[str, Any]]) -> str:
    """runs.md, the best run in random orders first."""
    settings = differing_settings(runs)
    rows = [
        (
            name,
            *(str(results["arguments"].get(key)) for key in settings),
            *(f"{last[kind]:.3f}" if kind in (last := results["evaluations"][-1]) else "" for kind in KINDS),
        )
        for name, results in sorted(runs.items(), key=lambda run: run[1]["evaluations"][-1]["any_order"])
    ]
    num_bytes = next(iter(runs.values()))["evaluations"][-1]["bytes"]
    parts = [
        "# Runs beside each other",
        "![Losses and held-out bits per byte](runs.png)",
        f"Bits per byte of {num_bytes:,} held-out bytes, with the moving average of the weights.",
        table(["", *(f"`{key}`" for key in settings), *KINDS.values()], rows),
    ]
    return "\n\n".join(parts) + "\n"


@errors_in_a_line()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Holds finished runs against each other.", allow_abbrev=False)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a finished run; gives its name")
    parser.add_argument("--output", type=Path, default=Path("runs/comparison"), help="folder (default: %(default)s)")
    arguments = parser.parse_args(argv)
    runs = read_runs(arguments.runs)
    plot_runs(runs, arguments.output / "runs.png")
    write_text(arguments.output / "runs.md", comparison(runs))
    kept = {name: {key: results[key] for key in KEPT} for name, results in runs.items()}
    write_json(arguments.output / "runs.json", kept)
    print(f"Written: {arguments.output} (runs.md, runs.png, runs.json).")


if __name__ == "__main__":
    main(sys.argv[1:])
