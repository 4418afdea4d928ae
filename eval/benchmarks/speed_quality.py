# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Speed and quality of generation: seconds per sequence, and the perplexity and entropy of the same sequences.

    python eval/benchmarks/speed_quality.py MODEL [MODEL ...] --judge JUDGE --output_dir DIR [--steps 4 16 64]

The models are trained decoders, encoders or causal language models. A contender is a model with a way to generate.
Decoders and encoders generate with each number of --steps. Decoders also generate one token at a time, and by
speculative decoding. The contenders take turns, so that other load on the machine affects all of them. The judge is the
causal language model that computes the perplexity. The command writes speed_quality.json and speed_quality.png.
"""

import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.files import make_folder, write_json
from common.hardware import default_device, versions
from common.models import find_model, load_model, load_pretrained, longest_sequence, read_any_config
from common.reports import GREY, MARKERS, label_log_axis, markdown_table, save_figure, style_axes, with_error
from common.results import default_length
from eval.benchmarks.contenders import DECODERS, Contender, sample_causal_lm, sample_encoder
from eval.benchmarks.speed import describe_hardware, find_device, time_generation
from eval.estimates import ratio_with_error
from eval.judging import Judge, Sample, format_remarks, make_samples, short_name, unigram_entropy
from modeling_aogpt import AOGPTConfig, MDMEncoderConfig
from modeling_aogpt.tokenization import load_tokenizer
from modeling_aogpt.validation import check_choice

JUDGE_BATCH_SIZE = 16


@dataclass
class SpeedQualityArguments(Options):
    """Options of eval/benchmarks/speed_quality.py."""

    output_dir: Path = field(metadata={"help": "Folder for speed_quality.json and speed_quality.png."})
    judge: str = option("openai-community/gpt2-large", "Folder or Hub name of any causal language model.")
    steps: list[int] = option([4, 16, 64], "Numbers of steps of decoders and encoders.", least=1)
    contenders: list[str] = option(
        ["decoder", "one-by-one", "left-to-right", "speculative", "prompt-lookup"],
        f"Ways to generate with each decoder, some of {', '.join(DECODERS)}.",
    )
    reference: Path | None = option(None, "Folder of a training run. Its held-out text is judged too.")
    num_samples: int = option(64, "Number of sequences of each contender.", least=1)
    length: int | None = option(
        None, "Number of tokens per sequence. Defaults to the most for which all models were trained."
    )
    batch_size: int = option(1, "Number of sequences that are generated at once.", least=1)
    seed: int = option(0, "Seed of the samples.")
    dtype: Literal["float32", "bfloat16"] = option("float32", "Data type of the weights.")
    device: str = option(default_device().type, "Device to run on.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.contenders:
            check_choice("contenders", name, DECODERS)


@dataclass
class Point:
    """
    The measurements of one contender with one number of steps.

    Attributes:
        model: Name of the model.
        name: Name of the contender.
        num_steps: Number of steps, or None if the contender chooses the number itself.
        contender: The contender.
        tokenizer: Tokenizer of the model.
        seconds: Seconds of each round.
        counts: Number of sequences of each round.
        samples: All sequences that were generated so far.
    """

    model: str
    name: str
    num_steps: int | None
    contender: Contender
    tokenizer: PreTrainedTokenizerBase
    seconds: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def run(self, batch_size: int, length: int, device: torch.device) -> None:
        """Generate and time `batch_size` sequences."""
        seconds, ids = time_generation(self.contender, batch_size, length, self.num_steps or length, device)
        self.seconds.append(seconds)
        self.counts.append(batch_size)
        self.samples += make_samples(ids.tolist(), self.tokenizer)

    def seconds_per_sequence(self) -> float:
        """Return the median over the rounds with the most sequences. The last round may have fewer."""
        most = max(self.counts)
        full = [seconds for seconds, count in zip(self.seconds, self.counts, strict=True) if count == most]
        return statistics.median(full) / most


def load_points(name: str, arguments: SpeedQualityArguments, length: int, device: torch.device) -> list[Point]:
    """Load a model. Return a point, without measurements, for each of its contenders and numbers of steps."""
    config, dtype = read_any_config(name), getattr(torch, arguments.dtype)
    if isinstance(config, AOGPTConfig):
        model, tokenizer = load_model(name, dtype=dtype).to(device), load_tokenizer(name)
        if isinstance(config, MDMEncoderConfig):
            contenders = {"encoder": sample_encoder(model)}
        else:
            contenders = {contender: DECODERS[contender](model) for contender in arguments.contenders}
    else:
        model = load_pretrained(AutoModelForCausalLM, name, dtype=dtype).eval().to(device)
        tokenizer, (contender, *_) = AutoTokenizer.from_pretrained(name), sample_causal_lm("", model, length).values()
        contenders = {"causal LM": contender}
    steps = sorted({min(count, length) for count in arguments.steps})
    return [
        Point(name, key, count, contender, tokenizer)
        for key, contender in contenders.items()
        for count in (steps if contender.takes_steps else [None])
    ]


def compare(models: list[str], arguments: SpeedQualityArguments) -> dict[str, Any]:
    """Generate, time and judge the sequences of all contenders. Return the report."""
    device = find_device(arguments.device)
    length = choose_length(models, arguments.length)
    judge = Judge(find_model(arguments.judge), device)
    reference = read_reference(arguments, length) if arguments.reference else None
    points = [point for name in models for point in load_points(name, arguments, length, device)]
    torch.manual_seed(arguments.seed)
    for start in progress_bar(range(0, arguments.num_samples, arguments.batch_size), unit="round"):
        for point in points:
            point.run(min(arguments.batch_size, arguments.num_samples - start), length, device)
    return {
        "length": length,
        "judge": judge.name,
        "batch_size": arguments.batch_size,
        "hardware": describe_hardware(device),
        "versions": versions(),
        "reference": reference and judge_samples(*reference, judge),
        "points": [
            {
                "model": point.model,
                "contender": point.name,
                "num_steps": point.num_steps,
                "seconds": point.seconds_per_sequence(),
                "all_seconds": [seconds / count for seconds, count in zip(point.seconds, point.counts, strict=True)],
                **judge_samples(point.samples, point.tokenizer, judge),
            }
            for point in progress_bar(points, desc="Judging", unit="contender")
        ],
    }


def choose_length(models: list[str], length: int | None) -> int:
    """
    Return the number of tokens in a sequence. By default, it is the largest for which all models were trained.

    Raises:
        ValueError: If a model does not support `length`, or if `length` is None and no model has a maximum length.
    """
    configs = {name: read_any_config(name) for name in models}
    if length is None:
        lengths = [default_length(name, config) for name, config in configs.items()]
        length = min(filter(None, lengths), default=None)
    if length is None:
        raise ValueError("No model has a longest sequence in its configuration. Set `length`.")
    longest = min(filter(None, map(longest_sequence, configs.values())), default=length)
    if not 1 <= length <= longest:
        raise ValueError(f"`length` must be between 1 and {longest} for these models, but is {length}.")
    return length


def read_reference(arguments: SpeedQualityArguments, length: int) -> tuple[list[Sample], PreTrainedTokenizerBase]:
    """
    Return the first `length` tokens of held-out sequences of the training run `arguments.reference`, and its tokenizer.

    Raises:
        ValueError: If the sequences are shorter, so they cannot be compared with generated sequences.
    """
    from eval.benchmarks.study_scores import held_out_rows  # here, because it needs `datasets`

    rows = held_out_rows(arguments.reference, arguments.num_samples)["input_ids"]
    if (longest := max(map(len, rows))) < length:
        raise ValueError(
            f"The held-out sequences of {arguments.reference} have at most {longest} tokens, but `length` is {length}. "
            f"Set `length` to {longest} or less, or use another `reference`."
        )
    tokenizer = load_tokenizer(arguments.reference / "model")
    return make_samples([ids[:length] for ids in rows], tokenizer), tokenizer


def judge_samples(samples: list[Sample], tokenizer: PreTrainedTokenizerBase, judge: Judge) -> dict[str, Any]:
    """
    Return the perplexity of samples over all tokens, the mean entropy of a sample, and their standard errors.

    `unjudged` is the number of samples without a perplexity, because they have fewer than two tokens. `truncated` is
    the number of samples of which the judge reads only the first part.
    """
    judged = judge.perplexity(judge.encode(samples, tokenizer), JUDGE_BATCH_SIZE)
    entropies = np.array([unigram_entropy(sample.ids) for sample in samples])
    entropy, error = ratio_with_error(entropies, np.ones(len(samples)))
    return {
        "perplexity": judged["pooled"],
        "perplexity_error": judged["pooled_standard_error"],
        "unjudged": judged["unjudged"],
        "truncated": judged["truncated"],
        "entropy": entropy,
        "entropy_error": error,
    }


def format_table(report: dict[str, Any]) -> str:
    """Return a Markdown table with a line for each point, and for the held-out text if it was judged."""
    header = ["model", "contender", "steps", "seconds per sequence", "perplexity", "entropy"]
    rows = [
        (
            *(point["model"], point["contender"], str(point["num_steps"] or "own"), f"{point['seconds']:.3g}"),
            *_format_quality(point),
        )
        for point in report["points"]
    ]
    if report["reference"]:
        rows.append(("held-out text", "", "", "", *_format_quality(report["reference"])))
    return markdown_table(header, rows, "llrrrr")


def _format_quality(judged: dict[str, Any]) -> tuple[str, str]:
    perplexity, entropy = (with_error(judged[key], judged[f"{key}_error"], 2) for key in ("perplexity", "entropy"))
    return perplexity + format_remarks(judged), entropy


def draw(report: dict[str, Any], path: Path) -> None:
    """Plot perplexity and entropy against the seconds per sequence, with a line for each contender of each model."""
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    all_axes = figure.subplots(1, 2, sharex=True)
    models = {point["model"] for point in report["points"]}
    lines: dict[str, list[dict[str, Any]]] = {}
    for point in report["points"]:
        lines.setdefault(f"{short_name(point['model'], models)}: {point['contender']}", []).append(point)
    for axes, title, key in (
        (all_axes[0], f"perplexity of the samples by {short_name(report['judge'])}", "perplexity"),
        (all_axes[1], "unigram entropy of a sample (nats)", "entropy"),
    ):
        for index, (label, points) in enumerate(lines.items()):
            xs, ys = [point["seconds"] for point in points], [point[key] for point in points]
            errors = [point[f"{key}_error"] or 0 for point in points]
            style = {"color": colormaps["tab10"](index % 10), "marker": MARKERS[index % len(MARKERS)]}
            axes.errorbar(xs, ys, errors, **style, markersize=6, linewidth=1.3, label=label)
            for point, x, y in zip(points, xs, ys, strict=True):
                if point["num_steps"]:
                    axes.annotate(str(point["num_steps"]), (x, y), (3, 4), textcoords="offset points", fontsize=7)
        if report["reference"]:
            axes.axhline(report["reference"][key], color=GREY, linestyle=":", label="held-out text")
        axes.set(xscale="log", xlabel="seconds per sequence")
        label_log_axis(axes.xaxis)
        style_axes(axes, title)
    all_axes[0].set_yscale("log")
    label_log_axis(all_axes[0].yaxis)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(SpeedQualityArguments)
    parser.add_argument("models", nargs="+", help="Folders of models or runs, or Hub names.")
    arguments, others = parser.parse(argv)
    with make_folder(arguments.output_dir):  # first, so that a wrong folder is an error before the long measurements
        report = compare([find_model(name) for name in others.models], arguments)
    report = {"command": command_line(__file__, argv)} | report
    write_json(arguments.output_dir / "speed_quality.json", report)
    draw(report, arguments.output_dir / "speed_quality.png")
    print(format_table(report))


if __name__ == "__main__":
    main(sys.argv[1:])
