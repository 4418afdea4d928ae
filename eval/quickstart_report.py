# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""What a small model of names has learned: bits per byte beside compressors, samples, and names with holes filled in.

    python eval/quickstart_report.py RUN_DIR

RUN_DIR is a finished run of training/pretrain.py with one document per sequence, such as runs/quickstart. Writes
report.json, quickstart.md and quickstart.png beside its results, and prints quickstart.md.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from rich.console import Console
from rich.markdown import Markdown

from eval.compression_baselines import compression_bits_per_byte
from eval.infilling import infill, letter_and_mark, make_holes, one_or_two_words, printable, sample
from eval.quickstart_picture import draw_report
from eval.scoring import figures, score
from modeling_aogpt import AOGPTForAnyOrderLM
from training.data import Data, load_data
from training.errors import errors_in_a_line
from training.evaluation import ORDER_SEED
from training.files import whole_file, write_json, write_text
from training.initialization import load_whole
from training.results import read_finished_run
from training.samples import decode

NUM_SAMPLES = 1000
NUM_INFILLS = 500  # at most, of each sort
SEED = 0
HOLES = {"letters": letter_and_mark, "words": one_or_two_words}


def make_report(run: Path) -> dict[str, Any]:
    """All figures and examples of a finished run.

    Raises:
        ValueError: if the run is not finished, or its sequences are not one document each.
    """
    results, arguments = read_finished_run(run)
    if arguments.packing != "documents":
        raise ValueError(f"{run} was trained with packing={arguments.packing}; this report needs packing=documents.")
    data = load_data(arguments)
    model = load_whole(AOGPTForAnyOrderLM, run / "model").eval()
    sequences = data.validation["input_ids"][:]
    training, held_out = (
        [decode(ids, data.tokenizer) for ids in rows] for rows in (data.train["input_ids"][:], sequences)
    )
    known = {"train": set(training), "validation": set(held_out)}

    generator = torch.Generator().manual_seed(SEED)
    infilling = {}
    for sort, choose in HOLES.items():
        if holes := make_holes(data.tokenizer, held_out, sequences, choose, NUM_INFILLS, SEED):
            infilling[sort] = infill(model, data.tokenizer, holes, known, generator)
    return {
        "run": {key: results[key] for key in ("num_parameters", "steps", "tokens", "train_seconds", "hardware")},
        "loss_curve": results["loss_curve"],
        "documents": {
            "train": len(training),
            "held_out": len(held_out),
            "held_out_left_out": data.facts["validation"]["left_out_documents"],
        },
        "bits_per_byte": model_bits_per_byte(model, data) | compression_bits_per_byte(training, held_out),
        "infilling": infilling,
        "samples": sample(model, data.tokenizer, known, NUM_SAMPLES, generator),
        "seed": SEED,
    }


def model_bits_per_byte(model: AOGPTForAnyOrderLM, data: Data) -> dict[str, float | None]:
    """Of the held-out documents, left to right and in the random orders of the run's own evaluations."""
    rows = data.validation.to_list()
    num_bytes = np.array([row["num_bytes"] for row in rows])
    found = {}
    for order, nats in score(model, rows, num_orders=1, seed=ORDER_SEED, batch_size=256).items():
        in_this_order = figures(nats, num_bytes, num_bytes)
        found[order] = in_this_order["bits_per_byte"]
        found[f"{order}_standard_error"] = in_this_order["bits_per_byte_standard_error"]
    return found


def to_markdown(report: dict[str, Any]) -> Iterator[str]:
    """The report for people, line by line."""
    run, documents, bits = report["run"], report["documents"], report["bits_per_byte"]
    yield from (
        "# What the model has learned",
        "",
        f"{run['num_parameters'] / 1e6:.1f} million parameters. {run['steps']} steps, "
        f"{run['tokens'] / 1e6:.1f} million tokens, {run['train_seconds'] / 60:.1f} minutes on "
        f"{run['hardware']['device_name']} with {run['hardware']['num_threads']} CPU thread(s). "
        f"{documents['train']} names to train on, {documents['held_out']} held out "
        f"({documents['held_out_left_out']} more are longer than a sequence and left out everywhere).",
        "",
        "![Loss, bits per byte, infills and samples](quickstart.png)",
        "",
        "| held-out names | bits per byte |",
        "|:--|--:|",
    )
    for key, name in (
        ("left_to_right", "model, left to right"),
        ("any_order", "model, random orders"),
        ("xz_after_training", "xz, after the training names"),
        ("xz", "xz"),
        ("zlib", "zlib"),
    ):
        error = bits.get(f"{key}_standard_error")
        yield f"| {name} | {bits[key]:.3f}{f' ± {error:.3f}' if error else ''} |"
    yield from (
        "",
        "| the model wrote | the original | another held-out name | a training name | no name |",
        "|:--|--:|--:|--:|--:|",
    )
    written = {
        "both words of LETTER _ WITH _": report["infilling"].get("letters"),
        "one or two words of a name": report["infilling"].get("words"),
        "whole names": report["samples"],
    }
    for name, group in written.items():
        if group:
            cells = " | ".join(f"{share:.1%}" for share in group["shares"].values())
            yield f"| {name} ({group['count']}) | {cells} |"
    yield from ("", "Held-out names with hidden words (an underscore per token), and as the model filled them in:", "")
    for group in report["infilling"].values():
        for example in group["examples"]:
            before = example["before"].replace("_", "\\_")
            yield f"- {before} → {filled_in(example['after'])} ({example['kind']})"
    yield from ("", "Names that the model made up:", "")
    for example in report["samples"]["examples"]:
        yield f"- {printable(example['text'])} ({example['kind']})"


def filled_in(tokens: list[tuple[str, bool]]) -> str:
    """A name whose new tokens are bold, as Markdown, with just the blanks that it has."""
    text = ""
    for is_new, group in groupby(tokens, key=itemgetter(1)):
        part = printable("".join(token for token, _ in group))
        if is_new:
            word = part.strip()
            part = part.replace(word, f"**{word}**") if word else "**␣**"
        text += part
    return text.strip()


def write_report(report: dict[str, Any], run: Path) -> None:
    with whole_file(run / "quickstart.png") as temporary:
        draw_report(report, temporary)
    write_text(run / "quickstart.md", "\n".join(to_markdown(report)) + "\n")
    write_json(run / "report.json", report)


@errors_in_a_line()
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="What a small model of names has learned.")
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="a finished run of training/pretrain.py")
    run = parser.parse_args(argv).run
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    write_report(make_report(run), run)
    Console().print(Markdown((run / "quickstart.md").read_text(encoding="utf-8")))
    print(f"Written: {run}/report.json, quickstart.md, quickstart.png")


if __name__ == "__main__":
    main(sys.argv[1:])
