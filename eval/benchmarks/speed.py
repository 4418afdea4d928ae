# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Time of generation: the decoder, its ablations, encoders, causal language models, and your own sampler.

    python eval/benchmarks/speed.py [--steps 16 128 1024] [--batch_size 1 8 32] [--contenders decoder encoder ...]
        [--output_dir DIR]

All contenders are measured in one run. They take turns, so that other load on the machine affects all of them. Without
--model, weights are random. With --output_dir, the command writes speed.json, speed.md and speed.png (like Figure 5 of
the paper). The files are updated after every round, so an interrupted run keeps its results.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any, Literal

import torch

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.files import make_folder
from common.hardware import default_device, device_name, num_cores, versions
from eval.benchmarks.contenders import CONTENDERS, Contender, make_contenders
from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM
from modeling_aogpt.loading import find_device, find_model, load_pretrained
from modeling_aogpt.validation import check_choice, check_integer

SIZES = {
    "tiny": {"vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "small": {},
    "medium": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}
SIZES["tiny"]["max_position_embeddings"] = 64


@dataclass
class SpeedArguments(Options):
    """Options of eval/benchmarks/speed.py."""

    model: str | None = option(None, "Folder or Hub name of a decoder. Defaults to --size with random weights.")
    size: Literal["tiny", "small", "medium"] = option("small", "Model size: the paper's small or medium, or tiny.")
    length: int | None = option(None, "Number of tokens in a sequence. Defaults to the model's maximum.")
    steps: list[int] = option([16, 32, 64, 128], "Numbers of steps, limited to the number of tokens.", least=1)
    batch_size: list[int] = option([1], "Numbers of sequences that are generated at once.", least=1)
    contenders: list[str] = option(
        ["no-lemma", "no-cache", "encoder"],
        f"Contenders to time, in addition to decoder and one-by-one: all, none, or some of {', '.join(CONTENDERS)}, "
        "folders or Hub names (owner/name) of causal language models, and your own samplers as module:function (see "
        "`make_contenders`).",
    )
    repeats: int = option(2, "Number of rounds. In each round, every contender generates once.", least=1)
    dtype: Literal["float32", "bfloat16"] = option("float32", "Data type of weights and cache.")
    device: str = option(default_device().type, "Device to run on.")
    compile: bool = option(False, "Compile the decoder, encoders, and causal language models.")
    output_dir: Path | None = option(None, "Folder for speed.json, .md and .png. By default, results are only printed.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.size != SpeedArguments.size:
            raise ValueError(f"`size` ({self.size}) has no effect with `model` ({self.model}). Remove one of the two.")
        chosen = {("all",): CONTENDERS, ("none",): ()}.get(tuple(self.contenders), self.contenders)
        for name in chosen:
            if ":" not in name and "/" not in name and not Path(name).is_dir():
                check_choice("contenders", name, CONTENDERS, " (or only all or none)")
        # All other contenders are compared with one of these two, so both are always included.
        self.contenders = list(dict.fromkeys(("decoder", "one-by-one", *chosen)))


def measure(
    arguments: SpeedArguments, command: str, save: Callable[[dict[str, Any]], None] = lambda report: None
) -> dict[str, Any]:
    """Make all measurements, and return the report. After each round, `save` is called with the report so far."""
    device = find_device(arguments.device)
    model = load_decoder(arguments, device)
    longest = model.config.max_position_embeddings
    length = longest if arguments.length is None else arguments.length
    check_integer("length", length, most=longest)
    contenders = make_contenders(arguments.contenders, model, length, arguments.compile)
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


def load_decoder(arguments: SpeedArguments, device: torch.device) -> AOGPTForAnyOrderLM:
    """Return the decoder, with random weights unless `model` is set, on a device."""
    torch.manual_seed(0)
    if arguments.model is None:
        with device:  # a GPU draws random weights much faster than a CPU
            model = AOGPTForAnyOrderLM(AOGPTConfig(**SIZES[arguments.size]))
    else:
        model = load_pretrained(AOGPTForAnyOrderLM, find_model(arguments.model))
    model = model.eval().to(device, getattr(torch, arguments.dtype))
    if arguments.compile:
        model.model.compile()
    return model


def time_contenders(
    contenders: dict[str, Contender], arguments: SpeedArguments, batch_size: int, length: int, device: torch.device
) -> Iterator[list[dict[str, Any]]]:
    """Time all contenders at one batch size. After each round, yield the measurements of all rounds so far."""
    steps = sorted({min(count, length) for count in arguments.steps})
    # Times for the same number of steps are compared, so they are measured one after another.
    seconds: dict[tuple[str, int | None], list[float]] = {
        (name, num_steps): []
        for num_steps in (*steps, None)
        for name, contender in contenders.items()
        if contender.takes_steps == (num_steps is not None)
    }
    # A CPU needs only a few tokens to warm up. Accelerators and torch.compile load or compile kernels for every shape,
    # so they need a complete generation. The second generation of a compiled model records CUDA graphs.
    needs_full_warm_up = arguments.compile or device.type != "cpu"
    for name, num_steps in [*seconds] * (2 if arguments.compile else 1):
        warm_up = (length, num_steps or length) if needs_full_warm_up else (min(length, 8), 1)
        contenders[name].sample(batch_size, *warm_up)
    for _ in range(arguments.repeats):
        for (name, num_steps), times in progress_bar(seconds.items(), desc=f"batch {batch_size}", unit="generation"):
            times.append(time_generation(contenders[name], batch_size, length, num_steps or length, device))
        yield [
            {
                "contender": name,
                "batch_size": batch_size,
                "num_steps": num_steps,
                "seconds": min(times),
                "all_seconds": list(times),
                # Median over rounds: the time of this contender, divided by that of the decoder or of one-by-one.
                "ratio": statistics.median(map(truediv, times, references)),
            }
            for (name, num_steps), times in seconds.items()
            for references in [seconds["decoder" if num_steps else "one-by-one", num_steps]]
        ]


def time_generation(contender: Contender, batch_size: int, length: int, num_steps: int, device: torch.device) -> float:
    """Return the time in seconds of a generation, including the check of its ids."""
    synchronize(device)
    start = time.perf_counter()
    contender.sample(batch_size, length, num_steps)
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has finished its queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def describe_hardware(device: torch.device) -> dict[str, Any]:
    """Return the names of the CPU and the GPU, and the cores, threads and vector instructions of the CPU."""
    facts = {"cpu": device_name(torch.device("cpu")), "cores": num_cores(), "threads": torch.get_num_threads()}
    facts["capability"] = torch.backends.cpu.get_cpu_capability()
    return facts | ({"gpu": device_name(device)} if device.type == "cuda" else {})


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    from eval.benchmarks.speed_report import to_markdown, write_report  # needs matplotlib, unlike the measurements

    (arguments,) = Parser(SpeedArguments).parse(argv)

    def save(report: dict[str, Any]) -> None:
        if arguments.output_dir is not None:
            write_report(report, arguments.output_dir)

    with make_folder(arguments.output_dir) if arguments.output_dir else nullcontext():
        report = measure(arguments, command_line(__file__, argv), save)
    print(to_markdown(report))


if __name__ == "__main__":
    main(sys.argv[1:])
