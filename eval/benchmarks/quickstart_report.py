# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
What a small model of names has learned: bits per byte beside compressors, samples, and names with holes filled in.

    python eval/benchmarks/quickstart_report.py RUN [--output_dir DIR]

RUN is a finished run of training/pretrain.py with one document per sequence, such as runs/quickstart. Writes
report.json, quickstart.md and quickstart.png, beside its results unless told otherwise, and prints quickstart.md.
"""

import lzma
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
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

from common.commands import Parser, one_line_errors, option
from common.data import Data, load_data
from common.files import write_json, write_text
from common.models import load_pretrained
from common.reports import markdown_table, with_error
from common.results import ORDER_NAMES, ORDER_SEED, read_finished_run
from common.tokenization import decode
from eval.benchmarks.quickstart_picture import draw_report
from eval.infilling import infill, letter_and_mark, make_holes, one_or_two_words, printable, sample
from eval.scoring import figures, score
from modeling_aogpt import AOGPTForAnyOrderLM

NUM_SAMPLES = 1000
NUM_INFILLS = 500  # at most, of each sort
SEED = 0
HOLES = {"letters": letter_and_mark, "words": one_or_two_words}
BASELINES = {"xz_after_training": "xz, after the training names", "xz": "xz", "zlib": "zlib"}


@dataclass
class Arguments:
    output_dir: Path | None = option(None, "Folder for the report; unless given, that of the run.")


def make_report(run: Path) -> dict[str, Any]:
    """
    Return all figures and examples of a finished run.

    Raises:
        ValueError: If the run is not finished, or its sequences are not one document each.
    """
    results, arguments = read_finished_run(run)
    if arguments.packing != "documents":
        raise ValueError(f"{run} was trained with packing={arguments.packing}; this report needs packing=documents.")
    data = load_data(arguments)
    model = load_pretrained(AOGPTForAnyOrderLM, run / "model").eval()
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
    """Score the held-out documents, left to right and in the random orders of the run's own evaluations."""
    rows = data.validation.to_list()
    num_bytes = np.array([row["num_bytes"] for row in rows])
    found = {}
    for order, nats in score(model, rows, num_orders=1, seed=ORDER_SEED, batch_size=256).items():
        in_this_order = figures(nats, num_bytes, num_bytes)
        found[order] = in_this_order["bits_per_byte"]
        found[f"{order}_standard_error"] = in_this_order["bits_per_byte_standard_error"]
    return found


def compression_bits_per_byte(training_documents: Iterable[str], held_out_documents: Iterable[str]) -> dict[str, float]:
    """
    Return the compressed size of the held-out documents over their size, in bits per byte.

    The bytes are those that a model's bits per byte count: the UTF-8 text of each document, in the corpus's order, and
    one newline after it.

    Returns:
        `zlib` (level 9) and `xz` (preset 9, extreme) of the held-out documents alone, and `xz_after_training`: how much
        larger xz gets when they follow the training documents (of which it looks back on the last 64 MiB).

    Raises:
        ValueError: If there are no held-out documents.
    """
    training, held_out = join(training_documents), join(held_out_documents)
    if not held_out:
        raise ValueError("There are no held-out documents to compress.")
    sizes = {
        "zlib": len(zlib.compress(held_out, 9)),
        "xz": xz_size(held_out),
        "xz_after_training": xz_size(training + held_out) - xz_size(training),
    }
    return {name: 8 * size / len(held_out) for name, size in sizes.items()}


def join(documents: Iterable[str]) -> bytes:
    return "".join(document + "\n" for document in documents).encode()


def xz_size(data: bytes) -> int:
    return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def to_markdown(report: dict[str, Any]) -> str:
    run, documents, bits = report["run"], report["documents"], report["bits_per_byte"]
    scored = {key: f"model, {name}" for key, name in ORDER_NAMES.items()} | BASELINES
    rows = [(name, with_error(bits[key], bits.get(f"{key}_standard_error"), 3)) for key, name in scored.items()]
    written = {
        "both words of LETTER _ WITH _": report["infilling"].get("letters"),
        "one or two words of a name": report["infilling"].get("words"),
        "whole names": report["samples"],
    }
    kinds = [
        (f"{name} ({group['count']})", *(f"{share:.1%}" for share in group["shares"].values()))
        for name, group in written.items()
        if group
    ]
    infills = [
        "- " + example["before"].replace("_", "\\_") + f" → {filled_in(example['after'])} ({example['kind']})"
        for group in report["infilling"].values()
        for example in group["examples"]
    ]
    samples = [f"- {printable(example['text'])} ({example['kind']})" for example in report["samples"]["examples"]]
    parts = [
        "# What the model has learned",
        f"{run['num_parameters'] / 1e6:.1f} million parameters. {run['steps']} steps, "
        f"{run['tokens'] / 1e6:.1f} million tokens, {run['train_seconds'] / 60:.1f} minutes on "
        f"{run['hardware']['device_name']} with {run['hardware']['num_threads']} CPU thread(s). "
        f"{documents['train']} names to train on, {documents['held_out']} held out "
        f"({documents['held_out_left_out']} more are longer than a sequence and left out everywhere).",
        "![Loss, bits per byte, infills and samples](quickstart.png)",
        markdown_table(["held-out names", "bits per byte"], rows, "lr"),
        markdown_table(
            ["the model wrote", "the original", "another held-out name", "a training name", "no name"], kinds, "lrrrr"
        ),
        "Held-out names with hidden words (an underscore per token), and as the model filled them in:",
        "\n".join(infills),
        "Names that the model made up:",
        "\n".join(samples),
    ]
    return "\n\n".join(parts) + "\n"


def filled_in(tokens: list[tuple[str, bool]]) -> str:
    """Return a name whose new tokens are bold, as Markdown, with just the blanks that it has."""
    text = ""
    for is_new, group in groupby(tokens, key=itemgetter(1)):
        part = printable("".join(token for token, _ in group))
        if is_new:
            word = part.strip()
            part = part.replace(word, f"**{word}**") if word else "**␣**"
        text += part
    return text.strip()


@one_line_errors()
def main(argv: list[str]) -> None:
    parser = Parser(Arguments, description="What a small model of names has learned.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run of training/pretrain.py")
    arguments, others = parser.parse(argv)
    folder = arguments.output_dir or others.run
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    report = make_report(others.run)
    draw_report(report, folder / "quickstart.png")
    write_text(folder / "quickstart.md", to_markdown(report))
    write_json(folder / "report.json", report)
    Console().print(Markdown(to_markdown(report)))
    print(f"Written: {folder}/report.json, quickstart.md, quickstart.png")


if __name__ == "__main__":
    main(sys.argv[1:])
