# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Report on a small model of Unicode character names: bits per byte compared with compressors, infills and samples.

    python eval/benchmarks/quickstart_report.py RUN [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py with `packing=documents`, such as runs/quickstart. The
command writes report.json, quickstart.md and quickstart.png to --output_dir (by default the folder of the run), and
prints quickstart.md.
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
from eval.benchmarks.quickstart_texts import (
    choose_letter_and_mark,
    choose_one_or_two_words,
    infill,
    make_printable,
    mask_documents,
    sample,
)
from eval.scoring import compute_metrics, score_rows
from modeling_aogpt import AOGPTForAnyOrderLM

NUM_SAMPLES = 1000
MAX_INFILLS = 500  # per task
SEED = 0
INFILL_TASKS = {"letters": choose_letter_and_mark, "words": choose_one_or_two_words}
BASELINES = {"xz_after_training": "xz, after the training names", "xz": "xz", "zlib": "zlib"}


@dataclass
class Arguments:
    """Options of eval/benchmarks/quickstart_report.py."""

    output_dir: Path | None = option(None, "Folder for the report. Defaults to the folder of the run.")


def make_report(run: Path) -> dict[str, Any]:
    """Return the content of report.json: all results and examples of a finished run."""
    results, arguments = read_finished_run(run)
    if arguments.packing != "documents":
        raise ValueError(
            f"The report needs a run with `packing=documents`, but {run} was trained with "
            f"`packing={arguments.packing}`. Use a run with `packing=documents`."
        )
    data = load_data(arguments)
    model = load_pretrained(AOGPTForAnyOrderLM, run / "model").eval()
    sequences = data.validation["input_ids"][:]
    training, held_out = (
        [decode(ids, data.tokenizer) for ids in rows] for rows in (data.train["input_ids"][:], sequences)
    )
    known = {"train": set(training), "validation": set(held_out)}

    generator = torch.Generator().manual_seed(SEED)
    infilling = {}
    for task, choose in INFILL_TASKS.items():
        if documents := mask_documents(data.tokenizer, held_out, sequences, choose, MAX_INFILLS, SEED):
            infilling[task] = infill(model, data.tokenizer, documents, known, generator)
    return {
        "run": {key: results[key] for key in ("num_parameters", "steps", "tokens", "train_seconds", "hardware")},
        "loss_curve": results["loss_curve"],
        "documents": {
            "train": len(training),
            "held_out": len(held_out),
            "held_out_left_out": data.facts["validation"]["left_out_documents"],
        },
        "bits_per_byte": _score_model(model, data) | compression_bits_per_byte(training, held_out),
        "infilling": infilling,
        "samples": sample(model, data.tokenizer, known, NUM_SAMPLES, generator),
        "seed": SEED,
    }


def _score_model(model: AOGPTForAnyOrderLM, data: Data) -> dict[str, float | None]:
    """
    Return bits per byte on the held-out documents, left to right and in random orders.

    The random orders are those of the evaluations during training.
    """
    rows = data.validation.to_list()
    num_bytes = np.array([row["num_bytes"] for row in rows])
    bits = {}
    for order, nats in score_rows(model, rows, num_orders=1, seed=ORDER_SEED, batch_size=256).items():
        metrics = compute_metrics(nats, num_bytes, num_bytes)
        bits[order] = metrics["bits_per_byte"]
        bits[f"{order}_standard_error"] = metrics["bits_per_byte_standard_error"]
    return bits


def compression_bits_per_byte(training_documents: Iterable[str], held_out_documents: Iterable[str]) -> dict[str, float]:
    """
    Return the compressed size of the held-out documents in bits per byte.

    `zlib` (level 9) and `xz` (preset 9, extreme) compress only the held-out documents. For `xz_after_training`, xz
    compresses the training documents, with and without the held-out documents after them. The result is the difference
    in size. (xz finds repetitions only in the last 64 MiB of text.) As in the bits per byte of a model, the size of a
    document is its number of UTF-8 bytes plus 1 for a newline.
    """
    training, held_out = _join(training_documents), _join(held_out_documents)
    if not held_out:
        raise ValueError("There are no held-out documents to compress. Increase `validation_fraction`.")
    sizes = {
        "zlib": len(zlib.compress(held_out, 9)),
        "xz": _xz_size(held_out),
        "xz_after_training": _xz_size(training + held_out) - _xz_size(training),
    }
    return {name: 8 * size / len(held_out) for name, size in sizes.items()}


def _join(documents: Iterable[str]) -> bytes:
    return "".join(document + "\n" for document in documents).encode()


def _xz_size(data: bytes) -> int:
    return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def to_markdown(report: dict[str, Any]) -> str:
    """Return the text of quickstart.md."""
    run, documents, bits = report["run"], report["documents"], report["bits_per_byte"]
    names = {key: f"model, {name}" for key, name in ORDER_NAMES.items()} | BASELINES
    rows = [(name, with_error(bits[key], bits.get(f"{key}_standard_error"), 3)) for key, name in names.items()]
    generated = {
        "both words of LETTER _ WITH _": report["infilling"].get("letters"),
        "one or two words of a name": report["infilling"].get("words"),
        "whole names": report["samples"],
    }
    kinds = [
        (f"{name} ({group['count']})", *(f"{share:.1%}" for share in group["shares"].values()))
        for name, group in generated.items()
        if group
    ]
    infills = [
        "- " + example["before"].replace("_", "\\_") + f" → {mark_generated(example['after'])} ({example['kind']})"
        for group in report["infilling"].values()
        for example in group["examples"]
    ]
    samples = [f"- {make_printable(example['text'])} ({example['kind']})" for example in report["samples"]["examples"]]
    parts = [
        "# Report on the quickstart's model",
        f"The model has {run['num_parameters'] / 1e6:.1f} million parameters. It was trained for {run['steps']} steps "
        f"({run['tokens'] / 1e6:.1f} million tokens), which took {run['train_seconds'] / 60:.1f} minutes on "
        f"{run['hardware']['device_name']} with {run['hardware']['num_threads']} CPU thread(s). There are "
        f"{documents['train']} training names and {documents['held_out']} held-out names. "
        f"({documents['held_out_left_out']} more held-out names are longer than a sequence and were not used.)",
        "![Loss, bits per byte, infills and samples](quickstart.png)",
        markdown_table(["held-out names", "bits per byte"], rows, "lr"),
        "The next table shows how many of the generated texts are real names:",
        markdown_table(
            ["generated", "the original", "another held-out name", "a training name", "not a name"], kinds, "lrrrr"
        ),
        "The following are held-out names with masked words (one underscore per token). The words that the model "
        "filled in are bold. The result is in brackets: exact (the original), held_out (another held-out name), train "
        "(a training name), or new (not a name):",
        "\n".join(infills),
        "The following names were generated by the model:",
        "\n".join(samples),
    ]
    return "\n\n".join(parts) + "\n"


def mark_generated(words: list[tuple[str, bool]]) -> str:
    """
    Return words, given as (text, is_generated), as Markdown with the generated words in bold.

    The texts of words include spaces. If the model generated a word without a space before it, none is added.
    """
    text = ""
    for is_generated, group in groupby(words, key=itemgetter(1)):
        part = make_printable("".join(word for word, _ in group))
        if is_generated:
            word = part.strip()
            part = part.replace(word, f"**{word}**") if word else "**␣**"
        text += part
    return text.strip()


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(Arguments, description="Report on a small model of Unicode character names.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run of training/pretrain.py")
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
