# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Time of generation: the decoder, its ablations, encoders, causal language models, and your own sampler.

    python eval/benchmarks/speed.py [--steps 16 128 1024] [--batch_size 1 8 32] [--contenders decoder encoder ...]
        [--output_dir DIR]

All contenders are measured in one run. They take turns, so that other load on the machine affects all of them. Without
--model, weights are random. With --output_dir, the command writes speed.json, speed.md and speed.png (like Figure 5 of
the paper). The files are updated after every round, so an interrupted run keeps its results.
"""

import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator
from rich.console import Console
from rich.markdown import Markdown
from tqdm import tqdm

from common.commands import Options, Parser, one_line_errors, option
from common.files import write_json, write_text
from common.hardware import num_cores, versions
from common.models import find_model, load_pretrained
from common.reports import MARKERS, markdown_table, save_figure, style_axes
from eval.benchmarks.contenders import CONTENDERS, Contender, make_compared, make_contenders
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM

SIZES = {
    "tiny": {"vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "small": {},
    "medium": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}
SIZES["tiny"]["max_position_embeddings"] = 64

RANDOM_WEIGHTS = (
    "All weights are random. This does not change the time of a pass, but it changes how many drafts are accepted, so "
    "speculative decoding and prompt lookup take other times with trained models. "
)

Seconds = dict[tuple[str, int], list[float]]  # key: contender and number of steps; value: seconds by round


@dataclass
class SpeedArguments(Options):
    """Options of eval/benchmarks/speed.py."""

    model: str | None = option(None, "Folder or Hub name of a decoder. Defaults to random weights, with the --size.")
    size: Literal["tiny", "small", "medium"] = option(
        "small", "Model size: the paper's small and medium, or a tiny one."
    )
    length: int | None = option(None, "Number of tokens in a sequence. Defaults to the model's maximum.")
    steps: list[int] = option([16, 64], "Numbers of steps, limited to the number of tokens.", least=1)
    batch_size: list[int] = option([1], "Numbers of sequences that are generated at once.", least=1)
    contenders: list[str] = option(
        ["no-lemma", "no-cache", "encoder"],
        f"Contenders to time, in addition to decoder and one-by-one: all, none, or some of {', '.join(CONTENDERS)}.",
    )
    causal_lm: str | None = option(None, "Also time a causal LM: folder or Hub name, or model type (random weights).")
    compare: str | None = option(None, "Also time your own sampler, module:function (see `make_compared`).")
    repeats: int = option(2, "Number of rounds. In each round, every contender generates once.", least=1)
    dtype: Literal["float32", "bfloat16"] = option("float32", "Data type of weights and cache.")
    device: str = option("cuda" if torch.cuda.is_available() else "cpu", "Device to run on.")
    compile: str | None = option(
        None, "Mode of torch.compile, such as default, for the decoder, encoders, and causal LMs with a static cache."
    )
    threads: int | None = option(None, "Number of CPU threads. Defaults to PyTorch's choice.", least=1)
    output_dir: Path | None = option(
        None, "Folder for speed.json, speed.md and speed.png. By default, results are only printed."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.size != SpeedArguments.size:
            raise ValueError(f"`size` ({self.size}) has no effect with `model` ({self.model}). Remove one of the two.")
        usable = [name for name in CONTENDERS if name != "plain-products" or self.device.startswith("cpu")]
        chosen = {"all": usable, "none": []}.get(self.contenders[0], self.contenders)
        if unknown := sorted(set(chosen) - set(CONTENDERS)):
            raise ValueError(
                f"`contenders` must be among {', '.join(CONTENDERS)}, or be all or none, but contains "
                f"{', '.join(unknown)}. Remove the unknown names."
            )
        # All others are compared with one of these two, so both are always included.
        self.contenders = list(dict.fromkeys(("decoder", "one-by-one", *chosen)))


def measure(
    arguments: SpeedArguments, command: str, save: Callable[[dict[str, Any]], None] = lambda report: None
) -> dict[str, Any]:
    """Make all measurements, and return the report. After each round, `save` is called with the report so far."""
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    device, dtype = find_device(arguments.device), getattr(torch, arguments.dtype)
    torch.manual_seed(0)
    if arguments.model is None:
        model = AOGPTForAnyOrderLM(AOGPTConfig(**SIZES[arguments.size]))
    else:
        model = load_pretrained(AOGPTForAnyOrderLM, find_model(arguments.model))
    model = model.eval().to(device, dtype)
    longest = model.config.max_position_embeddings
    length = longest if arguments.length is None else arguments.length
    if not 1 <= length <= longest:
        raise ValueError(f"`length` must be between 1 and {longest} (`max_position_embeddings`), but is {length}.")

    contenders = _make_contenders(arguments, model, length)
    report = {
        "command": command,
        "hardware": describe_hardware(device),
        "versions": versions(),
        "dtype": arguments.dtype,
        "length": length,
        "model": arguments.model,
        "contenders": {
            name: {"num_parameters": contender.num_parameters, "remark": contender.remark}
            for name, contender in contenders.items()
        },
        "points": [],
    }
    for batch_size in arguments.batch_size:
        finished = report["points"]
        for points in time_contenders(contenders, arguments, batch_size, length, device):
            report["points"] = finished + points
            save(report)
    return report


def find_device(name: str) -> torch.device:
    """Return a device of this machine. Raise a `ValueError` if there is no such device."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
        raise ValueError(
            f"`device` ({name}) does not exist. Set it to cpu, or to an accelerator such as cuda. (Cause: {error})"
        ) from error


