# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Report on a small model of Unicode character names: infills, samples, and bits per byte compared with compressors.

    python eval/benchmarks/quickstart_report.py RUN [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py with `packing=documents`, such as runs/quickstart. The
command writes report.json, quickstart.md and quickstart.png to --output_dir (by default the folder of the run), and
prints quickstart.md.
"""

import lzma
import random
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from common.commands import Parser, one_line_errors, option
from common.data import Data, load_data_of_run
from common.files import make_folder, write_json, write_text
from common.models import load_pretrained
from common.reports import BLUE, ORANGE, make_printable, markdown_table, save_figure, style_axes, with_error
from common.results import ORDER_SEED, read_finished_run
from common.tokenization import decode
from eval.estimates import bits_per_byte_over
from eval.journal import score_sequences
from eval.scorers import AnyOrderScorer
from modeling_aogpt import AOGPTForAnyOrderLM

NUM_SAMPLES = 1000
MAX_INFILLS = 500
NUM_EXAMPLES = 16
SEED = 0
BEFORE = 44  # width of the column with the masked names in the picture, in characters
PALE = "#d5d8dc"

# Bits per byte in the report: key in report.json, name, and color in the picture.
BITS_PER_BYTE = {
    "left_to_right": ("model, left to right", BLUE),
    "any_order": ("model, random orders", ORANGE),
    "xz_after_training": ("xz, after the training names", PALE),
    "xz": ("xz", PALE),
    "zlib": ("zlib", PALE),
}
# Kinds of generated texts: key in report.json, and name in the report.
KINDS = {
    "exact": "the original",
    "held_out": "another held-out name",
    "train": "a training name",
    "new": "not a name",
}


@dataclass
class Arguments:
    """Options of eval/benchmarks/quickstart_report.py."""

    output_dir: Path | None = option(None, "Folder for the report. Defaults to the folder of the run.")


# -------------------------------------------------------------------------------------------------------- measurements


def make_report(run: Path) -> dict[str, Any]:
    """Return the content of report.json: all results and examples of a finished run."""
    results = read_finished_run(run)
    if (packing := results["arguments"]["packing"]) != "documents":
        raise ValueError(
            f"The report needs a run with `packing=documents`, but {run} was trained with `packing={packing}`. Use a "
            "run with `packing=documents`."
        )
    data = load_data_of_run(run)
    training, held_out = (
        [decode(ids, data.tokenizer) for ids in split["input_ids"][:]] for split in (data.train, data.validation)
    )
    masked = mask_words(data.tokenizer, held_out, data.validation["input_ids"][:])[:MAX_INFILLS]
    if not masked:
        raise ValueError(
            f"The report needs held-out documents of at least three words, but none of the {len(held_out)} held-out "
            f"documents of {run} ({data.arguments.name}) has three words. Use a run on another corpus."
        )
    model = load_pretrained(AOGPTForAnyOrderLM, run / "model").eval()
    # Tokens are drawn one by one in random orders, at temperature 1 without truncation.
    generator = torch.Generator().manual_seed(SEED)
    infills = model.generate(torch.tensor([document["ids"] for document in masked]), generator=generator)
    samples = model.generate(
        max_length=data.arguments.sequence_length, num_return_sequences=NUM_SAMPLES, generator=generator
    )
    return {
        "run": {key: results[key] for key in ("num_parameters", "steps", "tokens", "train_seconds", "hardware")},
        "loss_curve": results["loss_curve"],
        "documents": {
            "train": len(training),
            "held_out": len(held_out),
            "held_out_left_out": data.facts["validation"]["left_out_documents"],
        },
        "bits_per_byte": _score_model(model, data) | compression_bits_per_byte(training, held_out),
        "infills": classify(infills, data.tokenizer, training, held_out, masked),
        "samples": classify(samples, data.tokenizer, training, held_out, [{}] * NUM_SAMPLES),
        "seed": SEED,
    }


def mask_words(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], sequences: Sequence[list[int]]
) -> list[dict[str, Any]]:
    """
    Mask one or two random words in each text of at least three words. Leave out shorter texts.

    `sequences` contains the token ids of the texts. Return a dictionary for each text: `original` is the text, `before`
    the text with an underscore for each masked token, and `ids` its token ids with masks.
    """
    rng, masked = random.Random(SEED), []
    for text, ids in zip(texts, sequences, strict=True):
        words = text.split(" ")
        if len(words) < 3:
            continue
        chosen = rng.sample(range(len(words)), rng.choice((1, 2)))
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        word_indices = [text[:end].count(" ") for _, end in offsets]
        is_masked = [index in chosen for index in word_indices] + [False] * (len(ids) - len(word_indices))
        for index in chosen:
            words[index] = "_" * word_indices.count(index)
        with_masks = [tokenizer.mask_token_id if mask else id for id, mask in zip(ids, is_masked, strict=True)]
        masked.append({"original": text, "before": " ".join(words), "ids": with_masks})
    return masked


def classify(
    sequences: torch.LongTensor,
    tokenizer: PreTrainedTokenizerBase,
    training: Iterable[str],
    held_out: Iterable[str],
    inputs: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """
    Compare generated sequences with the documents of the corpus.

    `inputs` contains a result of `mask_words`, or an empty dictionary, for each sequence. Return the number of
    sequences (`count`), the fraction of each kind (`shares`), and the first sequences as text with their kinds
    (`examples`).
    """
    held_out, training, examples = set(held_out), set(training), []
    for ids, given in zip(sequences.tolist(), inputs, strict=True):
        text = decode(ids, tokenizer)
        is_original = text == given.get("original")
        kind = "exact" if is_original else "held_out" if text in held_out else "train" if text in training else "new"
        examples.append({"before": given.get("before"), "text": make_printable(text), "kind": kind})
    kinds = [example["kind"] for example in examples]
    shares = {kind: kinds.count(kind) / len(kinds) for kind in KINDS}
    return {"count": len(kinds), "shares": shares, "examples": examples[:NUM_EXAMPLES]}


def _score_model(model: AOGPTForAnyOrderLM, data: Data) -> dict[str, float | None]:
    """
    Return bits per byte on the held-out documents, left to right and in random orders.

    The random orders are those of the evaluations during training.
    """
    rows = data.validation.to_list()
    num_bytes = np.array([row["num_bytes"] for row in rows])
    bits, scorer = {}, AnyOrderScorer(model)
    for order in ("left_to_right", "any_order"):
        nats = score_sequences(scorer, [row["input_ids"] for row in rows], order, 1, ORDER_SEED, 256)
        metrics = bits_per_byte_over(nats, num_bytes)
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


# -------------------------------------------------------------------------------------------------- table and picture


def to_markdown(report: dict[str, Any]) -> str:
    """Return the text of quickstart.md."""
    run, documents, bits = report["run"], report["documents"], report["bits_per_byte"]
    infills, samples = report["infills"], report["samples"]
    rows = [
        (name, with_error(bits[key], bits.get(f"{key}_standard_error"), 3)) for key, (name, _) in BITS_PER_BYTE.items()
    ]
    kinds = [
        (f"{name} ({group['count']})", *(f"{share:.1%}" for share in group["shares"].values()))
        for name, group in (("one or two words of a name", infills), ("whole names", samples))
    ]
    parts = [
        "# Report on the quickstart's model",
        f"The model has {run['num_parameters'] / 1e6:.1f} million parameters. It was trained for {run['steps']} steps "
        f"({run['tokens'] / 1e6:.1f} million tokens), which took {run['train_seconds'] / 60:.1f} minutes on "
        f"{run['hardware']['device_name']} with {run['hardware']['num_threads']} CPU thread(s). There are "
        f"{documents['train']} training names and {documents['held_out']} held-out names. "
        f"({documents['held_out_left_out']} more held-out names are longer than a sequence and were not used.)",
        "![Loss, bits per byte, infills and samples](quickstart.png)",
        markdown_table(["held-out names", "bits per byte ± standard error"], rows, "lr"),
        "The next table shows how many of the generated texts are real names:",
        markdown_table(["generated", *KINDS.values()], kinds, "lrrrr"),
        "The following are held-out names with masked words (one underscore per token), as the model filled them in:",
        "\n".join(
            f"- {example['before']} → {example['text']} ({KINDS[example['kind']]})".replace("_", "\\_")
            for example in infills["examples"]
        ),
        "The following names were generated by the model:",
        "\n".join(f"- {example['text']} ({KINDS[example['kind']]})" for example in samples["examples"]),
    ]
    return "\n\n".join(parts) + "\n"


def draw_report(report: dict[str, Any], path: Path) -> None:
    """Draw the loss, the bits per byte, and the first infills and samples. A check mark (✓) stands for a real name."""
    figure = Figure(figsize=(12, 7.7), facecolor="white")
    _draw_loss(figure.add_axes((0.055, 0.625, 0.37, 0.30)), report)
    _draw_bits_per_byte(figure.add_axes((0.65, 0.58, 0.30, 0.345)), report["bits_per_byte"])
    infills, samples = report["infills"], report["samples"]
    _draw_texts(
        figure.add_axes((0.03, 0.015, 0.64, 0.435)),
        "Held-out names with masked words (_ per token), filled in\n"
        f"✓ real name: {infills['shares']['exact']:.0%} the original, {_share_of_names(infills):.0%} another",
        [f"{example['before']:<{BEFORE}}{_mark_name(example)}" for example in infills["examples"]],
    )
    _draw_texts(
        figure.add_axes((0.70, 0.015, 0.29, 0.435)),
        f"Generated names\n✓ real name: {_share_of_names(samples):.0%} of {samples['count']}",
        [_mark_name(example) for example in samples["examples"]],
    )
    save_figure(figure, path)


def _draw_loss(axes: Axes, report: dict[str, Any]) -> None:
    curve, run = report["loss_curve"], report["run"]
    axes.plot(curve["step"], curve["loss"], color=BLUE, linewidth=1.4)
    axes.set(xlabel="step", ylabel="nats per token", xlim=(0, run["steps"]), ylim=(0, None))
    size = f"{run['num_parameters'] / 1e6:.1f} M parameters, {run['train_seconds'] / 60:.1f} minutes"
    style_axes(axes, f"Training loss ({size})")


def _draw_bits_per_byte(axes: Axes, bits: dict[str, float]) -> None:
    names, colors = zip(*BITS_PER_BYTE.values(), strict=True)
    bars = axes.barh(names, [bits[key] for key in BITS_PER_BYTE], color=colors, height=0.72)
    axes.bar_label(bars, fmt="%.2f", padding=4)
    axes.invert_yaxis()
    axes.set_title("Bits per byte of held-out names", loc="left", fontsize=11)
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)


def _draw_texts(axes: Axes, title: str, lines: list[str]) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_axis_off()
    style = {"family": "DejaVu Sans Mono", "fontsize": 9, "linespacing": 1.45, "parse_math": False}
    width = round(138 * axes.get_position().width)  # as many characters as fit
    lines = [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]
    axes.text(0, 1, "\n".join(lines), va="top", **style)


def _mark_name(example: dict[str, Any]) -> str:
    return example["text"] + (" ✓" if example["kind"] != "new" else "")


def _share_of_names(group: dict[str, Any]) -> float:
    return group["shares"]["held_out"] + group["shares"]["train"]


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(Arguments, description="Report on a small model of Unicode character names.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run of training/pretrain.py")
    arguments, others = parser.parse(argv)
    folder = arguments.output_dir or others.run
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    with make_folder(folder):  # first, so that a wrong folder is an error before the long measurements
        report = make_report(others.run)
    draw_report(report, folder / "quickstart.png")
    write_text(folder / "quickstart.md", to_markdown(report))
    write_json(folder / "report.json", report)
    print(to_markdown(report))
    print(f"Written: {folder}/report.json, quickstart.md, quickstart.png")


if __name__ == "__main__":
    main(sys.argv[1:])