def _make_contenders(arguments: SpeedArguments, model: AOGPTForAnyOrderLM, length: int) -> dict[str, Contender]:
    if arguments.compile is not None:
        try:
            model.model.compile(mode=arguments.compile)
        except RuntimeError as error:
            raise ValueError(
                f"`compile` ({arguments.compile}) cannot be used. Set it to a mode such as default. (Cause: {error})"
            ) from error
    names = arguments.contenders + ([arguments.causal_lm] if arguments.causal_lm else [])
    contenders = make_contenders(names, model, length, arguments.compile)
    if arguments.compare is not None:
        contenders[arguments.compare] = make_compared(arguments.compare, model.config, model.device, model.dtype)
    return contenders


def time_contenders(
    contenders: dict[str, Contender], arguments: SpeedArguments, batch_size: int, length: int, device: torch.device
) -> Iterator[list[dict[str, Any]]]:
    """Time all contenders at one batch size. After each round, yield the measurements of all rounds so far."""
    steps = sorted({min(count, length) for count in arguments.steps})
    seconds: Seconds = {
        (name, count): []
        for name, contender in contenders.items()
        for count in (steps if contender.takes_steps else [length])
    }
    # A CPU needs only a few tokens to warm up. Accelerators and torch.compile load or compile kernels for every shape,
    # so they need a complete generation.
    needs_full_warm_up = arguments.compile is not None or device.type != "cpu"
    jobs = sorted(seconds, key=lambda job: job[1])  # times of equal steps are compared, so measure them in a row
    for name, count in jobs:
        warm_up = (length, count) if needs_full_warm_up else (min(length, 8), 1)
        contenders[name].sample(batch_size, *warm_up)
    for _ in range(arguments.repeats):
        for name, count in tqdm(jobs, desc=f"batch {batch_size}", unit="generation"):
            seconds[name, count].append(time_generation(contenders[name], batch_size, length, count, device)[0])
        yield _make_points(contenders, seconds, steps, length, batch_size)


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has finished its queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def time_generation(
    contender: Contender, batch_size: int, length: int, num_steps: int, device: torch.device
) -> tuple[float, torch.LongTensor]:
    """Return the seconds that a generation and the check of its ids take, and the ids."""
    synchronize(device)
    start = time.perf_counter()
    ids = contender.sample(batch_size, length, num_steps)
    synchronize(device)
    return time.perf_counter() - start, ids


def _make_points(
    contenders: dict[str, Contender], seconds: Seconds, steps: list[int], length: int, batch_size: int
) -> list[dict[str, Any]]:
    """Return the times of all contenders at one batch size, and their ratios to those of decoder or one-by-one."""
    points = []
    for num_steps in (*steps, None):
        for name, contender in contenders.items():
            if contender.takes_steps == (num_steps is None):
                continue
            times = seconds[name, num_steps or length]
            reference = seconds["one-by-one" if num_steps is None else "decoder", num_steps or length]
            points.append(
                {
                    "contender": name,
                    "batch_size": batch_size,
                    "num_steps": num_steps,
                    "seconds": min(times),
                    "all_seconds": list(times),
                    "ratio": statistics.median(one / other for one, other in zip(times, reference, strict=True)),
                }
            )
    return points


def describe_hardware(device: torch.device) -> dict[str, Any]:
    """Return the names of the CPU and the GPU, and the cores, threads and vector instructions of the CPU."""
    facts = {"cpu": _cpu_name(), "cores": num_cores(), "threads": torch.get_num_threads()}
    facts["capability"] = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


# --------------------------------------------------------------------------------------------------------------- report


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write speed.json, speed.md and speed.png."""
    write_json(folder / "speed.json", report)
    write_text(folder / "speed.md", to_markdown(report) + "\n")
    _plot_speed(report["points"], report["length"], folder / "speed.png")


def to_markdown(report: dict[str, Any]) -> str:
    """Return the text of speed.md."""
    hardware = ", ".join(f"{name} {value}" for name, value in report["hardware"].items())
    packages = ", ".join(f"{name} {report['versions'][name]}" for name in ("torch", "transformers", "python"))
    contenders = [
        (name, "" if facts["num_parameters"] is None else f"{facts['num_parameters'] / 1e6:.1f} M", facts["remark"])
        for name, facts in report["contenders"].items()
    ]
    rows = [
        (
            *(str(point["batch_size"]), str(point["num_steps"] or "own"), point["contender"]),
            *(f"{point['seconds']:.3g}", f"{point['ratio']:.2f}"),
        )
        for point in report["points"]
    ]
    parts = [
        "# Speed of generation",
        f"Every contender generated {report['length']} tokens per sequence in {report['dtype']}. "
        f"{RANDOM_WEIGHTS if report['model'] is None else ''}Machine and libraries: {hardware}; {packages}.",
        f"```bash\n{report['command']}\n```",
        markdown_table(["contender", "parameters", "what it does"], contenders, "lrl"),
        "The contenders took turns. The seconds are those of the fastest round. The ratio is the time divided by the "
        "time of the decoder with the same number of steps (median over rounds). For contenders that choose their "
        "number of steps themselves, it is the time divided by the time of one-by-one. Not all contenders sample from "
        "the same distribution: with a given number of steps, the tokens of a step are drawn independently, and causal "
        "language models can only sample left to right.",
        markdown_table(["batch", "steps", "contender", "seconds", "ratio"], rows, "rrlrr"),
    ]
    return "\n\n".join(parts)


def _plot_speed(points: list[dict[str, Any]], length: int, path: Path) -> None:
    """
    Plot time against the number of steps, with a panel for each batch size.

    Contenders that choose their number of steps themselves are horizontal lines.
    """
    batch_sizes = sorted({point["batch_size"] for point in points})
    figure = Figure(figsize=(4.4 + 4 * len(batch_sizes), 5), layout="constrained")
    all_axes = figure.subplots(1, len(batch_sizes), squeeze=False, sharey=True)[0]
    names = list(dict.fromkeys(point["contender"] for point in points))
    for axes, batch_size in zip(all_axes, batch_sizes, strict=True):
        panel = [point for point in points if point["batch_size"] == batch_size]
        for index, name in enumerate(names):
            color, marker = colormaps["tab20"](index), MARKERS[index % len(MARKERS)]
            line = {point["num_steps"]: point["seconds"] for point in panel if point["contender"] == name}
            if None in line:
                axes.axhline(line[None], color=color, linestyle="--", linewidth=1.2, label=name)
            else:
                axes.plot(list(line), list(line.values()), color=color, marker=marker, markersize=5, label=name)
        steps = sorted({point["num_steps"] for point in panel if point["num_steps"]})
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        axes.set(xscale="log", yscale="log", xlabel="steps")
        axes.set_xticks(steps, [str(count) for count in steps])
        axes.xaxis.set_minor_locator(NullLocator())
        style_axes(axes, f"batch {batch_size}, {length} tokens")
    all_axes[0].set_ylabel("seconds")
    handles, labels = all_axes[0].get_legend_handles_labels()
    title = "dashed: chooses its number of steps"
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8, title=title, title_fontsize=7)
    save_figure(figure, path)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    (arguments,) = Parser(SpeedArguments).parse(argv)

    def save(report: dict[str, Any]) -> None:
        if arguments.output_dir is not None:
            write_report(report, arguments.output_dir)

    report = measure(arguments, shlex.join(["python", "eval/benchmarks/speed.py", *argv]), save)
    Console().print(Markdown(to_markdown(report)))


if __name__ == "__main__":
    main(sys.argv[1:])
